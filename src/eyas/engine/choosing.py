"""What each request proposes in a step: as it asked, or as much of it as pays."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import cache
from itertools import accumulate

from eyas.config import DraftSampling, SpeculativeSettings
from eyas.engine.request import Request
from eyas.metrics import Round
from eyas.speculate.confidence import SureChain
from eyas.speculate.policy import Controller, Prospect, shape_of
from eyas.speculate.propose import fitting
from eyas.speculate.round import Outcome


class Chooser:
    """Without a controller every round proposes what its request asked for; with one, up to that."""

    def __init__(self, max_positions: int, controller: Controller | None, drafts: bool = True) -> None:
        """``drafts``: a draft proposes, which takes its time whatever comes of it; n-grams take none."""
        self.max_positions, self.controller, self.drafts = max_positions, controller, drafts
        self._prospects: list[Prospect] = []
        self._chosen_for: frozenset[Request] = frozenset()
        self._observes = True

    def choose(self, decoding: Sequence[Request], other_rows: int) -> dict[Request, SpeculativeSettings | None]:
        """Settings of the requests' next round, in a step that also runs ``other_rows`` of prompts."""
        asked = {request: self._asked(request) for request in decoding}
        self._prospects, self._chosen_for = [], frozenset()
        if self.controller is None:
            return asked
        speculating = {r: how for r, how in asked.items() if how is not None and r.extras.adaptive}
        self._prospects = [self._prospect(request, settings) for request, settings in speculating.items()]
        self._chosen_for = frozenset(speculating)
        fixed = [how for r, how in asked.items() if how is not None and r not in speculating]
        drafts, self._observes = sum(how.num_draft_tokens - 1 for how in fixed), not fixed
        steps = self.controller.choose(self._prospects, other_rows + drafts, len(asked) - len(speculating))
        chosen = zip(speculating, self._prospects, steps, strict=True)
        return {**asked, **{request: self._shortened(p, K) for request, p, K in chosen}}

    def reads_along(self, request: Request, running: int) -> bool:
        """Whether a draft should read the prompt of a request that begins beside ``running`` others."""
        if self.controller is None or request.speculation is None or not request.extras.adaptive:
            return request.speculation is not None
        greedy = request.sampling.greedy
        return self.controller.reads_along(request.speculation, not greedy, len(request.prompt), running)

    def observe(
        self,
        chosen: Mapping[Request, SpeculativeSettings | None],
        reads: Mapping[Request, int],
        outcomes: Sequence[Outcome | None],
        seconds: float,
    ) -> None:
        """What a step took, before its outcomes are noted."""
        # What a draft costs whose K is not the controller's choice is in no shape that it knows.
        if self.controller is None or not self._prospects or not self._observes:
            return
        proposed = dict(zip(reads, outcomes, strict=True))
        running = [p for p in self._prospects if p.key in reads]
        steps = [self._ran(chosen[p.key], proposed[p.key]) for p in running if isinstance(p.key, Request)]
        dropped = [int(_dropped(proposed[p.key]) is not None) for p in running if isinstance(p.key, Request)]
        rows = sum(reads.values()) + sum(not read for read in reads.values()) - len(running)
        attended = sum(read * _cached_before(request, read) for request, read in reads.items())
        self.controller.observe(shape_of(running, steps, rows, attended, dropped), seconds)

    def note(self, request: Request, chosen: SpeculativeSettings | None, outcome: Outcome) -> None:
        """The request's last round is over; ``chosen``: what it was to propose."""
        if self.controller is None or request not in self._chosen_for:
            return
        last = request.rounds[-1]
        # Where the draft's own positions end, nothing is computed, whatever was chosen.
        if isinstance(chosen, SureChain) and outcome.tree.log_q is not None:
            self.controller.note_sure(request, not request.sampling.greedy, last, _paths(outcome))
            return
        if self.drafts and chosen is not None and not last.longest:
            # The draft was asked for nothing, as where a grammar left it no token: that is a draft refused, not none.
            last = Round(0, 1)
        self.controller.note(request, [last])

    def _ran(self, chosen: SpeculativeSettings | None, outcome: Outcome | None) -> int:
        """Steps as they cost: a draft's as they were chosen, a sure chain's and n-grams as far as there were any."""
        if chosen is None or (self.drafts and not isinstance(chosen, SureChain)):
            return _steps(chosen)
        return outcome.tree.depth() + (outcome.dropped is not None) if outcome is not None else 0

    def _prospect(self, request: Request, asked: SpeculativeSettings) -> Prospect:
        state = request.state
        assert state is not None
        left = request.max_tokens - len(request.answer)
        backlog = max(state.cached - state.absorbed, 1)
        # A draft that was drawn must not be dropped for what it is, and n-grams are sure of nothing.
        sure = self.drafts and not asked.is_tree and asked.draft_sampling == "one-hot"
        return Prospect(request, state.cached, backlog, left, asked, not request.sampling.greedy, sure)

    def _shortened(self, prospect: Prospect, num_steps: int) -> SpeculativeSettings | None:
        asked = prospect.asked
        if num_steps == 0 or asked.is_tree:
            return asked if num_steps else None
        if self.controller is not None and prospect.sure:
            return self.controller.sure_chain(prospect)
        return asked if num_steps == asked.num_steps else _chain(num_steps, asked.draft_sampling == "probabilistic")

    def forget(self, request: Request) -> None:
        """The request has ended."""
        if self.controller is not None:
            self.controller.forget(request)

    def _asked(self, request: Request) -> SpeculativeSettings | None:
        assert request.state is not None
        return fitting(request.speculation, request.state, self.max_positions) if request.state.drafted else None


def _cached_before(request: Request, read: int) -> int:
    return request.state.cached - read if request.state is not None else 0


def _steps(settings: SpeculativeSettings | None) -> int:
    return settings.num_steps if settings is not None else 0


def _dropped(outcome: Outcome | None) -> float | None:
    return outcome.dropped if outcome is not None else None


def _paths(outcome: Outcome) -> list[float]:
    """The probability of each path of a chain, that of the dropped draft the last."""
    assert outcome.tree.log_q is not None
    paths = [math.exp(total) for total in accumulate(outcome.tree.log_q[1:])]
    return paths if outcome.dropped is None else [*paths, outcome.dropped]


@cache
def _chain(num_steps: int, probabilistic: bool) -> SpeculativeSettings:
    how: DraftSampling = "probabilistic" if probabilistic else "one-hot"
    return SpeculativeSettings(num_steps=num_steps, num_draft_tokens=num_steps + 1, draft_sampling=how)
