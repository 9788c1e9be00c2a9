"""How tokens and figures look in a terminal."""

from __future__ import annotations

from eyas.generate.report import Figures

STEP_STYLES = ("green", "cyan", "blue", "magenta", "yellow", "red")
"""Style of a token by the draft step that proposed it; later steps share the last."""


def style_of(origin: int) -> str:
    """Style of a token: none for the target's own, else by the draft's step."""
    return "" if origin == 0 else STEP_STYLES[min(origin, len(STEP_STYLES)) - 1]


def accept_length_text(figures: Figures) -> str:
    """Accept length with its interval over several prompts, or a dash."""
    if figures.accept_length is None:
        return "–"
    if figures.prompts == 1:
        return f"{figures.accept_length:.2f}"
    return f"{figures.accept_length:.2f} [{figures.accept_length_low:.2f}, {figures.accept_length_high:.2f}]"
