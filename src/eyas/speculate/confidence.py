"""Where a chain ends: the draft's own probabilities tell, round by round, which of its tokens are worth verifying.

EAGLE-2 (Li et al. 2024, section 3) found a draft's probability of a path close to the chance that the path is accepted.
How close is learnt here for each class of requests, and a chain ends where the next row or draft step costs more than
that chance. Only chains of most likely tokens may end so: a draft that was drawn must not be dropped for what it is.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from functools import cache

import numpy as np
from numpy.typing import NDArray

from eyas.config import SpeculativeSettings

EDGES = (0.0, 0.02, 0.04, 0.07, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)
"""Lower ends of the bins of path probability."""
PRIOR_WEIGHT = 12.0
"""Drafts that a bin's own probability is worth."""
USUAL_NEXT = 0.5
"""Share of accepted paths whose next draft is accepted too, before any is seen."""
FADE = 0.999
"""What all bins keep at each round: one that is no longer proposed is in time believed as at first, and tried again."""
TRUST_WEIGHT = 4.0
"""Accepted drafts that a draft's word is worth."""
SPREAD_MEMORY = 0.98
"""What a round keeps of its weight in a spread at the next one: about 50 rounds count."""
PRIOR_ROUNDS = 10.0
"""Rounds that its class's spread is worth to a request, and a first belief to a class."""


class SureChain(SpeculativeSettings):
    """A chain of up to ``num_steps`` that ends where the draft is unsure, by the bins of :data:`EDGES`."""

    keep: int = 0
    """A draft whose path probability is below this bin is not proposed."""
    extend: int = 0
    """Below this bin no further draft is computed."""


@cache
def sure_chain(num_steps: int, keep: int, extend: int) -> SureChain:
    """One of each kind: checking settings anew every round would be a good part of a small step."""
    return SureChain(num_steps=num_steps, num_draft_tokens=num_steps + 1, keep=keep, extend=extend)


def bin_of(path: float) -> int:
    """Of a path's probability."""
    return bisect_right(EDGES, path) - 1


class Confidence:
    """How often paths are accepted, by the draft's probability of them; of one class of requests."""

    def __init__(self) -> None:
        middles = [(low + high) / 2 for low, high in zip(EDGES, (*EDGES[1:], 1.0), strict=True)]
        self.first = Sureness()
        self._accepted, self._extended = _Curve(middles), _Curve([USUAL_NEXT * middle for middle in middles])

    def accepted(self, path: float) -> float:
        """The chance that a path of this probability is accepted."""
        return self._accepted.values[bin_of(path)]

    def add(self, paths: Sequence[float], proposed: int, accepted: int) -> None:
        """A round whose draft computed tokens of these path probabilities, and proposed the first ones."""
        self.first.add(paths[0])
        bins = [bin_of(path) for path in paths]
        # One that was dropped is believed.
        hits = [float(accepted > i) if i < proposed else self.accepted(path) for i, path in enumerate(paths)]
        self._accepted.add(bins[:proposed], hits[:proposed])
        self._extended.add(bins[:-1], hits[1:])

    def chain(self, num_steps: int, row_price: float, step_price: float) -> SureChain:
        """The chain for these prices, in tokens, of a row to verify and of a draft step."""
        keep = bisect_left(self._accepted.values, row_price)
        return sure_chain(num_steps, keep, max(bisect_left(self._extended.values, row_price + step_price), keep))

    def worth_of_first(self, sureness: Sureness, usual: float, row_price: float) -> float:
        """What a first draft is worth, in tokens, where it is verified only if its chance is above the price of a row;
        the row saved counts as that price. ``usual``: the chance on average, which counts while nothing is seen."""
        shares = sureness.shares(self.first.shares(_believed_spread(round(usual, 2))))
        return float(shares @ np.maximum(self._accepted.values, row_price))

    def to_json(self) -> list[float]:
        """Per bin the share accepted."""
        return [round(value, 3) for value in self._accepted.values]


class Sureness:
    """How the path probabilities of first drafts are spread over the bins: of a request, or of a class."""

    def __init__(self) -> None:
        self.counts = np.zeros(len(EDGES))

    def add(self, path: float) -> None:
        self.counts *= SPREAD_MEMORY
        self.counts[bin_of(path)] += 1

    def shares(self, prior: NDArray[np.float64]) -> NDArray[np.float64]:
        """Of each bin; where little is seen, as before."""
        mixed = self.counts + PRIOR_ROUNDS * prior
        return mixed / mixed.sum()


class _Curve:
    """Shares of hits by bin, which never fall from bin to bin; at first as believed."""

    def __init__(self, believed: Sequence[float]) -> None:
        self._believed = np.asarray(believed)
        self._tries, self._hits = np.zeros(len(EDGES)), np.zeros(len(EDGES))
        self.values = list(believed)

    def add(self, bins: Sequence[int], hits: Sequence[float]) -> None:
        """What one round saw."""
        self._tries *= FADE
        self._hits *= FADE
        for b, hit in zip(bins, hits, strict=True):
            self._tries[b] += 1
            self._hits[b] += hit
        # A draft that boasts does so in bins not seen too.
        expected = float(self._tries @ self._believed)
        trust = min((float(self._hits.sum()) + TRUST_WEIGHT) / (expected + TRUST_WEIGHT), 1.0)
        weights = self._tries + PRIOR_WEIGHT
        values = (self._hits + PRIOR_WEIGHT * trust * self._believed) / weights
        self.values = _rising(values.tolist(), weights.tolist())


@cache
def _believed_spread(mean: float) -> NDArray[np.float64]:
    """Shares of the bins before any is seen: a beta distribution of this mean, as wide as that of a fair draft."""
    a, b = 2 * min(max(mean, 0.02), 0.98), 2 * (1 - min(max(mean, 0.02), 0.98))
    ends = np.array([*EDGES, 1.0])
    middles = (ends[1:] + ends[:-1]) / 2
    mass = middles ** (a - 1) * (1 - middles) ** (b - 1) * np.diff(ends)
    return np.asarray(mass / mass.sum())


def _rising(values: Sequence[float], weights: Sequence[float]) -> list[float]:
    """Values that never fall: neighbours that do are believed to be equal (isotonic regression)."""
    pools: list[tuple[float, float, int]] = []
    for value, weight in zip(values, weights, strict=True):
        count = 1
        while pools and pools[-1][0] >= value:
            other, its, many = pools.pop()
            value, weight, count = (value * weight + other * its) / (weight + its), weight + its, count + many
        pools.append((value, weight, count))
    return [value for value, _, count in pools for _ in range(count)]
