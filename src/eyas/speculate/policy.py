"""The controller of K: each round, for each request, how many drafts are worth proposing. Never slower.

It maximises expected tokens per second from what was measured: acceptance (:mod:`eyas.speculate.estimate`) and costs
(:mod:`eyas.speculate.costs`), and learns what it would else never see by trials (:mod:`eyas.speculate.trials`).

Deterministic: the same calls in the same order give the same choices.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from eyas.config import SpeculativeSettings
from eyas.contract import Contract
from eyas.metrics import Round
from eyas.speculate.allocate import Choice, Offers, allocate, draft_prices
from eyas.speculate.confidence import Confidence, SureChain
from eyas.speculate.costs import CostModel, CostTable, StepShape
from eyas.speculate.estimate import ClassAverage, Estimate
from eyas.speculate.trials import Trials

FIRST_LOOK = 12.0
"""Rounds that a class must have shown before the whole of a large batch believes the contract."""
CAUTIOUS_SHARE = 8
"""Until then one request in so many speculates."""
ALONG_ANYWAY = 16
"""Where no draft pays, one request in so many is read by the draft all the same."""
HORIZON = 64
"""Rounds, at most, over which a backlog of the draft is to be repaid."""
RUNNING_ROWS = 4
"""Rows of a backlog that count as this round's own; earlier ones are paid once and serve all later rounds."""


class Prospect(NamedTuple):
    """A request before its round."""

    key: Hashable
    context: int
    """Committed positions in the target's cache."""
    backlog: int
    """Positions that the draft has not absorbed; 1 or more before a round."""
    remaining: int
    """Tokens that the answer may still have."""
    asked: SpeculativeSettings
    """The most that may be proposed: a chain of up to ``num_steps``, or just this tree."""
    sampled: bool = False
    """True unless greedy."""
    sure: bool = False
    """Its chain may end where the draft is unsure: it proposes :meth:`Controller.sure_chain`, not K."""


@dataclass(frozen=True)
class Forecast:
    """What the last choice promised, in tokens per second on the machine as it is."""

    tokens_per_second: float
    plain_tokens_per_second: float
    """Of the same batch without drafts."""


