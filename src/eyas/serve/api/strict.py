"""Bodies as JSON: one meaning each, or refused. No NaN, no key twice, no half characters, no depth without end."""

from __future__ import annotations

import json
from collections.abc import Callable, Coroutine
from math import isfinite
from typing import Any

import anyio.to_thread
from fastapi import Request, Response
from fastapi.routing import APIRoute

from eyas.errors import EyasError
from eyas.serve.api.service import service_of

LARGE = 64 << 10
"""Bytes from which reading a body would hold up others."""
EXACT = 1 << 53
"""Below it every whole float is the number that was written."""
FIX = "send one JSON value as UTF-8"


def read_json(data: bytes, depth: int) -> Any:
    """The value. Raises ``request.json``."""
    try:
        value = json.loads(
            data.decode(), parse_constant=_no_constant, parse_float=_finite, object_pairs_hook=_each_once
        )
    except (ValueError, RecursionError) as error:
        why = "is nested too deeply" if isinstance(error, RecursionError) else f"is no JSON: {_why(error)}"
        raise EyasError("request.json", f"the body {why}", FIX) from error
    _check(value, depth, b"\\u" in data)
    return value


def _why(error: ValueError) -> str:
    """Without what the body says."""
    if isinstance(error, json.JSONDecodeError):
        return f"{error.msg} at character {error.pos}"
    return "it is not UTF-8" if isinstance(error, UnicodeDecodeError) else "a value that JSON does not know"


def _no_constant(name: str) -> Any:
    raise ValueError(name)


def _finite(text: str) -> float | int:
    """JSON has one kind of number: 1.0 is a whole one."""
    value = float(text)
    if not isfinite(value):
        raise ValueError(text[:20])
    return int(value) if value.is_integer() and abs(value) < EXACT else value


def _each_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise EyasError("request.json", "a key stands twice in one object of the body", "give each key once")
    return found


def _check(value: Any, depth: int, escaped: bool) -> None:
    """Nested no deeper than ``depth``; with ``escaped`` characters, none of them half a pair."""
    level = [value]
    for _ in range(depth + 1):
        if escaped:
            texts = [text for item in level for text in _texts(item)]
            if any(0xD800 <= ord(c) < 0xE000 for text in texts for c in text):
                raise EyasError("request.json", "the body holds half a character", FIX)
        level = [inner for item in level if isinstance(item, dict | list) for inner in _inner(item)]
        if not level:
            return
    raise EyasError("request.json", f"the body is nested deeper than {depth}", "make it simpler")


def _inner(item: dict[str, Any] | list[Any]) -> list[Any]:
    return list(item.values()) if isinstance(item, dict) else item


def _texts(item: Any) -> list[str]:
    return [item] if isinstance(item, str) else list(item) if isinstance(item, dict) else []


class StrictRequest(Request):
    """A request whose ``json`` is :func:`read_json`."""

    async def json(self) -> Any:
        """The body's value, read once."""
        if not hasattr(self, "_json"):
            data, depth = await self.body(), service_of(self).limits.json_depth
            if len(data) < LARGE:
                self._json = read_json(data, depth)
            else:
                self._json = await anyio.to_thread.run_sync(read_json, data, depth)
        return self._json


class StrictRoute(APIRoute):
    """A route whose body, where it takes one, is read by :func:`read_json`."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """Reads before the framework does, which turns errors of reading into its own."""
        handle = super().get_route_handler()

        async def strict(request: Request) -> Response:
            if self.body_field is not None:
                request = StrictRequest(request.scope, request.receive)
                await request.json()
            return await handle(request)

        return strict
