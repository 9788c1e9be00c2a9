"""Bodies as JSON: one meaning each, or refused. No NaN, no key twice, no half characters, no depth without end."""

from __future__ import annotations

import json
from collections.abc import Callable, Coroutine
from functools import partial
from math import isfinite
from typing import Any

from fastapi import Request, Response
from fastapi.routing import APIRoute

from eyas.errors import EyasError
from eyas.serve.api.service import service_of

LARGE = 64 << 10
"""Bytes from which reading a body would hold up others."""
MOST_KEYS = 4096
"""Of one object, and more where so many biases are allowed: each unknown one would be an error of its own."""
MOST_PARTS = 100_000
"""Objects and lists in a body: many small ones take far more time and memory than their bytes."""
EXACT = 1 << 53
"""Below it every whole float is the number that was written."""
FIX = "send one JSON value as UTF-8"


def read_json(data: bytes, depth: int, keys: int = MOST_KEYS) -> Any:
    """The value. ``depth``: of objects and lists in one another · ``keys``: of one object, at most.

    Raises ``request.json``, ``request.limit``.
    """
    try:
        value = json.loads(
            data.decode(), parse_constant=_no_constant, parse_float=_finite, object_pairs_hook=partial(_each_once, keys)
        )
    except EyasError:
        raise
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


def _each_once(most: int, pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    if len(pairs) > most:
        cause = f"an object of the body has {len(pairs)} keys, and {most} are allowed"
        raise EyasError("request.limit", cause, "send fewer")
    found = dict(pairs)
    if len(found) != len(pairs):
        raise EyasError("request.json", "a key stands twice in one object of the body", "give each key once")
    return found


def _check(value: Any, depth: int, escaped: bool) -> None:
    """Nested no deeper than ``depth``; with ``escaped`` characters, none of them half a pair."""
    level, parts = [value], 0
    for _ in range(depth + 1):
        if escaped:
            texts = [text for item in level for text in _texts(item)]
            if any(0xD800 <= ord(c) < 0xE000 for text in texts for c in text):
                raise EyasError("request.json", "the body holds half a character", FIX)
        inside = [item for item in level if isinstance(item, dict | list)]
        parts += len(inside)
        if parts > MOST_PARTS:
            cause = f"the body holds more than {MOST_PARTS} objects and lists"
            raise EyasError("request.limit", cause, "send fewer in one request")
        level = [inner for item in inside for inner in _inner(item)]
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
            data, service = await self.body(), service_of(self)
            depth, keys = service.limits.json_depth, max(MOST_KEYS, service.limits.logit_biases)
            if len(data) < LARGE:
                self._json = read_json(data, depth, keys)
            else:
                self._json = await service.text.aside(lambda: read_json(data, depth, keys))
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
