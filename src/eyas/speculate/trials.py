"""Trials: what is not proposed is never seen, so now and then a draft more is proposed than is believed to pay.

A trial is paid from savings that grow by TRIAL_SHARE of all time, and its worth comes back where it is accepted. So
a useless draft loses no more than that share, while a text that has become easy pays for its own next trials at once.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence

import numpy as np

from eyas.metrics import Round
from eyas.speculate.allocate import Choice, Offers
from eyas.speculate.costs import CostModel
from eyas.speculate.estimate import Estimate

TRIAL_SHARE = 0.005
"""Share of the time that trials may lose."""
SAVED_STEPS = 2.0
"""Steps' worth of time that may be saved up, so that a long quiet time is not followed by a slow one."""
HOPE = 1.5
"""Standard deviations above the estimate: what does not pay even there is not tried."""
TRIED_AT_ONCE = 2
"""Requests looked at in one step."""


class Trials:
    """The savings, and the trials that are on their way."""

    def __init__(self, costs: CostModel) -> None:
        self.costs = costs
        self._saved = self._limit = 0.0
        self._turn = 0
        self._running: dict[Hashable, tuple[int, float]] = {}

    def earn(self, seconds: float) -> None:
        """A step of so many predicted seconds is to be run."""
        self._limit = SAVED_STEPS * seconds
        self._saved = min(self._saved + TRIAL_SHARE * seconds, self._limit)

    def settle(self, key: Hashable, finished: Round) -> None:
        """What came of the request's round; a draft accepted by trial is worth the time that it saved."""
        position, value = self._running.pop(key, (finished.accepted, 0.0))
        if finished.accepted > position:
            self._saved += value

    def forget(self, key: Hashable) -> None:
        """The request has ended."""
        self._running.pop(key, None)

    def pick(
        self,
        keys: Sequence[Hashable],
        estimates: Sequence[Estimate],
        backlog: Sequence[int],
        offers: Offers,
        best: Choice,
    ) -> int | None:
        """The request to raise by one level, or None. Requests take turns."""
        if self._saved <= 0:
            return None
        (B, D), rate = offers.gains.shape, best.tokens / best.seconds
        for _ in range(min(TRIED_AT_ONCE, B)):
            self._turn = (self._turn + 1) % B
            r, level = self._turn, int(best.levels[self._turn])
            if level >= D or not np.isfinite(offers.gains[r, level]):
                continue
            gain = estimates[r].hopeful(level, HOPE)
            if offers.tree_rows[r] is not None:
                gain *= float(offers.gains[r, 0]) / estimates[r].survival[0]
            seconds, repaid = self._extra(r, level, offers, best, backlog[r])
            if gain >= rate * repaid and min(seconds, self._limit) <= self._saved:
                self._saved -= seconds
                self._running[keys[r]] = level, 1 / rate
                return r
        return None

    def _extra(self, r: int, level: int, offers: Offers, best: Choice, backlog: int) -> tuple[float, float]:
        """Seconds that the next level of request r adds to this step: in all, and with its backlog spread over the
        rounds that it serves."""
        costs, table = self.costs, self.costs.table
        rows, context = len(offers.rows) + int((best.levels * offers.rows).sum()), float(offers.contexts[r])
        before, after = costs.verify_at(np.array([rows, rows + int(offers.rows[r])]))
        target = after - before + offers.rows[r] * context * table.attend * costs.attend_factor
        per_row = context * table.draft_attend
        steps = offers.tree_rows[r] or ()
        draft = sum(float(table.step.at(count)) + count * per_row for count in steps)
        if level:
            active = int((best.levels > level).sum())
            draft += float(table.step.at(active + 1)) - (float(table.step.at(active)) if active else 0.0) + per_row
            seconds = float(target + draft * costs.draft_factor)
            return seconds, seconds
        whole, spread = (
            draft + self._absorb(rows_absorbed, best) + table.per_proposal + rows_absorbed * per_row
            for rows_absorbed in (float(backlog), float(offers.absorbed[r]))
        )
        return float(target + whole * costs.draft_factor), float(target + spread * costs.draft_factor)

    def _absorb(self, rows: float, best: Choice) -> float:
        """Beside others, rows cost their slope; alone, a whole forward of the draft."""
        curve = self.costs.table.absorb
        return rows * curve.last_slope if best.levels.any() else float(curve.at(rows))
