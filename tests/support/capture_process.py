"""Captures of the tiny samples in processes of their own, which may kill themselves on the way.

Reads lines ``FOLDER EVENT NUMBER``. For each it starts a process that captures into the folder, prints its id, waits
for its end, and prints its status. The process gets SIGKILL just before the NUMBERth time that EVENT happens:
``write``: a shard, of which half is then there; ``replace``: a file takes its name; ``sync``: bytes are forced to disk;
``never``. Processes are forked from one that has imported everything and run no target, so that each starts at once.
"""

from __future__ import annotations

import os
import signal
import sys
import traceback
from pathlib import Path
from typing import Any

import torch

from eyas.capture import run as run_module
from support.feature_rig import capture_tiny, tiny_samples


def kill_before(event: str, number: int) -> None:
    """Arm the kill."""
    seen = []

    def count() -> bool:
        seen.append(event)
        return len(seen) == number

    def die() -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    real_write, real_sync, real_replace = run_module.write_safetensors, os.fsync, Path.replace

    def half_written(file: Path, *rest: Any) -> None:
        real_write(file, *rest)
        if count():
            file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])
            die()

    def sync(descriptor: int) -> None:
        if count():
            die()
        real_sync(descriptor)

    def replace(path: Path, target: Path) -> Path:
        if count():
            die()
        return real_replace(path, target)

    if event == "write":
        run_module.write_safetensors = half_written
    elif event == "sync":
        os.fsync = sync
    elif event == "replace":
        Path.replace = replace  # type: ignore[method-assign, assignment]
    else:
        assert event == "never", event


def child(folder: str, event: str, number: str) -> None:
    """Capture, and leave without returning."""
    status = 1
    try:
        kill_before(event, int(number))
        capture_tiny(Path(folder))
        status = 0
    finally:
        if status:
            traceback.print_exc()
        os._exit(status)


def main() -> None:
    """Serve lines until the input ends."""
    torch.set_num_threads(1)
    tiny_samples()  # remembers the tokenizer's hash
    for line in sys.stdin:
        pid = os.fork()
        if pid == 0:
            child(*line.split())
        print(pid, flush=True)
        print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)


if __name__ == "__main__":
    main()
