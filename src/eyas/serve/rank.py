"""The other ranks of an engine: `python -m eyas.serve.rank MEETING RANK`, started by the engine's own process.

Each owns its share of the target, and an engine that is asked what the first one is asked. It ends with that process,
which holds its stdin open.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Iterable
from pathlib import Path
from typing import BinaryIO

from eyas.errors import EyasError
from eyas.models.ranks import Ranks
from eyas.serve.engine_settings import EngineSettings
from eyas.serve.frames import read_frame
from eyas.serve.inbox import SharedInbox
from eyas.serve.loading import open_engine_session
from eyas.serve.rank_start import device_of
from eyas.serve.wire import FromEngine
from eyas.serve.worker import Worker


def main() -> int:
    """Share the work until the first rank ends. The exit status."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    meeting, rank = Path(sys.argv[1]), int(sys.argv[2])
    first = read_frame(sys.stdin.buffer)
    if first is None:
        return 0
    threading.Thread(target=_outlive_nobody, args=(sys.stdin.buffer,), daemon=True).start()
    settings = EngineSettings.model_validate_json(first)
    try:
        ranks = Ranks(meeting, rank, settings.tp_size, device_of(settings, rank))
        session = open_engine_session(settings, ranks)
        Worker(session, settings, SharedInbox(ranks), _silent, ranks).run()
        ranks.close()
    except EyasError as error:
        sys.stderr.write(f"rank {rank} of the engine: {error.code}: {error.cause}\n")
        return 2
    return 0


def _silent(messages: Iterable[FromEngine]) -> None:
    """The first rank answers."""


def _outlive_nobody(lifeline: BinaryIO) -> None:
    while lifeline.read(1 << 16):
        pass
    os._exit(0)


if __name__ == "__main__":
    status = main()
    sys.stderr.flush()
    os._exit(status)
