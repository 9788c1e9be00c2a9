"""Requests go where their beginning is known, unless that is much busier; figures are of all replicas."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from eyas.errors import EyasError
from eyas.serve.router import BLOCK, Router, together
from eyas.serve.wire import Ask, Piece, Ready, Status
from support.fake_client import a_status


class Replica:
    """Answers when it is let; remembers whom it was asked by."""

    def __init__(self, name: str) -> None:
        self.name, self.restarts, self.asked = name, 0, []
        self.ready: Ready | None = Ready(name, 512, 1024, 100, {})
        self.status: Status | None = a_status([1, 2], [3])
        self.full, self.flushed, self.closed = False, 0, 0
        self.gate = asyncio.Event()
        self.gate.set()

    async def answer(self, ask: Ask) -> AsyncIterator[Piece]:
        if self.full:
            raise EyasError("server.busy", "full", "wait")
        self.asked.append(ask.id)
        await self.gate.wait()
        yield Piece(ask.id, [1], [self.name], [0], finish="stop")

    async def flush(self) -> None:
        self.flushed += 1

    async def close(self, now: bool = False) -> None:
        self.closed += 1


def ask(id_: str, prompt: list[int]) -> Ask:
    return Ask(id_, prompt, "{}")


async def who(router: Router, prompt: list[int], id_: str = "x") -> str:
    pieces = [piece async for piece in router.answer(ask(id_, prompt))]
    return pieces[0].texts[0]


A, B, C = ([n] * (3 * BLOCK) for n in (1, 2, 3))


def story(test):
    return lambda: asyncio.run(asyncio.wait_for(test(), 20))


@story
async def test_a_known_beginning_goes_home() -> None:
    one, two = Replica("one"), Replica("two")
    router = Router([one, two])
    one.gate.clear()
    held = asyncio.create_task(who(router, C))
    await asyncio.sleep(0)
    assert await who(router, A) == "two"
    one.gate.set()
    await held
    assert {await who(router, [*A, n]) for n in range(5)} == {"two"}
    assert await who(router, [*A[:BLOCK], *B]) == "two"
    await router.flush()
    assert await who(router, A) == "one", "nobody knows it any more, and both are free"


@story
async def test_what_is_not_known_goes_to_the_least_busy() -> None:
    one, two = Replica("one"), Replica("two")
    router = Router([one, two])
    one.gate.clear()
    held = asyncio.create_task(who(router, A))
    await asyncio.sleep(0)
    assert await who(router, B) == "two"
    one.gate.set()
    assert await held == "one"


@story
async def test_a_home_that_is_much_busier_is_left() -> None:
    one, two = Replica("one"), Replica("two")
    router = Router([one, two])
    assert await who(router, A) == "one"
    one.gate.clear()
    held = [asyncio.create_task(who(router, A)) for _ in range(8)]
    await asyncio.sleep(0.01)
    assert len(two.asked) > 0
    one.gate.set()
    assert {await task for task in held} == {"one", "two"}


@story
async def test_a_replica_that_was_started_again_knows_nothing() -> None:
    one, two = Replica("one"), Replica("two")
    router = Router([one, two])
    assert await who(router, A) == "one"
    one.restarts = 1
    one.gate.clear()
    held = asyncio.create_task(who(router, C))
    await asyncio.sleep(0)
    assert await who(router, A) == "two"
    one.gate.set()
    await held
    assert router.restarts == 1


@story
async def test_a_full_or_absent_replica_hands_on() -> None:
    one, two = Replica("one"), Replica("two")
    router = Router([one, two])
    one.full = True
    assert await who(router, A) == "two"
    two.full = True
    with pytest.raises(EyasError) as caught:
        await who(router, B)
    assert caught.value.code == "server.busy"
    one.full = two.full = False
    two.ready = None
    assert await who(router, A) == "one"


@story
async def test_giving_up_reaches_the_replica_and_frees_its_place() -> None:
    one = Replica("one")
    router = Router([one, Replica("two")])
    one.gate.clear()
    task = asyncio.create_task(who(router, A))
    await asyncio.sleep(0.01)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert [replica.in_flight for replica in router._replicas] == [0, 0]


@story
async def test_all_replicas_are_flushed_and_closed() -> None:
    replicas = [Replica("one"), Replica("two")]
    router = Router(replicas)
    await router.flush()
    await router.close()
    assert [(r.flushed, r.closed) for r in replicas] == [(1, 1), (1, 1)]


@story
async def test_it_is_ready_as_soon_as_one_is() -> None:
    one, two = Replica("one"), Replica("two")
    router = Router([one, two])
    assert router.ready is not None
    assert (router.ready.num_slots, router.ready.facts["replicas_ready"]) == (200, 2)
    one.ready = None
    assert router.ready is not None
    assert (router.ready.model, router.ready.num_slots) == ("two", 100)
    two.ready = None
    assert router.ready is None


def test_figures_of_all_are_added_position_by_position() -> None:
    both = together([a_status([1, 2], [3], 1.0, 10.0), a_status([1, 0, 4], [5, 5], 3.0, 20.0)])
    assert (both.accepted_histogram, both.proposed_at_least) == ([2, 2, 4], [8, 5])
    assert (both.rounds, both.slots_total, both.num_steps, both.plain_tokens_per_second) == (8, 2000, 2.0, 30.0)


def test_what_one_does_not_know_is_not_guessed() -> None:
    assert together([a_status([1], [1], plain=5.0), a_status([1], [1])]).plain_tokens_per_second is None
