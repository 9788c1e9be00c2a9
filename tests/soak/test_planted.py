"""The lane finds what it looks for: each fault is planted once, and told."""

from __future__ import annotations

import asyncio
import random
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from soak.cases import Case, answered, drafts
from soak.health import MIB, MOST_GROWTH, Health
from soak.ledger import Ledger
from soak.load import Load
from soak.pairs import tiny
from soak.server import Sample, Server, serving

SECONDS = 1800.0
ERROR = {"message": "m", "type": "t", "param": None, "code": "server.busy"}


@pytest.mark.parametrize(
    ("status", "headers", "body", "said"),
    [
        (429, {"retry-after": "1"}, {"error": ERROR}, None),
        (429, {}, {"error": ERROR}, "no Retry-After"),
        (400, {"retry-after": "1"}, {"error": ERROR}, "do not belong together"),
        (429, {"retry-after": "1"}, {"detail": "busy"}, "without an error in OpenAI's form"),
        (500, {}, {"error": {**ERROR, "code": "no.such"}}, "do not belong together"),
        (503, {"retry-after": "1"}, {"error": {**ERROR, "code": "engine.died"}}, "an error of the server's own"),
    ],
)
def test_an_error_of_the_wrong_form_is_told(status: int, headers: dict, body: dict, said: str | None) -> None:
    ledger = Ledger()
    ledger.refused("answer", 0.0, status, headers, body)
    if said is None:
        assert ledger.faults == []
    else:
        assert any(said in fault for fault in ledger.faults), ledger.faults


def grown(curve: list[float]) -> list[str]:
    """The faults of a server with this memory in MiB, over half an hour."""
    ledger = Ledger()
    server = SimpleNamespace(process=SimpleNamespace(pid=7), engine_pid=7)
    health = Health(server, ledger)  # type: ignore[arg-type]
    step = SECONDS / len(curve)
    health.samples[7] = [Sample(i * step, 7, int(m * MIB), 9, 4) for i, m in enumerate(curve)]
    health.growth(requests_per_second=10.0)
    return ledger.faults


def test_memory_that_leaks_is_told_and_memory_that_fills_or_shakes_is_not() -> None:
    dice = random.Random(1)
    shaking = [1000 + dice.gauss(0, 15) for _ in range(1800)]
    assert grown(shaking) == []
    filling = [m + min(i, 500) for i, m in enumerate(shaking)]
    assert grown(filling) == []
    # A page of 4 KiB for each of ten requests a second.
    leaking = [m + i * 10 * 4096 / MIB for i, m in enumerate(shaking)]
    assert len(grown(leaking)) == 2, "of server and engine"
    assert 4096 * 10 * SECONDS * 2 / 3 > MOST_GROWTH


@pytest.fixture(scope="module")
def cases() -> list[Case]:
    pair = tiny()
    return answered(pair.session(), list(drafts(pair)))


def seen(server: Server, cases: list[Case], seconds: float) -> Ledger:
    """What a short load against these answers finds."""
    ledger = Ledger()

    async def run() -> None:
        load = Load(server, cases, ledger, 4, 1)
        load.begin()
        await load.run_for(seconds)
        await load.end()

    asyncio.run(run())
    return ledger


def test_a_wrong_answer_is_told(cases: list[Case], tmp_path: Path) -> None:
    wrong = [
        replace(
            case,
            expected=tuple(replace(one, tokens=(*one.tokens[:-1], 1), text=one.text + "?") for one in case.expected),
        )
        for case in cases
    ]
    with serving(tiny(), tmp_path) as server:
        assert seen(server, cases, 5).faults == []
        assert seen(server, wrong, 5).faults
