"""Whose next draft token is worth its time: the best K of every request of one batch.

Maximises committed tokens per second of the whole step,

    (B + Σ_r Σ_{i ≤ K_r} survival_{r,i}) / seconds(rows, contexts, draft steps),

by taking drafts in the order of their worth and evaluating every beginning of that order, once for each greatest depth
(a deeper draft step is a fixed price that only many drafts together repay). Exact for one request.

Shape legend: B requests, D levels (a chain's drafts one by one, or a tree as a whole), n offers, L depth limits.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from eyas.speculate.costs import CostModel

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


@dataclass(frozen=True)
class Offers:
    """What could be proposed for each request of a batch."""

    gains: Floats
    """[B, D] expected tokens of each level; −inf where it is not allowed. A request's levels never rise."""
    rows: Ints
    """[B] target rows of one level: 1 for a chain, a tree's nodes for a tree."""
    tree_rows: Sequence[tuple[int, ...] | None]
    """Per request the draft rows of each later step of its tree; None for a chain, whose levels are its steps."""
    contexts: Floats
    """[B] committed positions."""
    absorbed: Floats
    """[B] draft rows that the first step would cost."""
    plain: int = 0
    """Requests beside these that decode one token each without a draft."""


@dataclass(frozen=True)
class Choice:
    """``levels`` [B] for each request, and what the step then promises: tokens, and seconds on the table's machine."""

    levels: Ints
    tokens: float
    seconds: float
    plain_tokens: float
    plain_seconds: float
    """Both without any draft."""


class Prices:
    """What the offers of one batch cost, by the corrected table."""

    def __init__(self, offers: Offers, costs: CostModel, other_rows: int) -> None:
        self.offers, table = offers, costs.table
        B, D = offers.gains.shape
        most_rows = int(offers.rows.max(initial=0)) * B * D
        first_row = B + offers.plain + other_rows
        self.target = costs.verify_upto(first_row + most_rows)[first_row:]
        attend = table.attend * costs.attend_factor
        draft_attend = table.draft_attend * costs.draft_factor
        self.base = float(self.target[0]) + B * table.per_request + float(offers.contexts.sum()) * attend
        self.first, self.step = table.per_proposal * costs.draft_factor, table.step.at(np.arange(B + 1))
        self.step[0] = 0.0
        self.step *= costs.draft_factor
        self.absorb_curve, self.draft_factor = table.absorb, costs.draft_factor
        own_BD = np.repeat((offers.contexts * (attend * offers.rows + draft_attend))[:, None], D, axis=1)
        own_BD[:, 0] += (offers.absorbed - 1) * offers.contexts * draft_attend + self.first
        for b, steps in enumerate(offers.tree_rows):
            for count in steps or ():
                own_BD[b, 0] += table.step.of(count) * costs.draft_factor
                own_BD[b, 0] += count * offers.contexts[b] * draft_attend
        self.own_BD = own_BD
        self.absorb_slope = table.absorb.last_slope * costs.draft_factor

    def order(self, rate: float) -> Ints:
        """Offers [n] as level · B + request, best first, at ``rate`` tokens a second."""
        gains, B = self.offers.gains, len(self.offers.rows)
        price_BD = self.own_BD.copy()
        price_BD[:, 0] += self.offers.absorbed * self.absorb_slope
        worth_BD = (gains - rate * price_BD) / self.offers.rows[:, None]
        # Catching up makes a first level dearer than the second: the levels that pay only together are rated together.
        means = worth_BD.cumsum(1) / np.arange(1, worth_BD.shape[1] + 1)
        together = means.argmax(1)
        best = means[np.arange(B), together]
        inside = np.arange(worth_BD.shape[1])[None, :] <= together[:, None]
        worth_BD = np.minimum.accumulate(np.where(inside, best[:, None], worth_BD), axis=1)
        allowed = np.isfinite(gains).T.ravel()
        ranked = np.argsort(-worth_BD.T.ravel(), kind="stable")
        return ranked[allowed[ranked]]

    def best(self, order: Ints, rate: float | None) -> Choice:
        """The best beginning of ``order``: most tokens a second, or most tokens less ``rate`` times the seconds."""
        B, D = self.offers.gains.shape
        level, request = np.divmod(order, B)
        open_Ln = level[None, :] <= np.arange(D)[:, None]
        number_Ln = open_Ln.cumsum(1)
        rows_Ln = (open_Ln * self.offers.rows[request]).cumsum(1)
        sure = float(B + self.offers.plain)
        tokens_Ln = sure + (open_Ln * self.offers.gains[request, level]).cumsum(1)
        seconds_Ln = (open_Ln * self._added(level, request, number_Ln)).cumsum(1)
        seconds_Ln += self.base + self.target[rows_Ln] - self.target[0]
        if rate is None:
            worth_Ln, plain = tokens_Ln / seconds_Ln, sure / self.base
        else:
            worth_Ln, plain = tokens_Ln - rate * seconds_Ln, sure - rate * self.base
        nothing = Choice(np.zeros(B, dtype=np.int64), sure, self.base, sure, self.base)
        if not worth_Ln.size or worth_Ln.max() <= plain:
            return nothing
        limit, last = np.unravel_index(int(worth_Ln.argmax()), worth_Ln.shape)
        taken = request[: last + 1][open_Ln[limit, : last + 1]]
        levels = np.bincount(taken, minlength=B)
        return Choice(levels, float(tokens_Ln[limit, last]), float(seconds_Ln[limit, last]), sure, self.base)

    def _added(self, level: Ints, request: Ints, number_Ln: Ints) -> Floats:
        """[n] seconds of the draft and of the context that each offer adds, given those before it."""
        n, own = np.arange(len(level)), self.own_BD[request, level]
        # The how manieth of its level an offer is does not depend on the depth limit.
        rank = number_Ln[level, n] - np.where(level > 0, number_Ln[level - 1, n], 0)
        first = level == 0
        added = np.where(first, 0.0, self.step[rank] - self.step[rank - 1])
        absorbed = self.offers.absorbed[request[first]].cumsum()
        added[first] = np.diff(self.absorb_curve.at(absorbed), prepend=0.0) * self.draft_factor
        return added + own


