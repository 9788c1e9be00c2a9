"""What a level's requests say together. docs/bench.md defines each figure."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

import numpy as np

from eyas.bench.client import Outcome
from eyas.bench.load import Block
from eyas.dialects.counters import Counts, total_of

Told = Literal["counted", "shared out", "not known"]


@dataclass(frozen=True)
class Spread:
    """Of a figure in seconds. ``count``: values, or tokens that they are of. NaN without any."""

    count: float
    mean: float
    p50: float
    p90: float
    p99: float
    most: float


@dataclass(frozen=True)
class Accept:
    """Speculation. ``length``: accept length in the one definition · ``source``: whose figures they are."""

    length: float
    rounds: int | None
    accepted: float | None
    proposed: int | None
    histogram: tuple[int, ...] | None
    source: Literal["answers", "counters", "the server's mean"]


@dataclass(frozen=True)
class Figures:
    """Of one server under one load. Seconds; ``tokens``: of whole answers, by the server's usage, None if any answer
    lacks it · ``faults``, ``refusals``: counted by code and by status · ``examples``: of each fault, what was said.
    """

    requests: int
    answered: int
    faults: dict[str, int]
    examples: dict[str, str]
    refusals: dict[int, int]
    waited: float
    seconds: float
    tokens: int | None
    prompt_tokens: int | None
    cached_tokens: int | None
    finishes: dict[str, int]
    ttft: Spread
    inter_token: Spread
    inter_chunk: Spread
    latency: Spread
    late: Spread
    told: Told
    accept: Accept | None
    doubts: int
    stopped: str | None

    @property
    def tokens_per_second(self) -> float:
        """Tokens of whole answers over the time of all requests; NaN if not known."""
        return math.nan if self.tokens is None or not self.seconds else self.tokens / self.seconds

    @property
    def requests_per_second(self) -> float:
        """Whole answers over the time of all requests."""
        return self.answered / self.seconds if self.seconds else math.nan


def spread(values: Sequence[float], weights: Sequence[float] | None = None) -> Spread:
    """Mean and percentiles: the smallest value that so much of the weight is not above."""
    if not len(values):
        return Spread(0, *[math.nan] * 5)
    x = np.asarray(values, dtype=np.float64)
    w = np.ones_like(x) if weights is None else np.asarray(weights, dtype=np.float64)
    order = np.argsort(x, kind="stable")
    x, w = x[order], w[order]
    reached = np.cumsum(w)

    def at(share: float) -> float:
        # A rounding error must not lift a percentile to the next value.
        return float(x[min(len(x) - 1, int(np.searchsorted(reached, share * reached[-1] * (1 - 1e-12))))])

    return Spread(float(reached[-1]), float((x * w).sum() / reached[-1]), at(0.5), at(0.9), at(0.99), float(x[-1]))


def answered(outcomes: Iterable[Outcome]) -> list[Outcome]:
    """Those that ended in a whole answer with text."""
    return [o for o in outcomes if o.fault is None and o.chunks]


def ttft(outcome: Outcome) -> float:
    """Seconds from when it was due to its first text."""
    return outcome.chunks[0].at - outcome.due


def token_gaps(outcome: Outcome) -> tuple[list[tuple[float, float]], Told]:
    """(seconds per token, tokens) of each chunk after the first, and how the tokens are known.

    A chunk's tokens share the time since the chunk before. Where the server does not tell how many there are, all
    chunks of the answer are taken to hold the same number.
    """
    chunks = outcome.chunks
    if len(chunks) < 2:
        return [], "counted" if chunks and chunks[0].tokens is not None else "not known"
    if all(chunk.tokens is not None for chunk in chunks):
        gaps, since = [], chunks[0].at
        for chunk in chunks[1:]:
            if chunk.tokens:
                gaps.append(((chunk.at - since) / chunk.tokens, float(chunk.tokens)))
                since = chunk.at
        return gaps, "counted"
    if outcome.completion is None:
        return [], "not known"
    each = max(outcome.completion, 1) / len(chunks)
    return [((b.at - a.at) / each, each) for a, b in pairwise(chunks)], "shared out"


def figures(blocks: Sequence[Block], counted: Accept | None = None) -> Figures:
    """Of one server under one load. ``counted``: speculation by the server's own counters, where answers tell less."""
    outcomes = [outcome for block in blocks for outcome in block.outcomes]
    whole = answered(outcomes)
    failed = [o for o in outcomes if o.fault is not None]
    gaps, told = _gaps(whole)
    refusals: Counter[int] = Counter()
    for outcome in outcomes:
        refusals.update(outcome.refusals)
    return Figures(
        requests=len(outcomes),
        answered=len(outcomes) - len(failed),
        faults=dict(Counter(str(o.fault) for o in failed)),
        examples={str(o.fault): o.said for o in reversed(failed)},
        refusals=dict(refusals),
        waited=sum(o.waited for o in outcomes),
        seconds=sum(block.seconds for block in blocks),
        tokens=_sum([o.completion for o in outcomes if o.fault is None]),
        prompt_tokens=_sum([o.prompt_tokens for o in outcomes if o.fault is None]),
        cached_tokens=_sum([o.cached for o in outcomes if o.fault is None]),
        finishes=dict(Counter(o.finish or "none" for o in outcomes if o.fault is None)),
        ttft=spread([ttft(o) for o in whole]),
        inter_token=spread([g for g, _ in gaps], [n for _, n in gaps]),
        inter_chunk=spread([b.at - a.at for o in whole for a, b in pairwise(o.chunks)]),
        latency=spread([o.ended - o.due for o in outcomes if o.fault is None]),
        late=spread([o.sent - o.due for o in outcomes]),
        told=told,
        accept=counted or accept_of([o.counts for o in outcomes if o.fault is None and o.counts is not None]),
        doubts=sum(o.doubt is not None for o in outcomes),
        stopped=next((block.stopped for block in blocks if block.stopped), None),
    )


def _gaps(whole: Sequence[Outcome]) -> tuple[list[tuple[float, float]], Told]:
    found = [token_gaps(o) for o in whole if len(o.chunks) > 1]
    kinds = {told for _, told in found}
    order: tuple[Told, ...] = ("not known", "shared out", "counted")
    told: Told = next((kind for kind in order if kind in kinds), "not known")
    return [gap for gaps, _ in found for gap in gaps], told


def accept_of(counts: Sequence[Counts], source: Literal["answers", "counters"] = "answers") -> Accept | None:
    """All together; None of none, and where no round was counted."""
    total = total_of(counts)
    if total is None or not total.rounds:
        return None
    return Accept(total.accept_length, total.rounds, total.accepted, total.proposed, total.histogram, source)


def _sum(values: Sequence[int | None]) -> int | None:
    known = [value for value in values if value is not None]
    return sum(known) if len(known) == len(values) else None
