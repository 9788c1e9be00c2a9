"""What the HTTP side needs of an engine, wherever that runs."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Protocol

from eyas.serve.wire import Ask, Piece, Ready, Status


class EngineClient(Protocol):
    """One engine, or several behind one router."""

    def answer(self, ask: Ask) -> AsyncIterator[Piece]:
        """The pieces of one answer; closing the iterator before its end gives the request up.

        Raises :class:`eyas.errors.EyasError`: as the engine says, ``server.busy`` when the queue is full,
        ``engine.died`` when its process ended on the way.
        """
        ...

    @property
    def ready(self) -> Ready | None:
        """What the engine said when it was loaded; None while it is not."""
        ...

    @property
    def status(self) -> Status | None:
        """Its latest figures."""
        ...

    @property
    def restarts(self) -> int:
        """How often it died and was started again."""
        ...

    async def flush(self) -> None:
        """Forget all kept prefixes."""
        ...

    async def close(self, now: bool = False) -> None:
        """Let running requests end, or with ``now`` end them, then end the engine."""
        ...
