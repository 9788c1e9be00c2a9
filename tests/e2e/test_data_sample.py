"""``eyas data sample`` as a user types it, and as a kill interrupts it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from eyas import cli
from eyas.corpus.prompts import read_prompts
from eyas.testing import TINY_PROMPTS, tiny_pair

OPTIONS = ("--words-share", "0", "--code-share", "0", "--max-new-tokens", "40", "--avoid", "none")


def command(out: Path, count: int, *more: str) -> list[str]:
    target = str(tiny_pair()[0])
    words = ["data", "sample", "--model", target, "--count", str(count), "--out", str(out), "--json", "--batch", "2"]
    return [*words, *OPTIONS, *more]


def run(monkeypatch, capsys, words: list[str]) -> tuple[int, dict]:
    monkeypatch.setattr("sys.argv", ["eyas", *words])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    return int(ended.value.code or 0), json.loads(capsys.readouterr().out)


def test_prompts_are_drawn_filtered_and_told_of(monkeypatch, capsys, tmp_path):
    avoid = tmp_path / "evaluation.jsonl"
    avoid.write_text("".join(json.dumps({"prompt": text}) + "\n" for text in TINY_PROMPTS))
    out = tmp_path / "p.jsonl"
    flags = ["--avoid", str(avoid), "--licence", "CC0-1.0", "--near-duplicate", "0", "--most-perplexity", "40"]
    words = [word for word in command(out, 12, *flags, "--language", "en") if word != "none"]
    words.remove("--avoid")
    code, report = run(monkeypatch, capsys, words)
    assert code == 0, report
    prompts = list(read_prompts(out))
    assert len(prompts) == report["prompts"] == 12
    assert report["draws"] == 12 + sum(report["dropped"].values())
    assert report["dropped"]["evaluation-overlap"] > 0
    assert not {prompt.user_turns[0] for prompt in prompts} & set(TINY_PROMPTS)
    assert {prompt.licence for prompt in prompts} == {"CC0-1.0"}
    assert json.loads((tmp_path / "p.jsonl.draws" / "report.json").read_text()) == report


def test_a_kill_at_any_time_loses_no_prompt_and_doubles_none(monkeypatch, capsys, tmp_path):
    whole, killed = tmp_path / "whole.jsonl", tmp_path / "killed.jsonl"
    more = ("--near-duplicate", "0")
    assert run(monkeypatch, capsys, command(whole, 40, *more))[0] == 0
    journal = tmp_path / "killed.jsonl.draws" / "draws.jsonl"
    for lines in (3, 12):
        words = [sys.executable, "-c", "from eyas.cli import main; main()", *command(killed, 40, *more)]
        process = subprocess.Popen(words, env={**os.environ, "OMP_NUM_THREADS": "1"}, stdout=subprocess.DEVNULL)
        while process.poll() is None and not (journal.is_file() and journal.read_bytes().count(b"\n") > lines):
            time.sleep(0.005)
        process.send_signal(signal.SIGKILL)
        process.wait()
        assert not killed.exists()
    assert run(monkeypatch, capsys, command(killed, 40, *more))[0] == 0
    assert killed.read_bytes() == whole.read_bytes()
    indices = [json.loads(line)["index"] for line in journal.read_bytes().splitlines()[1:]]
    assert len(indices) == len(set(indices))


@pytest.mark.parametrize(
    ("change", "code"),
    [
        (("--words-share", "0.9", "--code-share", "0.9"), "flags.contradiction"),
        (("--language", "klingon"), "flags.range"),
        (("--avoid", "/no/such/file.jsonl"), "artifact.missing"),
    ],
)
def test_what_cannot_be_is_refused(monkeypatch, capsys, tmp_path, change, code):
    _, told = run(monkeypatch, capsys, command(tmp_path / "p.jsonl", 3, *change))
    assert told["error"]["code"] == code


def test_the_file_must_be_named_for_what_it_is(monkeypatch, capsys, tmp_path):
    status, told = run(monkeypatch, capsys, command(tmp_path / "p.txt", 3))
    assert (status, told["error"]["code"]) == (2, "flags.range")
