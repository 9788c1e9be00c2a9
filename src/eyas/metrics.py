"""Acceptance statistics: the only place for these formulas. Training, check, plan, serve and bench call them.

Definitions (design words): a *round* proposes, verifies and commits once; ``a`` of its drafts are accepted,
and the target's own token comes on top. Accept length AL = mean(a + 1); survival_i = P(a ≥ i); conditional_i
= P(a ≥ i | a ≥ i − 1) over rounds that proposed at least i. A *cut round* was ended by a stop or a limit
inside its drafts: it says how long the text was, not how good the draft is, so it is in none of these and
counted apart. The figures of no rounds are NaN.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np

CHAIN_RATE = "acceptance rate"
TREE_RATE = "acceptance rate (of tree nodes)"


@dataclass(frozen=True, slots=True)
class Round:
    """One round of one request.

    ``accepted``: drafts accepted, up to the first stop or limit. ``proposed``: drafts verified; in a tree,
    its nodes without the root. ``cut``: a stop or limit ended it within its drafts, so that the target's own
    token was not committed. ``depth``: the longest path proposed; left out, the round was a chain and it is
    ``proposed``.
    """

    accepted: int
    proposed: int
    cut: bool = False
    depth: int | None = None

    def __post_init__(self) -> None:
        assert 0 <= self.accepted <= self.longest <= self.proposed, self
        assert not self.cut or self.accepted >= 1, self

    @property
    def longest(self) -> int:
        """The greatest number of drafts that this round could accept."""
        return self.proposed if self.depth is None else self.depth

    @property
    def committed(self) -> int:
        """Tokens that the round added to the text."""
        return self.accepted + (0 if self.cut else 1)


def completion_tokens(rounds: Iterable[Round]) -> int:
    """Tokens of an answer: one sampled from the prompt, in no round, and all that its rounds committed."""
    return 1 + sum(r.committed for r in rounds)


def ceiling(num_steps: int, num_draft_tokens: int, eagle_topk: int) -> int:
    """The greatest accept length that settings allow.

    K + 1 for a chain (``eagle_topk`` 1), min(steps, num_draft_tokens − 1) + 1 for a tree, where
    ``num_draft_tokens`` counts the root.
    """
    assert num_steps >= 0, num_steps
    assert min(num_draft_tokens, eagle_topk) >= 1, (num_draft_tokens, eagle_topk)
    return num_steps + 1 if eagle_topk == 1 else min(num_steps, num_draft_tokens - 1) + 1


def accept_length_from_survival(survival: Sequence[float]) -> float:
    """AL = 1 + Σ survival_i, for any mix of K. ``survival[0]`` is survival_1; it never rises."""
    assert all(0 <= s <= 1 for s in survival), survival
    assert list(survival) == sorted(survival, reverse=True), survival
    return 1 + math.fsum(survival)


def accept_length_from_conditional(conditional: Sequence[float]) -> float:
    """AL = 1 + Σ_i Π_{j≤i} conditional_j: holds only if every round proposed ``len(conditional)`` drafts.

    Marginal accuracies per step are not conditionals: where positions differ in difficulty their product is
    too small.
    """
    assert all(0 <= c <= 1 for c in conditional), conditional
    return accept_length_from_survival(np.cumprod(conditional).tolist()) if len(conditional) else 1.0


@dataclass
class Acceptance:
    """Rounds counted per conversation, under any hashable name of its own.

    Memory grows with the number of conversations and of distinct rounds, not with the number of rounds.
    """

    conversations: dict[Hashable, Counter[Round]] = field(default_factory=dict)

    def add(self, conversation: Hashable, finished: Round) -> None:
        """Count one round."""
        self.conversations.setdefault(conversation, Counter())[finished] += 1

    def add_answer(self, conversation: Hashable, rounds: Sequence[Round], num_completion_tokens: int) -> None:
        """Count the rounds of one whole answer, which must explain its length: 1 + Σ committed."""
        expected = completion_tokens(rounds)
        assert num_completion_tokens == expected, (conversation, num_completion_tokens, expected)
        self.conversations.setdefault(conversation, Counter()).update(rounds)

    def merge(self, other: Acceptance) -> Acceptance:
        """Both together. No conversation may be in both: it would be counted as one in the interval."""
        shared = self.conversations.keys() & other.conversations.keys()
        assert not shared, sorted(map(str, shared))[:3]
        parts = {**self.conversations, **other.conversations}
        return Acceptance({name: Counter(rounds) for name, rounds in parts.items()})

    def _counts(self) -> list[tuple[Round, int]]:
        """Every kind of whole (not cut) round and how often it was."""
        total: Counter[Round] = Counter()
        for rounds in self.conversations.values():
            total.update(rounds)
        return [(r, n) for r, n in total.items() if not r.cut]

    @property
    def num_rounds(self) -> int:
        """Whole rounds: what all figures below are taken over."""
        return sum(n for _, n in self._counts())

    @property
    def num_cut_rounds(self) -> int:
        """Rounds ended by a stop or a limit within their drafts."""
        return sum(n for rounds in self.conversations.values() for r, n in rounds.items() if r.cut)

    @property
    def max_depth(self) -> int:
        """The greatest number of drafts that any whole round could accept; 0 without rounds."""
        return max((r.longest for r, _ in self._counts()), default=0)

    @property
    def accept_length(self) -> float:
        """Mean tokens per round, the target's own included."""
        counts = self._counts()
        return _ratio(sum((r.accepted + 1) * n for r, n in counts), sum(n for _, n in counts))

    @property
    def acceptance_rate(self) -> float:
        """Σ accepted / Σ proposed. With trees the denominator counts nodes: see :attr:`rate_name`."""
        counts = self._counts()
        return _ratio(sum(r.accepted * n for r, n in counts), sum(r.proposed * n for r, n in counts))

    @property
    def rate_name(self) -> str:
        """What to call :attr:`acceptance_rate`."""
        return TREE_RATE if any(r.proposed > r.longest for r, _ in self._counts()) else CHAIN_RATE

    def survival(self, i: int) -> float:
        """P(a ≥ i) over all whole rounds, i ≥ 1. A round that proposed fewer than i counts as a < i."""
        assert i >= 1, i
        counts = self._counts()
        return _ratio(sum(n for r, n in counts if r.accepted >= i), sum(n for _, n in counts))

    def conditional(self, i: int) -> float:
        """P(a ≥ i | a ≥ i − 1) over whole rounds that proposed at least i, i ≥ 1."""
        assert i >= 1, i
        tried = [(r, n) for r, n in self._counts() if r.longest >= i and r.accepted >= i - 1]
        return _ratio(sum(n for r, n in tried if r.accepted >= i), sum(n for _, n in tried))

    def interval(self, level: float = 0.95, resamples: int = 2000, seed: int = 0) -> tuple[float, float]:
        """Percentile bootstrap interval of the accept length, resampling whole conversations.

        Rounds of one conversation resemble each other, so resampling rounds would be too sure. The same seed
        gives the same interval. NaN for fewer than two conversations with whole rounds: nothing is known
        about their spread.
        """
        assert 0 < level < 1, level
        assert resamples >= 1, resamples
        pairs = [_sums(rounds) for rounds in self.conversations.values()]
        sums = np.array([(tokens, rounds) for tokens, rounds in pairs if rounds], dtype=np.float64)
        if len(sums) < 2:
            return math.nan, math.nan
        generator = np.random.default_rng(seed)
        means = np.empty(resamples)
        for k in range(resamples):
            tokens, rounds = sums[generator.integers(len(sums), size=len(sums))].sum(axis=0)
            means[k] = tokens / rounds
        low, high = np.quantile(means, [(1 - level) / 2, (1 + level) / 2])
        return float(low), float(high)


def _sums(rounds: Counter[Round]) -> tuple[int, int]:
    """Tokens committed by the whole rounds, and their number."""
    whole = [(r, n) for r, n in rounds.items() if not r.cut]
    return sum((r.accepted + 1) * n for r, n in whole), sum(n for _, n in whole)


def _ratio(numerator: int, denominator: int) -> float:
    return numerator / denominator if denominator else math.nan
