"""Proposals without a draft model: what followed the last time these tokens stood here (prompt lookup)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from eyas.speculate.tree import Tree


class NgramIndex:
    """The committed tokens of one request, with the latest continuation of every n-gram in them.

    ``append`` costs max_ngram - min_ngram + 1 dictionary entries, ``propose`` as many look-ups, at any
    length.
    """

    def __init__(self, max_ngram: int, min_ngram: int = 1, tokens: Iterable[int] = ()) -> None:
        assert 1 <= min_ngram <= max_ngram
        self.max_ngram, self.min_ngram = max_ngram, min_ngram
        self.tokens: list[int] = []
        self._continuation: dict[tuple[int, ...], int] = {}
        for token in tokens:
            self.append(token)

    def append(self, token: int) -> None:
        """Commit one token."""
        here = len(self.tokens)
        # An n-gram is entered when a token follows it, so the text's own end is never found as its match.
        for n in range(self.min_ngram, min(self.max_ngram, here) + 1):
            self._continuation[tuple(self.tokens[here - n :])] = here
        self.tokens.append(token)

    def propose(self, k: int) -> Tree:
        """A chain of ``k`` tokens on the last committed one; the root alone if no suffix occurred before.

        The longest suffix of max_ngram … min_ngram tokens that occurs earlier decides, its most recent
        occurrence if there are several. A continuation that runs into the end of the text goes on with the
        proposal itself, so that a text that repeats is proposed to go on repeating.
        """
        assert self.tokens, "the last committed token is the root"
        text = list(self.tokens[-1:])
        start = self._find()
        if start is not None:
            length = len(self.tokens)
            for i in range(start, start + k):
                text.append(self.tokens[i] if i < length else text[1 + i - length])
        return Tree.chain(text)

    def _find(self) -> int | None:
        for n in range(min(self.max_ngram, len(self.tokens)), self.min_ngram - 1, -1):
            start = self._continuation.get(tuple(self.tokens[len(self.tokens) - n :]))
            if start is not None:
                return start
        return None


def propose_ngram(tokens: Sequence[int], max_ngram: int, min_ngram: int, k: int) -> Tree:
    """One proposal for ``tokens``; who proposes every round keeps an :class:`NgramIndex` instead."""
    return NgramIndex(max_ngram, min_ngram, tokens).propose(k)
