"""The other ranks of an engine, started, met and ended by its own process."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from eyas.models.ranks import Ranks
from eyas.serve.engine_settings import EngineSettings
from eyas.serve.frames import framed

COMMAND = (sys.executable, "-P", "-m", "eyas.serve.rank")
END_SECONDS = 5.0
"""For the others to end when the first one has."""


@contextmanager
def shared_ranks(settings: EngineSettings) -> Iterator[Ranks | None]:
    """This process as the first of ``tp_size`` ranks, the others started and met; None if it is alone.

    Raises ``engine.died`` if they do not come.
    """
    if settings.tp_size == 1:
        yield None
        return
    with tempfile.TemporaryDirectory(prefix="eyas-ranks-", ignore_cleanup_errors=True) as meeting:
        others = [_start(settings, meeting, rank) for rank in range(1, settings.tp_size)]
        try:
            ranks = Ranks(Path(meeting), 0, settings.tp_size, device_of(settings, 0))
            yield ranks
            ranks.close()
        finally:
            for other in others:
                _end(other)


def _start(settings: EngineSettings, meeting: str, rank: int) -> subprocess.Popen[bytes]:
    # What it prints goes to stderr: this process's stdout is for messages alone.
    child = subprocess.Popen([*COMMAND, meeting, str(rank)], stdin=subprocess.PIPE, stdout=sys.stderr.fileno())
    assert child.stdin is not None
    with suppress(BrokenPipeError):  # it ended; that is noticed when ranks meet
        child.stdin.write(framed(settings.model_dump_json().encode()))
        child.stdin.flush()
    return child


def _end(other: subprocess.Popen[bytes]) -> None:
    assert other.stdin is not None
    with suppress(BrokenPipeError):
        other.stdin.close()
    try:
        other.wait(END_SECONDS)
    except subprocess.TimeoutExpired:
        other.kill()
        other.wait()


def device_of(settings: EngineSettings, rank: int) -> str:
    """Each rank has a GPU of its own."""
    return f"cuda:{rank}" if settings.device == "cuda" else settings.device
