"""How far drafts are accepted: conditionals per draft position, learnt online, each request from its class.

A request's conditional_i rests on its own last rounds and, where these are few, on what its class (greedy or sampled,
chain or tree) does on average, shifted by how much better or worse the request does at the positions that were seen.
The class in turn starts from what the draft's contract promises. Conditionals, not survivals, are counted: they hold
for any mix of K, because position i is seen exactly when i − 1 drafts were accepted and i were proposed.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence

from eyas.metrics import Round
from eyas.speculate.confidence import Sureness

MEMORY = 0.98
"""What an observation keeps of its weight at the next one: about 50 rounds count."""
FADE = 0.998
"""The same, per round that saw nothing: a text that changes is worth another look."""
CLASS_MEMORY = 0.999
CLASS_WEIGHT = 10.0
"""Rounds that the class's average is worth to a request."""
CONTRACT_WEIGHT = 16.0
"""Rounds that the contract is worth to a class."""
UNKNOWN, UNKNOWN_WEIGHT = 0.5, 4.0
"""A draft that nothing is known of."""
CHANGE = 0.01
"""Chance per round that a text turns into another kind, of which nothing is known: what hope lives on."""
REFRESH_ROUNDS = 4
"""Rounds without a proposal after which a request takes in what its class has learnt."""
FIRST_ROUNDS = 48
"""Rounds of one request that count in full for its class; the good ones, which speculate longer, would else be it."""
LIKENESS = 0.7
"""How much of a request's difference from its class, in log odds, shows again at the positions not seen."""
ODDS_LIMIT = 0.005
"""Probabilities are kept so far from 0 and 1 where their log odds are taken."""


def conditionals_of(survival: Sequence[float]) -> list[float]:
    """conditional_i from survival_i of a fixed K; what follows a survival of 0 is not known and left out."""
    conditionals, before = [], 1.0
    for value in survival:
        if before <= 0:
            break
        conditionals.append(min(value / before, 1.0))
        before = value
    return conditionals


def seen_positions(finished: Round, believed: float | None = None) -> Iterator[tuple[int, float]]:
    """(i − 1, whether draft i was accepted) for the positions that a round tells of; a cut one tells of none.
    ``believed``: the chance of the draft after the last proposed one."""
    if not finished.cut:
        for i in range(min(finished.accepted + 1, finished.longest)):
            yield i, float(finished.accepted > i)
        if believed is not None and finished.accepted == finished.longest:
            yield finished.longest, believed


class ClassAverage:
    """The conditionals of one class of requests."""

    def __init__(self, max_steps: int, expected: Sequence[float] | None = None) -> None:
        """``expected``: survival_i of the contract; None: nothing is promised."""
        known = conditionals_of(expected) if expected else []
        start = [*known, *([known[-1] if known else UNKNOWN] * max_steps)][:max_steps]
        weight = CONTRACT_WEIGHT if known else UNKNOWN_WEIGHT
        self._tries = [weight] * max_steps
        self._hits = [weight * value for value in start]
        self.seen = 0.0
        """Rounds seen, those of one request beyond the first few counted for less."""

    def conditional(self, i: int) -> float:
        """Of draft i + 1."""
        return self._hits[i] / self._tries[i]

    def add(self, seen: Iterable[tuple[int, float]], weight: float) -> None:
        """Count a round by its :func:`seen_positions`."""
        keep = 1 - (1 - CLASS_MEMORY) * weight
        for i, accepted in seen:
            self._tries[i] = self._tries[i] * keep + weight
            self._hits[i] = self._hits[i] * keep + weight * accepted
        self.seen += weight


class Estimate:
    """The conditionals of one request."""

    def __init__(self, average: ClassAverage, max_steps: int) -> None:
        self.average, self._max_steps = average, max_steps
        self._tries = [0.0] * max_steps
        self._hits = [0.0] * max_steps
        self._rounds = self._idle = self._clock = 0
        self._seen_at = [0] * max_steps
        self.sureness = Sureness()
        """Of its first drafts."""
        self._refresh()

    @property
    def survival(self) -> list[float]:
        """survival_i for i = 1 … max_steps, if so many were proposed."""
        return self._survival

    def add(self, finished: Round, believed: float | None = None) -> None:
        """Learn from a round, and let the class learn. ``believed``: the chance of the next draft, which was computed
        and then thought not worth proposing."""
        self._clock += 1
        if finished.longest == 0 and believed is None:
            self._idle += 1
            if self._idle == REFRESH_ROUNDS:
                self._fade()
                self._refresh()
            return
        self._fade()
        seen = list(seen_positions(finished, believed))
        for i, accepted in seen:
            self._tries[i] = self._tries[i] * MEMORY + 1
            self._hits[i] = self._hits[i] * MEMORY + accepted
            self._seen_at[i] = self._clock
        if not finished.cut:
            self.average.add(seen, FIRST_ROUNDS / max(self._rounds, FIRST_ROUNDS))
            self._rounds += 1
        self._refresh()

    def hopeful(self, i: int, deviations: float) -> float:
        """survival_(i + 1) if conditional_(i + 1) were better than believed by so many standard deviations, or the text
        had changed since the position was last seen."""
        mean = self._conditionals[i]
        spread = math.sqrt(max(mean, 0.02) * (1 - mean) / (self._tries[i] + CLASS_WEIGHT + 1))
        same = (1 - CHANGE) ** (self._clock - self._seen_at[i])
        hope = 1 - same * (1 - min(mean + deviations * spread, 1.0))
        return (self._survival[i - 1] if i else 1.0) * hope

    def _fade(self) -> None:
        keep, self._idle = FADE**self._idle, 0
        if keep < 1:
            self._tries = [value * keep for value in self._tries]
            self._hits = [value * keep for value in self._hits]

    def _refresh(self) -> None:
        self._conditionals, self._survival = [], []
        shift = weight = 0.0
        survival = 1.0
        for i, (hits, tries) in enumerate(zip(self._hits, self._tries, strict=True)):
            usual = _odds(self.average.conditional(i))
            prior = _share(usual + LIKENESS * shift / (weight + CLASS_WEIGHT))
            value = (hits + CLASS_WEIGHT * prior) / (tries + CLASS_WEIGHT)
            shift += tries * (_odds((hits + prior) / (tries + 1)) - usual)
            weight += tries
            survival *= value
            self._conditionals.append(value)
            self._survival.append(survival)


def _odds(probability: float) -> float:
    p = min(max(probability, ODDS_LIMIT), 1 - ODDS_LIMIT)
    return math.log(p / (1 - p))


def _share(odds: float) -> float:
    return 1 / (1 + math.exp(-odds))
