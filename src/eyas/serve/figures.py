"""The engine's figures for the outside: counters as they are, rates over the last seconds."""

from __future__ import annotations

import time
from collections import deque
from dataclasses import dataclass

from eyas.engine.engine import Engine
from eyas.serve.wire import Status

WINDOW_SECONDS = 5.0
STATUS_SECONDS = 0.25


@dataclass(frozen=True)
class _Mark:
    """Counters at one time, as far as rates need them."""

    time: float
    tokens: int
    rounds: int
    steps: int
    """Σ of the draft steps of all rounds."""


class Figures:
    """``speculates``: whether K has a meaning at all."""

    def __init__(self, engine: Engine, speculates: bool) -> None:
        self.engine, self.speculates = engine, speculates
        self.steps, self.busy_seconds = 0, 0.0
        self._marks: deque[_Mark] = deque()
        self._sent = float("-inf")

    def stepped(self, seconds: float) -> None:
        """The engine made a step."""
        self.steps += 1
        self.busy_seconds += seconds

    def due(self) -> Status | None:
        """The status, if the last one is some time ago."""
        return self.status() if time.monotonic() - self._sent >= STATUS_SECONDS else None

    def status(self) -> Status:
        """The figures now."""
        engine, now = self.engine, time.monotonic()
        self._sent = now
        counters, kinds = engine.counters, engine.counters.rounds
        whole = [(r, n) for r, n in kinds.items() if r.proposed and not r.cut]
        depth = max((r.longest for r, _ in whole), default=0)
        mark = _Mark(now, counters.answer_tokens, sum(kinds.values()), sum(r.longest * n for r, n in kinds.items()))
        since = self._since(mark)
        total, free = len(engine.pool.references), engine.pool.num_free
        prefixes = engine.scheduler.prefixes
        kept = 0 if prefixes is None else prefixes.num_evictable
        rounds = mark.rounds - since.rounds
        return Status(
            running=len(engine.running),
            waiting=len(engine.waiting),
            slots_used=total - free - kept,
            slots_kept=kept,
            slots_total=total,
            prompt_tokens=counters.prompt_tokens,
            cached_tokens=counters.cached_tokens,
            answer_tokens=counters.answer_tokens,
            steps=self.steps,
            rounds=sum(n for _, n in whole),
            cut_rounds=sum(n for r, n in kinds.items() if r.cut),
            plain_rounds=sum(n for r, n in kinds.items() if not r.proposed),
            proposed=sum(r.proposed * n for r, n in whole),
            accepted_histogram=[sum(n for r, n in whole if r.accepted == i) for i in range(depth + 1)] if whole else [],
            proposed_at_least=[sum(n for r, n in whole if r.longest > i) for i in range(depth)],
            preemptions=engine.scheduler.preemptions,
            aborted=counters.aborted,
            busy_seconds=self.busy_seconds,
            tokens_per_second=(mark.tokens - since.tokens) / max(now - since.time, STATUS_SECONDS),
            plain_tokens_per_second=self._plain(),
            num_steps=(mark.steps - since.steps) / rounds if self.speculates and rounds else None,
        )

    def _since(self, mark: _Mark) -> _Mark:
        """The oldest counters of the window."""
        self._marks.append(mark)
        while len(self._marks) > 1 and mark.time - self._marks[0].time > WINDOW_SECONDS:
            self._marks.popleft()
        return self._marks[0]

    def _plain(self) -> float | None:
        controller = self.engine.chooser.controller
        if controller is None or controller.forecast is None or not self.engine.running:
            return None
        return controller.forecast.plain_tokens_per_second
