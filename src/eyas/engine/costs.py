"""What rounds cost on this machine, measured when the engine starts, for the controller of K.

Whole rounds are rehearsed, on slots that nobody holds yet: forward, head, acceptance and commit as they will run, over
made-up tokens. The shapes take turns, so that a noisy machine disturbs all alike.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch

from eyas.config import SamplingSettings, SpeculativeSettings
from eyas.kernels import KVCache
from eyas.models.sharded import ShardedLlama
from eyas.models.target import Target
from eyas.speculate.costs import CostTable, Curve
from eyas.speculate.propose import DraftProposer, Proposal, Proposer, scratch_slots
from eyas.speculate.round import speculative_round
from eyas.speculate.state import DecodeState
from eyas.speculate.tree import Tree

SHORT, LONGS = 32, (1024, 512, 256, 128)
"""Committed positions of the rehearsed requests; of the long ones the first that fits."""
CHAINS = (1, 2, 3, 4, 6, 8)
"""Rows of one request."""
BATCHES = (16, 32, 64, 128)
"""Rows of many requests, each with one draft."""
CROWD = 8
"""Requests that tell what a request costs beyond its rows, and what a position of context does."""
BACKLOGS = (1, 4, 16, 64)
"""Rows that the draft's first step absorbs."""
COMPANIES = (1, 4, 16, 64)
"""Requests that draft together."""
LATER_STEPS = 2
"""Later steps in a rehearsed proposal, of which one is the difference's share."""
LEAST_SWEEPS, MOST_SWEEPS = 2, 9
"""The best performance counts: a first one also pays for memory and compilation, and a neighbour only makes slower."""
COSTLY = 8
"""A scene that takes this part of all the time is not played again."""


class Scene(NamedTuple):
    """What is rehearsed: ``drafts`` proposed to, or made by, each of ``requests``."""

    kind: str
    """``verify``: a round whose proposals are given. ``draft``: a proposal alone."""
    requests: int
    drafts: int
    context: int = SHORT
    backlog: int = 1


@dataclass(frozen=True)
class Given:
    """A proposer that says what it was told."""

    taps: tuple[int, ...]
    tree: Tree

    def propose(self, states: Sequence[DecodeState], settings: Sequence[SpeculativeSettings | None]) -> list[Proposal]:
        return [Proposal(self.tree) for _ in states]


def step_clock(target: Target) -> Callable[[], float]:
    """What to time steps with. Where this thread does all the work its own time is taken, which leaves out what the
    machine did for others meanwhile."""
    alone = target.device.type == "cpu" and torch.get_num_threads() == 1 and not isinstance(target, ShardedLlama)
    return time.thread_time if alone else time.perf_counter


class Stage:
    """Where scenes are played."""

    def __init__(self, target: Target, cache: KVCache, proposer: Proposer) -> None:
        self.target, self.cache, self.proposer = target, cache, proposer
        self.now = step_clock(target)

    def fits(self, scene: Scene) -> bool:
        """Whether the caches have the slots and the models the positions."""
        positions = self.target.max_positions
        if isinstance(self.proposer, DraftProposer):
            positions = min(positions, self.proposer.draft.config.max_position_embeddings)
        longest = scene.context + scene.drafts + 2 + LATER_STEPS
        return scene.requests * longest <= self.cache.num_slots and longest < positions

    def play(self, scene: Scene) -> float:
        """Seconds of one performance."""
        states, settings = self._states(scene), SpeculativeSettings.resolve(max(scene.drafts, 1))
        wanted = [settings] * scene.requests
        proposer = self.proposer
        if scene.kind == "verify":
            proposer = Given(proposer.taps, Tree.chain([self._token(i) for i in range(scene.drafts + 1)]))
            start = self.now()
            speculative_round(self.target, self.cache, proposer, states, wanted)
        else:
            start = self.now()
            proposer.propose(states, wanted)
        return self.now() - start

    def _states(self, scene: Scene) -> list[DecodeState]:
        """Requests with one text, each in slots of its own: shared ones would lie in the processor's cache."""
        n = scene.context
        spare = scratch_slots(SpeculativeSettings.resolve(max(scene.drafts, 1)))
        width = len(self.proposer.taps) * self.target.hidden_size
        states = []
        for b in range(scene.requests):
            first = b * (n + spare)
            tokens = [self._token(i) for i in range(n + 1)]
            state = DecodeState(tokens, n, SamplingSettings(), list(range(first + n, first + n + spare)))
            state.table = torch.arange(first, first + n)
            state.absorbed = n - scene.backlog
            if width:
                features = torch.zeros(scene.backlog, width, dtype=self.target.dtype, device=self.target.device)
                state.pending = [features]
            states.append(state)
        return states

    def _token(self, i: int) -> int:
        return i % self.target.vocab_size


