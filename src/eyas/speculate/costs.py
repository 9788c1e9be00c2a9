"""What a step of the engine costs: a measured table, and its correction by what steps then really took.

No torch: the table is data, and the controller of K (:mod:`eyas.speculate.policy`) reads it hundreds of times a second.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

KNOTS = 10
"""Corrections stand at 1, 2, 4 … 512 rows; between them they are interpolated over the logarithm of the rows."""
COMMON, DRAFT, ATTEND = KNOTS, KNOTS + 1, KNOTS + 2
PACE = 0.05
"""How fast the machine's speed that is told to the outside follows the one of the moment."""
WANDER = 0.002
"""The same of one region's own error of the table."""
TABLE_ERROR, MACHINE_ERROR, SHARE_ERROR = 0.15, 2.0, 0.25
"""Relative errors to expect of a measured curve, of the machine's speed, and of the draft's and the context's part."""
NEIGHBOURS = 2.0
"""Knots over which errors are alike: who finds two rows dearer than measured expects the same of four."""
SURPRISE = 2.5
"""Standard deviations beyond which a duration counts for less: a pause, or a busy neighbour."""


@dataclass(frozen=True)
class Curve:
    """Seconds over a count of rows: piecewise linear, never falling; before the first point flat, beyond the last one
    with the slope of the last piece."""

    counts: tuple[int, ...]
    seconds: tuple[float, ...]

    def __post_init__(self) -> None:
        assert len(self.counts) == len(self.seconds) > 0
        assert list(self.counts) == sorted(set(self.counts)), self.counts
        assert self.counts[0] >= 0
        assert all(b >= a >= 0 for a, b in zip(self.seconds, (*self.seconds[1:], math.inf), strict=True)), self.seconds

    @classmethod
    def fitted(cls, points: Sequence[tuple[int, float]]) -> Self:
        """The nearest curve that never falls (pool adjacent violators) through (count, seconds); equal counts are
        averaged first."""
        counts = sorted({count for count, _ in points})
        blocks: list[tuple[float, int]] = []
        for count in counts:
            values = [seconds for other, seconds in points if other == count]
            mean, size = sum(values) / len(values), 1
            while blocks and blocks[-1][0] > mean:
                before, n = blocks.pop()
                mean, size = (before * n + mean * size) / (n + size), n + size
            blocks.append((mean, size))
        return cls(tuple(counts), tuple(mean for mean, size in blocks for _ in range(size)))

    def at(self, count: ArrayLike) -> NDArray[np.float64]:
        """Seconds for each count, same shape."""
        x = np.asarray(count, dtype=np.float64)
        y = np.interp(x, self.counts, self.seconds)
        return y + np.maximum(x - self.counts[-1], 0.0) * self.last_slope

    def of(self, count: float) -> float:
        """Seconds for one count; as :meth:`at`, without the price of an array."""
        counts, seconds = self.counts, self.seconds
        i = bisect_right(counts, count)
        if i == 0:
            return seconds[0]
        if i == len(counts):
            return seconds[-1] + (count - counts[-1]) * self.last_slope
        share = (count - counts[i - 1]) / (counts[i] - counts[i - 1])
        return seconds[i - 1] + share * (seconds[i] - seconds[i - 1])

    @cached_property
    def last_slope(self) -> float:
        """Seconds a row beyond the last point; of a single point, its seconds spread over its count."""
        if len(self.counts) == 1:
            return self.seconds[0] / max(self.counts[0], 1)
        # From the middle on: two neighbouring points are too near for a slope out of noisy times.
        middle = len(self.counts) // 2 if len(self.counts) > 2 else 0
        rise, run = self.seconds[-1] - self.seconds[middle], self.counts[-1] - self.counts[middle]
        return rise / run


@dataclass(frozen=True)
class StepShape:
    """What one step of the engine runs."""

    rows: int
    """Target rows: roots, drafts to verify, and prompt rows."""
    requests: int
    """Requests that decode."""
    attended: float
    """Σ over target rows of the committed positions that the row reads."""
    proposing: int = 0
    """Requests with K ≥ 1."""
    absorbed: float = 0
    """Draft rows of their first step."""
    steps: tuple[int, ...] = ()
    """Draft rows of each later step."""
    draft_attended: float = 0
    """Σ over draft rows of the positions read."""


@dataclass(frozen=True)
class CostTable:
    """Seconds, measured when the engine started. Everything outside the three curves is linear."""

    verify: Curve
    """A target step over so many rows, head, acceptance and commit included, at a short context."""
    absorb: Curve
    """The draft's first step over so many rows of one request."""
    step: Curve
    """One later step of the draft over so many rows, each of its own request, with head and choice."""
    per_request: float = 0.0
    """Of a decoding request beyond its rows."""
    per_proposal: float = 0.0
    """Of a proposing request beyond its absorbed rows: its share of head, choice and bookkeeping."""
    attend: float = 0.0
    """Of a target row, per committed position that it reads."""
    draft_attend: float = 0.0
    """Of a draft row, per position that it reads."""

    def parts(self, shape: StepShape) -> tuple[float, float, float]:
        """Seconds of (the target's rows, its context, the draft)."""
        target = self.verify.of(shape.rows) + shape.requests * self.per_request
        draft = shape.proposing * self.per_proposal + shape.draft_attended * self.draft_attend
        if shape.proposing:
            draft += self.absorb.of(shape.absorbed)
        draft += sum(self.step.of(count) for count in shape.steps if count)
        return target, shape.attended * self.attend, draft

    def seconds(self, shape: StepShape) -> float:
        """Of the whole step."""
        return sum(self.parts(shape))

    def to_json(self) -> dict[str, Any]:
        """Plain values, for documents and /server_info."""
        return asdict(self)


