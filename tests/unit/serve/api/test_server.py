"""The server itself: clients that go away, that send slowly, or not HTTP at all, and its own end."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path

import httpx2
import pytest

from eyas.errors import EyasError
from eyas.serve.api import HttpServer, Limits, TextSide, build_app
from support.fake_engine_client import FakeEngine, tokenizer
from support.http_rig import Rig, serving

CHAT = "/v1/chat/completions"
BODY = {"messages": [{"role": "user", "content": "x"}], "temperature": 0}
TESTS = Path(__file__).parents[3]


def send(rig: Rig, data: bytes) -> bytes:
    """Everything that comes back until the server closes the connection."""
    with socket.create_connection(rig.address, timeout=30) as wire:
        wire.sendall(data)
        return received(wire)


def chat(data: bytes) -> bytes:
    head = f"POST {CHAT} HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: {len(data)}"
    return head.encode() + b"\r\n\r\n" + data


def received(wire: socket.socket) -> bytes:
    parts = []
    while part := wire.recv(65536):
        parts.append(part)
    return b"".join(parts)


def code_of(reply: bytes) -> str:
    return json.loads(reply.partition(b"\r\n\r\n")[2])["error"]["code"]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("n", [1, 3])
def test_a_client_that_goes_away_is_given_up(stream, n):
    with serving(FakeEngine(pause=0.2)) as rig:
        data = json.dumps(BODY | {"stream": stream, "n": n, "temperature": 1}).encode()
        with socket.create_connection(rig.address) as wire:
            wire.sendall(chat(data))
            rig.until(lambda: rig.engine.open == n)
            if stream:
                wire.recv(100)
        rig.until(lambda: rig.engine.given_up == n)
        assert rig.engine.open == 0


def test_a_client_that_goes_away_before_it_said_all():
    with serving() as rig:
        with socket.create_connection(rig.address) as wire:
            wire.sendall(f"POST {CHAT} HTTP/1.1\r\nhost: x\r\ncontent-length: 100\r\n\r\nabc".encode())
        assert httpx2.get(f"{rig.url}/health").status_code == 200
        assert rig.engine.asks == []


def test_a_head_that_comes_too_slowly():
    with serving(limits=Limits(read_seconds=0.3)) as rig:
        assert code_of(send(rig, b"GET /health HTTP/1.1\r\nhost: x\r\n")) == "request.timeout"
        assert send(rig, b"") == b""


def test_drops_do_not_make_a_head_quick():
    with serving(limits=Limits(read_seconds=0.5)) as rig, socket.create_connection(rig.address, 10) as wire:
        stop = threading.Event()

        def drip() -> None:
            wire.sendall(b"GET / HTTP/1.1\r\nx: ")
            while not stop.wait(0.1):
                try:
                    wire.sendall(b"y")
                except OSError:
                    return

        dripping = threading.Thread(target=drip)
        dripping.start()
        reply = wire.recv(65536)
        stop.set()
        dripping.join()
    assert reply.startswith(b"HTTP/1.1 408 ")


def test_a_body_that_comes_too_slowly():
    with serving(limits=Limits(read_seconds=0.3)) as rig:
        reply = send(rig, f"POST {CHAT} HTTP/1.1\r\nhost: x\r\ncontent-length: 100\r\n\r\n{{".encode())
    assert reply.startswith(b"HTTP/1.1 408 ")
    assert code_of(reply) == "request.timeout"


def test_an_idle_connection_is_kept_and_then_closed():
    with serving(limits=Limits(read_seconds=0.2, idle_seconds=1)) as rig, socket.create_connection(rig.address) as wire:
        ask = b"GET /health HTTP/1.1\r\nhost: x\r\n\r\n"
        wire.sendall(ask)
        assert wire.recv(65536).startswith(b"HTTP/1.1 200 ")
        threading.Event().wait(0.5)
        wire.sendall(ask)
        assert received(wire).endswith(b'{"state":"alive"}')


@pytest.mark.parametrize("rest", [b"", b"\r\n\r\n"], ids=["begun", "whole"])
def test_too_large_a_head(rest):
    with serving(limits=Limits(header_bytes=2048)) as rig:
        reply = send(rig, b"GET /health HTTP/1.1\r\nhost: x\r\nx: " + b"y" * 4000 + rest)
    assert reply.startswith(b"HTTP/1.1 431 ")
    assert code_of(reply) == "request.headers"


def test_a_length_beside_chunks_is_refused():
    head = f"POST {CHAT} HTTP/1.1\r\nhost: x\r\ncontent-length: 5\r\ntransfer-encoding: chunked\r\n\r\n"
    with serving() as rig:
        reply = send(rig, head.encode() + b"0\r\n\r\nGET /health HTTP/1.1\r\nhost: x\r\n\r\n")
    assert reply.count(b"HTTP/1.1 ") == 1
    assert code_of(reply) == "request.http"


def test_who_waits_to_send_too_large_a_body_is_not_told_to():
    with serving(limits=Limits(body_bytes=100)) as rig:
        head = f"POST {CHAT} HTTP/1.1\r\nhost: x\r\ncontent-length: 101\r\nexpect: 100-continue\r\n\r\n"
        reply = send(rig, head.encode())
    assert reply.startswith(b"HTTP/1.1 413 ")


def test_no_answer_leads_to_another_scheme_or_host():
    with serving() as rig:
        assert httpx2.get(f"{rig.url}/health/", follow_redirects=False).status_code == 404


def test_all_bodies_together_are_limited_until_they_are_answered():
    body = BODY | {"stop": "x" * 200}
    with serving(FakeEngine(pause=0.1), Limits(body_bytes=400, bodies_bytes=500)) as rig:
        with rig.http() as http, http.stream("POST", CHAT, json=body | {"stream": True}) as running:
            refused = httpx2.post(f"{rig.url}{CHAT}", json=body)
            assert (refused.status_code, refused.json()["error"]["code"]) == (429, "server.busy")
            assert "retry-after" in refused.headers
            running.read()
        rig.until(lambda: httpx2.post(f"{rig.url}{CHAT}", json=body).status_code == 200)


def test_a_client_that_takes_nothing_is_given_up():
    data = json.dumps({"prompt": "a" * (1 << 20), "return_token_strs": True}).encode()
    with serving(limits=Limits(write_seconds=0.2)) as rig, socket.socket() as wire:
        connections = rig.server._server.server_state.connections
        wire.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        wire.connect(rig.address)
        wire.sendall(chat(data).replace(CHAT.encode(), b"/tokenize", 1))
        rig.until(lambda: connections)
        rig.until(lambda: not connections)


@pytest.mark.parametrize(
    "data", [b"\x16\x03\x01\x00\xa5", b"SSH-2.0-x\r\n\r\n", b"GET / HTTP/x\r\n\r\n", b"GET  /\r\n\r\n"]
)
def test_what_is_not_http(data):
    with serving() as rig:
        reply = send(rig, data)
        assert reply.startswith(b"HTTP/1.1 400 ")
        assert code_of(reply) == "request.http"
        assert httpx2.get(f"{rig.url}/health").status_code == 200


def test_nonsense_behind_a_request_that_runs():
    with serving(FakeEngine(pause=0.1)) as rig:
        send(rig, chat(json.dumps(BODY).encode()) + b"\x00\x01 nonsense\r\n\r\n")
        rig.until(lambda: rig.engine.open == 0)
        assert httpx2.get(f"{rig.url}/health").status_code == 200


def test_many_connections_are_held():
    with serving() as rig:
        wires = [socket.create_connection(rig.address) for _ in range(200)]
        for wire in wires:
            wire.sendall(b"GET /health HTTP/1.1\r\nhost: x\r\n\r\n")
        replies = [wire.recv(65536) for wire in wires]
        for wire in wires:
            wire.close()
    assert all(reply.startswith(b"HTTP/1.1 200 ") for reply in replies)


def test_what_runs_may_end_and_no_more_comes():
    with serving(FakeEngine(pause=0.1)) as rig:
        with rig.http() as http, http.stream("POST", CHAT, json=BODY | {"stream": True}) as running:
            lines = running.iter_lines()
            next(lines)
            rig.drain()
            rig.until(lambda: _status(rig, "/ready") == 503)
            assert _status(rig, "/health") == 200
            refused = httpx2.post(f"{rig.url}{CHAT}", json=BODY)
            assert (refused.status_code, refused.json()["error"]["code"]) == (503, "server.draining")
            assert "retry-after" in refused.headers
            assert [line for line in lines if line][-1] == "data: [DONE]"
        rig.thread.join(30)
        assert not rig.thread.is_alive()


@pytest.mark.parametrize("stream", [False, True])
def test_what_runs_too_long_is_ended(stream):
    with serving(FakeEngine(pause=0.5), Limits(drain_seconds=0.3)) as rig:
        threading.Timer(0.8, rig.drain).start()
        with rig.http() as http:
            reply = http.post(CHAT, json=BODY | {"stream": stream})
        rig.thread.join(30)
        assert not rig.thread.is_alive()
    assert "server.draining" in reply.text
    assert reply.status_code == (200 if stream else 503)
    assert rig.engine.open == 0


def _status(rig: Rig, path: str) -> int:
    return httpx2.get(f"{rig.url}{path}").status_code


PROGRAM = """
import asyncio
from eyas.serve.api import Limits, TextSide, build_app, serve_http
from support.fake_engine_client import FakeEngine, tokenizer

