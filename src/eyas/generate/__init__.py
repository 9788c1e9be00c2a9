"""Prompts in, answers out, with the figures of the run."""

from eyas.generate.report import Figures, figures_of

__all__ = ["Figures", "figures_of"]
