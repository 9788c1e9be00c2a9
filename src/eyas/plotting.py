"""How Eyas's pictures look: colours that colour-blind readers tell apart, thin grids, no global state of pyplot."""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path
from typing import Literal

import matplotlib
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter

from eyas.artifacts import atomic_write

INK, FAINT = "#333333", "#9a9a9a"
# The palette of Okabe and Ito without its yellow and black, which are hard to see on white or beside the text.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00")
MARKERS = ("o", "s", "^", "D", "v", "P")
DPI = 130

LegendPlace = Literal["best", "upper right", "lower right", "center right", "center left"]


def new_figure(rows: int, columns: int, title: str) -> tuple[Figure, list[Axes]]:
    """An empty figure and its panels, row by row."""
    figure = Figure(figsize=(5.9 * columns, 3.7 * rows + 0.4), layout="constrained", facecolor="white")
    FigureCanvasAgg(figure)
    # A name that a user chose may hold a dollar sign, which would start a formula.
    figure.suptitle(plain(title), fontsize=12, fontweight="bold", color=INK, x=0.012, ha="left")
    panels = [figure.add_subplot(rows, columns, i + 1) for i in range(rows * columns)]
    return figure, panels


def dress(axes: Axes, title: str, x_label: str, x_format: Callable[[float], str] | None = None) -> None:
    """Title, grid and ticks of a panel."""
    axes.set_title(plain(title), fontsize=10, color=INK, loc="left")
    axes.set_xlabel(x_label, fontsize=9, color=INK)
    axes.grid(color="#e4e4e4", linewidth=0.7)
    axes.set_axisbelow(True)
    axes.tick_params(labelsize=8, colors=INK, length=0)
    for side, spine in axes.spines.items():
        spine.set_visible(side == "bottom")
        spine.set_color(FAINT)
    if x_format is not None:
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: x_format(value)))


def say(axes: Axes, text: str) -> None:
    """Words in the middle of a panel that has nothing to show yet."""
    axes.text(0.5, 0.5, plain(text), transform=axes.transAxes, ha="center", va="center", fontsize=9, color=FAINT)


def legend(axes: Axes, place: LegendPlace = "best") -> None:
    """A quiet legend, if the panel has anything to name."""
    if axes.get_legend_handles_labels()[0]:
        axes.legend(loc=place, fontsize=7.5, frameon=True, framealpha=0.85, edgecolor="none", labelcolor=INK)


def plain(text: str) -> str:
    """Text that is shown as it stands."""
    return text.replace("$", r"\$")


def short(value: float) -> str:
    """A count in few characters: 950, 1.5k, 20k, 3M."""
    for size, unit in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= size:
            return f"{value / size:.3g}{unit}"
    return f"{value:.3g}"


def save(figure: Figure, path: Path) -> None:
    """Write a PNG atomically; the same figure gives the same bytes."""
    data = io.BytesIO()
    with matplotlib.rc_context({"font.family": "DejaVu Sans"}):
        figure.savefig(data, format="png", dpi=DPI, metadata={"Software": None})
    atomic_write(path, data.getvalue())