def allocate(offers: Offers, costs: CostModel, other_rows: int) -> Choice:
    """The best levels. With ``other_rows`` of prompts in the step, whose time is spent anyway, a draft must be worth
    more than its time would bring in the steps without them."""
    if len(offers.rows) == 1:
        choice = alone(offers, costs, 0, None)
        return alone(offers, costs, other_rows, choice.tokens / choice.seconds) if other_rows else choice
    prices = Prices(offers, costs, 0)
    rate = (len(offers.rows) + offers.plain) / prices.base
    for _ in range(2):
        choice = prices.best(prices.order(rate), None)
        rate = choice.tokens / choice.seconds
    if not other_rows:
        return choice
    mixed = Prices(offers, costs, other_rows)
    return mixed.best(mixed.order(rate), rate)


def alone(offers: Offers, costs: CostModel, other_rows: int, rate: float | None) -> Choice:
    """The same for a single request, without arrays: a small model's step is not much longer than their price."""
    table, n, context = costs.table, int(offers.rows[0]), float(offers.contexts[0])
    gains, absorbed, factor = offers.gains[0].tolist(), float(offers.absorbed[0]), costs.draft_factor
    first_row, sure = 1 + offers.plain + other_rows, 1.0 + offers.plain
    verify = costs.verify_upto(first_row + n * len(gains))[first_row::n].tolist()
    attend, draft_attend = context * table.attend * costs.attend_factor, context * table.draft_attend
    base = verify[0] + table.per_request + attend
    draft = table.absorb.of(absorbed) + table.per_proposal + absorbed * draft_attend
    draft += sum(table.step.of(count) + count * draft_attend for count in offers.tree_rows[0] or ())
    level, tokens, best, worth = 0, sure, Choice(np.zeros(1, dtype=np.int64), sure, base, sure, base), -math.inf
    while True:
        seconds = base if not level else base + verify[level] - verify[0] + level * n * attend + draft * factor
        value = tokens / seconds if rate is None else tokens - rate * seconds
        if value > worth:
            worth, best = value, Choice(np.array([level]), tokens, seconds, sure, base)
        if level == len(gains) or gains[level] == -math.inf:
            return best
        tokens += gains[level]
        draft += table.step.of(1) + draft_attend if level else 0.0
        level += 1


def draft_prices(offers: Offers, choice: Choice, costs: CostModel, other_rows: int) -> tuple[float, float]:
    """What one row more to verify and one draft step more cost beside this choice, in tokens that the time would
    bring."""
    table, B, rate = costs.table, len(offers.rows), choice.tokens / choice.seconds
    context, sure = float(offers.contexts.mean()), B + offers.plain + other_rows
    rows = sure + int((choice.levels * offers.rows).sum())
    # A request more or less changes little; the slope between single rows is the table's noise.
    low, high = max(rows - B // 2 - 1, sure), rows + B // 2 + 1
    verify = costs.verify_upto(high)
    row = float(verify[high] - verify[low]) / (high - low) + context * table.attend * costs.attend_factor
    proposing = max(int((choice.levels > 0).sum()), 1)
    step = (table.step.of(proposing) / proposing + context * table.draft_attend) * costs.draft_factor
    return rate * row, rate * step
