"""A real HTTP server on a free port, in a thread of its own, over an engine that is a fake."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import httpx2
from openai import OpenAI

from eyas.serve.api import ApiSettings, HttpServer, Limits, TextSide, build_app
from support.fake_engine_client import FakeEngine, tokenizer


@dataclass
class Rig:
    """A server that runs: its address, engine, what it said, and how to end it."""

    url: str
    engine: FakeEngine
    said: list[str]
    server: HttpServer
    loop: asyncio.AbstractEventLoop
    thread: threading.Thread
    client: httpx2.Client
    """Kept open: a client of its own a request would be most of the test's time."""

    @property
    def address(self) -> tuple[str, int]:
        host, _, port = self.url.removeprefix("http://").partition(":")
        return host, int(port)

    def openai(self, key: str = "none") -> OpenAI:
        return OpenAI(base_url=f"{self.url}/v1", api_key=key, max_retries=0, timeout=30)

    def http(self, key: str | None = None) -> httpx2.Client:
        headers = {"authorization": f"Bearer {key}"} if key else {}
        return httpx2.Client(base_url=self.url, headers=headers, timeout=30)

    def drain(self) -> None:
        self.loop.call_soon_threadsafe(self.server.drain)

    def until(self, condition: object, tries: int = 400) -> None:
        """Wait for what the server does in its own thread."""
        pause = threading.Event()
        for _ in range(tries):
            if condition():  # type: ignore[operator]
                return
            pause.wait(0.02)
        raise AssertionError("it never came")


@contextmanager
def serving(
    engine: FakeEngine | None = None, limits: Limits | None = None, settings: ApiSettings | None = None
) -> Iterator[Rig]:
    engine = engine or FakeEngine()
    said: list[str] = []
    started = threading.Event()
    made: list[tuple[HttpServer, asyncio.AbstractEventLoop]] = []

    async def main() -> None:
        app = build_app(engine, TextSide(tokenizer()), limits or Limits(), settings or ApiSettings())
        server = HttpServer(app, "127.0.0.1", 0, said.append)
        made.append((server, asyncio.get_running_loop()))
        started.set()
        await server.serve()

    thread = threading.Thread(target=lambda: asyncio.run(main()))
    thread.start()
    started.wait(30)
    server, loop = made[0]
    client = httpx2.Client(base_url=server.url, timeout=30)
    rig = Rig(server.url, engine, said, server, loop, thread, client)
    try:
        rig.until(lambda: _alive(rig))
        yield rig
    finally:
        client.close()
        if thread.is_alive():
            rig.drain()
        thread.join(60)
    assert not thread.is_alive()


def _alive(rig: Rig) -> bool:
    try:
        return httpx2.get(f"{rig.url}/health").status_code == 200
    except httpx2.TransportError:
        return False
