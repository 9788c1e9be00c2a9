"""The nouns of a check: what was found, at which link of the chain, and the verdict over all of it.

The chain goes from files to a running server; a draft is proven up to the first link that is not.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

Level = Literal["static", "flags", "target", "features", "draft", "acceptance", "endpoint"]
LEVELS: tuple[Level, ...] = get_args(Level)
"""In the order in which they are proven."""

Weight = Literal["fault", "warning", "note"]
"""``fault``: what is served is not what was trained, or cannot be · ``warning``: it may cost · ``note``: to know."""

State = Literal["proven", "sound", "broken", "unknown", "skipped"]
"""Of a link: compared with a promise · nothing wrong, but no promise · wrong · undecided · not looked at."""

Answer = Literal["fault", "undecided", "undertrained", "proven", "no-fault-found"]
"""``proven``: every level up to acceptance was checked against a contract and witness · ``no-fault-found``: all that
can be checked without them is right."""

EXIT_CODES: dict[Answer, int] = {"proven": 0, "no-fault-found": 0, "undertrained": 0, "fault": 1, "undecided": 3}


@dataclass(frozen=True)
class Finding:
    """One thing that was found.

    ``kind``: a key of ``eyas.check.catalogue.KINDS`` · ``said``: what is wrong, with the values · ``evidence``: the
    figures that show it · ``fix``: what to type or do · ``data``: the same for programs.
    """

    kind: str
    level: Level
    weight: Weight
    said: str
    evidence: str = ""
    fix: str = ""
    data: Mapping[str, Any] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """For ``--json``."""
        return {
            "kind": self.kind,
            "level": self.level,
            "weight": self.weight,
            "said": self.said,
            "evidence": self.evidence,
            "fix": self.fix,
            "data": dict(self.data),
        }


@dataclass(frozen=True)
class Link:
    """One link of the chain; ``said`` tells what was seen, or why it was skipped."""

    name: str
    level: Level
    state: State
    said: str

    def to_json(self) -> dict[str, Any]:
        """For ``--json``."""
        return {"name": self.name, "level": self.level, "state": self.state, "said": self.said}


@dataclass(frozen=True)
class Ranked:
    """A hypothesis and how well it explains the text: ``gain`` in nats a position over what the files declare,
    ``z`` its paired z over conversations, ``accept_length`` that the draft would have if it were true. ``kinds``:
    the faults that it consists of; none for the declared reading itself.
    """

    name: str
    kinds: tuple[str, ...]
    gain: float
    z: float
    accept_length: float
    looks_ahead: bool = False

    def to_json(self) -> dict[str, Any]:
        """For ``--json``."""
        return {
            "name": self.name,
            "kinds": list(self.kinds),
            "gain": self.gain,
            "z": self.z,
            "accept_length": self.accept_length,
            "looks_ahead": self.looks_ahead,
        }


@dataclass(frozen=True)
class Survival:
    """survival_i at i = 1 … K, measured now and as the contract expects it (empty: it does not say)."""

    num_steps: int
    measured: tuple[float, ...]
    accept_length: float
    interval: tuple[float, float]
    expected: tuple[float, ...] = ()

    @property
    def expected_accept_length(self) -> float | None:
        """1 + Σ survival_i, where something is expected."""
        return 1 + math.fsum(self.expected) if self.expected else None


@dataclass(frozen=True)
class Verdict:
    """The whole result.

    ``headline``: one sentence · ``between``: kinds that could not be told apart, and ``deciding``, the one more
    observation that would · ``taps``: log-likelihood of every tap in every slot, [slots][L + 1], where they were
    searched · ``seconds``: by level.
    """

    answer: Answer
    headline: str
    links: Sequence[Link]
    findings: Sequence[Finding]
    ranking: Sequence[Ranked] = ()
    between: tuple[str, ...] = ()
    deciding: str = ""
    survival: Survival | None = None
    taps: tuple[tuple[float, ...], ...] = ()
    declared_taps: tuple[int, ...] = ()
    draft: str = ""
    target: str = ""
    seconds: Mapping[str, float] = field(default_factory=dict)

    @property
    def exit_code(self) -> int:
        """0 proven or nothing found, 1 fault, 3 undecided."""
        return EXIT_CODES[self.answer]

    def to_json(self) -> dict[str, Any]:
        """For ``--json``; NaN becomes null."""
        survival = self.survival
        document = {
            "answer": self.answer,
            "headline": self.headline,
            "exit_code": self.exit_code,
            "draft": self.draft,
            "target": self.target,
            "links": [link.to_json() for link in self.links],
            "findings": [finding.to_json() for finding in self.findings],
            "ranking": [one.to_json() for one in self.ranking],
            "between": list(self.between),
            "deciding": self.deciding,
            "survival": None
            if survival is None
            else {
                "num_steps": survival.num_steps,
                "measured": list(survival.measured),
                "accept_length": survival.accept_length,
                "interval": list(survival.interval),
                "expected": list(survival.expected),
                "expected_accept_length": survival.expected_accept_length,
            },
            "taps": [list(row) for row in self.taps],
            "declared_taps": list(self.declared_taps),
            "seconds": dict(self.seconds),
        }
        return _without_nan(document)


def _without_nan(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_nan(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [_without_nan(entry) for entry in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
