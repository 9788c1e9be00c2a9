"""What is asked of a server, how often, and how many at a time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import Field

from eyas.config import MIN_TEMPERATURE, Settings
from eyas.errors import EyasError

DEFAULT_CONCURRENCY = 1
MAX_OPEN = 4096
"""Connections at a time at the most: a process may hold about this many."""
Positive = Annotated[float, Field(gt=0, le=86_400)]


@dataclass(frozen=True)
class Load:
    """``closed``: ``value`` requests are open at any time · ``open``: they come at ``value`` a second, at random
    (Poisson), whether or not earlier ones are answered.
    """

    kind: Literal["closed", "open"]
    value: float

    def __str__(self) -> str:
        return f"{self.value:g} at once" if self.kind == "closed" else f"{self.value:g}/s"


class BenchSettings(Settings):
    """``concurrency``, ``rates`` (requests a second): a level each, of one kind only; without any, one request at a
    time · ``requests``: of each level and server; None: every prompt once · ``warmup``: requests to each server before,
    in no figure · ``timeout``: seconds of one request with all its tries · ``tries``: where a server is busy (429, 503)
    · ``max_seconds``: of a level on a server, after which no further request is sent.
    """

    concurrency: tuple[Annotated[int, Field(ge=1, le=MAX_OPEN)], ...] = ()
    rates: tuple[Annotated[float, Field(gt=0, le=10_000)], ...] = ()
    requests: Annotated[int, Field(ge=1, le=1_000_000)] | None = None
    max_tokens: Annotated[int, Field(ge=1, le=1_000_000)] = 256
    ignore_eos: bool = False
    temperature: Annotated[float, Field(ge=0, le=100)] = 0.0
    top_p: Annotated[float, Field(gt=0, le=1)] = 1.0
    seed: Annotated[int, Field(ge=0, lt=2**30)] = 0
    warmup: Annotated[int, Field(ge=0, le=1000)] = 2
    timeout: Positive = 600.0
    tries: Annotated[int, Field(ge=1, le=100)] = 4
    max_seconds: Positive | None = None

    def model_post_init(self, _: object) -> None:
        if self.concurrency and self.rates:
            cause = "--concurrency keeps requests open, and --rate sends them by the clock"
            raise EyasError("flags.contradiction", cause, "leave one of the two out")
        if 0 < self.temperature < MIN_TEMPERATURE:
            fix = f"give 0, or {MIN_TEMPERATURE} or more"
            raise EyasError("flags.range", f"--temperature {self.temperature:g} overflows", fix)

    @property
    def loads(self) -> tuple[Load, ...]:
        """The levels, in order."""
        if self.rates:
            return tuple(Load("open", rate) for rate in self.rates)
        return tuple(Load("closed", n) for n in self.concurrency or (DEFAULT_CONCURRENCY,))