app = build_app(FakeEngine(pause=0.2), TextSide(tokenizer()), Limits())
asyncio.run(serve_http(app, "127.0.0.1", 0, lambda line: print(line, flush=True)))
"""


def test_a_signal_ends_the_process_when_its_requests_are_done():
    paths = os.pathsep.join([str(TESTS), os.environ.get("PYTHONPATH", "")])
    with subprocess.Popen(
        [sys.executable, "-c", PROGRAM], env=os.environ | {"PYTHONPATH": paths}, stdout=-1, stderr=-1, text=True
    ) as process:
        url = process.stdout.readline().split()[-1]
        http = httpx2.Client(timeout=60, transport=httpx2.HTTPTransport(retries=5))
        with http, http.stream("POST", f"{url}{CHAT}", json=BODY | {"stream": True}) as reply:
            lines = reply.iter_lines()
            next(lines)
            process.send_signal(signal.SIGTERM)
            assert [line for line in lines if line][-1] == "data: [DONE]"
        out, err = process.communicate(timeout=60)
    assert (process.returncode, err) == (0, "")
    assert "ending: 1 requests run" in out


def test_an_address_that_is_taken():
    with serving() as rig:
        app = build_app(FakeEngine(), TextSide(tokenizer()))
        for host, port in (rig.address, ("no-such-host.invalid", 0), ("127.0.0.1", 99999)):
            with pytest.raises(EyasError) as caught:
                HttpServer(app, host, port, lambda _: None)
            assert caught.value.code == "server.address"