class Controller:
    """Chooses K. One per engine; ``note`` what every round gave, ``observe`` what every step took."""

    def __init__(
        self, costs: CostTable, max_steps: int, expected: Mapping[bool, Sequence[float]] | None = None
    ) -> None:
        """``max_steps``: the longest path that is ever asked for. ``expected``: survival_i that the contract promises,
        by whether the request is sampled (:func:`expected_of`); one of the two stands for both."""
        assert max_steps >= 1, max_steps
        self.costs, self.max_steps = CostModel(costs), max_steps
        self.forecast: Forecast | None = None
        self._expected = dict(expected or {})
        self._classes: dict[tuple[bool, bool], ClassAverage] = {}
        self._confidence: dict[bool, Confidence] = {}
        self._prices = (0.0, 0.0)
        self._estimates: dict[Hashable, Estimate] = {}
        self._trials = Trials(self.costs)
        self._not_along = 0

    def choose(self, prospects: Sequence[Prospect], other_rows: int = 0, plain: int = 0) -> list[int]:
        """K of each request for one step that also runs ``other_rows`` prompt rows, and ``plain`` requests that never
        speculate; for a tree its num_steps, or 0."""
        if not prospects:
            return []
        estimates = [self._estimate(p) for p in prospects]
        offers = self._offers(prospects, estimates, plain)
        choice = allocate(offers, self.costs, other_rows)
        speed = self.costs.speed
        self.forecast = Forecast(
            choice.tokens / (choice.seconds * speed), choice.plain_tokens / (choice.plain_seconds * speed)
        )
        self._prices = draft_prices(offers, choice, self.costs, other_rows)
        self._trials.earn(choice.seconds)
        levels = choice.levels.tolist()
        if not other_rows:
            levels = self._with_trial(prospects, estimates, offers, choice)
        return _as_steps(prospects, levels)

    def reads_along(self, asked: SpeculativeSettings, sampled: bool, context: int, running: int) -> bool:
        """Whether the draft should read a prompt that begins beside ``running`` answers: if a request of its kind is
        likely to speculate, or one in ALONG_ANYWAY, so that this is found out again."""
        average = self._class(sampled, asked.is_tree)
        if average.seen < FIRST_LOOK:
            return True
        estimate = Estimate(average, self.max_steps)
        like = Prospect(None, context, 1, HORIZON, asked, sampled)
        offers = self._offers([like] * (running + 1), [estimate] * (running + 1), 0)
        if allocate(offers, self.costs, 0).levels.any():
            return True
        self._not_along += 1
        return self._not_along % ALONG_ANYWAY == 0

    def sure_chain(self, prospect: Prospect) -> SureChain:
        """Instead of K, for a request that has just been chosen to propose: as long as the draft is sure enough of its
        tokens for what they cost in this step."""
        most = max(min(prospect.asked.num_steps, prospect.remaining - 1), 1)
        return self._confidence_of(prospect.sampled).chain(most, *self._prices)

    def note(self, key: Hashable, rounds: Iterable[Round]) -> None:
        """What the rounds of this request gave since it was last chosen for; those with K = 0 too."""
        estimate = self._estimates.get(key)
        assert estimate is not None, "a request is chosen for before it is noted"
        for finished in rounds:
            estimate.add(finished)
            self._trials.settle(key, finished)

    def note_sure(self, key: Hashable, sampled: bool, finished: Round, paths: Sequence[float]) -> None:
        """The same of a round with a sure chain; ``paths``: the probability of each path that the draft computed."""
        confidence, believed = self._confidence_of(sampled), None
        if not finished.cut:
            confidence.add(paths, finished.proposed, finished.accepted)
        if len(paths) > finished.proposed:
            before = confidence.accepted(paths[-2]) if len(paths) > 1 else 1.0
            believed = min(confidence.accepted(paths[-1]) / before, 1.0)
        estimate = self._estimates[key]
        estimate.sureness.add(paths[0])
        estimate.add(finished, believed)
        self._trials.settle(key, finished)

    def forget(self, key: Hashable) -> None:
        """The request has ended."""
        self._estimates.pop(key, None)
        self._trials.forget(key)

    def observe(self, shape: StepShape, seconds: float) -> None:
        """What a step took, by :func:`shape_of`."""
        self.costs.observe(shape, seconds)

    def to_json(self) -> dict[str, Any]:
        """What it knows, for /server_info: the table, the corrections, the conditionals of each class, and how often
        its paths are accepted by the draft's probability."""
        return {
            "costs": self.costs.table.to_json(),
            "corrections": self.costs.to_json(),
            "conditionals": {
                f"{'sampled' if sampled else 'greedy'} {'tree' if tree else 'chain'}": [
                    round(average.conditional(i), 3) for i in range(self.max_steps)
                ]
                for (sampled, tree), average in self._classes.items()
            },
            "confidence": {
                "sampled" if sampled else "greedy": confidence.to_json()
                for sampled, confidence in self._confidence.items()
            },
        }

    # ----------------------------------------------------------------------------------------------------------------

    def _estimate(self, prospect: Prospect) -> Estimate:
        if prospect.key not in self._estimates:
            average = self._class(prospect.sampled, prospect.asked.is_tree)
            self._estimates[prospect.key] = Estimate(average, self.max_steps)
        return self._estimates[prospect.key]

    def _class(self, sampled: bool, is_tree: bool) -> ClassAverage:
        if (sampled, is_tree) not in self._classes:
            expected = self._expected.get(sampled, self._expected.get(not sampled))
            self._classes[sampled, is_tree] = ClassAverage(self.max_steps, expected)
        return self._classes[sampled, is_tree]

    def _confidence_of(self, sampled: bool) -> Confidence:
        if sampled not in self._confidence:
            self._confidence[sampled] = Confidence()
        return self._confidence[sampled]

    def _with_trial(
        self, prospects: Sequence[Prospect], estimates: Sequence[Estimate], offers: Offers, choice: Choice
    ) -> list[int]:
        """The best levels, but for a trial."""
        levels, nothing = choice.levels.tolist(), [0] * len(prospects)
        if any(levels) and self._trials.look_at_plain_is_due():
            shape = shape_of(prospects, _as_steps(prospects, levels))
            if self._trials.of_plain(choice, shape, shape_of(prospects, nothing)):
                return nothing
        keys, backlog = [p.key for p in prospects], [p.backlog for p in prospects]
        raised = self._trials.pick(keys, estimates, backlog, offers, choice)
        if raised is not None:
            levels[raised] += 1
        return levels

    def _offers(self, prospects: Sequence[Prospect], estimates: Sequence[Estimate], plain: int) -> Offers:
        B = len(prospects)
        most = np.array([min(p.asked.num_steps, p.remaining - 1) for p in prospects])
        unproven = [B > CAUTIOUS_SHARE and e.average.seen < FIRST_LOOK for e in estimates]
        most[np.array(unproven) & (np.arange(B) % CAUTIOUS_SHARE > 0)] = 0
        D = max(int(most.max()), 1)
        gains = np.array([e.survival[:D] for e in estimates])
        gains[np.arange(D)[None, :] >= most[:, None]] = -np.inf
        rows = np.ones(B, dtype=np.int64)
        tree_rows: list[tuple[int, ...] | None] = [None] * B
        for b, p in enumerate(prospects):
            if p.asked.is_tree:
                rows[b], tree_rows[b] = p.asked.num_draft_tokens - 1, (p.asked.eagle_topk,) * (p.asked.num_steps - 1)
                # A tree is one level: all or nothing.
                gains[b, 0] = gains[b, : most[b]].sum() if most[b] > 0 else -np.inf
                gains[b, 1:] = -np.inf
            elif most[b] > 0 and p.sure:
                confidence = self._confidence_of(p.sampled)
                gains[b, 0] = confidence.worth_of_first(estimates[b].sureness, gains[b, 0], self._prices[0])
        backlog = np.array([p.backlog for p in prospects], dtype=np.float64)
        repaid = np.clip([p.remaining / 2 for p in prospects], 1, HORIZON)
        absorbed = np.minimum(backlog, RUNNING_ROWS) + np.maximum(backlog - RUNNING_ROWS, 0) / repaid
        contexts = np.array([p.context for p in prospects], dtype=np.float64)
        return Offers(gains, rows, tree_rows, contexts, absorbed, plain)


