"""The catalogue of faults: whole entries, well-formed ids, and `eyas explain`."""

from __future__ import annotations

import json
import re
from dataclasses import asdict, fields
from pathlib import Path

import pytest
from typer.testing import CliRunner

from eyas.check.catalogue import KINDS, Kind
from eyas.cli import app
from eyas.errors import CODES, EyasError

PAGE = (Path(__file__).parents[3] / "docs" / "faults.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("kind", KINDS)
def test_an_entry_is_whole(kind: str) -> None:
    assert re.fullmatch(r"[a-z]+(-[a-z]+)*\.[a-z0-9]+(-[a-z0-9]+)*", kind)
    for name, text in asdict(KINDS[kind]).items():
        assert text.strip() == text != "", name
        assert text.isprintable(), name
        assert text.count("`") % 2 == 0, name
    assert not KINDS[kind].title.endswith("."), "a name, not a sentence"


@pytest.mark.parametrize("kind", KINDS)
def test_the_page_holds_every_entry(kind: str) -> None:
    section = PAGE.split(f"### {kind}\n")[1].split("\n#")[0]
    assert [text for text in asdict(KINDS[kind]).values() if text not in section] == []


def test_the_page_holds_nothing_else() -> None:
    assert sorted(re.findall(r"^### (.+)$", PAGE, re.MULTILINE)) == sorted(KINDS)


def explain(*arguments: str) -> str:
    result = CliRunner().invoke(app, ["explain", *arguments], catch_exceptions=False)
    assert result.exit_code == 0
    return result.stdout


def test_explain_gives_all_of_an_entry() -> None:
    text = " ".join(explain("taps.wrong").split())
    entry = KINDS["taps.wrong"]
    assert text.startswith(f"taps.wrong: {entry.title}")
    assert all(" ".join(getattr(entry, field.name).split()) in text for field in fields(Kind))


def test_explain_for_programs() -> None:
    assert json.loads(explain("taps.order", "--json"))["fault"] == asdict(KINDS["taps.order"])
    code = json.loads(explain("taps.range", "--json"))
    assert (code["code"], code["error"]) == ("taps.range", CODES["taps.range"])


def test_a_name_that_is_both_an_error_and_a_fault_is_explained_as_both(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(KINDS, "taps.range", KINDS["taps.order"])
    text = explain("taps.range")
    assert CODES["taps.range"] in text
    assert KINDS["taps.order"].title in text


def test_a_misspelt_name_brings_the_nearest() -> None:
    with pytest.raises(EyasError) as caught:
        CliRunner().invoke(app, ["explain", "taps.rong"], catch_exceptions=False)
    assert caught.value.code == "flags.unknown"
    assert caught.value.fix.startswith("one of: taps.wrong")
