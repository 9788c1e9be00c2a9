"""A result as one picture: how long answers and tokens take, throughput and accept length by load."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import LogFormatter

from eyas import plotting
from eyas.bench.measure import Figures, answered, token_gaps
from eyas.bench.report import ceiling_of
from eyas.bench.run import Level, Result

LINES = ("-", "--")
MAX_LEVELS = 6


def draw(result: Result, path: Path) -> None:
    """Write a PNG. A colour is a load, a dashed line the second server; throughput and accept length over the loads."""
    figure, panels = plotting.new_figure(2, 2, "eyas bench: " + " and ".join(t.name for t in result.targets))
    latency, tokens, throughput, accept = panels
    levels = spread(result.levels, MAX_LEVELS)
    some = "" if len(levels) == len(result.levels) else f"; {len(levels)} of {len(result.levels)} loads"
    _cdf(latency, result, levels, "latency")
    _cdf(tokens, result, levels, "tokens")
    plotting.dress(latency, "Answers done by then, %", f"seconds from when the request was due{some}")
    plotting.dress(tokens, "Tokens that took no longer, %", f"milliseconds per token after the first{some}")
    _by_load(throughput, result, [[f.tokens_per_second for f in level.figures] for level in result.levels])
    throughput.set_ylim(bottom=0)
    plotting.dress(throughput, "Output tokens per second", _axis(result))
    lengths = [[f.accept.length if f.accept else np.nan for f in level.figures] for level in result.levels]
    _by_load(accept, result, lengths)
    plotting.dress(accept, "Accept length", _axis(result))
    _ceilings(accept, result)
    if np.isnan(np.array(lengths, dtype=float)).all():
        plotting.say(accept, "no server told its figures of speculation")
    else:
        accept.set_ylim(bottom=1)
    for panel in panels:
        plotting.legend(panel)
    plotting.save(figure, path)


def spread(levels: Sequence[Level], most: int) -> Sequence[Level]:
    """The first, the last, and others evenly between them; all if there are no more than ``most``."""
    if len(levels) <= most:
        return levels
    return [levels[round(i * (len(levels) - 1) / (most - 1))] for i in range(most)]


def _cdf(axes: Axes, result: Result, levels: Sequence[Level], what: str) -> None:
    shown = False
    for colour, level in zip(plotting.COLOURS, levels, strict=False):
        for i, (target, blocks) in enumerate(zip(result.targets, level.blocks, strict=True)):
            whole = answered(outcome for block in blocks for outcome in block.outcomes)
            if what == "latency":
                pairs = [(o.ended - o.due, 1.0) for o in whole]
            else:
                pairs = [(gap * 1000, n) for o in whole for gap, n in token_gaps(o)[0]]
            if pairs:
                values, weights = np.array(sorted(pairs)).T
                share = 100 * np.cumsum(weights) / weights.sum()
                axes.step(values, share, LINES[i % 2], where="post", color=colour, label=f"{target.name}, {level.load}")
                shown = True
    axes.set_ylim(0, 101)
    if shown:
        axes.set_xscale("log")
        # Within one decade only the minor ticks would have labels.
        for axis_format in (axes.xaxis.set_major_formatter, axes.xaxis.set_minor_formatter):
            axis_format(LogFormatter(minor_thresholds=(1.5, 0.5)))
        axes.tick_params(axis="x", which="both", labelsize=8, colors=plotting.INK, length=0)
    else:
        plotting.say(axes, "nothing was answered")


def _by_load(axes: Axes, result: Result, values: Sequence[Sequence[float]]) -> None:
    loads = [level.load.value for level in result.levels]
    for i, target in enumerate(result.targets):
        line, marker, colour = LINES[i % 2], plotting.MARKERS[i], plotting.COLOURS[i]
        mine = [row[i] for row in values]
        if not np.isnan(mine).all():
            axes.plot(loads, mine, line, marker=marker, color=colour, label=target.name)
    if len(loads) > 1 and min(loads) > 0:
        axes.set_xscale("log")
        axes.minorticks_off()
    axes.set_xticks(loads, [f"{load:g}" for load in loads])


def _axis(result: Result) -> str:
    closed = result.settings.loads[0].kind == "closed"
    return "requests open at any time" if closed else "requests a second"


def _ceilings(axes: Axes, result: Result) -> None:
    for i, target in enumerate(result.targets):
        found = [ceiling_of(target, one) for one in _of(result, i) if one.accept is not None]
        known = [c for c in found if c is not None]
        if known:
            label = f"ceiling of {target.name}: {max(known)}"
            axes.axhline(max(known), color=plotting.COLOURS[i], linewidth=0.9, linestyle=":", label=label)


def _of(result: Result, i: int) -> list[Figures]:
    return [level.figures[i] for level in result.levels]
