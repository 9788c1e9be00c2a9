"""HTTP to a server that may hang, lie, or send without end: bounded in time and in size, whatever it does."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

import httpx2

from eyas.dialects.counters import bad_metrics
from eyas.errors import EyasError

MAX_BYTES = 16 << 20
CHECK = "check the address, and that the server runs"
MAX_PAUSE = 60.0
"""Seconds that a server may ask for between two tries."""


def root_of(url: str, flag: str = "--endpoint") -> str:
    """The server's address without ``/v1``. Raises ``flags.range``, naming ``flag``, for what is no address."""
    try:
        parts = urlsplit(url)
        fits = parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port is None or parts.port > 0)
        httpx2.URL(url)
    except (ValueError, httpx2.InvalidURL):
        fits = False
    if not fits or not url.isascii() or not url.isprintable() or " " in url:
        raise EyasError("flags.range", f"{flag} {url[:100]} is no address", "write e.g. http://127.0.0.1:30000")
    return url.rstrip("/").removesuffix("/v1")


def check_key(key: str | None) -> None:
    """Raise ``flags.range`` for an API key that no header can hold."""
    if key is not None and not (key.isascii() and key.isprintable()):
        raise EyasError("flags.range", "the API key holds characters that no header can", "check the key")


def headers_of(key: str | None) -> dict[str, str]:
    """Of every request. A body that unpacks to far more than was sent could not be bounded, so none may be packed."""
    return {"accept-encoding": "identity"} | ({"authorization": f"Bearer {key}"} if key else {})


def asked_pause(headers: Mapping[str, str]) -> float:
    """Seconds that a refusal asks to wait (Retry-After), at most ``MAX_PAUSE``; 0 where it does not say."""
    said = headers.get("retry-after", "")
    return min(float(said), MAX_PAUSE) if said.isascii() and said.isdecimal() else 0.0


@dataclass(frozen=True)
class Reply:
    """``status`` of HTTP and the whole body."""

    status: int
    body: bytes
    where: str

    def json(self) -> dict[str, Any]:
        """The body as a JSON object. Raises ``server.refused``, ``server.metrics``."""
        self.whole()
        try:
            value = json.loads(self.body)
        except (ValueError, RecursionError) as error:
            raise bad_metrics(f"{self.where} sent no JSON") from error
        if not isinstance(value, dict):
            raise bad_metrics(f"{self.where} sent JSON that is no object")
        return value

    def whole(self) -> Reply:
        """Itself. Raises ``server.refused`` for a status other than 200."""
        if self.status != 200:
            said = self.body[:300].decode(errors="replace")
            raise EyasError("server.refused", f"{self.where} answers HTTP {self.status}: {said}", CHECK)
        return self


class Http:
    """Requests to one server, for use inside one event loop; every failure is ``server.unreachable``."""

    def __init__(self, root: str, key: str | None = None) -> None:
        self.root = root
        self._client = httpx2.AsyncClient(headers=headers_of(key), timeout=None, verify=root.startswith("https"))

    async def __aenter__(self) -> Http:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._client.aclose()

    async def get(self, path: str) -> Reply:
        """GET; any status."""
        return await self._ask("GET", path, None)

    async def post(self, path: str, body: Mapping[str, Any]) -> Reply:
        """POST of JSON; any status."""
        return await self._ask("POST", path, body)

    async def _ask(self, method: str, path: str, body: Mapping[str, Any] | None) -> Reply:
        where = f"{self.root}{path}"
        parts: list[bytes] = []
        size = 0
        try:
            async with self._client.stream(method, where, json=body) as response:
                if response.headers.get("content-encoding", "identity") != "identity":
                    raise bad_metrics(f"{where} sends a packed body though none was asked for")
                async for part in response.aiter_raw():
                    size += len(part)
                    if size > MAX_BYTES:
                        raise bad_metrics(f"{where} sends more than {MAX_BYTES >> 20} MiB")
                    parts.append(part)
                status = response.status_code
        except httpx2.RequestError as error:
            cause = f"{where}: {type(error).__name__} {error}".strip()
            raise EyasError("server.unreachable", cause, CHECK) from error
        return Reply(status, b"".join(parts), where)


def within(seconds: float, work: Any, root: str) -> Any:
    """Run a coroutine to its end. Raises ``server.unreachable`` when the time is up."""

    async def bounded() -> Any:
        async with asyncio.timeout(seconds):
            return await work

    try:
        return asyncio.run(bounded())
    except TimeoutError as error:
        raise EyasError("server.unreachable", f"{root} was not done after {seconds:g} s", CHECK) from error
