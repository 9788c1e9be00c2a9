"""A thousand connections at one time; then more requests than may wait."""

from __future__ import annotations

import asyncio
import json
import resource
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from soak import wire
from soak.cases import CHAT, Case, answered, chat
from soak.ledger import Ledger
from soak.pairs import Pair
from soak.server import Server, serving
from soak.told import Told

SPARE_FILES = 500
TOKENS = 4
RUNNING, QUEUED = 16, 50
"""Of the server that is asked for more than it takes."""
SECONDS = 1800.0


def test_connections_are_held(pair: Pair, told: Told, pytestconfig: pytest.Config, tmp_path: Path) -> None:
    count = pytestconfig.getoption("--connections")
    _allow_files(count + SPARE_FILES)
    cases = _cases(pair)
    ledger = Ledger()
    with serving(pair, tmp_path) as server:
        figures = asyncio.run(_ask_all(server, cases, count, ledger))
    told.add("connections", {"pair": pair.name, **figures, "faults": ledger.faults})
    assert ledger.faults == []
    assert figures["connections_held"] >= count
    assert figures["outcomes"] == {"right": count}, "all fit into batch and queue"


def test_what_does_not_fit_is_told_to_come_again(
    pair: Pair, told: Told, pytestconfig: pytest.Config, tmp_path: Path
) -> None:
    count = pytestconfig.getoption("--connections")
    _allow_files(count + SPARE_FILES)
    cases = _cases(pair)
    ledger = Ledger()
    flags = ("--max-running-requests", str(RUNNING), "--max-queued-requests", str(QUEUED))
    with serving(pair, tmp_path, *flags) as server:
        figures = asyncio.run(_ask_all(server, cases, count, ledger))
        again = asyncio.run(_ask_all(server, cases, RUNNING, ledger))
    limits = {"max_running_requests": RUNNING, "max_queued_requests": QUEUED}
    told.add("too many connections", {"pair": pair.name, **limits, **figures, "faults": ledger.faults})
    assert ledger.faults == []
    assert figures["outcomes"].keys() == {"right", "429 server.busy"}
    assert figures["outcomes"]["right"] >= RUNNING + QUEUED
    assert again["outcomes"] == {"right": RUNNING}, "the queue is free again"


def _cases(pair: Pair) -> list[Case]:
    wanted = [chat(f"short {i}", question, TOKENS) for i, question in enumerate(pair.questions)]
    return answered(pair.session(), wanted)


def _allow_files(wanted: int) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


async def _ask_all(server: Server, cases: list[Case], count: int, ledger: Ledger) -> dict[str, Any]:
    """Connect ``count`` times, then ask on all connections, then read all answers."""
    before = server.sample()[0].files
    held: list[wire.Streams] = []
    begun = time.monotonic()
    for _ in range(count):
        held.append(await asyncio.open_connection("127.0.0.1", server.port))
    connected = time.monotonic() - begun
    for i, (_, writer) in enumerate(held):
        writer.write(wire.request(CHAT, {**cases[i % len(cases)].fields, "stream": True}))
    watch = FilesWatch(server)
    watching = asyncio.create_task(watch.run())
    async with asyncio.timeout(SECONDS):
        outcomes = await asyncio.gather(
            *(_read(held[i][0], cases[i % len(cases)], begun, ledger) for i in range(count))
        )
    seconds = time.monotonic() - begun
    for _, writer in held:
        writer.close()
    watching.cancel()
    files = server.sample()[0].files
    return {
        "connections": count,
        "connections_held": watch.most - before,
        "outcomes": dict(Counter(outcomes)),
        "seconds_to_connect": round(connected, 2),
        "seconds": round(seconds, 2),
        "answers_per_second": round(outcomes.count("right") / seconds, 1),
        "files_before_and_after": [before, files],
    }


class FilesWatch:
    """The most files that the server held open at one time: a connection is one."""

    def __init__(self, server: Server) -> None:
        self.server, self.most = server, 0

    async def run(self) -> None:
        while True:
            self.most = max(self.most, self.server.sample()[0].files)
            await asyncio.sleep(0.1)


async def _read(reader: asyncio.StreamReader, case: Case, begun: float, ledger: Ledger) -> str:
    reply = await wire.read_reply(reader)
    if reply is None:
        ledger.fault("connection", "closed without an answer")
        return "closed"
    if reply.status != 200:
        code = ledger.refused("connection", begun, reply.status, reply.headers, json.loads(reply.body))
        return f"{reply.status} {code}"
    lines = [line.removeprefix("data: ") for line in reply.body.decode().splitlines() if line]
    if lines[-1] != "[DONE]":
        ledger.fault("connection", f"a stream ended with {lines[-1]}")
        return "cut"
    choices = [choice for line in lines[:-1] for choice in json.loads(line)["choices"]]
    text = "".join(choice["delta"].get("content") or "" for choice in choices)
    if text != case.expected[0].text:
        ledger.fault("connection", f"{case.name}: {text!r}, expected {case.expected[0].text!r}")
        return "wrong"
    return "right"
