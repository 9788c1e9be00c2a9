"""``curves.png``: a run on one page, drawn from its log."""

from __future__ import annotations

from pathlib import Path

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import PercentFormatter

from eyas import plotting
from eyas.train.log import EVALUATIONS, METRICS, read_lines
from eyas.train.series import Documents, Setting, by_domain, usual_setting

FILE = "curves.png"
MOST_POINTS = 400
"""A line of more optimizer steps is drawn as means of neighbours."""


def draw_curves(folder: Path, setting: Setting | None = None) -> Path:
    """Draw the log in ``folder``: loss, accuracy per unrolled step, accept length by domain, learning rate.

    ``setting``: which accept length (None: the usual one).
    """
    metrics, evaluations = read_lines(folder / METRICS), read_lines(folder / EVALUATIONS)
    done = f"{metrics[-1]['step']:,} steps" if metrics else "no step yet"
    figure, (loss, accuracy, length, rate) = plotting.new_figure(2, 2, f"{folder.resolve().name} · {done}")
    _loss(loss, metrics)
    _accuracy(accuracy, metrics)
    _accept_length(length, evaluations, setting or usual_setting(evaluations))
    _rate(rate, metrics)
    last = max([d["step"] for d in (*metrics[-1:], *evaluations[-1:])], default=1)
    for panel in (loss, accuracy, length, rate):
        panel.set_xlim(-0.01 * last, 1.02 * max(last, 1))
    plotting.save(figure, folder / FILE)
    return folder / FILE


def bin_means(steps: np.ndarray, values: np.ndarray, most: int) -> tuple[np.ndarray, np.ndarray]:
    """At most ``most`` points [n] out of [N]: means of runs of neighbours, NaN left out; a run of only NaN is NaN."""
    size = -(-len(steps) // most)
    cuts = range(0, len(steps), max(size, 1))
    known = [values[i : i + size][~np.isnan(values[i : i + size])] for i in cuts]
    means = [part.mean() if len(part) else np.nan for part in known]
    return np.array([steps[i : i + size].mean() for i in cuts]), np.array(means)


def smooth(values: np.ndarray, width: int) -> np.ndarray:
    """The mean [N] of about ``width`` values around each of [N], fewer at both ends."""
    sums = np.concatenate([[0.0], np.cumsum(values)])
    middle = np.arange(len(values))
    begins, ends = np.maximum(middle - width // 2, 0), np.minimum(middle + width // 2 + 1, len(values))
    return (sums[ends] - sums[begins]) / (ends - begins)


def _column(metrics: Documents, name: str) -> np.ndarray:
    return np.array([np.nan if m[name] is None else m[name] for m in metrics], dtype=np.float64)


def _loss(axes: Axes, metrics: Documents) -> None:
    plotting.dress(axes, "Loss", "optimizer steps", plotting.short)
    if not metrics:
        plotting.say(axes, "no step yet")
        return
    steps, loss = _column(metrics, "step"), _column(metrics, "loss")
    colour = plotting.COLOURS[0]
    axes.plot(*bin_means(steps, loss, 4 * MOST_POINTS), color=colour, linewidth=0.6, alpha=0.35)
    width = max(len(loss) // 25, 1)
    mean = smooth(loss, width)
    axes.plot(
        *bin_means(steps, mean, MOST_POINTS),
        color=colour,
        linewidth=1.8,
        label=f"mean of {width}: {loss[-width:].mean():.3f}",
    )
    plotting.legend(axes, "upper right")


def _accuracy(axes: Axes, metrics: Documents) -> None:
    plotting.dress(axes, "Accuracy per unrolled step, over all of a step's slots", "optimizer steps", plotting.short)
    axes.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
    if not metrics:
        plotting.say(axes, "no step yet")
        return
    steps = _column(metrics, "step")
    table = [m["marginal_accuracies"] for m in metrics]
    number, width = len(table[-1]), max(len(metrics) // 25, 1)
    shades = matplotlib.colormaps["viridis"](np.linspace(0, 0.85, number))
    for i in range(number):
        values = np.array([np.nan if row[i] is None else row[i] for row in table])
        known = ~np.isnan(values)
        if known.any():
            mean = smooth(values[known], width)
            line = bin_means(steps[known], mean, MOST_POINTS)
            axes.plot(*line, color=shades[i], linewidth=1.6, label=f"step {i + 1}: {values[known][-width:].mean():.1%}")
    axes.set_ylim(bottom=0)
    plotting.legend(axes, "lower right")


def _accept_length(axes: Axes, evaluations: Documents, setting: Setting) -> None:
    plotting.dress(axes, f"Accept length on held-out chats, {setting}", "optimizer steps", plotting.short)
    series = by_domain(evaluations, setting)
    if not series:
        plotting.say(axes, "no evaluation yet")
        return
    for i, (domain, records) in enumerate(series.items()):
        colour = plotting.COLOURS[i % len(plotting.COLOURS)]
        steps, value, low, high = (
            np.array([r[name] for r in records], dtype=np.float64) for name in ("step", "accept_length", "low", "high")
        )
        axes.fill_between(steps, low, high, color=colour, alpha=0.14, linewidth=0)
        label = plotting.plain(f"{domain}: {value[-1]:.2f}  [{low[-1]:.2f}, {high[-1]:.2f}]")
        marker = plotting.MARKERS[i % len(plotting.MARKERS)]
        axes.plot(steps, value, color=colour, linewidth=1.6, marker=marker, markersize=4, label=label)
    draw_ceiling(axes, max(r["ceiling"] for records in series.values() for r in records))
    axes.set_ylim(bottom=0.95)
    plotting.legend(axes, "center right")


def draw_ceiling(axes: Axes, ceiling: float) -> None:
    """The line that no accept length passes."""
    axes.axhline(ceiling, color=plotting.FAINT, linewidth=1.2, linestyle=(0, (5, 3)))
    axes.annotate(
        f"ceiling {ceiling:g}",
        (0.01, ceiling),
        xycoords=("axes fraction", "data"),
        xytext=(0, 3),
        textcoords="offset points",
        fontsize=8,
        color=plotting.FAINT,
    )
    axes.set_ylim(top=ceiling + 0.08 * (ceiling - 1))


def _rate(axes: Axes, metrics: Documents) -> None:
    plotting.dress(axes, "Learning rate", "optimizer steps", plotting.short)
    if not metrics:
        plotting.say(axes, "no step yet")
        return
    steps, rate = _column(metrics, "step"), _column(metrics, "learning_rate")
    axes.plot(*bin_means(steps, rate, MOST_POINTS), color=plotting.COLOURS[0], linewidth=1.6)
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:.3g}")
    axes.set_ylim(bottom=0)
