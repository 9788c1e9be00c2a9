"""The benchmark's side of benchmarks/peers/protocol.py: a trainer in a process of its own."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
_POOL = 2**28
# glibc would return and fault in the same pages in every step; alike for all trainers.
ENVIRONMENT = {
    "OMP_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "TORCHINDUCTOR_COMPILE_THREADS": "1",
    "MALLOC_MMAP_MAX_": "0",
    "MALLOC_TRIM_THRESHOLD_": "100000000000",
    "MALLOC_TOP_PAD_": str(_POOL),
}


class LostError(Exception):
    """A trainer's process ended; ``last_words`` are the last lines of its standard error."""

    def __init__(self, name: str, last_words: str) -> None:
        super().__init__(name)
        self.name, self.last_words = name, last_words


class Worker:
    """A trainer that takes a step when it is told to. ``kinds``: the steps that it knows."""

    def __init__(self, name: str, python: str, data: Path, memory: int) -> None:
        """``memory``: bytes that it may allocate."""
        self.name, self.log = name, data.with_suffix(f".{name}.log")
        with self.log.open("w") as log:
            self.process = subprocess.Popen(
                [python, str(HERE / f"{name}_step.py"), str(data)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                env={**os.environ, **ENVIRONMENT, "BENCH_MEMORY_BYTES": str(memory)},
            )
        self.about = self._hear()
        self.kinds: list[str] = self.about.pop("steps")
        self.peak = 0

    def step(self, kind: str) -> dict[str, float]:
        """Loss, seconds and memory of one step. Raises :class:`LostError`."""
        assert self.process.stdin is not None
        self.process.stdin.write(kind + "\n")
        self.process.stdin.flush()
        done = self._hear()
        self.peak = max(self.peak, done["peak_bytes"])
        return done

    def close(self) -> dict[str, Any]:
        """End it; what it said of itself, and the most memory it had."""
        self.process.communicate()
        return {**self.about, "peak_bytes": self.peak}

    def _hear(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise LostError(self.name, "\n".join(self.log.read_text().splitlines()[-20:]))
        return json.loads(line)


def medians(steps: Sequence[dict[str, float]]) -> dict[str, float]:
    """Medians of the seconds, and the losses of the first and last step: training must lower them."""
    times = {name: statistics.median(step[name] for step in steps) for name in ("cpu_seconds", "wall_seconds")}
    return {**times, "first_loss": steps[0]["loss"], "last_loss": steps[-1]["loss"]}


def paired_ratio(slow: Sequence[dict[str, float]], fast: Sequence[dict[str, float]], name: str) -> float:
    """Median of ``slow`` over ``fast``, round by round."""
    return statistics.median(a[name] / b[name] for a, b in zip(slow, fast, strict=True))
