"""What is around an engine's process: it dies, hangs, fills up, ends; and nobody waits for ever or takes the blame."""

from __future__ import annotations

import asyncio
import signal
from pathlib import Path

import pytest

from eyas.errors import EyasError
from eyas.serve.process import Care
from support.engine_processes import ask, fake, running, text_of, whole


def run(coroutine):
    return asyncio.run(asyncio.wait_for(coroutine, 60))


async def code_of(awaitable) -> str:
    with pytest.raises(EyasError) as caught:
        await awaitable
    return caught.value.code


async def until(condition) -> None:
    while not condition():
        await asyncio.sleep(0.01)


def test_an_answer_comes_in_pieces_and_nothing_is_left_behind() -> None:
    async def story() -> None:
        async with running(fake("answers")) as process:
            assert process.ready is not None
            pieces = await asyncio.gather(*(whole(process, ask(str(i))) for i in range(20)))
            assert {text_of(p) for p in pieces} == {"ab0"}
            assert process.in_flight == 0

    run(story())


def test_an_engine_that_cannot_load_says_why_and_is_not_tried_again() -> None:
    async def story() -> None:
        process = fake("cannot load")
        with pytest.raises(EyasError) as caught:
            await process.start()
        assert (caught.value.code, caught.value.fix) == ("contract.mismatch", "use the other draft")
        assert (process.restarts, process.pid) == (0, None)
        await process.close()

    run(story())


@pytest.mark.parametrize(("behaviour", "words"), [("crashes", "status 7"), ("says why", "an error of its own")])
def test_a_crash_is_an_error_for_who_waits_and_the_engine_comes_back(behaviour: str, words: str) -> None:
    async def story() -> None:
        said: list[str] = []
        async with running(fake(behaviour, say=said.append)) as process:
            for restart in (1, 2):
                with pytest.raises(EyasError) as caught:
                    await whole(process, ask(f"{restart}"))
                assert caught.value.code == "engine.died"
                assert words in caught.value.cause
                assert process.ready is None
                await until(lambda: process.ready is not None)
                assert process.restarts == restart
            assert any("started again" in line for line in said)
            assert not any("whale" in line for line in said)
            # Where it happened is told to who runs the server, and to nobody else.
            assert any("step:1" in line for line in said) == (behaviour == "says why")
            assert "step:1" not in caught.value.cause

    run(story())


def test_while_it_is_started_again_requests_are_told_so() -> None:
    async def story() -> None:
        process = fake("crashes")
        async with running(process):
            object.__setattr__(process.care, "first_delay", 5.0)
            assert await code_of(whole(process, ask("1"))) == "engine.died"
            assert await code_of(whole(process, ask("2"))) == "server.loading"

    run(story())


def test_killed_in_the_middle_all_requests_end_with_the_same_error() -> None:
    async def story() -> None:
        async with running(fake("holds")) as process:
            waiting = [asyncio.create_task(whole(process, ask(str(i)))) for i in range(5)]
            await until(lambda: process.in_flight == 5)
            child = process._child
            assert child is not None
            child.send_signal(signal.SIGKILL)
            assert [await code_of(task) for task in waiting] == ["engine.died"] * 5
            await until(lambda: process.ready is not None)
            assert process.restarts == 1

    run(story())


def test_an_engine_that_hangs_is_killed_and_started_again() -> None:
    async def story() -> None:
        async with running(fake("hangs", Care(watchdog_seconds=1.0))) as process:
            assert await code_of(whole(process, ask("1"))) == "engine.died"
            await until(lambda: process.ready is not None)

    run(story())


def test_a_full_queue_turns_requests_away_and_takes_them_again_later() -> None:
    async def story() -> None:
        async with running(fake("holds", Care(max_queued=2), max_running=1)) as process:
            waiting = [asyncio.create_task(whole(process, ask(str(i)))) for i in range(3)]
            await until(lambda: process.in_flight == 3)
            assert await code_of(whole(process, ask("one too many"))) == "server.busy"
            waiting[0].cancel()
            await until(lambda: process.in_flight == 2)
            waiting.append(asyncio.create_task(whole(process, ask("again"))))
            await until(lambda: process.in_flight == 3)

    run(story())


def test_closing_the_iterator_gives_the_request_up(tmp_path: Path) -> None:
    async def story() -> None:
        journal = tmp_path / "dropped"
        async with running(fake(f"holds|{journal}")) as process:
            task = asyncio.create_task(whole(process, ask("mine")))
            await until(lambda: process.in_flight == 1)
            task.cancel()
            await until(journal.is_file)
            assert (journal.read_text(), process.in_flight) == ("mine", 0)

    run(story())


def test_a_whole_answer_is_not_given_up_afterwards(tmp_path: Path) -> None:
    async def story() -> None:
        journal = tmp_path / "dropped"
        async with running(fake(f"answers|{journal}")) as process:
            await whole(process, ask("mine"))
            await whole(process, ask("next"))
        assert not journal.exists()

    run(story())


@pytest.mark.parametrize(("now", "finish"), [(False, "length"), (True, "abort")])
def test_an_end_lets_requests_end_or_ends_them(now: bool, finish: str) -> None:
    async def story() -> None:
        process = fake("holds")
        await process.start()
        task = asyncio.create_task(whole(process, ask("1")))
        await until(lambda: process.in_flight == 1)
        closing = asyncio.create_task(process.close(now))
        assert (await task)[-1].finish == finish
        await closing
        assert process.pid is None
        assert await code_of(whole(process, ask("2"))) == "server.draining"

    run(story())


def test_who_does_not_end_in_time_is_ended() -> None:
    async def story() -> None:
        process = fake("hangs", Care(drain_seconds=0.2))
        await process.start()
        task = asyncio.create_task(whole(process, ask("1")))
        await until(lambda: process.in_flight == 1)
        await process.close()
        assert process.pid is None
        assert await code_of(task) == "server.draining"

    run(story())
