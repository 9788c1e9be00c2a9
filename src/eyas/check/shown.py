"""What both reports of a verdict show, the terminal's and the page's: words, marks, order, and figures."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

from eyas.check.catalogue import KINDS
from eyas.check.findings import LEVELS, Answer, Finding, Link, Ranked, Survival, Weight

Tone = Literal["good", "bad", "unsure", "plain"]
"""What a colour stands for; a word or a mark always says the same."""

ANSWERS: dict[Answer, tuple[str, Tone]] = {
    "fault": ("FAULT", "bad"),
    "undecided": ("UNDECIDED", "unsure"),
    "undertrained": ("UNDERTRAINED", "unsure"),
    "proven": ("PROVEN", "good"),
    "no-fault-found": ("NO FAULT FOUND", "good"),
}
STATES: dict[str, tuple[str, Tone]] = {
    "proven": ("✔", "good"),
    "sound": ("✔", "good"),
    "broken": ("✘", "bad"),
    "unknown": ("?", "unsure"),
    "skipped": ("–", "plain"),
}
WEIGHTS: dict[Weight, tuple[str, Tone]] = {"fault": ("✘", "bad"), "warning": ("!", "unsure"), "note": ("·", "plain")}

SOUND_MEANS = "sound: nothing wrong, and no contract to compare with"
TOP = 6
_COMMANDS = ("eyas", "pip", "python", "vllm")
_PROSE = (";", ": ", ". ", ", ")


def plain(text: str) -> str:
    """``text`` without what could steer a terminal or reorder a page: control and format characters are replaced."""
    return "".join(c if c.isprintable() else " " if c.isspace() else "\N{REPLACEMENT CHARACTER}" for c in text)


def figure(value: float, digits: int = 3, signed: bool = False) -> str:
    """A figure as text; – where it is not finite."""
    if not math.isfinite(value):
        return "–"
    text = f"{value:+.{digits}f}" if signed else f"{value:.{digits}f}"
    return text.replace("-", "−")


def link_tones(links: Sequence[Link]) -> list[Tone]:
    """The tone of each link: what is right behind the first broken one does not carry the chain, so is not green."""
    states = [link.state for link in links]
    first = states.index("broken") if "broken" in states else len(states)
    tones = [STATES[state][1] for state in states]
    return [t if i <= first or t != "good" else "plain" for i, t in enumerate(tones)]


def ordered(findings: Sequence[Finding]) -> list[Finding]:
    """Faults before warnings before notes; in each, the earlier level first."""
    weights = list(WEIGHTS)
    return sorted(findings, key=lambda one: (weights.index(one.weight), LEVELS.index(one.level)))


def title_of(kind: str) -> str:
    """The catalogue's title of a kind; empty if it has none."""
    return KINDS[kind].title if kind in KINDS else ""


def title_over(finding: Finding) -> str:
    """The title to stand over a finding; none over a note, which may say that the fault could not be looked for."""
    return "" if finding.weight == "note" else title_of(finding.kind)


def with_title(kind: str) -> str:
    """A kind with its title."""
    title = title_of(kind)
    return f"{kind} ({title})" if title else kind


def counted(number: int, noun: str) -> str:
    """E.g. 2 faults."""
    return f"{number} {noun}" + ("" if number == 1 else "s")


def top_ranked(ranking: Sequence[Ranked]) -> list[Ranked]:
    """The first hypotheses as they are ranked, and the declared reading if it is not among them."""
    return [one for i, one in enumerate(ranking) if i < TOP or not one.kinds]


def best_tap(row: Sequence[float]) -> int | None:
    """The tap of the greatest log-likelihood; None if none is finite."""
    finite = [tap for tap, value in enumerate(row) if math.isfinite(value)]
    return max(finite, key=lambda tap: row[tap], default=None)


def heat(row: Sequence[float]) -> list[float | None]:
    """Where each value lies between the least and the greatest of its row, 0 … 1; None for what is not finite."""
    finite = [value for value in row if math.isfinite(value)]
    low, span = min(finite, default=0.0), max(finite, default=0.0) - min(finite, default=0.0)
    return [((v - low) / span if span else 1.0) if math.isfinite(v) else None for v in row]


def slot_words(slot: int, row: Sequence[float], declared: Sequence[int]) -> str:
    """One slot's result in words: the declared tap, the best, and how far apart they are."""
    best = best_tap(row)
    said = [f"slot {slot + 1}"]
    given = declared[slot] if slot < len(declared) else None
    if given is not None:
        said.append(f"declared tap {given}")
    if best is None:
        said.append("no tap gave a finite log-likelihood")
    elif best == given:
        said.append("which is the best")
    elif given is not None and 0 <= given < len(row) and math.isfinite(row[given]):
        said.append(f"best tap {best} ({figure(row[best] - row[given], signed=True)} nats/position)")
    else:
        said.append(f"best tap {best}")
    return ", ".join(said)


def accept_length_words(survival: Survival) -> str:
    """Accept length with interval, ceiling, and how it stands to what is expected."""
    low, high = survival.interval
    said = f"accept length {figure(survival.accept_length, 2)} ({figure(low, 2)} … {figure(high, 2)})"
    said += f" of at most {survival.num_steps + 1}"
    expected = survival.expected_accept_length
    if expected is None:
        return f"{said}; nothing says what to expect"
    place = "below it" if high < expected else "above it" if low > expected else "as expected"
    return f"{said}; expected {figure(expected, 2)}: {place}"


def fix_lines(fix: str) -> list[list[tuple[bool, str]]]:
    """Each line of a fix as (is a command, text) pieces: what stands in backticks, or a line that is only a command."""
    return [_pieces(plain(line).strip()) for line in fix.splitlines() if line.strip()]


def _pieces(line: str) -> list[tuple[bool, str]]:
    parts = line.split("`")
    if len(parts) == 1 and line.split(" ")[0] in _COMMANDS and not any(end in line for end in _PROSE):
        return [(True, line)]
    if len(parts) % 2 == 0:
        return [(False, line)]
    return [(i % 2 == 1, part) for i, part in enumerate(parts) if part]


def seconds_words(seconds: float) -> str:
    """Seconds as text."""
    return f"{seconds:.1f} s"
