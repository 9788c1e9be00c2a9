"""A verdict as one page: self-contained, for dark and light, for paper, and without anything that could run."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.resources import files
from typing import Any

from jinja2 import Environment, StrictUndefined

from eyas import __version__
from eyas.check.findings import Ranked, Survival, Verdict
from eyas.check.shown import (
    ANSWERS,
    SOUND_MEANS,
    STATES,
    WEIGHTS,
    accept_length_words,
    best_tap,
    figure,
    fix_lines,
    heat,
    link_tones,
    ordered,
    plain,
    seconds_words,
    slot_words,
    title_over,
    with_title,
)

_TEMPLATE = "report.html.jinja"
_BAND = 16  # taps in a row of the heat map
_PLOT_HEIGHT, _PLOT_WIDTH = 160.0, 560.0


def to_html(verdict: Verdict) -> str:
    """The whole page. Every text is escaped, and nothing is fetched from anywhere."""
    environment = Environment(
        autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True, finalize=_plain
    )
    environment.globals.update(figure=figure, fix_lines=fix_lines, seconds_words=seconds_words, title_over=title_over)
    template = environment.from_string(files("eyas.check").joinpath(_TEMPLATE).read_text(encoding="utf-8"))
    word, tone = ANSWERS[verdict.answer]
    tones = link_tones(verdict.links)
    return template.render(
        verdict=verdict,
        version=__version__,
        word=word,
        tone=tone,
        between=[with_title(kind) for kind in verdict.between],
        links=[(STATES[link.state][0], tone, link) for link, tone in zip(verdict.links, tones, strict=True)],
        sound_means=SOUND_MEANS if any(link.state == "sound" for link in verdict.links) else "",
        findings=[(*WEIGHTS[finding.weight], finding) for finding in ordered(verdict.findings)],
        ranking=_ranking(verdict.ranking),
        survival=None if verdict.survival is None else _survival(verdict.survival),
        slots=[slot_words(i, row, verdict.declared_taps) for i, row in enumerate(verdict.taps)],
        bands=_bands(verdict),
        total=sum(verdict.seconds.values()),
    )


def _plain(value: Any) -> Any:
    """What the template puts out: markup of its own macros as it is, every other text without control characters."""
    return plain(value) if isinstance(value, str) and not hasattr(value, "__html__") else value


@dataclass(frozen=True)
class _Bar:
    """A hypothesis with its bar: ``left`` and ``width`` in % of the column, ``zero`` where a gain of 0 lies."""

    one: Ranked
    left: float
    width: float
    zero: float


def _ranking(ranking: Sequence[Ranked]) -> list[_Bar]:
    gains = [one.gain if math.isfinite(one.gain) else 0.0 for one in ranking]
    low, high = min([0.0, *gains]), max([0.0, *gains])
    scale = 100 / (high - low) if high > low else 0.0
    zero = -low * scale
    return [
        _Bar(one, zero + min(gain, 0.0) * scale, abs(gain) * scale, zero)
        for one, gain in zip(ranking, gains, strict=True)
    ]


def _survival(survival: Survival) -> dict[str, Any]:
    """Coordinates of the chart: a bar for each i with a line where it is expected to end, and the accept length."""
    steps = max(survival.num_steps, len(survival.measured), 1)
    pitch = _PLOT_WIDTH / steps
    width = min(pitch * 0.6, 72.0)
    bars = []
    for i, value in enumerate(survival.measured):
        height = _PLOT_HEIGHT * _share(value)
        middle = (i + 0.5) * pitch
        bar = {"i": i + 1, "value": value, "x": middle - width / 2, "middle": middle, "height": height}
        if survival.expected:
            expected = survival.expected[i]
            bar |= {"expected": expected, "expected_y": _PLOT_HEIGHT * (1 - _share(expected))}
        bars.append(bar)
    scale = _PLOT_WIDTH / survival.num_steps if survival.num_steps else 0.0
    values = {"measured": survival.accept_length, "expected": survival.expected_accept_length}
    marks = {n: (v - 1) * scale for n, v in values.items() if v is not None and math.isfinite(v)}
    ends = [(v - 1) * scale for v in survival.interval if math.isfinite(v)]
    return {
        "steps": survival.num_steps,
        "bars": bars,
        "bar_width": width,
        "ticks": [(n + 1, n * scale) for n in range(survival.num_steps + 1)],
        "marks": marks,
        "interval": ends if len(ends) == 2 else None,
        "words": accept_length_words(survival),
    }


def _share(value: float) -> float:
    return min(max(value, 0.0), 1.0) if math.isfinite(value) else 0.0


def _bands(verdict: Verdict) -> list[dict[str, Any]]:
    """The heat map in rows of a few taps, so that every cell has room for its value."""
    longest = max((len(row) for row in verdict.taps), default=0)
    return [
        {
            "taps": list(range(begin, min(begin + _BAND, longest))),
            "rows": [_cells(verdict, slot, begin) for slot in range(len(verdict.taps))],
        }
        for begin in range(0, longest, _BAND)
    ]


def _cells(verdict: Verdict, slot: int, begin: int) -> list[dict[str, Any]]:
    """One slot's cells of a band: what each tap loses against the slot's best, in nats a position."""
    row = verdict.taps[slot]
    best, levels = best_tap(row), heat(row)
    declared = verdict.declared_taps[slot] if slot < len(verdict.declared_taps) else None
    return [
        {
            "tap": tap,
            "value": row[tap],
            "lost": math.nan if best is None else row[tap] - row[best],
            "level": levels[tap],
            "best": tap == best,
            "declared": tap == declared,
        }
        for tap in range(begin, min(begin + _BAND, len(row)))
    ]