def measure_costs(
    target: Target,
    cache: KVCache,
    proposer: Proposer,
    *,
    max_requests: int,
    max_steps: int,
    seconds: float = 4.0,
    clock: Callable[[Scene], float] | None = None,
) -> CostTable:
    """Time rounds of up to ``max_requests`` requests with up to ``max_steps`` drafts each, in about ``seconds``.

    Call it before the first request: slots of both caches are written. ``clock``: seconds of a scene, if not played
    on the engine's own models.
    """
    stage = Stage(target, cache, proposer)
    scenes = [scene for scene in _scenes(stage, max_requests, max_steps) if stage.fits(scene)]
    play, samples, begin = clock or stage.play, {scene: list[float]() for scene in scenes}, time.perf_counter()
    for sweep in range(MOST_SWEEPS):
        if sweep >= LEAST_SWEEPS and time.perf_counter() - begin > seconds * sweep / (sweep + 1):
            break
        for scene in scenes:
            # A scene that would eat the time of all others is played once.
            if not sweep or samples[scene][0] < seconds / COSTLY:
                samples[scene].append(play(scene))
    return table_of({scene: min(times) for scene, times in samples.items()})


def _scenes(stage: Stage, max_requests: int, max_steps: int) -> Iterator[Scene]:
    most = max_requests * (max_steps + 1)
    yield from (Scene("verify", 1, rows - 1) for rows in CHAINS if rows <= max_steps + 1 or rows == 1)
    yield from (Scene("verify", rows // 2, 1) for rows in BATCHES if rows <= most and rows // 2 <= max_requests)
    if max_requests > 1 and most <= BATCHES[-1]:
        yield Scene("verify", max_requests, max_steps)
    crowd = min(CROWD, max_requests)
    contexts = SHORT, *[context for context in LONGS if stage.fits(Scene("draft", crowd, 1, context))][:1]
    yield from (Scene("verify", crowd, 0, context) for context in contexts)
    if not isinstance(stage.proposer, DraftProposer):
        return
    yield from (Scene("draft", 1, 1, max(SHORT, backlog), backlog) for backlog in BACKLOGS)
    yield from (Scene("draft", crowd, 1, context) for context in contexts)
    for requests in COMPANIES:
        if requests <= max_requests:
            yield from (Scene("draft", requests, drafts) for drafts in (1, 1 + LATER_STEPS))


def table_of(times: dict[Scene, float]) -> CostTable:
    """The cost table out of each scene's seconds."""
    verify = {s: t for s, t in times.items() if s.kind == "verify"}
    draft = {s: t for s, t in times.items() if s.kind == "draft"}
    # However noisy the clock was, the rows themselves take most of the time.
    attend = min(_slope(verify, 0), *(t / (4 * _read(s)) for s, t in verify.items()))
    per_request = min(_beyond_rows(verify), *(t / (4 * s.requests) for s, t in verify.items()))
    curve = Curve.fitted(
        [
            (s.requests * (s.drafts + 1), t - s.requests * per_request - _read(s) * attend)
            for s, t in verify.items()
            if s.context == SHORT
        ]
    )
    if not draft:
        free = Curve((1,), (0.0,))
        return CostTable(curve, free, free, per_request=per_request, attend=attend)
    draft_attend = _slope(draft, 1)
    absorb = Curve.fitted(
        [(s.backlog, t) for s, t in draft.items() if s.requests == s.drafts == 1 and s.context == max(SHORT, s.backlog)]
    )
    pairs = [(s.requests, draft[s._replace(drafts=1)], t) for s, t in draft.items() if s.drafts > 1]
    step = Curve.fitted([(requests, max(three - one, 0.0) / LATER_STEPS) for requests, one, three in pairs])
    shared = [(s.requests, t - absorb.of(s.requests)) for s, t in draft.items() if s.drafts == 1 and s.context == SHORT]
    beyond = [extra / requests for requests, extra in shared if requests > 1]
    per_proposal = max(statistics.median(beyond), 0.0) if beyond else 0.0
    return CostTable(curve, absorb, step, per_request, per_proposal, attend, draft_attend)


def _read(scene: Scene) -> int:
    """Σ over target rows of the committed positions that each reads."""
    return scene.requests * (scene.drafts + 1) * scene.context


def _slope(times: dict[Scene, float], drafts: int) -> float:
    """Seconds of a row per position that it reads: the same scene at a long context, less at a short one."""
    slopes = [
        (t - times[short]) / (s.requests * (s.context - SHORT))
        for s, t in times.items()
        if s.context > SHORT and s.drafts == drafts and (short := s._replace(context=SHORT)) in times
    ]
    return max(max(slopes), 0.0) if slopes else 0.0


def _beyond_rows(verify: dict[Scene, float]) -> float:
    """Seconds of a request beyond its rows: many requests of one row, less one request of as many rows."""
    for s, t in verify.items():
        chain = Scene("verify", 1, s.requests - 1)
        if s.requests > 1 and s.drafts == 0 and s.context == SHORT and chain in verify:
            return max(t - verify[chain], 0.0) / (s.requests - 1)
    return 0.0
