"""What GET /live tells: the engine's status as it is, and what its counters mean by ``eyas.metrics``."""

from __future__ import annotations

import math
from collections import Counter, deque
from collections.abc import Sequence
from itertools import zip_longest
from typing import Any

import msgspec

from eyas.metrics import Acceptance, Round
from eyas.serve.client import EngineClient
from eyas.serve.wire import Status

WINDOW = 20.0
"""Seconds that "of late" looks back at most."""
PAUSE = 0.5
"""Seconds between two kept statuses at least, however many pages look."""


class Live:
    """Remembers the statuses of the last seconds, as far as somebody looked."""

    def __init__(self) -> None:
        self._kept: deque[tuple[float, Status]] = deque()

    def now(self, client: EngineClient, clock: float) -> dict[str, Any]:
        """JSON. ``clock``: seconds, of a clock that never goes back. ``recent`` and ``total`` are None without rounds;
        without an engine only ``ready``, ``model`` and ``restarts`` are there.
        """
        ready, status = client.ready, client.status
        about = {"ready": ready is not None, "model": ready.model if ready else None, "restarts": client.restarts}
        if status is None:
            return about
        then = self._earlier(status, clock)
        recent = _figures(_less(status.accepted_histogram, then.accepted_histogram),
                          _less(status.proposed_at_least, then.proposed_at_least)) if then else None  # fmt: skip
        total = _figures(status.accepted_histogram, status.proposed_at_least)
        return about | msgspec.structs.asdict(status) | {"recent": recent, "total": total}

    def _earlier(self, status: Status, clock: float) -> Status | None:
        """The oldest status within the window; None if this is the first."""
        if self._kept and status.steps < self._kept[-1][1].steps:
            self._kept.clear()  # the engine was started again, and its counters with it
        while self._kept and clock - self._kept[0][0] > WINDOW:
            self._kept.popleft()
        if not self._kept or clock - self._kept[-1][0] >= PAUSE:
            self._kept.append((clock, status))
        oldest = self._kept[0][1]
        return None if oldest is status else oldest


def _less(now: Sequence[int], then: Sequence[int]) -> list[int]:
    return [a - b for a, b in zip_longest(now, then, fillvalue=0)]


def _figures(histogram: Sequence[int], possible: Sequence[int]) -> dict[str, Any] | None:
    """Of whole rounds by accepted drafts, from 0. ``possible``: rounds that could accept at least i drafts, from 1; as
    shares in the figures, where survival cannot be more.
    """
    deepest = max(len(histogram) - 1, len(possible), 1)
    rounds = Counter({Round(i, deepest): n for i, n in enumerate(histogram) if n > 0})
    acceptance = Acceptance({"all": rounds})
    total = acceptance.num_rounds
    if not total or math.isnan(acceptance.accept_length):
        return None
    return {
        "rounds": total,
        "accept_length": acceptance.accept_length,
        "possible": [n / total for n in possible],
        "survival": [acceptance.survival(i) for i in range(1, max(len(histogram) - 1, len(possible)) + 1)],
    }
