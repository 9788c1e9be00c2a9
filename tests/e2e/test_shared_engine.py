"""An engine whose target two processes share, as the HTTP side sees it: answers, grammars, a rank that is killed."""

from __future__ import annotations

import asyncio
import os
import signal

import psutil
import pytest

from eyas.config import SamplingSettings
from eyas.engine.exactness import first_divergence
from eyas.errors import EyasError
from eyas.serve.process import Care, EngineProcess
from eyas.serve.wire import Grammar, Piece
from eyas.testing import load_tiny_target, tiny_prompts
from rigs import plain_answers
from support.engine_processes import ask, running, text_of, tiny_settings, whole

LENGTH = 24


def others_of(process: EngineProcess) -> list[psutil.Process]:
    assert process.pid is not None
    return psutil.Process(process.pid).children()


def check(number: int, pieces: list[Piece], truth: list[int]) -> None:
    answer = [token for piece in pieces for token in piece.tokens]
    greedy = SamplingSettings(max_new_tokens=LENGTH)
    parted = first_divergence(load_tiny_target(), tiny_prompts()[number], truth, answer, greedy)
    assert parted is None or parted.is_tie, parted


@pytest.mark.slow
def test_two_ranks_answer_as_one_process_does_and_end_together() -> None:
    prompts = tiny_prompts()[:4]
    plain = plain_answers(
        load_tiny_target(), prompts, [SamplingSettings(max_new_tokens=LENGTH, stop_token_ids=(2,))] * 4
    )

    async def story() -> None:
        settings = tiny_settings(tp_size=2, speculative_adaptive=True)
        async with running(EngineProcess(settings)) as process:
            (other,) = others_of(process)
            regex = Grammar("regex", "[a-f]{4,8}")
            several = [whole(process, ask(str(i), i, LENGTH)) for i in range(4)]
            *found, bound = await asyncio.gather(*several, whole(process, ask("g", 0, 12, grammar=regex)))
            for number, pieces in enumerate(found):
                check(number, pieces, plain[number])
            assert set(text_of(bound)) <= set("abcdef")
            assert 4 <= len(text_of(bound)) <= 8
            given_up = process.answer(ask("gone", 1, 400))
            await anext(given_up)
            await given_up.aclose()
            check(2, await whole(process, ask("again", 2, LENGTH)), plain[2])
            assert process.ready is not None
            assert process.ready.facts["tp_size"] == 2
            assert process.restarts == 0
        assert not other.is_running() or other.status() == psutil.STATUS_ZOMBIE

    asyncio.run(asyncio.wait_for(story(), 300))


@pytest.mark.slow
def test_a_rank_that_is_killed_takes_the_engine_with_it_and_both_come_back() -> None:
    async def story() -> None:
        said: list[str] = []
        process = EngineProcess(tiny_settings(tp_size=2), Care(first_delay=0.01), said.append)
        async with running(process):
            before = text_of(await whole(process, ask("before", 2, LENGTH)))
            pieces = process.answer(ask("killed", 2, 400))
            await anext(pieces)
            (other,) = others_of(process)
            os.kill(other.pid, signal.SIGKILL)
            with pytest.raises(EyasError, match=r"engine\.died"):
                _ = [piece async for piece in pieces]
            assert any("lost the others" in line for line in said), "why is for who runs the server"
            while process.ready is None:
                await asyncio.sleep(0.05)
            assert process.restarts == 1
            assert text_of(await whole(process, ask("after", 2, LENGTH))) == before
            (idle,) = others_of(process)
            os.kill(idle.pid, signal.SIGKILL)
            while process.restarts == 1:
                await asyncio.sleep(0.05)

    asyncio.run(asyncio.wait_for(story(), 300))
