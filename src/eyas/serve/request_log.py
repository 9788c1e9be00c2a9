"""A line for each request: which route, how it ended, how long it took. Nothing of what was sent or answered."""

from __future__ import annotations

import time
from collections.abc import Callable

from starlette.types import ASGIApp, Message, Receive, Scope, Send


class RequestLog:
    """ASGI middleware."""

    def __init__(self, app: ASGIApp, say: Callable[[str], None]) -> None:
        self.app, self.say = app, say

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass on, and tell when it is over."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        status, begun = 0, time.perf_counter()

        async def noted(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            await self.app(scope, receive, noted)
        finally:
            # The route, not the path: a path may hold anything.
            route = getattr(scope.get("route"), "path", "(no route)")
            seconds = time.perf_counter() - begun
            self.say(f"{scope['method']} {route} {status or 'no answer'} {seconds:.3f} s")
