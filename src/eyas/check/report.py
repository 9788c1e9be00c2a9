"""A verdict for people, on a terminal or in a pipe: the answer, the chain, the findings, and what they rest on."""

from __future__ import annotations

from collections.abc import Sequence

from rich.bar import Bar
from rich.console import Console, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from eyas.check.findings import Finding, Survival, Verdict
from eyas.check.shown import (
    ANSWERS,
    SOUND_MEANS,
    STATES,
    WEIGHTS,
    Tone,
    accept_length_words,
    best_tap,
    counted,
    figure,
    fix_lines,
    heat,
    link_tones,
    ordered,
    plain,
    seconds_words,
    slot_words,
    title_over,
    top_ranked,
    with_title,
)

_STYLES: dict[Tone, str] = {"good": "green", "bad": "red", "unsure": "yellow", "plain": "dim"}
_LEVELS = "▁▂▃▄▅▆▇█"
_INDENT = 4


def render(verdict: Verdict, console: Console) -> None:
    """Print ``verdict``; every colour stands beside a word or a mark, so it reads the same without.

    Nothing in it is taken as markup, and what could steer a terminal is replaced.
    """
    _headline(verdict, console)
    _chain(verdict, console)
    if verdict.findings:
        counts = {weight: sum(one.weight == weight for one in verdict.findings) for weight in WEIGHTS}
        _section(console, "Findings", ", ".join(counted(n, weight) for weight, n in counts.items() if n))
    for finding in ordered(verdict.findings):
        _finding(finding, console)
    if verdict.ranking:
        _ranking(verdict, console)
    if verdict.survival is not None:
        _survival(verdict.survival, console)
    if verdict.taps:
        _taps(verdict, console)
    if verdict.seconds:
        _seconds(verdict, console)


def _show(console: Console, *parts: str | tuple[str, str], indent: int = 0) -> None:
    """Wrapped text; each part may have a style."""
    styled = [plain(part) if isinstance(part, str) else (plain(part[0]), part[1]) for part in parts]
    console.print(Padding(Text.assemble(*styled), (0, 0, 0, indent), expand=False), highlight=False)


def _section(console: Console, title: str, means: str = "") -> None:
    console.print()
    _show(console, (title, "bold"), (f"  {means}" if means else "", "dim"))


def _headline(verdict: Verdict, console: Console) -> None:
    word, tone = ANSWERS[verdict.answer]
    _show(console, (word, f"bold {_STYLES[tone]}"), "  ", (verdict.headline, "bold"))
    rows = [("draft", verdict.draft), ("target", verdict.target)]
    rows.append(("between", " or ".join(with_title(kind) for kind in verdict.between)))
    rows.append(("to decide", verdict.deciding))
    _labelled(console, [(label, plain(what)) for label, what in rows if what], indent=2)


def _labelled(console: Console, rows: Sequence[tuple[str, str | Text]], indent: int) -> None:
    """A label beside each text, which is wrapped on its own side."""
    if rows:
        table = Table.grid(padding=(0, 2))
        table.add_column(no_wrap=True, style="dim")
        table.add_column(overflow="fold")
        for label, what in rows:
            table.add_row(label, Text(what) if isinstance(what, str) else what)
        console.print(Padding(table, (0, 0, 0, indent), expand=False), highlight=False)


def _chain(verdict: Verdict, console: Console) -> None:
    sound = any(link.state == "sound" for link in verdict.links)
    _section(console, "Chain", SOUND_MEANS if sound else "")
    table = Table.grid(padding=(0, 1))
    table.add_column(no_wrap=True)
    table.add_column(no_wrap=True, min_width=7)
    table.add_column(max_width=16, overflow="fold")
    table.add_column(overflow="fold")
    for link, tone in zip(verdict.links, link_tones(verdict.links), strict=True):
        style = _STYLES[tone]
        mark = Text(STATES[link.state][0], style=f"bold {style}")
        name = Text(plain(link.name), style="bold" if tone == "bad" else "")
        table.add_row(mark, Text(link.state, style=style), name, Text(plain(link.said)))
    console.print(Padding(table, (0, 0, 0, 2), expand=False), highlight=False)


