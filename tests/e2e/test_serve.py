"""The whole server as a user starts it: two replicas of the tiny pair behind one port."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx2 as httpx
import psutil
import pytest

from eyas.testing import TINY_PROMPTS, tiny_pair

TARGET, DRAFT = tiny_pair()
TINY = (
    "--model-path", str(TARGET), "--speculative-draft-model-path", str(DRAFT), "--max-total-tokens", "2000",
    "--threads", "1", "--no-speculative-adaptive",
)  # fmt: skip


def start(*flags: str) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "eyas", "serve", *TINY, *flags, "--json"]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)


@pytest.fixture(scope="module")
def server() -> Iterator[tuple[subprocess.Popen[bytes], dict]]:
    process = start("--port", "0", "--dp-size", "2", "--log-requests")
    try:
        assert process.stdout is not None
        yield process, json.loads(process.stdout.readline())
    finally:
        process.kill()
        process.wait()


def chat(url: str, prompt: str, **fields: object) -> dict:
    body = {"messages": [{"role": "user", "content": prompt}], "temperature": 0, "max_tokens": 40} | fields
    response = httpx.post(f"{url}/v1/chat/completions", json=body, timeout=120)
    assert response.status_code == 200, response.text
    return response.json()


def test_it_serves_survives_a_killed_replica_and_ends_when_it_is_told(
    server: tuple[subprocess.Popen[bytes], dict],
) -> None:
    process, told = server
    url = told["url"]
    assert told["settings"]["dp_size"] == {"value": 2, "origin": "flag", "note": ""}
    before = [chat(url, prompt)["choices"][0]["message"]["content"] for prompt in TINY_PROMPTS[:4]]
    assert before[0].startswith("The fox is an animal")
    plain = chat(url, TINY_PROMPTS[0], speculation=False)
    assert plain["choices"][0]["message"]["content"] == before[0]
    info = httpx.get(f"{url}/server_info").json()
    assert (info["loaded"]["num_slots"], info["loaded"]["facts"]["replicas_ready"]) == (4000, 2)
    assert str(TARGET.parent) not in json.dumps(info)
    engines = psutil.Process(process.pid).children()
    assert len(engines) == 2
    os.kill(engines[0].pid, signal.SIGKILL)
    engines[0].wait(30)
    after = [chat(url, prompt)["choices"][0]["message"]["content"] for prompt in TINY_PROMPTS[:4]]
    assert after == before, "the other replica answers the same"
    process.send_signal(signal.SIGTERM)
    _, printed = process.communicate(timeout=60)
    assert process.returncode == 0
    log = printed.decode()
    assert "/v1/chat/completions 200" in log
    assert "started again" in log
    assert not any(words in log for words in (TINY_PROMPTS[0], before[0][:20], str(TARGET.parent)))
    assert not any(engine.is_running() for engine in engines)


def test_what_cannot_be_served_is_said_and_nothing_is_left_running(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        process = start("--port", str(taken.getsockname()[1]))
        printed, _ = process.communicate(timeout=120)
    assert process.returncode == 1
    assert json.loads(printed)["error"]["code"] == "server.address"
