"""Trials: what is not run is never seen, so now and then a draft more is proposed than is believed to pay, or none.

A trial is paid from savings that grow by TRIAL_SHARE of all time, and its worth comes back where it is accepted. So
a useless draft loses no more than that share, while a text that has become easy pays for its own next trials at once.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence

from eyas.metrics import Round
from eyas.speculate.allocate import Choice, Offers
from eyas.speculate.costs import CostModel, StepShape
from eyas.speculate.estimate import Estimate

TRIAL_SHARE = 0.005
"""Share of the time that trials may lose."""
SAVED_STEPS = 2.0
"""Steps' worth of time that may be saved up, so that a long quiet time is not followed by a slow one."""
HOPE = 1.5
"""Standard deviations above the estimate: what does not pay even there is not tried."""
LOOKS = 3
"""Requests whose trial is priced in one step, at most."""
PLAIN_EVERY = 8
"""Steps between two looks at what a step without drafts costs."""


class Trials:
    """The savings, and the trials that are on their way."""

    def __init__(self, costs: CostModel) -> None:
        self.costs = costs
        self._saved, self._limit = math.inf, 0.0
        self._steps = 0
        self._running: dict[Hashable, tuple[int, float]] = {}

    def earn(self, seconds: float) -> None:
        """A step of so many predicted seconds is to be run."""
        self._limit = SAVED_STEPS * seconds
        self._saved = min(self._saved + TRIAL_SHARE * seconds, self._limit)

    def look_at_plain_is_due(self) -> bool:
        """Counts the steps with drafts."""
        self._steps += 1
        return self._steps % PLAIN_EVERY == 0

    def of_plain(self, best: Choice, shape: StepShape, plain: StepShape) -> bool:
        """Whether to run this step without drafts, because only that tells how fast it then is: while the costs are not
        known well enough to say which of the two is better."""
        ahead = math.log(best.tokens / best.seconds * best.plain_seconds / best.plain_tokens)
        loss = best.plain_seconds - best.plain_tokens * best.seconds / best.tokens
        known = ahead >= HOPE * self.costs.doubt(shape, plain)
        # What is saved up and nothing else needs may as well find out what nobody doubted.
        if loss > self._saved or (known and self._saved < self._limit):
            return False
        self._saved -= loss
        return True

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
        """The request to raise by one level, or None: of those that may well pay the one that is caught up with at the
        least price, so that what was paid for one trial serves the next."""
        if self._saved <= 0:
            return None
        (B, D), rate = offers.gains.shape, best.tokens / best.seconds
        rows = _rows(offers, best)
        verify = self.costs.verify_upto(rows + int(offers.rows.max()))
        at_least = rate * float(verify[rows + 1] - verify[rows])
        looks = LOOKS
        for r in sorted(range(B), key=backlog.__getitem__):
            level = int(best.levels[r])
            if level >= D or not math.isfinite(offers.gains[r, level]):
                continue
            gain = estimates[r].hopeful(level, HOPE)
            if not level and offers.tree_rows[r] is None:
                gain = max(gain, float(offers.gains[r, 0]))
            if offers.tree_rows[r] is not None:
                gain *= float(offers.gains[r, 0]) / estimates[r].survival[0]
            if gain < at_least:
                continue
            seconds, repaid = self._extra(r, level, offers, best, backlog[r])
            looks -= 1
            if min(seconds, self._limit) > self._saved or (gain < rate * repaid and not looks):
                return None
            if gain >= rate * repaid:
                self._saved -= seconds
                self._running[keys[r]] = level, 1 / rate
                return r
        return None

    def _extra(self, r: int, level: int, offers: Offers, best: Choice, backlog: int) -> tuple[float, float]:
        """Seconds that the next level of request r adds: to this step, and to an average one if all requests did so,
        with its backlog spread over the rounds that it serves."""
        costs, table = self.costs, self.costs.table
        rows, context = _rows(offers, best), float(offers.contexts[r])
        verify = costs.verify_upto(rows + int(offers.rows[r]))
        B = len(offers.rows)
        target = float(
            verify[rows + offers.rows[r]] - verify[rows] + offers.rows[r] * context * table.attend * costs.attend_factor
        )
        trees = offers.tree_rows[r] or ()
        draft = sum(table.step.of(count) + count * context * table.draft_attend for count in trees)
        if level:
            active = int((best.levels > level).sum())
            alone = table.step.of(active + 1) - (table.step.of(active) if active else 0.0)
            shared = table.step.of(B) / B
            draft += context * table.draft_attend
        else:
            rows_now, rows_on_average = float(backlog), float(offers.absorbed[r])
            alone = self._absorb(rows_now, best) + rows_now * (context - rows_now / 2) * table.draft_attend
            shared = table.absorb.of(B * rows_on_average) / B + rows_on_average * context * table.draft_attend
            draft += table.per_proposal
        return target + (draft + alone) * costs.draft_factor, target + (draft + shared) * costs.draft_factor

    def _absorb(self, rows: float, best: Choice) -> float:
        """Beside others, rows cost their slope; alone, a whole forward of the draft."""
        curve = self.costs.table.absorb
        return rows * curve.last_slope if best.levels.any() else curve.of(rows)


def _rows(offers: Offers, best: Choice) -> int:
    """Target rows of the step that is believed best."""
    return len(offers.rows) + offers.plain + int((best.levels * offers.rows).sum())