class CostModel:
    """The table times corrections learnt from measured steps.

    A Kalman filter over log(measured / predicted): one state for the speed of the whole machine, which wanders quickly
    and cancels in every comparison, and slow ones for the errors of the table by rows, of the draft's part and of the
    context's. So a busy neighbour that slows plain and speculative steps alike changes no choice, and a table that is
    wrong about one of them is mended by the steps themselves.
    """

    def __init__(self, table: CostTable) -> None:
        self.table = table
        self._state = np.zeros(KNOTS + 3)
        distance = np.abs(np.arange(KNOTS)[:, None] - np.arange(KNOTS)[None, :])
        alike = np.eye(KNOTS + 3)
        alike[:KNOTS, :KNOTS] = np.exp(-distance / NEIGHBOURS)
        errors = np.array([TABLE_ERROR] * KNOTS + [MACHINE_ERROR, SHARE_ERROR, SHARE_ERROR])
        wander = np.full(KNOTS + 3, WANDER)
        self._cov, self._wander = alike * np.outer(errors, errors), alike * np.outer(wander, wander)
        # What is not seen for long goes back to the table and to the table's own uncertainty, and no further.
        self._keep = 1 - np.square(wander / errors) / 2
        self._noise, self._pace = 0.1**2, 0.0
        self._rows = np.arange(0)
        self._verify: NDArray[np.float64] | None = None

    def verify_upto(self, rows: int) -> NDArray[np.float64]:
        """[at least rows + 1] corrected seconds of the target over 0, 1, 2 … rows; never falling. Without what the
        whole machine's speed adds."""
        if len(self._rows) <= rows:
            # Twice the need, so that a growing batch does not come here at every step.
            self._rows = np.arange(2 * rows + 2)
            self._plain_verify = self.table.verify.at(self._rows)
            places = np.minimum(np.log2(np.maximum(self._rows, 1)), KNOTS - 1)
            self._knot = np.minimum(places.astype(np.int64), KNOTS - 2)
            self._beyond = places - self._knot
            self._verify = None
        if self._verify is None:
            low, high = self._state[self._knot], self._state[self._knot + 1]
            corrected = self._plain_verify * np.exp(low + self._beyond * (high - low))
            self._verify = np.maximum.accumulate(corrected)
        return self._verify

    @property
    def draft_factor(self) -> float:
        """By what the table's draft costs are to be multiplied."""
        return math.exp(self._state[DRAFT])

    @property
    def attend_factor(self) -> float:
        """By what the table's costs of context are to be multiplied."""
        return math.exp(self._state[ATTEND])

    @property
    def speed(self) -> float:
        """How much longer all steps take these days than when the table was measured."""
        return math.exp(self._pace)

    def seconds(self, shape: StepShape) -> float:
        """Corrected seconds of a step on the machine as it is now."""
        return self.speed * self._read(shape)[0]

    def doubt(self, shape: StepShape, other: StepShape) -> float:
        """Standard deviation of log(seconds of the one / seconds of the other): about their ratio's relative error."""
        h = self._read(shape)[1] - self._read(other)[1]
        return math.sqrt(max(float(h @ self._cov @ h), 0.0))

    def observe(self, shape: StepShape, seconds: float) -> None:
        """A step of this shape took so long."""
        assert seconds > 0, seconds
        total, h = self._read(shape)
        self._verify = None
        self._state *= self._keep
        self._cov = self._cov * np.outer(self._keep, self._keep) + self._wander
        # A busy neighbour comes and goes at once: the machine's speed wanders as much as a step's own noise, so that
        # only what differs between steps that follow one another tells of the table.
        self._cov[COMMON, COMMON] = min(self._cov[COMMON, COMMON] + self._noise, MACHINE_ERROR**2)
        surprise = math.log(seconds / total) - self._state[COMMON]
        towards = self._cov @ h
        spread = float(h @ towards)
        excess = max(abs(surprise) / math.sqrt(spread + self._noise) / SURPRISE, 1.0)
        total_spread = spread + self._noise * excess**4
        self._state += towards * (surprise / excess / total_spread)
        self._cov -= np.outer(towards, towards) / total_spread
        self._pace += PACE * (self._state[COMMON] - self._pace)
        residual = min(surprise**2, 9 * self._noise)
        self._noise = max(self._noise + 0.02 * (residual - self._noise), 0.02**2)

    def to_json(self) -> dict[str, Any]:
        """The corrections as factors: by rows, of the draft, of the context, of the machine."""
        rows = {str(1 << i): round(math.exp(value), 3) for i, value in enumerate(self._state[:KNOTS])}
        return {
            "rows": rows,
            "draft": round(self.draft_factor, 3),
            "context": round(self.attend_factor, 3),
            "machine": round(self.speed, 3),
            "noise": round(math.sqrt(self._noise), 3),
        }

    def _read(self, shape: StepShape) -> tuple[float, NDArray[np.float64]]:
        """Corrected seconds but for the machine's speed, and how their logarithm depends on each correction."""
        place = min(math.log2(max(shape.rows, 1)), KNOTS - 1)
        hats = np.maximum(1 - np.abs(np.arange(KNOTS) - place), 0.0)
        target, context, draft = self.table.parts(shape)
        target *= math.exp(float(hats @ self._state[:KNOTS]))
        context, draft = context * self.attend_factor, draft * self.draft_factor
        total = target + context + draft
        return total, np.concatenate([hats * (target / total), [1.0, draft / total, context / total]])
