"""A real vLLM on this machine, as a process of its own, with what its counters show."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

START_SECONDS = 600.0
ENVIRONMENT = {
    "VLLM_CPU_OMP_THREADS_BIND": "0",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_NO_USAGE_STATS": "1",
    "HF_HUB_OFFLINE": "1",
    "OMP_NUM_THREADS": "1",
}


@contextmanager
def serving(
    python: Path, target: Path, draft: Path | None, num_steps: int, log: Path, extra: Sequence[str] = ()
) -> Iterator[str]:
    """The URL of a vLLM, in fp32 and one request at a time; ``draft`` None: without speculation."""
    port = _free_port()
    command = [str(python), "-m", "vllm.entrypoints.openai.api_server", "--model", str(target), "--dtype", "float32"]
    command += ["--host", "127.0.0.1", "--port", str(port), "--enforce-eager", "--max-num-seqs", "1"]
    command += ["--max-model-len", "1024", *extra]
    if draft is not None:
        speculation = {"method": "eagle3", "model": str(draft), "num_speculative_tokens": num_steps}
        command += ["--speculative-config", json.dumps(speculation)]
    with log.open("w") as out:
        process = subprocess.Popen(
            command, env=os.environ | ENVIRONMENT, stdout=out, stderr=subprocess.STDOUT, start_new_session=True
        )
    try:
        _wait(process, f"http://127.0.0.1:{port}", log)
        yield f"http://127.0.0.1:{port}"
    finally:
        # Its engine is a child of its own.
        os.killpg(process.pid, signal.SIGTERM)
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def _free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


def _wait(process: subprocess.Popen[bytes], url: str, log: Path) -> None:
    end = time.monotonic() + START_SECONDS
    while time.monotonic() < end:
        assert process.poll() is None, f"vLLM ended with {process.returncode}:\n{log.read_text()[-4000:]}"
        try:
            with urllib.request.urlopen(f"{url}/health", timeout=5):
                return
        except (urllib.error.URLError, OSError):
            time.sleep(0.5)
    raise AssertionError(f"vLLM did not start within {START_SECONDS:g} s:\n{log.read_text()[-4000:]}")
