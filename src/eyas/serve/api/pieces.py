"""The pieces of several answers as they come, and what is kept of them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import cast

from eyas.errors import EyasError
from eyas.serve.api.answers import PromptDetails, Usage
from eyas.serve.api.gate import draining
from eyas.serve.client import EngineClient
from eyas.serve.metrics_page import HttpMetrics
from eyas.serve.wire import Ask, Piece, RoundCount


async def merged(client: EngineClient, asks: Sequence[Ask]) -> AsyncGenerator[tuple[int, Piece], None]:
    """(index of the ask, its next piece), as they come; closing it gives all up. Raises what the first to fail does."""
    queue: asyncio.Queue[tuple[int, Piece | None]] = asyncio.Queue()

    async def pump(index: int, ask: Ask) -> None:
        try:
            async with aclosing(cast(AsyncGenerator[Piece, None], client.answer(ask))) as pieces:
                async for piece in pieces:
                    queue.put_nowait((index, piece))
        finally:
            queue.put_nowait((index, None))

    tasks = [asyncio.create_task(pump(i, ask)) for i, ask in enumerate(asks)]
    running = len(tasks)
    try:
        while running:
            index, piece = await queue.get()
            if piece is None:
                running -= 1
                await tasks[index]
            else:
                yield index, piece
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)


@dataclass
class Tally:
    """What one request's answers came to so far, and when. ``prompt_tokens``: of each prompt once · ``n``: answers a
    prompt · ``counted`` gets it all when all are whole.
    """

    counted: HttpMetrics
    prompt_tokens: int
    answers: int
    n: int = 1
    began: float = field(default_factory=time.monotonic)
    tokens: int = 0
    cached: int = 0
    rounds: dict[int, list[RoundCount]] = field(default_factory=dict)
    last: dict[int, float] = field(default_factory=dict)
    ended: int = 0

    def take(self, index: int, piece: Piece) -> None:
        """Note a piece. Raises ``server.draining`` for one that says that the engine gave the request up."""
        now = time.monotonic()
        if piece.tokens:
            if index in self.last:
                self.counted.more_tokens(now - self.last[index], len(piece.tokens))
            else:
                self.counted.first_token(now - self.began)
            self.last[index] = now
        self.tokens += len(piece.tokens)
        self.cached += (piece.cached or 0) if index % self.n == 0 else 0
        self.rounds.setdefault(index, []).extend(piece.rounds)
        if piece.finish == "abort":
            raise draining()
        if piece.finish is not None:
            self.ended += 1
            if self.ended == self.answers:
                self.counted.finished(now - self.began, self.prompt_tokens, self.tokens)

    def usage(self) -> Usage:
        """So far."""
        details = PromptDetails(cached_tokens=self.cached)
        total = self.prompt_tokens + self.tokens
        return Usage(
            prompt_tokens=self.prompt_tokens,
            completion_tokens=self.tokens,
            total_tokens=total,
            prompt_tokens_details=details,
        )


def unfinished() -> EyasError:
    """``engine.died`` for an answer whose pieces end without a last one."""
    return EyasError("engine.died", "the answer ended before its end", "send the request again")
