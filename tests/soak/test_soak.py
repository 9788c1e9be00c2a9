"""A server under mixed load for a long time: nothing wrong, nothing lost, nothing kept, and a clean end."""

from __future__ import annotations

import asyncio
import random
import time
from pathlib import Path
from typing import Any

import psutil
import pytest

from soak.cases import Case, answered, drafts
from soak.health import Health
from soak.ledger import Ledger
from soak.load import Load, drained
from soak.pairs import Pair
from soak.server import BODY_BYTES, DRAIN_SECONDS, KEY, READ_SECONDS, SECONDS_TO_LOAD, Server, serving
from soak.told import Told

FLAGS = (
    "--limit-read-seconds", str(READ_SECONDS), "--limit-body-bytes", str(BODY_BYTES),
    "--limit-drain-seconds", str(DRAIN_SECONDS),
)  # fmt: skip
PARTS = (0.04, 0.06, 0.06, 0.28, 0.28, 0.28)
"""Of the time, between looks at the idle server; the engine is killed within the second and the third."""
KILLED_IN = (1, 2)
LAST = 12
"""Answers that run when the server is told to end."""


def test_soak(pair: Pair, told: Told, pytestconfig: pytest.Config, tmp_path: Path) -> None:
    minutes, clients = pytestconfig.getoption("--minutes"), pytestconfig.getoption("--clients")
    seed = pytestconfig.getoption("--soak-seed")
    begun = time.monotonic()
    cases = answered(pair.session(), list(drafts(pair)))
    figures: dict[str, Any] = {
        "pair": pair.name, "minutes": minutes, "clients": clients, "seed": seed, "cases": len(cases),
        "seconds_for_the_reference": round(time.monotonic() - begun, 1),
    }  # fmt: skip
    ledger = Ledger()
    with serving(pair, tmp_path, *FLAGS) as server:
        load = asyncio.run(_story(server, cases, ledger, minutes * 60, clients, seed))
        figures |= load
        code = server.process.wait(DRAIN_SECONDS)
    if code != 0:
        ledger.fault("end", f"exit status {code}")
    _check_log(server, pair, ledger)
    told.add("soak", {**figures, "exit_status": code, **ledger.figures()})
    assert ledger.faults == []
    assert ledger.compared > len(cases)


async def _story(
    server: Server, cases: list[Case], ledger: Ledger, seconds: float, clients: int, seed: int
) -> dict[str, Any]:
    load, health = Load(server, cases, ledger, clients, seed), Health(server, ledger)
    load.begin()
    health.begin()
    outages, begun = [], time.monotonic()
    for i, part in enumerate(PARTS):
        await load.run_for(part * seconds / 2)
        if i in KILLED_IN:
            outages.append(await _kill(server, ledger))
        await load.run_for(part * seconds / 2)
        await load.pause()
        if i == KILLED_IN[-1]:
            await load.fill()
        await health.look()
        load.go_on()
    load_seconds = time.monotonic() - begun
    await load.end()
    rate = ledger.figures()["requests"] / load_seconds
    restarts = health.idle[-1]["engine_restarts"]
    if restarts != len(KILLED_IN):
        ledger.fault("engine", f"started again {restarts:g} times, killed {len(KILLED_IN)} times")
    if not any(idle["preemptions_total"] for idle in health.idle):
        ledger.fault("engine", "no answer gave up its slots for another: the cache is too large for this load")
    growth = health.growth(rate)
    health.end()
    engine = psutil.Process(server.engine_pid)
    longest = sorted(cases, key=lambda case: -len(case.expected[0].tokens))[:LAST]
    end = await drained(server, longest, ledger, random.Random(seed))
    _check_end(end, engine, ledger)
    return {
        "load_seconds": round(load_seconds, 1),
        "requests_per_second": round(rate, 2),
        "kills": [{"seconds_until_ready": round(one, 2)} for one in outages],
        "idle": health.idle,
        "memory": growth,
        "end": end,
    }


async def _kill(server: Server, ledger: Ledger) -> float:
    """The engine, under load; seconds until it answers again."""
    before = await asyncio.to_thread(server.restarts)
    ledger.outage_begins()
    await asyncio.to_thread(server.kill_engine)
    deadline = time.monotonic() + SECONDS_TO_LOAD
    # A busy server may answer that it is ready before it sees that the engine is gone.
    while await asyncio.to_thread(server.restarts) == before or not await asyncio.to_thread(server.is_ready):
        assert time.monotonic() < deadline, "the engine does not come back"
        await asyncio.sleep(0.2)
    return ledger.outage_ends()


def _check_end(end: dict[str, Any], engine: psutil.Process, ledger: Ledger) -> None:
    if end["answered_whole"] < end["running"]:
        ledger.fault("end", f"of {end['running']} running answers, {end['answered_whole']} came whole and right")
    if not end["refused_meanwhile"]:
        ledger.fault("end", "no new request was refused in form")
    if end["seconds"] > DRAIN_SECONDS:
        ledger.fault("end", f"it took {end['seconds']} s")
    if engine.is_running():
        ledger.fault("end", "the engine's process outlives the server")


def _check_log(server: Server, pair: Pair, ledger: Ledger) -> None:
    """It tells of what happened, and nothing of what was said."""
    log = server.log.read_text(errors="replace")
    for name, secret in ("the key", KEY), ("a path", str(pair.target.parent)), ("a prompt", pair.questions[0]):
        if secret in log:
            ledger.fault("log", f"{name} is in it")
    for line in log.splitlines():
        if any(word in line for word in ("Traceback", "request failed", "error of its own", "Error in")):
            ledger.fault("log", line)
