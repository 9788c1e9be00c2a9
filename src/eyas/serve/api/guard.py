"""What every request must pass before a route sees it: the key, its size, and to arrive in time."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
from collections.abc import Sequence

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from eyas.errors import EyasError
from eyas.serve.api.failures import error_response
from eyas.serve.limits import Limits
from eyas.serve.metrics_page import HttpMetrics

OPEN = ("/health", "/ready", "/", "/grafana.json")
"""Without a key: they tell no more than that a server is here; a browser asks for a page without one."""
OPEN_BELOW = "/assets/"
LINGER_SECONDS = 2.0
"""How long a refused body is still read: a client that sends cannot hear the answer."""


class Guard:
    """ASGI middleware. ``keys``: as in ``Authorization: Bearer KEY``; none: open to all."""

    def __init__(self, app: ASGIApp, keys: Sequence[str], limits: Limits, counted: HttpMetrics) -> None:
        self.app, self.limits, self.counted = app, limits, counted
        self._keys = [_digest(key.encode()) for key in keys]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on, or refuse it."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        send = self._counting(scope, send)
        headers = Headers(scope=scope)
        try:
            self._check_key(scope["path"], headers)
            body = await self._read(headers, receive)
        except EyasError as error:
            await _linger(receive)
            await error_response(error, close=True)(scope, receive, send)
            return
        if body is not None:
            await self.app(scope, _replay(body, receive), send)

    def _check_key(self, path: str, headers: Headers) -> None:
        if not self._keys or path in OPEN or path.startswith(OPEN_BELOW):
            return
        kind, _, given = headers.get("authorization", "").partition(" ")
        # Headers are bytes, which the framework reads as Latin-1.
        digest = _digest(given.strip().encode("latin-1"))
        # All are compared, whichever fits, so that the time tells nothing.
        fits = [hmac.compare_digest(digest, key) for key in self._keys]
        if kind.lower() != "bearer" or not any(fits):
            cause = "no valid API key was given"
            raise EyasError("server.key", cause, "send the header  Authorization: Bearer KEY")

    async def _read(self, headers: Headers, receive: Receive) -> bytes | None:
        """The whole body; None if the client went away. Raises ``request.too-large``, ``request.timeout``."""
        most = self.limits.body_bytes
        if int(headers.get("content-length", "0")) > most:
            raise _too_large(most)
        parts: list[bytes] = []
        size = 0
        try:
            async with asyncio.timeout(self.limits.read_seconds):
                while True:
                    message = await receive()
                    if message["type"] == "http.disconnect":
                        return None
                    parts.append(message.get("body", b""))
                    size += len(parts[-1])
                    if size > most:
                        raise _too_large(most)
                    if not message.get("more_body", False):
                        return b"".join(parts)
        except TimeoutError as error:
            cause = f"the request did not arrive within {self.limits.read_seconds:g} seconds"
            raise EyasError("request.timeout", cause, "send it in one go") from error

    def _counting(self, scope: Scope, send: Send) -> Send:
        async def counting(message: Message) -> None:
            if message["type"] == "http.response.start":
                message = {**message, "headers": _hardened(message.get("headers", []))}
                route = getattr(scope.get("route"), "path", "other")
                self.counted.answered(route, message["status"])
            await send(message)

        return counting


def _hardened(headers: Sequence[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
    names = {name.lower() for name, _ in headers}
    extra = [(b"x-content-type-options", b"nosniff"), (b"cache-control", b"no-store")]
    return [*headers, *((name, value) for name, value in extra if name not in names)]


def _digest(key: bytes) -> bytes:
    """All of one length, whatever was sent."""
    return hashlib.sha256(key).digest()


def _replay(body: bytes, receive: Receive) -> Receive:
    waiting = [body]

    async def replayed() -> Message:
        if waiting:
            return {"type": "http.request", "body": waiting.pop(), "more_body": False}
        return await receive()

    return replayed


async def _linger(receive: Receive) -> None:
    try:
        async with asyncio.timeout(LINGER_SECONDS):
            more = True
            while more:
                message = await receive()
                more = message["type"] == "http.request" and message.get("more_body", False)
    except TimeoutError:
        # It sends on: then it hears of it as a broken connection.
        return


def _too_large(most: int) -> EyasError:
    return EyasError("request.too-large", f"the body is larger than {most} bytes", "send less in one request")
