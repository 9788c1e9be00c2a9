"""Which requests may come in now, and how their work ends: done, too late, or with its client or server gone."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from typing import Any, Literal

from starlette.types import Receive

from eyas.errors import EyasError

End = Literal["done", "late", "gone", "draining"]


class Gate:
    """``most``: requests that may be open at one time."""

    def __init__(self, most: int) -> None:
        self.most = most
        self.open = 0
        self.draining = False
        self._closed = asyncio.Event()

    @contextmanager
    def entered(self) -> Iterator[None]:
        """Count one request. Raises ``server.draining``, ``server.busy``."""
        if self.draining:
            raise draining()
        if self.open >= self.most:
            cause = f"{self.open} requests are open, and no more are taken"
            raise EyasError("server.busy", cause, "try again in a moment, or with fewer at a time")
        self.open += 1
        try:
            yield
        finally:
            self.open -= 1

    def drain(self) -> None:
        """Take no new requests."""
        self.draining = True

    def close(self) -> None:
        """End the requests that run, too."""
        self.draining = True
        self._closed.set()

    async def run(self, work: Coroutine[Any, Any, None], receive: Receive, seconds: float) -> End:
        """Do ``work`` until it ends by itself, or is ended: after ``seconds``, when the client is gone, when the gate
        closes. What it raises goes on. The request's body must have been received.
        """
        doing = asyncio.ensure_future(work)
        gone = asyncio.ensure_future(_gone(receive))
        closed = asyncio.ensure_future(self._closed.wait())
        tasks = (doing, gone, closed)
        try:
            await asyncio.wait(tasks, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
            if doing.done():
                doing.result()
                return "done"
            return "gone" if gone.done() else "draining" if closed.done() else "late"
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)


async def _gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


def draining() -> EyasError:
    """``server.draining``."""
    return EyasError("server.draining", "the server is about to end", "send the request to another, or later")


def late(seconds: float) -> EyasError:
    """``request.timeout`` of a whole request."""
    cause = f"the request was not answered within {seconds:g} seconds"
    return EyasError("request.timeout", cause, "ask for fewer tokens, or raise the server's limit")
