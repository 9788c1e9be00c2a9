"""What can be served in a long run, and what it is asked."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch

from eyas.artifacts import cache_root
from eyas.engine.session import Session, open_session
from eyas.pull import resolve_model
from eyas.testing import TINY_PROMPTS, tiny_pair

THREADS = 1
# Slots of the cache are few, so that requests wait for each other, give theirs up, and prefixes are forgotten.


@dataclass(frozen=True)
class Pair:
    """``flags``: of the server · ``target``: its folder, which no log and no answer may name · ``tokens``: of a usual
    answer · ``long_words``: of the prompt that is read in several pieces.
    """

    name: str
    flags: tuple[str, ...]
    target: Path
    questions: tuple[str, ...]
    tokens: int
    long_words: int

    def session(self) -> Session:
        """The target alone: what it says without a draft is the reference."""
        torch.set_num_threads(THREADS)
        return open_session(self.target, None)


def tiny() -> Pair:
    target, draft = tiny_pair()
    flags = (
        "--model-path", str(target), "--speculative-draft-model-path", str(draft), "--max-total-tokens", "1600",
        "--tool-call-parser", "smollm",
    )  # fmt: skip
    return Pair("tiny", flags, target, TINY_PROMPTS, 64, 240)


def builtin() -> Pair:
    target = resolve_model("builtin:smollm2-135m", cache_root())
    questions = (
        "Explain in two sentences why the sky is blue.",
        "Write a Python function that returns the n-th Fibonacci number.",
        "Name three differences between a hawk and a falcon.",
        "Translate 'good morning' into French, Spanish and German.",
        "What is the capital of Australia, and how many people live there?",
        "Give me a short recipe for pancakes.",
        "Summarise the story of Romeo and Juliet in one sentence.",
        "Which is larger, 9.11 or 9.9? Explain.",
    )
    return Pair("builtin", ("--max-total-tokens", "1200"), target, questions, 40, 700)


PAIRS: dict[str, Callable[[], Pair]] = {"tiny": tiny, "builtin": builtin}
