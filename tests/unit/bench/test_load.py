"""How requests are sent, by a clock that only moves when somebody waits."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import numpy as np
import pytest

from eyas.bench.client import Clock, Outcome, Question
from eyas.bench.load import PATIENCE, arrivals, run_block
from eyas.bench.settings import Load


class Time:
    """Sleepers wake in the order of their hours; everything else takes no time."""

    def __init__(self) -> None:
        self.now = 0.0
        self.sleepers: list[tuple[float, int, asyncio.Event]] = []
        self.open = self.most = self.count = 0

    async def sleep(self, seconds: float) -> None:
        event = asyncio.Event()
        self.count += 1
        self.sleepers.append((self.now + seconds, self.count, event))
        await event.wait()

    async def run(self, work):
        task = asyncio.ensure_future(work)
        while not task.done():
            for _ in range(10):
                await asyncio.sleep(0)
            if self.sleepers and not task.done():
                self.sleepers.sort()
                self.now, _, event = self.sleepers.pop(0)
                event.set()
        return task.result()


def block(load: Load, count: int, seconds: float = 1.0, fault: Callable[[int], bool] = lambda n: False, left=None):
    time = Time()
    clock = Clock(lambda: time.now, time.sleep)

    async def ask(question: Question, due: float) -> Outcome:
        sent = time.now
        time.open += 1
        time.most = max(time.most, time.open)
        await time.sleep(seconds)
        time.open -= 1
        said = "http-500" if fault(question.number) else None
        return Outcome(question, due, sent=sent, ended=time.now, fault=said)

    async def work():
        questions = [Question(i, f"p{i}", ()) for i in range(count)]
        return await time.run(run_block(ask, questions, load, clock, 0, left, lambda o: None))

    return asyncio.run(work()), time


def test_closed_keeps_so_many_open():
    done, time = block(Load("closed", 4), 10)
    assert (time.most, len(done.outcomes), done.seconds) == (4, 10, 3.0)
    assert [o.question.number for o in done.outcomes] == list(range(10))


def test_open_sends_by_the_clock_whether_or_not_earlier_ones_are_done():
    done, time = block(Load("open", 2.0), 50, seconds=100.0)
    assert [o.due for o in done.outcomes] == pytest.approx(arrivals(2.0, 50, 0))
    assert all(o.sent == pytest.approx(o.due) for o in done.outcomes)
    assert time.most == 50


def test_arrivals_are_a_poisson_process():
    at = np.array(arrivals(5.0, 20_000, 3))
    gaps = np.diff(at)
    assert gaps.mean() == pytest.approx(0.2, rel=0.03)
    assert gaps.std() == pytest.approx(0.2, rel=0.03), "exponential gaps spread as far as their mean"
    assert arrivals(5.0, 9, 3) == arrivals(5.0, 9, 3)
    assert arrivals(10.0, 9, 3) == pytest.approx([t / 2 for t in arrivals(5.0, 9, 3)])


def test_time_is_up():
    done, _ = block(Load("closed", 2), 100, left=3.5)
    assert (len(done.outcomes), done.stopped, done.lost) == (8, "its time was up", False)


def test_a_dead_server_is_given_up():
    done, _ = block(Load("closed", 1), 100, fault=lambda n: n >= 3)
    assert len(done.outcomes) == 3 + 1 + PATIENCE
    assert done.lost
    assert "6 failures in a row" in str(done.stopped)


def test_failures_between_answers_are_measured_on():
    done, _ = block(Load("closed", 1), 60, fault=lambda n: n % 3 != 0)
    assert (len(done.outcomes), done.stopped, done.lost) == (60, None, False)
