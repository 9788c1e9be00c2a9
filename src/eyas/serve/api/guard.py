"""What every request must pass before a route sees it: the key, its size, and to arrive in time."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
from collections.abc import Sequence
from dataclasses import dataclass, field

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from eyas.errors import EyasError
from eyas.serve.api.failures import error_response
from eyas.serve.limits import Limits
from eyas.serve.metrics_page import HttpMetrics

OPEN = ("/health", "/ready", "/", "/grafana.json")
"""Without a key: they tell no more than that a server is here; a browser asks for a page without one."""
OPEN_BELOW = "/assets/"
KEY_NUMBER = "key_number"
"""In a request's state: which of several keys it brought."""
LINGER_SECONDS = 2.0
"""How long a refused body is still read: a client that sends cannot hear the answer."""


class Guard:
    """ASGI middleware. ``keys``: as in ``Authorization: Bearer KEY``; none: open to all."""

    def __init__(self, app: ASGIApp, keys: Sequence[str], limits: Limits, counted: HttpMetrics) -> None:
        self.app, self.limits, self.counted = app, limits, counted
        self._keys = [_digest(key.encode()) for key in keys]
        self._held = 0
        """Bytes of bodies, of all requests that are not answered yet."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on, or refuse it."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        send = self._counting(scope, send)
        headers, body = Headers(scope=scope), _Body()
        try:
            if await self._let_in(scope, headers, receive, send, body):
                await self.app(scope, _replay(body, receive), send)
        finally:
            self._held -= body.size

    async def _let_in(self, scope: Scope, headers: Headers, receive: Receive, send: Send, body: _Body) -> bool:
        """Fill ``body``; False for one that was refused, and one whose client went away."""
        try:
            self._check_head(scope)
            number = self._check_key(scope["path"], headers)
            # With one key for all, it tells nobody apart.
            scope.setdefault("state", {})[KEY_NUMBER] = number if len(self._keys) > 1 else None
            return await self._read(headers, receive, body)
        except EyasError as error:
            # Who waits to be told to send a body, sends none now.
            if body.size or "expect" not in headers:
                await _linger(receive)
            await error_response(error, close=True)(scope, receive, send)
            return False

    def _check_head(self, scope: Scope) -> None:
        """The protocol sees the size only of heads that come in pieces."""
        parts = [scope["raw_path"], scope["query_string"], *(part for pair in scope["headers"] for part in pair)]
        if sum(map(len, parts)) > self.limits.header_bytes:
            raise EyasError("request.headers", "the head is too large", "send fewer or shorter headers")

    def _check_key(self, path: str, headers: Headers) -> int | None:
        """Which key was given; None where none is asked for."""
        if not self._keys or path in OPEN or path.startswith(OPEN_BELOW):
            return None
        kind, _, given = headers.get("authorization", "").partition(" ")
        # Headers are bytes, which the framework reads as Latin-1.
        digest = _digest(given.strip().encode("latin-1"))
        # All are compared, whichever fits, so that the time tells nothing.
        fits = [hmac.compare_digest(digest, key) for key in self._keys]
        if kind.lower() != "bearer" or not any(fits):
            cause = "no valid API key was given"
            raise EyasError("server.key", cause, "send the header  Authorization: Bearer KEY")
        return fits.index(True)

    async def _read(self, headers: Headers, receive: Receive, body: _Body) -> bool:
        """Fill ``body``; False if the client went away.

        Raises ``request.http``, ``request.too-large``, ``request.timeout``, ``server.busy``.
        """
        if "content-length" in headers and "transfer-encoding" in headers:
            # Who is between may have read one request where this is two.
            cause = "the request gives its length and is sent in chunks"
            raise EyasError("request.http", cause, "send Content-Length or Transfer-Encoding")
        if int(headers.get("content-length", "0")) > self.limits.body_bytes:
            raise _too_large(self.limits.body_bytes)
        try:
            async with asyncio.timeout(self.limits.read_seconds):
                while True:
                    message = await receive()
                    if message["type"] == "http.disconnect":
                        return False
                    self._take(message.get("body", b""), body)
                    if not message.get("more_body", False):
                        return True
        except TimeoutError as error:
            cause = f"the request did not arrive within {self.limits.read_seconds:g} seconds"
            raise EyasError("request.timeout", cause, "send it in one go") from error

    def _take(self, part: bytes, body: _Body) -> None:
        if body.size + len(part) > self.limits.body_bytes:
            raise _too_large(self.limits.body_bytes)
        if self._held + len(part) > self.limits.bodies_bytes:
            cause = f"the requests that are open hold {self._held} bytes, and no more are taken"
            raise EyasError("server.busy", cause, "try again in a moment, or send less in one request")
        body.parts.append(part)
        body.size += len(part)
        self._held += len(part)

    def _counting(self, scope: Scope, send: Send) -> Send:
        async def counting(message: Message) -> None:
            if message["type"] == "http.response.start":
                message = {**message, "headers": _hardened(message.get("headers", []))}
                route = getattr(scope.get("route"), "path", "other")
                self.counted.answered(route, message["status"])
            await send(message)

        return counting


@dataclass
class _Body:
    """What came of one; its size counts until the request is answered."""

    parts: list[bytes] = field(default_factory=list)
    size: int = 0


def _hardened(headers: Sequence[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
    names = {name.lower() for name, _ in headers}
    extra = [(b"x-content-type-options", b"nosniff"), (b"cache-control", b"no-store")]
    return [*headers, *((name, value) for name, value in extra if name not in names)]


def _digest(key: bytes) -> bytes:
    """All of one length, whatever was sent."""
    return hashlib.sha256(key).digest()


def _replay(body: _Body, receive: Receive) -> Receive:
    waiting = [b"".join(body.parts)]
    body.parts.clear()

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
