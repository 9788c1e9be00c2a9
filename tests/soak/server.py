"""A real ``eyas serve``, and what can be seen of it from outside."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx2 as httpx
import psutil
from prometheus_client.parser import text_string_to_metric_families

from soak.pairs import THREADS, Pair

KEY = "key-of-the-soak-0123456789"
HEADERS = {"Authorization": f"Bearer {KEY}"}
READ_SECONDS, BODY_BYTES, DRAIN_SECONDS = 3.0, 1 << 20, 60.0
IDLE = ("eyas_requests_running", "eyas_requests_waiting", "eyas_kv_slots_used")
"""Figures that are 0 when nothing runs."""
SECONDS_TO_LOAD = 300


@dataclass(frozen=True)
class Sample:
    """One look at a process: when, which, bytes, open files, threads."""

    time: float
    pid: int
    rss: int
    files: int
    threads: int


class Server:
    """One running server. ``log``: the file that its standard error goes to."""

    def __init__(self, process: subprocess.Popen[bytes], url: str, log: Path) -> None:
        self.process, self.url, self.log = process, url, log
        self.port = int(url.rsplit(":", 1)[1])

    @property
    def engine_pid(self) -> int | None:
        """The engine's process, if there is one now."""
        found = [child.pid for child in psutil.Process(self.process.pid).children()]
        return found[0] if found else None

    def kill_engine(self) -> None:
        pid = self.engine_pid
        assert pid is not None, "no engine to kill"
        os.kill(pid, signal.SIGKILL)

    def get(self, path: str) -> httpx.Response:
        """On a connection of its own."""
        return httpx.get(self.url + path, headers={**HEADERS, "connection": "close"}, timeout=60)

    def metrics(self) -> dict[str, float]:
        """Every figure without labels, and the restarts."""
        families = text_string_to_metric_families(self.get("/metrics").text)
        return {one.name: one.value for family in families for one in family.samples if not one.labels}

    def restarts(self) -> int:
        """Of the engine."""
        return int(self.metrics()["eyas_engine_restarts_total"])

    def is_ready(self) -> bool:
        try:
            return self.get("/ready").status_code == 200
        except httpx.TransportError:
            return False

    def sample(self) -> list[Sample]:
        """Of the server and its engine."""
        found = []
        for pid in (self.process.pid, self.engine_pid):
            if pid is not None:
                process = psutil.Process(pid)
                with process.oneshot():
                    rss, files, threads = process.memory_info().rss, process.num_fds(), process.num_threads()
                found.append(Sample(time.monotonic(), pid, rss, files, threads))
        return found


@contextmanager
def serving(pair: Pair, folder: Path, *flags: str) -> Iterator[Server]:
    """Started on a free port, with a key; killed at the end if it still runs."""
    keys, log = folder / "keys", folder / "log"
    keys.write_text(KEY)
    command = [
        sys.executable, "-m", "eyas", "serve", *pair.flags, "--port", "0", "--threads", str(THREADS), "--api-key-file",
        str(keys), "--log-requests", "--json", *flags,
    ]  # fmt: skip
    with log.open("wb") as errors:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors)
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line, log.read_text()
        yield Server(process, json.loads(line)["url"], log)
    finally:
        if process.poll() is None:
            children = psutil.Process(process.pid).children(recursive=True)
            process.kill()
            for child in children:
                if child.is_running():
                    child.kill()
        process.wait()
