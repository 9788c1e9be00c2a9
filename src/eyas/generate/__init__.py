"""Prompts in, answers out: a target, a tokenizer and, if there is one, a draft, opened together."""

from eyas.generate.report import Figures, figures_of
from eyas.generate.session import Session, builtin_draft_folder, open_session

__all__ = ["Figures", "Session", "builtin_draft_folder", "figures_of", "open_session"]
