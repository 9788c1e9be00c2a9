"""Responses that give up their work when the client is gone, and end with an error that a client can read."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing

from pydantic import BaseModel
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from eyas.errors import EyasError
from eyas.serve.api.failures import error_body, error_response, internal
from eyas.serve.api.gate import Gate, draining, late

DONE = b"data: [DONE]\n\n"
STREAM_HEADERS = {"cache-control": "no-cache", "x-accel-buffering": "no"}


def event(part: BaseModel) -> bytes:
    """One event of a stream; fields that were not set are left out."""
    return f"data: {part.model_dump_json(exclude_unset=True)}\n\n".encode()


class WholeReply(Response):
    """One JSON object, when ``work`` has it."""

    def __init__(self, gate: Gate, seconds: float, work: Callable[[], Awaitable[BaseModel]]) -> None:
        self.gate, self.seconds, self.work = gate, seconds, work
        self.background = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer; work that takes too long, or whose client is gone, is given up."""
        reply: Response | None = None

        async def run() -> None:
            nonlocal reply
            try:
                body = (await self.work()).model_dump_json(exclude_unset=True)
                reply = Response(body, media_type="application/json")
            except EyasError as error:
                reply = error_response(error)

        with self.gate.entered():
            end = await self.gate.run(run(), receive, self.seconds)
        if end == "late":
            reply = error_response(late(self.seconds))
        if end == "draining":
            reply = error_response(draining(), close=True)
        if reply is not None:
            await reply(scope, receive, send)


class StreamReply(Response):
    """Server-sent events. An error before the first is an answer of its own, a later one an event that ends it."""

    def __init__(self, gate: Gate, seconds: float, events: AsyncGenerator[bytes, None]) -> None:
        self.gate, self.seconds, self.events = gate, seconds, events
        self.background = None
        self._started = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send events as they come; close them when the client is gone."""
        failed: EyasError | None = None

        async def run() -> None:
            nonlocal failed
            try:
                async for data in self.events:
                    await self._send(send, data)
                await self._send(send, DONE, more=False)
            except EyasError as error:
                failed = error

        try:
            async with aclosing(self.events):
                with self.gate.entered():
                    end = await self.gate.run(run(), receive, self.seconds)
        except (OSError, asyncio.CancelledError):
            raise
        except BaseException:
            # Too late for another status: the client is told here, and whoever runs the server by what is raised.
            if self._started:
                await self._fail(internal(), scope, receive, send)
            raise
        failed = late(self.seconds) if end == "late" else draining() if end == "draining" else failed
        if failed is not None and end != "gone":
            await self._fail(failed, scope, receive, send)

    async def _send(self, send: Send, data: bytes, more: bool = True) -> None:
        if not self._started:
            self._started = True
            start = Response(headers=STREAM_HEADERS, media_type="text/event-stream")
            headers = [(name, value) for name, value in start.raw_headers if name != b"content-length"]
            await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": data, "more_body": more})

    async def _fail(self, error: EyasError, scope: Scope, receive: Receive, send: Send) -> None:
        if not self._started:
            await error_response(error)(scope, receive, send)
            return
        await self._send(send, event(error_body(error)), more=False)
