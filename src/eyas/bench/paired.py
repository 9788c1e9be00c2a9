"""Two servers under the same prompts in one run: who goes first alternates, and each prompt is compared with itself."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from eyas.bench.client import Outcome, Question
from eyas.bench.load import Block
from eyas.bench.measure import answered, ttft
from eyas.bench.settings import Load

LEVEL = 0.95
RESAMPLES = 2000
ROUNDS_AT_ONCE = 4
"""Requests of each place in a closed block: fewer would mostly measure its beginning and its end."""
OPEN_BLOCKS = 4
"""Of an open load: so that each server goes first as often as the other."""
FEW = 2

Sums = tuple[float, float]
"""(what is counted, seconds that it took) of one prompt at one server."""
Measure = Callable[[Outcome], Sums]


@dataclass(frozen=True)
class Ratio:
    """``value``: the first server's over the second's, with the ``low`` and ``high`` end of its 95 % interval, NaN for
    fewer than two prompts · ``prompts``: that it is taken over.
    """

    value: float
    low: float
    high: float
    prompts: int


@dataclass(frozen=True)
class Paired:
    """``speed``: tokens a second of request time · ``first_token``: speed to the first text · ``decoding``: tokens a
    second after it · above 1 the first server is faster · ``pairs``: requests that both answered · ``same_text``: of
    these, those with the same text; None where answers are drawn.
    """

    speed: Ratio
    first_token: Ratio
    decoding: Ratio
    pairs: int
    same_text: int | None


def cut_into_blocks(questions: Sequence[Question], load: Load, servers: int) -> list[Sequence[Question]]:
    """Each to be sent to every server in turn, without another's load beside it. One block for one server.

    An even number, or one server would go first more often; one alone where two would be too few to fill the load.
    """
    count, at_once = len(questions), int(load.value) if load.kind == "closed" else 1
    size = math.ceil(count / OPEN_BLOCKS) if load.kind == "open" else 1 if at_once == 1 else ROUNDS_AT_ONCE * at_once
    pairs = min(max(1, round(count / size / 2)), count // (2 * at_once))
    if servers == 1 or pairs == 0:
        return [questions]
    edges = [round(i * count / (2 * pairs)) for i in range(2 * pairs + 1)]
    return [questions[a:b] for a, b in pairwise(edges)]


def compare(ours: Sequence[Block], theirs: Sequence[Block], greedy: bool, seed: int) -> Paired:
    """What both answered, request by request."""
    first, second = ({o.question.number: o for o in _outcomes(blocks)} for blocks in (ours, theirs))
    pairs = [(first[n], second[n]) for n in sorted(first.keys() & second.keys())]
    same = sum(a.text == b.text for a, b in pairs) if greedy else None
    return Paired(
        speed=_ratio(pairs, _speed, seed),
        first_token=_ratio(pairs, _first, seed),
        decoding=_ratio(pairs, _decoding, seed),
        pairs=len(pairs),
        same_text=same,
    )


def _outcomes(blocks: Sequence[Block]) -> list[Outcome]:
    return answered(outcome for block in blocks for outcome in block.outcomes)


def _speed(outcome: Outcome) -> Sums:
    return float(outcome.completion or 0), outcome.ended - outcome.due


def _first(outcome: Outcome) -> Sums:
    return 1.0, ttft(outcome)


def _decoding(outcome: Outcome) -> Sums:
    """What the first chunk held is not counted; evenly shared where the server does not tell."""
    chunks = outcome.chunks
    begun = chunks[0].tokens
    total = float(outcome.completion or 0)
    after = total - begun if begun is not None else total * (1 - 1 / len(chunks))
    return max(0.0, after), chunks[-1].at - chunks[0].at


def _ratio(pairs: Sequence[tuple[Outcome, Outcome]], measure: Measure, seed: int) -> Ratio:
    """Ratio of pooled speeds, with a percentile bootstrap over prompts: requests of one prompt resemble each other."""
    by_prompt: dict[str, np.ndarray] = defaultdict(lambda: np.zeros(4))
    for a, b in pairs:
        by_prompt[a.question.prompt] += np.array([*measure(a), *measure(b)])
    sums = np.array(list(by_prompt.values())).reshape(-1, 4)
    value = float(_of(sums.sum(axis=0)))
    if len(sums) < FEW:
        return Ratio(value, math.nan, math.nan, len(sums))
    generator = np.random.default_rng(seed)
    drawn = generator.integers(len(sums), size=(RESAMPLES, len(sums)))
    ratios = np.array([_of(sums[row].sum(axis=0)) for row in drawn])
    low, high = np.quantile(ratios, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return Ratio(value, float(low), float(high), len(sums))


def _of(sums: np.ndarray) -> float:
    tokens, seconds, other_tokens, other_seconds = sums
    if min(tokens, seconds, other_tokens, other_seconds) <= 0:
        return math.nan
    return float((tokens / seconds) / (other_tokens / other_seconds))
