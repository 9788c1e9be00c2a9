"""``eyas data build``, ``report`` and ``show``, on chats of the tiny target."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from eyas.cli import main
from eyas.corpus.samples import read_samples
from eyas.data.regen.journal import Header
from eyas.data.regen.settings import Identity, RegenSettings
from eyas.testing import tiny_pair
from support.chats import tiny_chat

Run = Callable[..., tuple[int, str, str]]
TARGET, DRAFT = map(str, tiny_pair())


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """``eyas data WORDS``: exit status, stdout, stderr."""
    monkeypatch.setenv("COLUMNS", "200")

    def call(*words: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["eyas", "data", *words])
        with pytest.raises(SystemExit) as exit_:
            main()
        out = capsys.readouterr()
        code = exit_.value.code
        return (0 if code is None else int(code)), out.out, out.err

    return call


@pytest.fixture
def chats(tmp_path: Path) -> Path:
    path = tmp_path / "chats.jsonl"
    lines = [tiny_chat(i, temperature=(0.0, 0.8)[i % 2]).to_line() + "\n" for i in range(30)]
    path.write_text("".join(lines), encoding="utf-8")
    return path


def build(run: Run, chats: Path, *flags: str) -> Path:
    out = chats.with_name("samples.npz")
    code, _, err = run("build", str(chats), "--model", TARGET, "--out", str(out), *flags)
    assert code == 0, err
    return out


def fault(run: Run, *words: str) -> dict[str, str]:
    code, out, _ = run(*words, "--json")
    assert code in (1, 2)
    return json.loads(out)["error"]


def test_from_chats_to_samples_a_report_and_a_picture(run, chats, tmp_path):
    samples = build(run, chats, "--json")
    assert len(read_samples(samples).samples) == 30
    code, out, _ = run("report", str(samples), "--model", TARGET, "--held-out", "0.2", "--json")
    report = json.loads(out)
    assert code == 0
    assert report["faults"] == []
    assert report["all"]["samples"] == 30
    assert report["account"]["chats"] == 30
    assert report["trained_on"]["samples"] + report["held_out"]["samples"] == 30
    svg = tmp_path / "picture.svg"
    code, out, _ = run("show", str(samples), "--model", TARGET, "--draft", DRAFT, "--count", "3", "--svg", str(svg))
    assert code == 0
    assert out.count("temperature") == 3
    assert "<|im_end|>" in out
    assert "<svg" in svg.read_text(encoding="utf-8")


def test_people_read_it_too(run, chats):
    lines = chats.read_text(encoding="utf-8").splitlines()
    long = tiny_chat(99, "The fox is quick. " * 60).to_line()
    chats.write_text("\n".join([*lines, long]) + "\n", encoding="utf-8")
    samples = chats.with_suffix(".npz")
    code, out, _ = run("build", str(chats), "--model", TARGET, "--out", str(samples), "--max-length", "90")
    assert code == 0
    assert "31 samples of 31 chats" in out
    assert "1 samples cut at 90 tokens" in out
    code, out, _ = run("report", str(samples), "--model", TARGET, "--held-out", "1")
    assert code == 0
    assert "made (Apache-2.0)" in out
    assert "samples.split" in out
    assert "slots trained in step 1, 2, …" in out


def test_show_as_json_gives_tokens_and_spans(run, chats):
    samples = build(run, chats)
    code, out, _ = run("show", str(samples), "--model", TARGET, "--count", "2", "--draft-vocab", "20", "--json")
    assert code == 0
    shown = json.loads(out)["samples"]
    first = read_samples(samples).samples[0]
    assert len(shown) == 2
    assert shown[0] == {"id": "c0", "tokens": first.tokens.tolist(), "answers": [list(a) for a in first.answers]}


def test_what_contradicts_itself_is_refused(run, chats, tmp_path):
    samples = build(run, chats)
    words = ("show", str(samples), "--model", TARGET, "--draft", DRAFT, "--draft-vocab", "20")
    assert fault(run, *words)["code"] == "flags.contradiction"
    words = ("build", str(chats), "--model", TARGET, "--out", str(tmp_path / "samples.txt"))
    assert fault(run, *words)["code"] == "flags.range"
    words = ("build", str(chats), "--model", TARGET, "--out", str(samples), "--thinking", "on")
    assert fault(run, *words)["code"] == "rendering.thinking"


def test_samples_of_another_template_are_refused(run, chats, tmp_path):
    samples = build(run, chats)
    other = tmp_path / "other"
    other.mkdir()
    for file in Path(TARGET).iterdir():
        (other / file.name).write_bytes(file.read_bytes())
    template = other / "chat_template.jinja"
    template.write_text(template.read_text(encoding="utf-8").replace("assistant", "model"), encoding="utf-8")
    for verb in ("report", "show"):
        found = fault(run, verb, str(samples), "--model", str(other))
        assert found["code"] == "features.origin"
        assert "template" in found["cause"]


def test_regenerated_chats_keep_their_thinking_mode(run, chats, tmp_path):
    folder = tmp_path / "regenerated"
    folder.mkdir()
    chats.rename(folder / "chats.jsonl")
    identity = Identity.of(RegenSettings(temperatures=(0.0,)), {"kind": "engine", "weights_sha256": "a" * 64})
    (folder / "journal.jsonl").write_text(Header(identity=identity).model_dump_json() + "\n", encoding="utf-8")
    samples = build(run, folder)
    assert read_samples(samples).facts.target_weights_sha256 == "a" * 64
    words = ("build", str(folder), "--model", TARGET, "--out", str(samples), "--thinking", "on")
    assert fault(run, *words)["code"] == "flags.contradiction"
