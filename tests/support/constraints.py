"""A small grammar and a small stop string, over a vocabulary of sixteen."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

VOCAB = 16


class Steps:
    """A grammar: each token is 1, 2 or 3 above the one before (mod VOCAB), the first even; ``length`` of them."""

    def __init__(self, length: int = 99) -> None:
        self.said: list[int] = []
        self.length = length

    def mask(self, path: Sequence[int]) -> Tensor | None:
        text = [*self.said, *path]
        mask = torch.zeros(VOCAB, dtype=torch.bool)
        if not text:
            mask[::2] = True
        else:
            mask[[(text[-1] + step) % VOCAB for step in (1, 2, 3)]] = True
        return mask

    def commit(self, tokens: Sequence[int]) -> None:
        for token in tokens:
            mask = self.mask([])
            assert mask is None or bool(mask[token]), "a forbidden token was committed"
            self.said.append(token)

    @property
    def finished(self) -> bool:
        return len(self.said) >= self.length


class UntilPair:
    """Ends the answer behind the first two neighbours that are ``pair``."""

    def __init__(self, pair: tuple[int, int]) -> None:
        self.pair, self.last = pair, -1

    def watch(self, tokens: Sequence[int]) -> int | None:
        for i, token in enumerate(tokens, start=1):
            if (self.last, token) == self.pair:
                return i
            self.last = token
        return None
