"""Prompts that are nearly the same text get one prompt id, so that the split never parts them."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from eyas.corpus.samples import Sample

GRAM = 13
"""Tokens that two prompts must share in a row to count as the same text."""
MOST = 0.5
"""The share of a prompt's grams beyond which it is another's text."""
COMMON, COMMON_SHARE = 20, 0.02
"""Grams of more prompts than both of these are a template's or a system prompt's, and no prompt's own."""


def put_together(samples: Sequence[Sample]) -> list[Sample]:
    """The samples, in order, where prompts that share more than half of the shorter's text have one prompt id: that of
    the first of them. A prompt made of pieces of several joins all of them.
    """
    contents = prompt_grams(samples)
    ids = [sample.prompt_id for sample in samples]
    same = _Groups(len(samples))
    for group in _by(ids).values():
        same.join(group)
    holders: dict[bytes, list[int]] = {}
    for index, own in enumerate(contents):
        for gram in own:
            holders.setdefault(gram, []).append(index)
    joined = True
    while joined:  # a larger group may hold what none of its parts held
        joined = False
        for index in range(len(samples)):
            joined |= same.join([index, *_holding(index, contents, holders, same)])
    return [replace(sample, prompt_id=ids[same.first(index)]) for index, sample in enumerate(samples)]


def prompt_grams(samples: Sequence[Sample]) -> list[set[bytes]]:
    """Per sample the grams of its prompt's own text, and one of the whole: without what all prompts begin and end with,
    and without what many different ones share.
    """
    prompts = [_prompt(sample) for sample in samples]
    head, tail = _shared(prompts)
    own = [prompt[head : len(prompt) - tail] for prompt in prompts]
    grams = {tuple(text): _grams(text) for text in own}
    counts = Counter(gram for some in grams.values() for gram in some)
    most = max(COMMON, COMMON_SHARE * len(grams))
    kept = {text: {gram for gram in some if counts[gram] <= most} | {_hash(text)} for text, some in grams.items()}
    return [kept[tuple(text)] for text in own]


def _holding(index: int, contents: list[set[bytes]], holders: dict[bytes, list[int]], same: _Groups) -> list[int]:
    """Of each other group that shares more than MOST of this prompt's grams, one member."""
    own = contents[index]
    shared = Counter(root for gram in own for root in {same.first(other) for other in holders[gram]})
    return [root for root, count in shared.items() if count > MOST * len(own) and root != same.first(index)]


class _Groups:
    """Disjoint groups of 0 … n − 1; each is known by its first member."""

    def __init__(self, n: int) -> None:
        self._above = list(range(n))

    def first(self, index: int) -> int:
        while self._above[index] != index:
            self._above[index] = self._above[self._above[index]]
            index = self._above[index]
        return index

    def join(self, indices: Sequence[int]) -> bool:
        """Make one group of those of ``indices``; whether they were several."""
        roots = {self.first(index) for index in indices}
        for root in roots:
            self._above[root] = min(roots)
        return len(roots) > 1


def _by(names: Sequence[str]) -> dict[str, list[int]]:
    groups: dict[str, list[int]] = {}
    for index, name in enumerate(names):
        groups.setdefault(name, []).append(index)
    return groups


def _prompt(sample: Sample) -> list[int]:
    return sample.tokens[: sample.answers[0][0] if sample.answers else None].tolist()


def _shared(prompts: Sequence[list[int]]) -> tuple[int, int]:
    """How many tokens at the beginning and at the end all prompts share."""
    shortest = min((len(prompt) for prompt in prompts), default=0)
    first = prompts[0] if prompts else []
    head = next((i for i in range(shortest) if any(p[i] != first[i] for p in prompts)), shortest)
    rest = shortest - head
    tail = next((i for i in range(rest) if any(p[-1 - i] != first[-1 - i] for p in prompts)), rest)
    return head, tail


def _grams(tokens: Sequence[int]) -> set[bytes]:
    """Every GRAM tokens in a row; of a shorter text, the text."""
    starts = range(max(len(tokens) - GRAM, 0) + 1)
    return {_hash(tokens[i : i + GRAM]) for i in starts}


def _hash(tokens: Sequence[int]) -> bytes:
    return hashlib.blake2b(repr(tuple(tokens)).encode(), digest_size=8).digest()
