"""``eyas bench`` as a user types it: the table, the JSON, the picture, and what it refuses."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from eyas.cli import main
from eyas.testing.fake_openai import FakeOpenAI, Fault, stream

FIGURES = {"speculation": {"accepted_histogram": [2, 1, 0, 1], "cut_rounds": 0}}
INFO = {"engine": "eyas", "version": "0.1.0", "speculation": {"num_steps": 3, "eagle_topk": 1, "num_draft_tokens": 4}}
PAGES = {"/metrics": "", "/server_info": json.dumps(INFO)}


@pytest.fixture
def prompts(tmp_path: Path) -> str:
    path = tmp_path / "prompts.jsonl"
    path.write_text("".join(json.dumps({"prompt": f"question {i}"}) + "\n" for i in range(4)))
    return str(path)


def typed(monkeypatch: pytest.MonkeyPatch, *words: str) -> int:
    monkeypatch.setattr(sys, "argv", ["eyas", "bench", *words])
    monkeypatch.setenv("COLUMNS", "120")
    try:
        main()
    except SystemExit as end:
        return int(end.code or 0)
    return 0


def test_table_file_and_picture(monkeypatch, capsys, tmp_path, prompts):
    out, plot = tmp_path / "new" / "result.json", tmp_path / "result.png"
    with FakeOpenAI(events=stream(figures=FIGURES), pages=PAGES) as fake, FakeOpenAI(faults=[Fault(429)]) as other:
        words = [fake.url, "--against", other.url, "--prompts", prompts, "--concurrency", "1,2", "--warmup", "0"]
        assert typed(monkeypatch, *words, "--out", str(out), "--plot", str(plot)) == 0
    shown = capsys.readouterr().out
    for said in ("eyas 0.1.0", "2.00 of 4", "4/4", "2 at once", "as fast as second", "4 of 4 texts are the same",
                 "HTTP 429 1 times", "taken as equal"):  # fmt: skip
        assert said in shown, said
    document = json.loads(out.read_text())
    assert [len(level["servers"]["first"]["each"]) for level in document["levels"]] == [4, 4]
    assert document["levels"][0]["servers"]["second"]["accept"] is None
    assert document["machine"]["eyas"]
    assert plot.read_bytes().startswith(b"\x89PNG")


def test_one_json_document_and_no_key(monkeypatch, capsys, tmp_path, prompts):
    monkeypatch.setenv("BENCH_KEY", "sk-from-the-environment")
    file = tmp_path / "key"
    file.write_text("sk-from-a-file\n")
    with FakeOpenAI() as fake, FakeOpenAI() as other:
        keys = ["--api-key-env", "BENCH_KEY", "--against-api-key-file", str(file)]
        assert typed(monkeypatch, fake.url, "--against", other.url, "--prompts", prompts, "--json", *keys) == 0
    printed = capsys.readouterr()
    document = json.loads(printed.out)
    assert document["levels"][0]["paired"]["pairs"] == 4
    assert "each" not in document["levels"][0]["servers"]["first"]
    assert "sk-" not in printed.out + printed.err
    assert {h["authorization"] for h in fake.headers} == {"Bearer sk-from-the-environment"}
    assert {h["authorization"] for h in other.headers} == {"Bearer sk-from-a-file"}


def test_nothing_answered_is_shown_and_drawn(monkeypatch, capsys, tmp_path, prompts):
    plot = tmp_path / "result.png"
    with FakeOpenAI(faults=[Fault(500, "[oh]")] * 9) as fake:
        assert typed(monkeypatch, fake.url, "--prompts", prompts, "--warmup", "0", "--plot", str(plot)) == 0
    shown = capsys.readouterr().out
    assert "4 failed: http-500 [oh]" in shown
    assert plot.is_file()


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (["ftp://x"], "flags.range"),
        (["http://127.0.0.1:9", "--concurrency", "1.5"], "flags.range"),
        (["http://127.0.0.1:9", "--rate", "fast"], "flags.range"),
        (["http://127.0.0.1:9", "--baseline", "yes"], "flags.range"),
        (["http://127.0.0.1:9", "--baseline", "request", "--against", "http://127.0.0.1:8"], "flags.contradiction"),
        (["http://127.0.0.1:9", "--against-model", "m"], "flags.missing"),
        (["http://127.0.0.1:9", "--api-key-env", "NO_SUCH_KEY"], "flags.range"),
        (["http://127.0.0.1:9", "--api-key-env", "A", "--api-key-file", "b"], "flags.contradiction"),
        (["http://127.0.0.1:9", "--api-key-file", "/nowhere/key"], "artifact.missing"),
        (["http://127.0.0.1:9"], "server.unreachable"),
    ],
)
def test_what_is_refused(monkeypatch, capsys, prompts, words, code):
    status = typed(monkeypatch, *words, "--prompts", prompts, "--json")
    assert json.loads(capsys.readouterr().out)["error"]["code"] == code
    assert status == (2 if code.startswith("flags.") else 1)
