"""The environment: what a run was computed on, and nothing about whose machine it was."""

from __future__ import annotations

import getpass
import json
import platform
import subprocess
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from eyas.environment import FILE, cpu_model, environment, source_commit, write_environment


def test_it_names_versions_and_machine(tmp_path):
    found = json.loads(write_environment(tmp_path, ["eyas", "train"]).read_text())
    assert (tmp_path / FILE).is_file()
    assert found["packages"]["torch"] == torch.__version__
    assert {"numpy", "safetensors", "transformers"} <= set(found["packages"])
    assert found["python"] == platform.python_version()
    assert found["threads"] == torch.get_num_threads()
    assert found["logical_cpus"] >= (found["cores"] or 1) >= 1
    assert found["memory_bytes"] > 1 << 28
    assert found["command"] == ["eyas", "train"]


def test_it_does_not_tell_whose_machine_it_is():
    secrets = {"host": platform.node(), "user": f"/home/{getpass.getuser()}", "home": str(Path.home())}
    command = [f"{Path.home()}/bin/eyas", "--chats", "~/data", "--server", f"http://{platform.node()}:30000/v1"]
    text = json.dumps(environment(command), ensure_ascii=False)
    assert {name for name, secret in secrets.items() if secret and secret in text} == set()
    assert str(Path(__file__).parent) not in text


@pytest.mark.parametrize(
    ("word", "told"),
    [
        ("train", "train"),
        ("--seed=3", "--seed=3"),
        ("builtin:smollm2-135m", "builtin:smollm2-135m"),
        ("HuggingFaceTB/SmolLM2-135M", "HuggingFaceTB/SmolLM2-135M"),
        ("1e-4", "1e-4"),
        ("/data/someone/chats.jsonl", "…/chats.jsonl"),
        ("--chats=/data/someone/chats.jsonl", "--chats=…/chats.jsonl"),
        ("../someone/run/", "…/run"),
        ("~/run", "…/run"),
        ("~someone", "…"),
        (".", "…"),
        ("/", "…"),
        (r"C:\Users\someone\run", "…/run"),
        ("C:/Users/someone/run", "…/run"),
        ("--server=https://someone:secret@host:1/v1", "--server=https://…"),
    ],
)
def test_a_word_of_the_command_line(word, told):
    assert environment([word])["command"] == [told]


def test_a_relative_path_that_is_there_and_the_users_own_folder(tmp_path, monkeypatch):
    (tmp_path / "someone" / "chats").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(getpass, "getuser", lambda: "someone")
    assert environment(["someone/chats", "/home/someone"])["command"] == ["…/chats", "…"]


@given(st.lists(st.from_regex(r"[a-z0-9 ]{1,8}", fullmatch=True), min_size=2, max_size=5))
def test_of_an_absolute_path_only_the_last_part_is_told(parts):
    from eyas.environment import _without_places

    assert _without_places("/" + "/".join(parts)) in (f"…/{parts[-1]}", "…")


def test_the_processors_name(tmp_path):
    info = tmp_path / "cpuinfo"
    info.write_text("processor\t: 0\nmodel name\t: Fast Chip 9 \nflags\t: x\n")
    assert cpu_model(info) == "Fast Chip 9"
    info.write_text("Features\t: fp asimd\n")
    assert cpu_model(info) == (platform.processor() or None)


def git(folder, *arguments):
    names = ("-c", "user.name=a", "-c", "user.email=a@example.org")
    return subprocess.run(["git", *names, *arguments], cwd=folder, check=True, capture_output=True, text=True).stdout


def test_the_commit_of_the_sources_and_no_other(tmp_path, monkeypatch):
    package = tmp_path / "package"
    package.mkdir()
    (package / "__init__.py").write_text("x = 1\n")
    assert source_commit(package) is None
    git(tmp_path, "init", "-q")
    git(tmp_path, "commit", "-q", "--allow-empty", "-m", "someone else's project")
    assert source_commit(package) is None, "the package only lies inside it"
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-q", "-m", "now it is held")
    commit = git(tmp_path, "rev-parse", "HEAD").strip()
    assert source_commit(package) == commit
    (package / "__init__.py").write_text("x = 2\n")
    assert source_commit(package) == f"{commit}+changed"
    monkeypatch.setenv("PATH", str(tmp_path))
    assert source_commit(package) is None, "without git nothing is known"