def _as_steps(prospects: Sequence[Prospect], levels: Sequence[int]) -> list[int]:
    """A tree is one level of all its steps."""
    return [
        (p.asked.num_steps if p.asked.is_tree else level) if level else 0
        for p, level in zip(prospects, levels, strict=True)
    ]


def shape_of(
    prospects: Sequence[Prospect],
    steps: Sequence[int],
    other_rows: int = 0,
    other_attended: int = 0,
    dropped: Sequence[int] | None = None,
) -> StepShape:
    """What a step with these K runs, for :meth:`Controller.observe`. ``other_attended``: Σ over the prompt rows of the
    committed positions before them. ``dropped``: per request the drafts among its K that are not verified."""
    rows, attended, absorbed, draft_attended = other_rows + len(prospects), float(other_attended), 0, 0.0
    later = [0] * max(steps, default=0)
    for p, K, less in zip(prospects, steps, dropped or [0] * len(steps), strict=True):
        tree = p.asked if p.asked.is_tree else None
        drafts = (tree.num_draft_tokens - 1 if tree else K - less) if K else 0
        rows += drafts
        attended += p.context * (drafts + 1)
        if not K:
            continue
        width = tree.eagle_topk if tree else 1
        for i in range(1, K):
            later[i] += width
        absorbed += p.backlog
        draft_attended += (p.context - p.backlog / 2) * p.backlog + p.context * width * (K - 1)
    proposing = sum(K > 0 for K in steps)
    return StepShape(rows, len(prospects), attended, proposing, absorbed, tuple(later[1:]), draft_attended)


def expected_of(contract: Contract) -> dict[bool, list[float]]:
    """survival_i that a contract promises chains, averaged over its prompt sets: {False: greedy, True: sampled}, as far
    as it was measured."""
    expected = {}
    for sampled in (False, True):
        longest: dict[tuple[str, float, str], tuple[float, ...]] = {}
        for e in contract.expected:
            place = (e.prompt_set, e.temperature, e.draft_sampling)
            if (e.temperature > 0) == sampled and len(e.survival) > len(longest.get(place, ())):
                longest[place] = e.survival
        found = list(longest.values())
        if found:
            shortest = min(len(survival) for survival in found)
            expected[sampled] = [sum(s[i] for s in found) / len(found) for i in range(shortest)]
    return expected
