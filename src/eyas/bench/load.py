"""Requests sent as a load asks: so many open at any time, or so many a second whether or not earlier ones are done."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import numpy as np

from eyas.bench.client import Clock, Outcome, Question
from eyas.bench.settings import Load

LAG_SECONDS = 0.05
PATIENCE = 5
"""Failures in a row, beyond what is open at a time, after which a server is given up."""
Ask = Callable[[Question, float], Awaitable[Outcome]]
OnDone = Callable[[Outcome], None]


@dataclass
class Block:
    """Requests of one load to one server, without a break. ``stopped``: why not all were sent; None: all were."""

    outcomes: list[Outcome] = field(default_factory=list)
    seconds: float = 0.0
    stopped: str | None = None
    lost: bool = False
    """Too many failures in a row stopped it."""


class _Watch:
    """Whether to go on."""

    def __init__(self, clock: Clock, deadline: float | None, patience: int) -> None:
        self.clock, self.deadline, self.patience = clock, deadline, patience
        self.failed = 0
        self.why: str | None = None

    def saw(self, outcome: Outcome) -> None:
        self.failed = 0 if outcome.fault is None else self.failed + 1
        if self.failed >= self.patience:
            self.why = f"{self.failed} failures in a row, the last: {outcome.fault} {outcome.said}".strip()

    def goes_on(self) -> bool:
        if self.why is None and self.deadline is not None and self.clock.now() >= self.deadline:
            self.why = "its time was up"
        return self.why is None


async def run_block(
    ask: Ask, questions: Sequence[Question], load: Load, clock: Clock, seed: int, left: float | None, on_done: OnDone
) -> Block:
    """Send all ``questions``, in order. ``seed``: of arrivals · ``left``: seconds after which no more are sent."""
    began = clock.now()
    block = Block()
    at_once = int(load.value) if load.kind == "closed" else 0
    watch = _Watch(clock, None if left is None else began + left, at_once + PATIENCE)

    async def one(question: Question, due: float) -> None:
        outcome = await ask(question, due)
        block.outcomes.append(outcome)
        watch.saw(outcome)
        on_done(outcome)

    if load.kind == "closed":
        await _closed(one, iter(questions), at_once, clock, watch)
    else:
        await _open(one, questions, arrivals(load.value, len(questions), seed), clock, watch)
    # A failure may have taken its whole timeout; the time is that of all requests, not only of answers.
    block.seconds = max((o.ended for o in block.outcomes), default=began) - began
    block.stopped = watch.why if len(block.outcomes) < len(questions) else None
    block.lost = watch.failed >= watch.patience
    block.outcomes.sort(key=lambda outcome: outcome.question.number)
    return block


One = Callable[[Question, float], Awaitable[None]]


async def _closed(one: One, questions: Iterator[Question], at_once: int, clock: Clock, watch: _Watch) -> None:
    async def worker() -> None:
        while watch.goes_on():
            question = next(questions, None)
            if question is None:
                return
            await one(question, clock.now())

    async with asyncio.TaskGroup() as group:
        for _ in range(at_once):
            group.create_task(worker())


async def _open(one: One, questions: Sequence[Question], at: Sequence[float], clock: Clock, watch: _Watch) -> None:
    began = clock.now()
    async with asyncio.TaskGroup() as group:
        for question, offset in zip(questions, at, strict=True):
            await clock.sleep(max(0.0, began + offset - clock.now()))
            if not watch.goes_on():
                return
            # Timed from when it was due: a client or server that falls behind must not look faster for it.
            group.create_task(_run(one, question, began + offset))


async def _run(one: One, question: Question, due: float) -> None:
    await one(question, due)


def arrivals(rate: float, count: int, seed: int) -> list[float]:
    """Seconds from the start at which ``count`` requests come, ``rate`` a second, with gaps drawn independently
    (a Poisson process). The same seed gives the same gaps, stretched by the rate.
    """
    gaps = np.random.default_rng(seed).exponential(1.0, count)
    return [float(t) for t in np.cumsum(gaps) / rate]


@contextmanager
def watch_lag(clock: Clock) -> Iterator[list[float]]:
    """How many seconds late this client woke, again and again: what its own slowness adds to every time."""
    lags: list[float] = []

    async def measure() -> None:
        while True:
            before = clock.now()
            await asyncio.sleep(LAG_SECONDS)
            lags.append(max(0.0, clock.now() - before - LAG_SECONDS))

    task = asyncio.get_running_loop().create_task(measure())
    try:
        yield lags
    finally:
        task.cancel()
