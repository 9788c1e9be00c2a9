"""`eyas export`: one JSON document for programs, a few lines for people, and an end with a code."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from safetensors.torch import load_file
from typer.testing import CliRunner

from eyas.cli import app
from eyas.errors import EyasError
from eyas.testing import tiny_pair


def run(*arguments: str) -> str:
    result = CliRunner().invoke(app, ["export", *arguments], catch_exceptions=False)
    assert result.exit_code == 0
    return result.stdout


def test_the_tiny_draft_goes_to_speculators_and_back(tmp_path: Path) -> None:
    target, draft = map(str, tiny_pair())
    there = json.loads(
        run(draft, "--to", "speculators", "--out", str(tmp_path / "s"), "--target-name", "org/tiny", "--json")
    )
    assert (there["from"], there["to"], there["engine"]) == ("engines", "speculators", "vllm 0.32.0")
    assert there["taps"] == [2, 4, 5]
    back = json.loads(
        run(str(tmp_path / "s"), "--to", "sglang", "--out", str(tmp_path / "b"), "--model", target, "--json")
    )
    assert back["from"] == "speculators"
    before, after = (load_file(Path(f) / "model.safetensors") for f in (draft, tmp_path / "b"))
    assert before.keys() == after.keys()
    assert all(before[name].equal(after[name]) for name in before)


def test_people_see_what_was_renamed(tmp_path: Path) -> None:
    _, draft = map(str, tiny_pair())
    shown = run(draft, "--to", "speculators", "--out", str(tmp_path / "s"), "--engine-version", "0.30.0")
    assert "midlayer.… → layers.0.…" in shown
    assert "served as trained by vllm 0.30.0" in shown


@pytest.mark.parametrize(
    ("flags", "code"),
    [
        (("--to", "tensorrt"), "flags.range"),
        (("--to", "vllm", "--taps", "a,b"), "flags.range"),
        (("--to", "vllm", "--layer-dialect", "hf"), "flags.range"),
        (("--to", "vllm", "--engine-version", "0.1"), "dialect.unknown-engine"),
    ],
)
def test_what_makes_no_sense_is_refused(tmp_path: Path, flags: tuple[str, ...], code: str) -> None:
    _, draft = map(str, tiny_pair())
    with pytest.raises(EyasError) as caught:
        CliRunner().invoke(app, ["export", draft, *flags, "--out", str(tmp_path / "o")], catch_exceptions=False)
    assert caught.value.code == code
    assert not list(tmp_path.iterdir())
