"""How the story looks in a terminal, act by act."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from rich.console import Console
from rich.padding import Padding
from rich.rule import Rule
from rich.table import Table
from rich.text import Text

from eyas.check.findings import Verdict
from eyas.check.flags import FlagCheck
from eyas.check.report import render
from eyas.check.shown import seconds_words
from eyas.config import SpeculativeSettings
from eyas.generate.report import Figures
from eyas.generate.style import accept_length_text

ID_KEYS = ("eagle_config", "eagle_aux_hidden_state_layer_ids")
"""Keys of config.json that tell the engines which taps to capture."""


class Row(Protocol):
    """What :func:`served` shows of one way to answer the prompts."""

    @property
    def name(self) -> str: ...
    @property
    def taps(self) -> tuple[int, ...] | None: ...
    @property
    def settings(self) -> SpeculativeSettings | None: ...
    @property
    def figures(self) -> Figures: ...


def checkpoint(console: Console, folder: Path, document: Mapping[str, Any], launch: str) -> None:
    """Act 1: the files and the launch, as their makers wrote them."""
    _act(console, "1  A draft and its launch, as a team has them")
    for path in sorted(folder.iterdir()):
        _line(console, f"draft/{path.name}", f"{path.stat().st_size / 1e6:.1f} MB" if path.suffix != ".json" else "")
    for key in ID_KEYS:
        _line(console, f"  {key}: {document[key]}")
    _line(console, "no contract.json: nothing says what it was trained on")
    _typed(console, launch)


def flags(console: Console, found: FlagCheck) -> None:
    """Act 2: what the engine makes of the flags."""
    _act(console, f"2  What {found.engine} runs")
    table = Table("flag", "asked", "runs", "why", box=None, padding=(0, 2), pad_edge=False)
    for row in found.rows:
        if row.weight != "note":
            table.add_row(*(Text(str(cell)) for cell in (row.flag, row.asked, row.effective, row.rule)))
    console.print(Padding(table, (0, 0, 0, 2), expand=False), highlight=False)
    _line(console, f"So the accept length can be {found.ceiling} at most.")


def served(console: Console, rows: Sequence[Row], identical: bool, mended: bool) -> None:
    """Acts 3 and 5: what serving shows. ``identical``: every way gave the text of the first."""
    _act(console, "5  Served again, mended" if mended else "3  What serving shows")
    table = Table(box=None, padding=(0, 2), pad_edge=False)
    for title in ("", "taps fed", "K", "accept length", "ceiling", "tok/s", "× plain"):
        table.add_column(title, justify="left" if title in ("", "taps fed") else "right", no_wrap=True)
    plain = rows[0].figures.tokens_per_second
    for row in rows:
        f, settings = row.figures, row.settings
        table.add_row(
            row.name,
            "" if row.taps is None else str(row.taps),
            "" if settings is None else str(settings.num_steps),
            accept_length_text(f),
            "" if f.ceiling is None else str(f.ceiling),
            f"{f.tokens_per_second:.1f}",
            f"{f.tokens_per_second / plain:.2f}",
            style="bold" if row is rows[-1] else "",
        )
    console.print(Padding(table, (0, 0, 0, 2), expand=False), highlight=False)
    first, same = rows[0].figures, "the same text" if identical else "the same text but for proven ties"
    _line(console, f"{first.prompts} prompts one after the other, {first.tokens} tokens; every way gives {same}")


def check_command(console: Console, target: str) -> None:
    """Act 4: what is typed to have the fault named."""
    _act(console, "4  One command")
    _typed(console, f"eyas check draft --target {target} --launch-command launch.sh --fix mended")
    console.print()


def verdict(console: Console, found: Verdict) -> None:
    """The check's own report."""
    render(found, console)


def repaired(console: Console, found: Verdict) -> dict[str, Any] | None:
    """What the repair did, and what the second check of it says, which is returned; None where nothing was mended."""
    written = [one.data for one in found.findings if one.kind == "repair.written" and one.data["notes"]]
    console.print()
    if not written:
        _line(console, "Nothing was mended.")
        return None
    again = dict(written[0]["again"])
    seconds = seconds_words(sum(again["seconds"].values()))
    _line(console, f"mended/ was checked again, in {seconds}: {again['headline']}")
    return again


def servable(console: Console, taps: Sequence[int], answers: Sequence[Mapping[str, Any]]) -> None:
    """Act 6: which engines can serve the draft as it was trained."""
    _act(console, f"6  Where a draft on taps {tuple(taps)} can be served")
    for one in answers:
        if one["serves"]:
            _line(console, f"{one['engine']}: yes, with the ids that were written")
        else:
            _line(console, f"{one['engine']}: no. {one['why']}")
            _line(console, f"  the fix: {one['fix']}")


def _act(console: Console, title: str) -> None:
    console.print()
    console.print(Rule(f"[bold]{title}[/]", align="left", style="dim"))


def _line(console: Console, text: str, aside: str = "") -> None:
    shown = Text.assemble(text, (f"  {aside}" if aside else "", "dim"))
    console.print(Padding(shown, (0, 0, 0, 2), expand=False), highlight=False)


def _typed(console: Console, command: str) -> None:
    """A command, never broken over lines, so that it can be copied."""
    console.print(Text.assemble("  ", (f"$ {command}", "bold cyan")), highlight=False, soft_wrap=True)