def _finding(finding: Finding, console: Console) -> None:
    mark, tone = WEIGHTS[finding.weight]
    style, title = _STYLES[tone], title_over(finding)
    word = (f"{mark} {finding.weight}", f"bold {style}")
    _show(console, word, "  ", (finding.kind, "bold"), f"  {title}" if title else "", indent=2)
    _show(console, finding.said, indent=_INDENT)
    rows: list[tuple[str, str | Text]] = [("evidence", plain(finding.evidence))] if finding.evidence else []
    lines = fix_lines(finding.fix)
    commands = [line for line in lines if [command for command, _ in line] == [True]]
    for line in lines:
        if line not in commands:
            rows.append(("fix", _fix(line)))
    _labelled(console, rows, _INDENT)
    for line in commands:
        # Never broken over lines, so that it can be copied.
        typed = Text.assemble(" " * _INDENT, ("fix" + " " * 7, "dim"), _fix(line))
        console.print(typed, highlight=False, soft_wrap=True)


def _fix(pieces: Sequence[tuple[bool, str]]) -> Text:
    return Text.assemble(*((text, "bold cyan") if command else text for command, text in pieces))


def _ranking(verdict: Verdict, console: Console) -> None:
    _section(console, "Hypotheses", "how much better each explains the text than the files' own reading")
    table = Table(box=None, padding=(0, 1), pad_edge=False)
    table.add_column("", no_wrap=True)
    table.add_column("hypothesis", overflow="fold")
    for title in ("nats/position", "z", "accept length"):
        table.add_column(title, justify="right", no_wrap=True)
    shown = top_ranked(verdict.ranking)
    for one in shown:
        first = one is verdict.ranking[0]
        name = Text(plain(one.name), style="bold" if first else "")
        if not one.kinds:
            name.append(" (declared)", style="dim")
        if one.looks_ahead:
            name.append(" (looks ahead: cannot be served so)", style="yellow")
        figures = (figure(one.gain, signed=True), figure(one.z, 1, signed=True), figure(one.accept_length, 2))
        table.add_row("▸" if first else "", name, *figures)
    console.print(Padding(table, (0, 0, 0, 2), expand=False), highlight=False)
    left = len(verdict.ranking) - len(shown)
    if left:
        _show(console, (f"and {left} more that explain less: --json or --html", "dim"), indent=_INDENT)


def _survival(survival: Survival, console: Console) -> None:
    _section(console, "Survival", f"share of rounds that accept at least i draft tokens, K = {survival.num_steps}")
    rows: list[tuple[str, float, str]] = []
    for i, value in enumerate(survival.measured, 1):
        rows.append((f"i = {i}", value, "cyan"))
        rows += [("expected", survival.expected[i - 1], "green")] if survival.expected else []
    table = Table.grid(padding=(0, 1))
    table.add_column(no_wrap=True)
    table.add_column(no_wrap=True, justify="right")
    table.add_column()
    for name, value, colour in rows:
        bar: RenderableType = Bar(1.0, 0.0, min(max(value, 0.0), 1.0), width=40, color=colour)
        table.add_row(name, figure(value), bar if figure(value) != "–" else "")
    console.print(Padding(table, (0, 0, 0, 2), expand=False), highlight=False)
    _show(console, accept_length_words(survival), indent=2)


def _taps(verdict: Verdict, console: Console) -> None:
    _section(console, "Taps", "log-likelihood of every tap in each slot of fc; d declared, b best, * both")
    for slot, row in enumerate(verdict.taps):
        _show(console, slot_words(slot, row, verdict.declared_taps), indent=2)
        declared = verdict.declared_taps[slot] if slot < len(verdict.declared_taps) else None
        for line in _strip(row, declared, max(console.width - 12, 8)):
            console.print(line, highlight=False, no_wrap=True)


def _strip(row: tuple[float, ...], declared: int | None, width: int) -> list[Text]:
    """The taps of one slot as bars, ``width`` to a line, with the marks below; each line names its first and last."""
    best, levels, lines = best_tap(row), heat(row), []
    for begin in range(0, len(row), width):
        end = min(begin + width, len(row))
        bars, marks = Text(f"{begin:>6} "), Text(" " * 7)
        for tap in range(begin, end):
            level = levels[tap]
            glyph = "·" if level is None else _LEVELS[round(level * (len(_LEVELS) - 1))]
            style = "green" if tap == best else "red" if tap == declared else "dim"
            bars.append(glyph, style=style)
            marks.append("*" if tap == best == declared else "b" if tap == best else "d" if tap == declared else " ")
        bars.append(f" {end - 1}")
        marks.rstrip()
        lines += [bars, marks] if marks.plain else [bars]
    return lines


def _seconds(verdict: Verdict, console: Console) -> None:
    console.print()
    parts = [f"{level} {seconds_words(seconds)}" for level, seconds in verdict.seconds.items()]
    total = seconds_words(sum(verdict.seconds.values()))
    _show(console, (f"{total} in all: {', '.join(parts)}", "dim"))
