"""A small OpenAI-compatible server with set latency and faults on demand, for tests of clients over real HTTP."""

from __future__ import annotations

import json
import socket
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Respond = Callable[[dict[str, Any]], dict[str, Any]]
"""A request's body → the choice: message and finish_reason."""
Events = Callable[[dict[str, Any]], Iterable[str | float | None]]
"""A request's body → the stream: data of an event, seconds to wait, or None for a connection that is cut."""
CHUNK = 4
"""Characters, which are the fake's tokens, of a streamed chunk."""


@dataclass(frozen=True)
class Fault:
    """What a request meets in place of an answer: a ``status`` with a ``body``, no reply at all (``hang``), or half a
    reply and a closed connection (``cut``).
    """

    status: int = 200
    body: str = ""
    headers: dict[str, str] = field(default_factory=dict)
    hang: bool = False
    cut: bool = False


def echo(body: dict[str, Any]) -> dict[str, Any]:
    """Repeats the last message, and says how many there were."""
    said = f"{len(body['messages'])}: {body['messages'][-1]['content']}"
    return {"message": {"role": "assistant", "content": said}, "finish_reason": "stop"}


def stream(respond: Respond = echo, pause: float = 0.0, figures: Mapping[str, Any] | None = None) -> Events:
    """An answer as events: what ``respond`` says in chunks, ``pause`` seconds before each, then the usage, with
    ``figures`` beside it.
    """

    def events(body: dict[str, Any]) -> Iterator[str | float]:
        choice = respond(body)
        text = (choice["message"].get("content") or "")[: body.get("max_tokens")]
        yield json.dumps({"choices": [{"delta": {"role": "assistant", "content": ""}, "finish_reason": None}]})
        for i in range(0, len(text), CHUNK):
            yield pause
            yield json.dumps({"choices": [{"delta": {"content": text[i : i + CHUNK]}, "finish_reason": None}]})
        yield json.dumps({"choices": [{"delta": {}, "finish_reason": choice["finish_reason"]}]})
        usage = {"prompt_tokens": 1, "completion_tokens": len(text), "total_tokens": 1 + len(text)}
        yield json.dumps({"choices": [], "usage": usage, **(figures or {})})
        yield "[DONE]"

    return events


class FakeOpenAI:
    """Use as a context. ``faults`` are met one by one, by the first requests for an answer; the rest are answered.

    ``requests``: the bodies that came, in order; ``arrived``: when, in seconds of the monotonic clock; ``headers``:
    theirs, names in lower case. ``most_at_once``: how many were open together at the most.
    ``events``: of streamed answers; None: those of ``respond`` · ``pages``: path → body of other GET requests.
    """

    def __init__(
        self,
        respond: Respond = echo,
        faults: Iterable[Fault] = (),
        models: Iterable[str] = ("fake",),
        latency: float = 0.0,
        events: Events | None = None,
        pages: Mapping[str, str] | None = None,
    ) -> None:
        self.events, self.pages = events or stream(respond), dict(pages or {})
        self.respond, self.faults, self.models, self.latency = respond, deque(faults), tuple(models), latency
        self.requests: list[dict[str, Any]] = []
        self.headers: list[dict[str, str]] = []
        self.arrived: list[float] = []
        self.open = self.most_at_once = 0
        self.lock, self.closing = threading.Lock(), threading.Event()
        self._server = _Server(("127.0.0.1", 0), type("Handler", (_Handler,), {"fake": self}))
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True)

    @property
    def url(self) -> str:
        """Up to and with ``/v1``."""
        return f"http://127.0.0.1:{self._server.server_address[1]}/v1"

    def __enter__(self) -> FakeOpenAI:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        """Go away, as a server that crashes does: open connections end, new ones are refused."""
        self.closing.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Says so on stderr, unless the client went away, which it may."""
        if not isinstance(sys.exc_info()[1], ConnectionError):
            super().handle_error(request, client_address)


class _Handler(BaseHTTPRequestHandler):
    fake: FakeOpenAI
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        models = json.dumps({"data": [{"id": name} for name in self.fake.models]})
        self._send(200, self.fake.pages.get(self.path, models), {})

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        with self.fake.lock:
            self.fake.requests.append(body)
            self.fake.arrived.append(time.monotonic())
            self.fake.headers.append({name.lower(): value for name, value in self.headers.items()})
            fault = self.fake.faults.popleft() if self.fake.faults else None
            self.fake.open += 1
            self.fake.most_at_once = max(self.fake.most_at_once, self.fake.open)
        try:
            self._reply(body, fault)
        finally:
            with self.fake.lock:
                self.fake.open -= 1

    def _reply(self, body: dict[str, Any], fault: Fault | None) -> None:
        time.sleep(self.fake.latency)
        if fault is None and body.get("stream"):
            self._stream(body)
        elif fault is None:
            choice = self.fake.respond(body)
            usage = {"completion_tokens": len(choice["message"].get("content") or "")}
            self._send(200, json.dumps({"choices": [choice], "usage": usage}), {})
        elif fault.hang:
            self.fake.closing.wait()
        elif fault.cut:
            self.wfile.write(b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 999\r\n\r\n{")
            self.connection.shutdown(socket.SHUT_RDWR)
            self.close_connection = True
        else:
            self._send(fault.status, fault.body, fault.headers)

    def _stream(self, body: dict[str, Any]) -> None:
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.send_header("connection", "close")
        self.end_headers()
        self.close_connection = True
        for event in self.fake.events(body):
            if event is None:
                self.connection.shutdown(socket.SHUT_RDWR)
                return
            if isinstance(event, float):
                self.fake.closing.wait(event)
            else:
                self.wfile.write(f"data: {event}\n\n".encode())
                self.wfile.flush()

    def _send(self, status: int, body: str, headers: dict[str, str]) -> None:
        data = body.encode()
        self.send_response(status)
        for name, value in {
            "content-type": "application/json",
            "content-length": str(len(data)),
            **headers,
        }.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_: object) -> None:
        """Says nothing."""
