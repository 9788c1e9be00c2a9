"""What more data would give: acceptance against answer tokens, fitted as a + b · log2(tokens), drawn and extrapolated.

The fit is ordinary least squares; its intervals are Student's, at 95 %, and suppose points that err independently. The
evaluations of one run do not quite: they share a schedule and all tokens before. Runs of their own on more and more
data are the better evidence.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import FixedLocator, NullLocator
from scipy import stats

from eyas import plotting
from eyas.artifacts import write_json
from eyas.train.curves import draw_ceiling
from eyas.train.series import Setting, by_domain, usual_setting

PICTURE, FILE = "learning_curve.png", "learning_curve.json"
SCHEMA = "eyas.learning-curve/1"
LEVEL = 0.95
FEWEST_POINTS = 4
LEAST_EXPLAINED = 0.5
FACTORS = (2, 4)

Measured = tuple[int, Mapping[str, Any]]
"""Answer tokens, and the evaluation after them: of one run at several times, or of several runs at their ends."""


@dataclass(frozen=True)
class Extrapolation:
    """What the fit says at ``factor`` times the most tokens measured, with the interval of a new measurement there."""

    factor: int
    tokens: float
    value: float
    low: float
    high: float


@dataclass(frozen=True)
class Fit:
    """value = ``intercept`` + ``per_doubling`` · log2(tokens), the latter with its 95 % interval.

    ``explained``: R², the share of the points' variance that the line accounts for. ``refusal``: why there is no
    extrapolation, in words; then ``extrapolations`` is empty, and without a line at all the other figures are None.
    """

    intercept: float | None
    per_doubling: float | None
    per_doubling_low: float | None
    per_doubling_high: float | None
    explained: float | None
    extrapolations: tuple[Extrapolation, ...]
    refusal: str | None


@dataclass(frozen=True)
class Curve:
    """One measure of one domain. ``measure``: "accept length", or "first-position acceptance", P(a ≥ 1).

    ``points``: (answer tokens, value), by tokens. ``lowest``, ``highest``: what the measure cannot pass.
    """

    domain: str
    measure: str
    points: tuple[tuple[int, float], ...]
    lowest: float
    highest: float
    fit: Fit


ACCEPT_LENGTH, FIRST_POSITION = "accept length", "first-position acceptance"


def learning_curves(measured: Sequence[Measured], setting: Setting | None = None) -> list[Curve]:
    """The curves of all domains. Evaluations before the first token are left out: they have no logarithm."""
    seen = [(tokens, evaluation) for tokens, evaluation in measured if tokens > 0]
    setting = setting or usual_setting([evaluation for _, evaluation in seen])
    curves: dict[tuple[str, str], list[tuple[int, float]]] = {}
    ceiling = setting.num_steps + 1
    for tokens, evaluation in seen:
        for domain, (record,) in by_domain([evaluation], setting).items():
            curves.setdefault((domain, ACCEPT_LENGTH), []).append((tokens, record["accept_length"]))
            if record["first"] is not None:
                curves.setdefault((domain, FIRST_POSITION), []).append((tokens, record["first"]))
    bounds = {ACCEPT_LENGTH: (1.0, float(ceiling)), FIRST_POSITION: (0.0, 1.0)}
    return [
        Curve(domain, measure, tuple(sorted(points)), *bounds[measure], fit_doublings(sorted(points), *bounds[measure]))
        for (domain, measure), points in curves.items()
    ]


def fit_doublings(points: Sequence[tuple[float, float]], lowest: float = -math.inf, highest: float = math.inf) -> Fit:
    """Fit (tokens > 0, value) points. It refuses to extrapolate, in words, from fewer than four token counts, if the
    line explains little, if the gain may be zero, or where the line leaves ``lowest`` … ``highest``.
    """
    table = np.array(points, dtype=np.float64).reshape(-1, 2)
    different = len(np.unique(table[:, 0]))
    if different < FEWEST_POINTS:
        few = f"{different} token counts measured; a fit needs at least {FEWEST_POINTS}"
        return Fit(None, None, None, None, None, (), few)
    x, values = np.log2(table[:, 0]), table[:, 1]
    line = stats.linregress(x, values)
    spread = float(np.square(values - values.mean()).sum())
    rest = values - line.intercept - line.slope * x
    explained = 1 - float(np.square(rest).sum()) / spread if spread > 0 else 0.0
    width = _quantile(len(x)) * float(line.stderr)
    low, high = float(line.slope) - width, float(line.slope) + width
    extrapolations = _extrapolate(x, rest, (float(line.intercept), float(line.slope)), lowest, highest)
    refusal = _refusal(explained, low, high, extrapolations, lowest, highest)
    figures = (float(line.intercept), float(line.slope), low, high, explained)
    return Fit(*figures, () if refusal else extrapolations, refusal)


def _refusal(
    explained: float, low: float, high: float, beyond: Sequence[Extrapolation], lowest: float, highest: float
) -> str | None:
    if explained < LEAST_EXPLAINED:
        return f"the line explains {explained:.0%} of the variance, too little to go beyond the points"
    if low <= 0 <= high:
        return f"the gain per doubling may be zero: {low:+.3f} to {high:+.3f}"
    out = [e for e in beyond if not lowest <= e.value <= highest]
    if out:
        limit = highest if out[0].value > highest else lowest
        return f"at {out[0].factor} times the tokens the line would pass {limit:g}, which nothing can: it bends before"
    return None


def _extrapolate(
    x: np.ndarray, rest: np.ndarray, line: tuple[float, float], lowest: float, highest: float
) -> tuple[Extrapolation, ...]:
    variance, (intercept, slope) = float(np.square(rest).sum()) / (len(x) - 2), line
    found = []
    for factor in FACTORS:
        at = float(x.max()) + math.log2(factor)
        far = (at - x.mean()) ** 2 / np.square(x - x.mean()).sum()
        width = _quantile(len(x)) * math.sqrt(variance * (1 + 1 / len(x) + float(far)))
        value = intercept + slope * at
        low, high = max(value - width, min(lowest, value)), min(value + width, max(highest, value))
        found.append(Extrapolation(factor, 2.0**at, value, low, high))
    return tuple(found)


def _quantile(num_points: int) -> float:
    return float(stats.t.ppf((1 + LEVEL) / 2, num_points - 2))


def write_learning_curve(folder: Path, curves: Sequence[Curve], x_name: str = "answer tokens seen") -> dict[str, Any]:
    """Write ``learning_curve.json`` and ``learning_curve.png``, and return the document. ``x_name``: what the tokens
    count, e.g. "answer tokens of the data".
    """
    document = {"schema": SCHEMA, "x": x_name, "level": LEVEL, "curves": [asdict(curve) for curve in curves]}
    write_json(folder / FILE, document)
    measures = (ACCEPT_LENGTH, FIRST_POSITION)
    figure, panels = plotting.new_figure(1, len(measures), f"Learning curve · {folder.resolve().name}")
    for axes, measure in zip(panels, measures, strict=True):
        _draw(axes, [curve for curve in curves if curve.measure == measure], measure, x_name)
    plotting.save(figure, folder / PICTURE)
    return document


def _draw(axes: Axes, curves: Sequence[Curve], measure: str, x_name: str) -> None:
    axes.set_xscale("log", base=2)
    plotting.dress(axes, measure[0].upper() + measure[1:], x_name, plotting.short)
    if not curves:
        plotting.say(axes, "nothing measured yet")
        return
    for i, curve in enumerate(curves):
        colour = plotting.COLOURS[i % len(plotting.COLOURS)]
        tokens, values = zip(*curve.points, strict=True)
        marker = plotting.MARKERS[i % len(plotting.MARKERS)]
        axes.plot(
            tokens,
            values,
            marker,
            color=colour,
            markersize=4.5,
            label=plotting.plain(f"{curve.domain}: {words(curve.fit)}"),
        )
        _draw_line(axes, curve, colour)
    most, least = (choose(tokens for c in curves for tokens, _ in c.points) for choose in (max, min))
    axes.xaxis.set_major_locator(FixedLocator(doublings(least, most)))
    axes.xaxis.set_minor_locator(NullLocator())
    if measure == ACCEPT_LENGTH:
        draw_ceiling(axes, curves[0].highest)
        axes.set_ylim(bottom=0.95)
    else:
        axes.set_ylim(0, 1)
    plotting.legend(axes, "best")


def doublings(least: float, most: float) -> list[float]:
    """Ticks: ``most`` times 4, 2, 1, 1/2, … down to ``least``, thinned to a dozen at most."""
    down = math.floor(math.log2(most / least))
    stride = 1 + down // 9
    return [most * 4, most * 2, *(most / 2**k for k in range(0, down + 1, stride))]


def _draw_line(axes: Axes, curve: Curve, colour: str) -> None:
    fit = curve.fit
    if fit.intercept is None or fit.per_doubling is None:
        return
    ends = np.array([curve.points[0][0], curve.points[-1][0]], dtype=np.float64)
    axes.plot(ends, fit.intercept + fit.per_doubling * np.log2(ends), color=colour, linewidth=1.4)
    if fit.extrapolations:
        beyond = np.array([ends[1], *(e.tokens for e in fit.extrapolations)])
        line = fit.intercept + fit.per_doubling * np.log2(beyond)
        axes.plot(beyond, line, color=colour, linewidth=1.4, linestyle=(0, (3, 2)))
        low, high = ([getattr(e, side) for e in fit.extrapolations] for side in ("low", "high"))
        axes.fill_between(beyond[1:], low, high, color=colour, alpha=0.14, linewidth=0)


def words(fit: Fit) -> str:
    """The fit in a few words, for a legend or a table."""
    if fit.per_doubling is None:
        return fit.refusal or ""
    half = ((fit.per_doubling_high or 0.0) - (fit.per_doubling_low or 0.0)) / 2
    gain = f"{fit.per_doubling:+.3f} ± {half:.3f} per doubling"
    if fit.refusal:
        return f"{gain}; not extrapolated"
    return gain + "".join(f", {e.value:.2f} at {e.factor}×" for e in fit.extrapolations)
