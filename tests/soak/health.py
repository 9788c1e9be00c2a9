"""Whether a server keeps what it should give back: cache slots, files, memory."""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict
from typing import Any

from scipy.stats import linregress

from soak.ledger import Ledger
from soak.server import IDLE, Sample, Server

SAMPLE_SECONDS = 1.0
IDLE_SECONDS = 30.0
"""Until everything that clients left is given back."""
WARM_UP = 1 / 3
"""Share of a process's time in which memory may still grow as it likes: caches fill, code is loaded."""
MOST_GROWTH = 24 << 20
"""Bytes that a process may grow by after its warm-up, by linear regression over the whole time. A leak of one page a
request passes it after some 6,000 requests."""
MIB = 1 << 20


class Health:
    """Looks at one server's processes all the time, and at its books when it is idle."""

    def __init__(self, server: Server, ledger: Ledger) -> None:
        self.server, self.ledger = server, ledger
        self.samples: dict[int, list[Sample]] = defaultdict(list)
        self.idle: list[dict[str, Any]] = []
        self._task: asyncio.Task[None] | None = None

    def begin(self) -> None:
        self._task = asyncio.create_task(self._watch())

    def end(self) -> None:
        assert self._task is not None
        self._task.cancel()

    async def _watch(self) -> None:
        while True:
            for one in await asyncio.to_thread(self.server.sample):
                self.samples[one.pid].append(one)
            await asyncio.sleep(SAMPLE_SECONDS)

    async def look(self) -> None:
        """At an idle server. All that clients held must be free."""
        deadline = time.monotonic() + IDLE_SECONDS
        figures = await asyncio.to_thread(self.server.metrics)
        # An engine that is not loaded has no figures.
        while any(figures.get(name, 1) for name in IDLE) and time.monotonic() < deadline:
            await asyncio.sleep(0.2)
            figures = await asyncio.to_thread(self.server.metrics)
        held = {name: figures.get(name) for name in IDLE if figures.get(name, 1)}
        if held:
            self.ledger.fault("idle", f"still held after {IDLE_SECONDS:g} s: {held}")
        files = await self._files(deadline)
        known = ("eyas_kv_slots_kept", "eyas_preemptions_total", "eyas_aborted_requests_total", "eyas_steps_total")
        told = {name.removeprefix("eyas_"): figures.get(name) for name in known}
        restarts = figures["eyas_engine_restarts_total"]
        self.idle.append({**told, "engine_restarts": restarts, "files": files, "held": held})

    async def _files(self, deadline: float) -> list[int]:
        """Of server and engine; the last connections may need a moment to be gone."""
        while True:
            found = await asyncio.to_thread(self.server.sample)
            files = [one.files for one in found]
            if not self.idle or files == self.idle[0]["files"] or time.monotonic() > deadline:
                break
            await asyncio.sleep(0.2)
        if self.idle and files != self.idle[0]["files"]:
            self.ledger.fault("idle", f"open files (server, engine): {files}, at first {self.idle[0]['files']}")
        return files

    def growth(self, requests_per_second: float) -> list[dict[str, Any]]:
        """Of the server, and of the engine's last process; too much of it is a fault."""
        engine = self.server.engine_pid
        found = []
        for name, pid in ("server", self.server.process.pid), ("engine", engine):
            assert pid is not None
            figures = _fitted(self.samples[pid], requests_per_second)
            if figures["growth_mib"] > MOST_GROWTH / MIB:
                self.ledger.fault("memory", f"the {name} grew by {figures}")
            found.append({"process": name, **figures})
        return found


def _fitted(samples: list[Sample], requests_per_second: float) -> dict[str, Any]:
    begun, over = samples[0].time, samples[-1].time
    kept = [one for one in samples if one.time >= begun + WARM_UP * (over - begun)]
    fit = linregress([one.time for one in kept], [one.rss for one in kept])
    window = over - kept[0].time
    return {
        "samples": len(kept),
        "minutes": round(window / 60, 2),
        "rss_mib_begin": round(kept[0].rss / MIB, 1),
        "rss_mib_end": round(kept[-1].rss / MIB, 1),
        "rss_mib_most": round(max(one.rss for one in samples) / MIB, 1),
        "mib_per_minute": round(fit.slope * 60 / MIB, 3),
        "mib_per_minute_standard_error": round(fit.stderr * 60 / MIB, 3),
        "growth_mib": round(fit.slope * window / MIB, 2),
        "growth_mib_allowed": MOST_GROWTH / MIB,
        "bytes_per_request": round(fit.slope / requests_per_second) if requests_per_second else None,
        "files_most": max(one.files for one in samples),
        "threads": sorted({one.threads for one in kept})[-1],
    }
