"""``eyas regen`` as a user types it: on the tiny target, against a server, and killed again and again."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from eyas import cli
from eyas.corpus.chats import read_chats
from eyas.testing import TINY_PROMPTS, tiny_pair
from eyas.testing.fake_openai import FakeOpenAI

Run = Callable[..., tuple[int, str, str]]
TARGET = str(tiny_pair()[0])


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Run:
    """Run ``eyas regen …`` in this process → (exit code, stdout, stderr)."""
    monkeypatch.setenv("EYAS_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("COLUMNS", "160")

    def call(*words: object) -> tuple[int, str, str]:
        monkeypatch.setattr("sys.argv", ["eyas", "regen", *map(str, words)])
        with pytest.raises(SystemExit) as ended:
            cli.main()
        out, err = capsys.readouterr()
        code = ended.value.code
        return (0 if code is None else int(code)), out, err

    return call


def prompt_file(folder: Path, count: int, *more: str) -> Path:
    path = folder / "prompts.jsonl"
    lines = [
        json.dumps({"id": f"p{i}", "prompt": f"{text} {i}", "category": "ab"[i % 2]})
        for i, text in enumerate(TINY_PROMPTS * (count // len(TINY_PROMPTS) + 1))
    ]
    path.write_text("\n".join([*lines[:count], *more]) + "\n")
    return path


def words(folder: Path, out: str = "out") -> list[object]:
    return ["--out", folder / out, "--model", TARGET, "--avoid", "none", "--max-new-tokens", 100]


def test_chats_and_a_report_come_out(run: Run, tmp_path: Path) -> None:
    prompts = prompt_file(tmp_path, 8, json.dumps({"id": "long", "prompt": "fox " * 3000}))
    mix = ("--temperatures", "0,1.0", "--top-p", "0.95")
    code, out, err = run(prompts, *words(tmp_path), *mix, "--json")
    assert code == 0, err
    report = json.loads(out)
    assert report["wanted"] == 18
    assert report["left_out"]["too-long"]["chats"] == 2
    assert report["chats"] == 16
    assert set(report["temperatures"]) == {"0", "1"}
    assert set(report["identity"]["source"]) == {
        "kind",
        "dtype",
        "weights_sha256",
        "tokenizer_sha256",
        "chat_template_sha256",
    }
    assert len(list(read_chats(tmp_path / "out" / "chats.jsonl"))) == report["kept"]
    code, shown, _ = run(prompts, *words(tmp_path), *mix)
    assert code == 0
    assert "left out 2 chats, too-long (first: long#0: the prompt has 3" in shown
    assert "temperature 1" in shown
    assert "dropped:" in shown
    assert f"{report['kept']} chats → " in shown


def test_a_plan_is_only_a_plan(run: Run, tmp_path: Path) -> None:
    two = json.dumps({"id": "two", "messages": [{"role": "user", "content": "a"}, {"role": "user", "content": "b"}]})
    prompts = prompt_file(tmp_path, 3, two)
    code, out, _ = run(prompts, *words(tmp_path), "--samples", 2, "--temperatures", "1.0", "--plan", "--json")
    assert code == 0
    assert json.loads(out) == {"wanted": 8, "there": 0, "missing": 8, "answers": 10, "left_out": {}}
    assert not (tmp_path / "out").exists()
    run(prompts, *words(tmp_path), "--temperatures", "1.0", "--limit", 2)
    code, out, _ = run(prompts, *words(tmp_path), "--samples", 2, "--temperatures", "1.0", "--plan")
    assert "8 chats: 2 are there, 6 to make, with about 8 answers" in out


def test_other_settings_are_refused(run: Run, tmp_path: Path) -> None:
    prompts = prompt_file(tmp_path, 2)
    run(prompts, *words(tmp_path))
    code, _, err = run(prompts, *words(tmp_path), "--seed", 1)
    assert code == 1
    assert "[regen.settings]" in err
    assert "seed: 0 there, 1 here" in err


def test_a_server_answers(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TEST_KEY", "secret")
    common = (prompt_file(tmp_path, 4), "--out", tmp_path / "out", "--avoid", "none")
    with FakeOpenAI() as fake:
        code, out, err = run(*common, "--server", fake.url, "--api-key-env", "TEST_KEY", "--json")
    assert code == 0, err
    assert fake.headers[0]["authorization"] == "Bearer secret"
    report = json.loads(out)
    assert report["identity"]["source"] == {"kind": "server", "model": "fake"}
    assert report["answer_tokens"] == 0
    assert report["kept"] == 4
    more = (*common, "--samples", 2, "--temperatures", "0.5", "--server", fake.url, "--served-model", "fake")
    code, _, err = run(*more, "--out", tmp_path / "more", "--tries", 1)
    assert code == 1
    assert "[server.unreachable]" in err


@pytest.mark.parametrize(
    ("flags", "code"),
    [
        (("--server", "http://127.0.0.1:1/v1", "--batch", "4"), "flags.contradiction"),
        (("--server", "http://127.0.0.1:1/v1", "--model", TARGET), "flags.contradiction"),
        (("--concurrency", "4"), "flags.contradiction"),
        (("--samples", "1", "--temperatures", "0,1"), "flags.contradiction"),
        (("--temperatures", "warm"), "flags.range"),
        (("--thinking", "perhaps"), "flags.range"),
        (("--near-duplicate", "2"), "flags.range"),
        (("--server", "here"), "flags.range"),
        (("--server", "http://127.0.0.1:1/v1", "--api-key-env", "NO_SUCH_KEY"), "flags.range"),
        (("--batch", "0"), "flags.range"),
    ],
    ids=str,
)
def test_flags_that_mean_nothing_are_refused(run: Run, tmp_path: Path, flags: tuple[str, ...], code: str) -> None:
    model = () if "--server" in flags else ("--model", TARGET)
    exit_code, _, err = run(prompt_file(tmp_path, 1), "--out", tmp_path / "out", "--avoid", "none", *model, *flags)
    assert exit_code == 2
    assert f"[{code}]" in err


def test_a_prompt_id_in_two_files_is_refused(run: Run, tmp_path: Path) -> None:
    prompts = prompt_file(tmp_path, 2)
    code, _, err = run(prompts, prompts, *words(tmp_path))
    assert code == 1
    assert "[artifact.corrupt]" in err


def test_evaluation_sets_are_kept_out(run: Run, tmp_path: Path) -> None:
    held_out = tmp_path / "eval.jsonl"
    held_out.write_text(json.dumps({"id": "e", "prompt": f"{TINY_PROMPTS[0]} 0"}) + "\n")
    code, out, err = run(prompt_file(tmp_path, 3), *words(tmp_path)[:4], "--avoid", held_out, "--json")
    assert code == 0, err
    assert json.loads(out)["dropped"]["evaluation-overlap"] == 1


COUNT, SAMPLES, KILLS = 48, 3, 3


def command(prompts: Path, folder: Path, out: str) -> list[str]:
    flags = [*words(folder, out), "--temperatures", "0,0.8,1.0", "--batch", 8, "--threads", 1, "--json"]
    return [sys.executable, "-c", "from eyas.cli import main; main()", "regen", str(prompts), *map(str, flags)]


def lines(journal: Path) -> int:
    return journal.read_bytes().count(b"\n") if journal.exists() else 0


@pytest.mark.slow
def test_a_run_that_is_killed_again_and_again_ends_with_the_same_bytes(tmp_path: Path) -> None:
    prompts = prompt_file(tmp_path, COUNT)
    environment = {**os.environ, "EYAS_CACHE": str(tmp_path / "cache")}
    subprocess.run(command(prompts, tmp_path, "whole"), check=True, env=environment, capture_output=True)
    journal, draw, killed = tmp_path / "parts" / "journal.jsonl", random.Random(0), 0
    for _ in range(KILLS):
        before = lines(journal)
        process = subprocess.Popen(
            command(prompts, tmp_path, "parts"), env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        wanted = before + draw.randint(2, COUNT * SAMPLES // (2 * KILLS))
        while process.poll() is None and lines(journal) < wanted:
            time.sleep(0.001)
        process.send_signal(signal.SIGKILL)
        killed += process.wait() == -signal.SIGKILL
    assert killed >= 2, "the run must be long enough to be killed"
    assert lines(journal) < COUNT * SAMPLES + 1, "the last run has something left to do"
    subprocess.run(command(prompts, tmp_path, "parts"), check=True, env=environment, capture_output=True)
    for name in ("chats.jsonl", "report.json"):
        assert (tmp_path / "parts" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()
    both = [sorted((tmp_path / out / "journal.jsonl").read_bytes().splitlines()) for out in ("parts", "whole")]
    assert both[0] == both[1]
    assert len(both[0]) == COUNT * SAMPLES + 1
