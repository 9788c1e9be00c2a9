"""Answers that dissolve into repetition, seen while they are written."""

from __future__ import annotations

from collections.abc import Sequence

CHECK_EVERY = 16
"""Tokens between two looks; a cut falls on a multiple, whenever it is looked for."""
WINDOW = 128
"""Tokens that a look sees."""
LOOPED = 96
"""Tokens at the end that one loop must fill."""
LONGEST_LOOP = 32
NGRAM = 4
FEWEST_DISTINCT = 0.3
"""Share of different 4-grams in the window below which a text says nothing new. Of the
built-in target's answers that end by themselves, the worst window has 0.8 in the median and below 0.4 in one of 50."""


def repeats(tokens: Sequence[int]) -> bool:
    """Whether the last LOOPED of ``tokens`` are one loop of at most LONGEST_LOOP, or the last WINDOW hold hardly any
    new 4-gram.
    """
    tail = tokens[-WINDOW:]
    if len(tail) < LOOPED:
        return False
    end = tail[-LOOPED:]
    if any(end[period:] == end[:-period] for period in range(1, LONGEST_LOOP + 1)):
        return True
    grams = [tuple(tail[i : i + NGRAM]) for i in range(len(tail) - NGRAM + 1)]
    return len(tail) == WINDOW and len(set(grams)) < FEWEST_DISTINCT * len(grams)


def first_repeat(tokens: Sequence[int], seen: int) -> int | None:
    """The first multiple of CHECK_EVERY beyond ``seen`` at which ``tokens`` up to there repeat; None if none does."""
    first = (seen // CHECK_EVERY + 1) * CHECK_EVERY
    return next((n for n in range(first, len(tokens) + 1, CHECK_EVERY) if repeats(tokens[:n])), None)
