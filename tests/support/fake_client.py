"""An engine client of set figures, for what reads them and asks for no answer."""

from __future__ import annotations

from collections.abc import AsyncIterator

from eyas.serve.wire import Ask, Piece, Ready, Status


def a_status(
    histogram: list[int], possible: list[int], num_steps: float | None = None, plain: float | None = None
) -> Status:
    """Of an engine whose whole rounds accepted ``histogram`` (from 0) and could accept ``possible`` (from 1)."""
    rounds = sum(histogram)
    accepted = sum(i * n for i, n in enumerate(histogram))
    return Status(
        running=2,
        waiting=1,
        slots_used=300,
        slots_kept=200,
        slots_total=1000,
        prompt_tokens=400,
        cached_tokens=100,
        answer_tokens=1 + rounds + accepted,
        steps=rounds + 3,
        rounds=rounds,
        cut_rounds=1,
        plain_rounds=2,
        proposed=sum(possible),
        accepted_histogram=histogram,
        proposed_at_least=possible,
        preemptions=0,
        aborted=0,
        busy_seconds=1.5,
        tokens_per_second=80.0,
        plain_tokens_per_second=plain,
        num_steps=num_steps,
    )


class FakeClient:
    """``status`` None: an engine that is not loaded yet."""

    def __init__(self, status: Status | None = None, facts: dict | None = None) -> None:
        self.status = status
        self.ready = None if status is None else Ready("m", 512, 2048, 1000, facts or {})
        self.restarts = 0

    async def answer(self, ask: Ask) -> AsyncIterator[Piece]:
        raise AssertionError("nobody asks it")
        yield

    async def flush(self) -> None:
        """Nothing is kept."""

    async def close(self, now: bool = False) -> None:
        """Nothing runs."""
