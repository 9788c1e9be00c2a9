"""kill -9 at any moment: the same command goes on, and the bytes are those of a capture never killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from eyas.corpus.feature_store import MANIFEST, FeatureManifest
from support import capture_process
from support.feature_rig import bytes_of, capture_tiny

SCRIPT = Path(capture_process.__file__)
MOMENTS = (
    ("sync", 1),  # nothing has its name yet
    ("replace", 2),  # the manifest has, the samples have not
    ("write", 1),  # halfway through the first shard
    ("replace", 2),  # the first shard is whole, and has no name
    ("replace", 3),  # it has its name, and no record
    ("replace", 4),  # it counts; the second has no name
    ("write", 2),  # the second counts; halfway through the third
)
LEFT = (0, 0, 0, 0, 0, 1, 2)
"""Shards that count after each."""


class Starter:
    """Starts captures in processes of their own."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process

    def start(self, folder: Path, event: str = "never", number: int = 0) -> int:
        """The id of a process that captures into ``folder``."""
        assert self.process.stdin is not None
        self.process.stdin.write(f"{folder} {event} {number}\n")
        self.process.stdin.flush()
        return self._number()

    def ended(self) -> int:
        """The status of the process started last, when it has ended."""
        return self._number()

    def _number(self) -> int:
        assert self.process.stdout is not None
        return int(self.process.stdout.readline())


@pytest.fixture(scope="module")
def starter() -> Iterator[Starter]:
    environment = {**os.environ, "PYTHONPATH": str(SCRIPT.parent.parent), "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(
        [sys.executable, str(SCRIPT)], env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    with process:
        yield Starter(process)
        assert process.stdin is not None
        process.stdin.close()


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("features") / "whole"
    capture_tiny(folder)
    return folder


def recorded(folder: Path) -> list[str]:
    return [record.file for record in FeatureManifest.read(folder).shards] if (folder / MANIFEST).is_file() else []


def test_killed_at_every_kind_of_moment_the_result_is_the_same(starter: Starter, whole: Path, tmp_path: Path) -> None:
    folder = tmp_path / "killed"
    for (event, number), left in zip(MOMENTS, LEFT, strict=True):
        starter.start(folder, event, number)
        assert starter.ended() == -signal.SIGKILL, (event, number)
        assert recorded(folder) == recorded(whole)[:left], (event, number)
        for file in recorded(folder):
            assert (folder / file).read_bytes() == (whole / file).read_bytes()
    starter.start(folder)
    assert starter.ended() == 0
    assert bytes_of(folder) == bytes_of(whole)
    assert not list(folder.glob(".*.partial"))


def test_killed_from_outside_as_soon_as_there_is_a_shard(starter: Starter, whole: Path, tmp_path: Path) -> None:
    folder = tmp_path / "killed"
    process, deadline = starter.start(folder), time.monotonic() + 300
    while not list(folder.glob("*shard-*")) and time.monotonic() < deadline:
        time.sleep(0.0005)
    os.kill(process, signal.SIGKILL)
    assert starter.ended() in (0, -signal.SIGKILL)
    assert capture_tiny(folder).kept < len(recorded(whole)) or recorded(folder) == recorded(whole)
    assert bytes_of(folder) == bytes_of(whole)
