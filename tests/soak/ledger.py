"""What came of the requests: counted by kind, faults kept, and when the engine was away by our own doing."""

from __future__ import annotations

import statistics
import time
from collections import Counter, defaultdict
from collections.abc import Mapping
from typing import Any

from eyas.errors import CODES
from eyas.serve.api.failures import ErrorBody, status_of

MOST_FAULTS = 40
OUTAGE_CODES = ("engine.died", "server.loading")
RETRIED = (429, 503)


class Ledger:
    """Of one run."""

    def __init__(self) -> None:
        self.outcomes: dict[str, Counter[str]] = defaultdict(Counter)
        self.seconds: dict[str, list[float]] = defaultdict(list)
        self.faults: list[str] = []
        self.tokens = 0
        self.compared = 0
        self._outages: list[tuple[float, float]] = []
        self.draining_since = float("inf")

    def note(self, kind: str, outcome: str, begun: float | None = None) -> None:
        """One request is over."""
        self.outcomes[kind][outcome] += 1
        if begun is not None:
            self.seconds[kind].append(time.monotonic() - begun)

    def fault(self, kind: str, what: str) -> None:
        """Something that must not be."""
        self.outcomes[kind]["FAULT"] += 1
        if len(self.faults) < MOST_FAULTS:
            self.faults.append(f"{kind}: {what}")

    def outage_begins(self) -> None:
        self._outages.append((time.monotonic(), float("inf")))

    def outage_ends(self) -> float:
        """Its seconds."""
        begun, _ = self._outages[-1]
        # What was refused in the last moment is still on its way.
        self._outages[-1] = (begun, time.monotonic() + 1.0)
        return time.monotonic() - begun

    def refused(self, kind: str, begun: float, status: int, headers: Mapping[str, str], body: Any) -> str | None:
        """The code of an error of right form; None, and a fault, for one of another form or of the server's own."""
        try:
            error = ErrorBody.model_validate(body, strict=True).error
        except ValueError:
            self.fault(kind, f"status {status} without an error in OpenAI's form: {str(body)[:200]}")
            return None
        told = f"status {status}, {error.model_dump()}"
        if error.code not in CODES or status_of(error.code) != status:
            self.fault(kind, f"code and status do not belong together: {told}")
        if status in RETRIED and not headers.get("retry-after", "").isdigit():
            self.fault(kind, f"no Retry-After: {told}")
        if status >= 500 and not self.excused(error.code, begun):
            self.fault(kind, f"an error of the server's own: {told}")
            return None
        return error.code

    def excused(self, code: str, begun: float) -> bool:
        """Whether the engine, or the server, was taken away while the request ran."""
        now = time.monotonic()
        if code == "server.draining":
            return now >= self.draining_since
        return code in OUTAGE_CODES and any(begun <= end and now >= start for start, end in self._outages)

    def figures(self) -> dict[str, Any]:
        """For the report."""
        return {
            "answers_compared": self.compared,
            "answer_tokens_compared": self.tokens,
            "requests": sum(sum(counts.values()) for counts in self.outcomes.values()),
            "outcomes": {kind: dict(sorted(counts.items())) for kind, counts in sorted(self.outcomes.items())},
            "seconds": {kind: _spread(values) for kind, values in sorted(self.seconds.items()) if values},
            "faults": self.faults,
        }


def _spread(values: list[float]) -> dict[str, float]:
    ordered = sorted(values)
    at = {"p50": 0.5, "p95": 0.95, "p99": 0.99}
    found = {name: ordered[min(int(share * len(ordered)), len(ordered) - 1)] for name, share in at.items()}
    found |= {"mean": statistics.fmean(ordered), "max": ordered[-1]}
    return {name: round(value, 4) for name, value in found.items()}
