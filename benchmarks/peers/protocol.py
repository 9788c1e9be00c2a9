"""What every measured trainer shares: the data it reads, and the loop that answers the benchmark step by step.

Needs numpy alone, so that it runs in any trainer's own environment.

Shape legend: N tokens, F taps · H, H hidden, V target vocabulary, d draft vocabulary.
"""

from __future__ import annotations

import json
import os
import resource
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

Array = np.ndarray


@dataclass(frozen=True)
class Data:
    """Conversations laid end to end. ``tokens`` [N] int32, ``lengths`` [samples], ``segments`` [N]: 0 outside answers,
    else a number of its own per answer and conversation. ``taps`` [N, F], ``hidden`` [N, H] (after the final norm),
    ``head`` and ``embedding`` [V, H] fp32; ``kept`` [d]: target ids of the draft vocabulary, rising. ``shape``: the
    draft's sizes.
    """

    tokens: Array
    lengths: Array
    segments: Array
    taps: Array
    hidden: Array
    head: Array
    embedding: Array
    kept: Array
    shape: dict[str, Any]

    def write(self, path: Path) -> None:
        arrays = {name: getattr(self, name) for name in _ARRAYS}
        np.savez(path, shape=np.frombuffer(json.dumps(self.shape).encode(), dtype=np.uint8), **arrays)

    @classmethod
    def read(cls, path: Path) -> Data:
        with np.load(path, allow_pickle=False) as stored:
            arrays = {name: stored[name] for name in _ARRAYS}
            return cls(**arrays, shape=json.loads(stored["shape"].tobytes().decode()))

    def samples(self) -> list[slice]:
        """Each conversation's rows."""
        ends = np.cumsum(self.lengths).tolist()
        return [slice(end - length, end) for end, length in zip(ends, self.lengths.tolist(), strict=True)]


_ARRAYS = ("tokens", "lengths", "segments", "taps", "hidden", "head", "embedding", "kept")


def serve(build: Callable[[Data], Mapping[str, Callable[[], float]]], about: dict[str, Any]) -> None:
    """Build a trainer's steps from the data file that the command line names; then run the step that each line on
    standard input names, and answer with its loss, its wall and CPU seconds and the process's peak memory in bytes.

    Memory is limited by BENCH_MEMORY_BYTES: what does not fit fails here and hurts nobody else.
    """
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # Whatever a trainer writes to standard output must not mix with the answers.
    limit = int(os.environ["BENCH_MEMORY_BYTES"])
    resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
    steps = build(Data.read(Path(sys.argv[1])))
    _answer(answers, {**about, "steps": list(steps), "idle_bytes": peak_bytes()})
    for line in sys.stdin:
        wall, cpu = time.perf_counter(), time.process_time()
        loss = steps[line.strip()]()
        taken = {"wall_seconds": time.perf_counter() - wall, "cpu_seconds": time.process_time() - cpu}
        _answer(answers, {"loss": loss, "peak_bytes": peak_bytes(), **taken})


def _answer(file: Any, document: dict[str, Any]) -> None:
    file.write(json.dumps(document) + "\n")
    file.flush()


def peak_bytes() -> int:
    """The most memory that this process has had in RAM."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
