"""Clients that a library would not be: slow ones, ones that go away, and such as speak no HTTP."""

from __future__ import annotations

import asyncio
import json
import random
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import h11

from soak.ledger import Ledger
from soak.server import HEADERS, READ_SECONDS

SLACK_SECONDS = 20.0
"""For a busy machine, beyond the server's own limit."""
Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


@dataclass(frozen=True)
class Reply:
    """A whole answer."""

    status: int
    headers: Mapping[str, str]
    body: bytes


@asynccontextmanager
async def connected(port: int) -> AsyncIterator[Streams]:
    """A connection of its own."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        yield reader, writer
    finally:
        writer.close()


def request(path: str, body: Any, headers: Mapping[str, str] = HEADERS) -> bytes:
    """A POST after which the connection ends."""
    data = json.dumps(body).encode()
    lines = [f"POST {path} HTTP/1.1", "host: soak", "connection: close", "content-type: application/json"]
    lines += [f"content-length: {len(data)}", *(f"{name}: {value}" for name, value in headers.items())]
    return "\r\n".join([*lines, "", ""]).encode() + data


async def read_reply(reader: asyncio.StreamReader) -> Reply | None:
    """To the end of the connection; None if there was no answer."""
    client = h11.Connection(h11.CLIENT)
    # h11 reads an answer only after a request, and which one is all the same.
    client.send(h11.Request(method="POST", target="/", headers=[("host", "soak"), ("content-length", "0")]))
    client.send(h11.EndOfMessage())
    head: h11.Response | None = None
    parts: list[bytes] = []
    while True:
        event = client.next_event()
        if event is h11.NEED_DATA:
            client.receive_data(await reader.read(1 << 16))
        elif isinstance(event, h11.Response):
            head = event
        elif isinstance(event, h11.Data):
            parts.append(bytes(event.data))
        elif head is None:
            return None
        else:
            headers = {name.decode(): value.decode() for name, value in head.headers}
            return Reply(head.status_code, headers, b"".join(parts))


async def go_away(port: int, path: str, body: dict[str, Any], rng: random.Random, ledger: Ledger) -> None:
    """Ask for something long and leave: in the middle of the stream, of the wait, or of the request itself."""
    stream, kind = rng.random() < 0.5, "gone"
    data = request(path, {**body, "stream": stream})
    async with connected(port) as (reader, writer):
        if rng.random() < 0.15:
            writer.write(data[: rng.randrange(1, len(data))])
            await writer.drain()
            ledger.note(kind, "in the request")
            return
        writer.write(data)
        await writer.drain()
        if stream:
            for _ in range(rng.randrange(1, 6)):
                if not await reader.readline():
                    break
            ledger.note(kind, "in the stream")
        else:
            await asyncio.sleep(rng.random() * 0.8)
            ledger.note(kind, "in the wait")
        if rng.random() < 0.5:
            writer.transport.abort()


async def drip(port: int, rng: random.Random, ledger: Ledger) -> None:
    """A head, or a body, that comes byte by byte and never ends: the server must end it."""
    whole = request("/v1/chat/completions", {"messages": []})
    border = whole.index(b"\r\n\r\n")
    slow_body = rng.random() < 0.5
    sent = border + 6 if slow_body else rng.randrange(0, border // 2)
    kind, begun = f"slow {'body' if slow_body else 'head'}", time.monotonic()
    async with connected(port) as (reader, writer):
        writer.write(whole[:sent])
        dripping = asyncio.create_task(_drip(writer, whole[sent : border + 20]))
        try:
            async with asyncio.timeout(READ_SECONDS + SLACK_SECONDS):
                reply = await read_reply(reader)
        except TimeoutError:
            ledger.fault(kind, "the connection is still open")
            return
        except ConnectionError:
            ledger.note(kind, "cut", begun)
            return
        finally:
            dripping.cancel()
            await asyncio.wait([dripping])
    _settle(kind, begun, reply, ("request.timeout",), ledger)


async def _drip(writer: asyncio.StreamWriter, data: bytes) -> None:
    for i in range(len(data)):
        await asyncio.sleep(1.0)
        if writer.is_closing():
            return
        writer.write(data[i : i + 1])


async def speak_otherwise(port: int, rng: random.Random, ledger: Ledger) -> None:
    """Bytes that are no request, or one with too large a head."""
    head = b"GET /health HTTP/1.1\r\nhost: soak\r\n"
    choices: dict[str, tuple[bytes, tuple[str, ...]]] = {
        "garbage": (rng.randbytes(200) + b"\r\n\r\n", ("request.http",)),
        "another protocol": (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n", ("request.http",)),
        "two lengths": (head + b"content-length: 3\r\ncontent-length: 4\r\n\r\nabc", ("request.http",)),
        "huge head": (head + b"x-large: " + b"x" * (40 << 10) + b"\r\n\r\n", ("request.headers",)),
    }
    kind = rng.choice(list(choices))
    data, codes = choices[kind]
    begun = time.monotonic()
    async with connected(port) as (reader, writer):
        writer.write(data)
        try:
            async with asyncio.timeout(READ_SECONDS + SLACK_SECONDS):
                reply = await read_reply(reader)
        except TimeoutError:
            ledger.fault(kind, "the connection is still open, without an answer")
            return
        except ConnectionError:
            ledger.note(kind, "cut", begun)
            return
    _settle(kind, begun, reply, codes, ledger)


def _settle(kind: str, begun: float, reply: Reply | None, codes: tuple[str, ...], ledger: Ledger) -> None:
    if reply is None:
        ledger.note(kind, "closed", begun)
        return
    code = ledger.refused(kind, begun, reply.status, reply.headers, json.loads(reply.body))
    if code is not None and code not in codes:
        ledger.fault(kind, f"refused with {code}: {reply.body[:300]!r}")
    ledger.note(kind, f"{reply.status} {code}", begun)
