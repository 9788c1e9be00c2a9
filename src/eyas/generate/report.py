"""Figures of a run: tokens per second, accept length beside its ceiling, survival, identity."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from eyas.config import SpeculativeSettings
from eyas.engine.request import Request
from eyas.metrics import Acceptance


@dataclass(frozen=True)
class Figures:
    """One run over some prompts. Times in seconds; rates in tokens per second."""

    prompts: int
    tokens: int
    seconds: float
    tokens_per_second: float
    rounds: int
    cut_rounds: int
    accept_length: float | None
    """None without rounds that proposed."""
    accept_length_low: float | None
    accept_length_high: float | None
    """95 % bootstrap interval over the prompts."""
    ceiling: int | None
    acceptance_rate: float | None
    rate_name: str | None
    survival: tuple[float, ...]
    """P(a ≥ i), i = 1, 2, …"""

    def to_json(self) -> dict[str, Any]:
        """Plain values for ``--json``."""
        return asdict(self)


def figures_of(requests: Sequence[Request], seconds: float, settings: SpeculativeSettings | None) -> Figures:
    """Figures over finished requests that took ``seconds`` of decoding, prefill left out."""
    acceptance = Acceptance()
    for number, request in enumerate(requests):
        acceptance.add_answer(number, request.rounds, len(request.answer))
    tokens = sum(len(request.answer) for request in requests)
    # The first token of each answer comes from the prompt and takes no round.
    rate = sum(len(request.answer) - 1 for request in requests) / seconds if seconds > 0 else float("nan")
    proposed = settings is not None and acceptance.num_rounds > 0
    low, high = acceptance.interval() if proposed else (None, None)
    return Figures(
        prompts=len(requests),
        tokens=tokens,
        seconds=seconds,
        tokens_per_second=rate,
        rounds=acceptance.num_rounds,
        cut_rounds=acceptance.num_cut_rounds,
        accept_length=acceptance.accept_length if proposed else None,
        accept_length_low=low,
        accept_length_high=high,
        ceiling=settings.ceiling if settings else None,
        acceptance_rate=acceptance.acceptance_rate if proposed else None,
        rate_name=acceptance.rate_name if proposed else None,
        survival=tuple(acceptance.survival(i) for i in range(1, acceptance.max_depth + 1)) if proposed else (),
    )
