"""Messages on a pipe: four bytes of length, then the message."""

from __future__ import annotations

import asyncio
import struct
from typing import BinaryIO

LENGTH = struct.Struct("<I")
MOST_BYTES = 1 << 30
"""No message is ever so large: what claims to be is none."""


def framed(message: bytes) -> bytes:
    """A message as it goes on the pipe."""
    assert len(message) < MOST_BYTES
    return LENGTH.pack(len(message)) + message


def read_frame(pipe: BinaryIO) -> bytes | None:
    """The next message; None at the end of the pipe, and where it ends within a message."""
    head = pipe.read(LENGTH.size)
    if len(head) < LENGTH.size:
        return None
    (length,) = LENGTH.unpack(head)
    assert length < MOST_BYTES, length
    body = pipe.read(length)
    return body if len(body) == length else None


async def receive_frame(stream: asyncio.StreamReader) -> bytes | None:
    """As :func:`read_frame`."""
    try:
        (length,) = LENGTH.unpack(await stream.readexactly(LENGTH.size))
        assert length < MOST_BYTES, length
        return await stream.readexactly(length)
    except asyncio.IncompleteReadError:
        return None
