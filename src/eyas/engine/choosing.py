"""What each request proposes in a step: as it asked, or as much of it as pays."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache

from eyas.config import DraftSampling, SpeculativeSettings
from eyas.engine.request import Request
from eyas.speculate.policy import Controller, Prospect, shape_of
from eyas.speculate.propose import fitting


class Chooser:
    """Without a controller every round proposes what its request asked for; with one, up to that."""

    def __init__(self, max_positions: int, controller: Controller | None) -> None:
        self.max_positions, self.controller = max_positions, controller
        self._prospects: list[Prospect] = []

    def choose(self, decoding: Sequence[Request], other_rows: int) -> dict[Request, SpeculativeSettings | None]:
        """Settings of the requests' next round, in a step that also runs ``other_rows`` of prompts."""
        asked = {request: self._asked(request) for request in decoding}
        self._prospects = []
        if self.controller is None:
            return asked
        speculating = {request: settings for request, settings in asked.items() if settings is not None}
        self._prospects = [_prospect(request, settings) for request, settings in speculating.items()]
        steps = self.controller.choose(self._prospects, other_rows, len(asked) - len(speculating))
        chosen = zip(speculating, self._prospects, steps, strict=True)
        return {**asked, **{request: _shortened(p.asked, K) for request, p, K in chosen}}

    def reads_along(self, request: Request, running: int) -> bool:
        """Whether a draft should read the prompt of a request that begins beside ``running`` others."""
        if self.controller is None or request.speculation is None:
            return request.speculation is not None
        greedy = request.sampling.greedy
        return self.controller.reads_along(request.speculation, not greedy, len(request.prompt), running)

    @contextmanager
    def timed(
        self, chosen: Mapping[Request, SpeculativeSettings | None], reads: Mapping[Request, int]
    ) -> Iterator[None]:
        """Around a step, which tells the controller what it took."""
        start = time.perf_counter()
        yield
        if self.controller is None or not self._prospects:
            return
        seconds = time.perf_counter() - start
        running = [p for p in self._prospects if p.key in reads]
        steps = [_steps(chosen[p.key]) for p in running if isinstance(p.key, Request)]
        rows = sum(reads.values()) + sum(not read for read in reads.values()) - len(running)
        attended = sum(read * _cached_before(request, read) for request, read in reads.items())
        self.controller.observe(shape_of(running, steps, rows, attended), seconds)

    def note(self, request: Request) -> None:
        """The request's last round is over."""
        if self.controller is not None and any(p.key is request for p in self._prospects):
            self.controller.note(request, request.rounds[-1:])

    def forget(self, request: Request) -> None:
        """The request has ended."""
        if self.controller is not None:
            self.controller.forget(request)

    def _asked(self, request: Request) -> SpeculativeSettings | None:
        assert request.state is not None
        return fitting(request.speculation, request.state, self.max_positions) if request.state.drafted else None


def _prospect(request: Request, asked: SpeculativeSettings) -> Prospect:
    state = request.state
    assert state is not None
    left = request.max_tokens - len(request.answer)
    backlog = max(state.cached - state.absorbed, 1)
    return Prospect(request, state.cached, backlog, left, asked, not request.sampling.greedy)


def _cached_before(request: Request, read: int) -> int:
    return request.state.cached - read if request.state is not None else 0


def _steps(settings: SpeculativeSettings | None) -> int:
    return settings.num_steps if settings is not None else 0


def _shortened(asked: SpeculativeSettings, num_steps: int) -> SpeculativeSettings | None:
    if num_steps == 0:
        return None
    return asked if num_steps == asked.num_steps else _chain(num_steps, asked.draft_sampling == "probabilistic")


@cache
def _chain(num_steps: int, probabilistic: bool) -> SpeculativeSettings:
    how: DraftSampling = "probabilistic" if probabilistic else "one-hot"
    return SpeculativeSettings(num_steps=num_steps, num_draft_tokens=num_steps + 1, draft_sampling=how)
