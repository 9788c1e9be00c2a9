"""What engines count of speculation, by name and version, and its conversion into one definition (``eyas.metrics``).

Engines disagree on three things: whether the target's own token counts, whether the token sampled from the prompt does,
and whether a round that ends the text counts as far as the text goes. Here a round's accepted drafts leave the first
two out; a round that a stop cut short cannot be told apart in an engine's sums, so it stays in and :attr:`Counts.cut`
says that there is one.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Literal

from eyas.errors import EyasError

Meaning = Literal[
    "histogram", "accepted", "proposed", "rounds", "tokens", "completion per round", "mean with bonus", "cut rounds"
]
"""``histogram``: rounds by accepted drafts · ``accepted``, ``proposed``: drafts, the target's own token not counted ·
``tokens``: of the answer, the one from the prompt too · ``completion per round``: these by rounds ·
``mean with bonus``: accept length as here."""
Where = Literal["answer", "metrics"]
LARGEST = 10**12
MAX_BINS = 1025


@dataclass(frozen=True)
class Metric:
    """One name. ``where``: in the answer to a request, or in the text of /metrics (``_total`` left out) · ``first``:
    the first draft's position.
    """

    engine: Literal["sglang", "vllm", "eyas", "llama.cpp"]
    where: Where
    name: str
    meaning: Meaning
    since: str | None = None
    before: str | None = None
    first: int = 0


METRICS: tuple[Metric, ...] = (
    Metric("sglang", "answer", "spec_correct_drafts_histogram", "histogram", "0.5.12"),
    Metric("sglang", "answer", "spec_accept_histogram", "histogram", "0.5.10", "0.5.21"),
    Metric("sglang", "answer", "spec_num_correct_drafts", "accepted", "0.5.12"),
    Metric("sglang", "answer", "spec_accepted_drafts", "accepted", "0.5.11", "0.5.21"),
    Metric("sglang", "answer", "spec_accept_token_num", "accepted", "0.5.6", "0.5.11"),
    Metric("sglang", "answer", "spec_num_proposed_drafts", "proposed", "0.5.12"),
    Metric("sglang", "answer", "spec_proposed_drafts", "proposed", "0.5.11", "0.5.21"),
    Metric("sglang", "answer", "spec_draft_token_num", "proposed", "0.5.6", "0.5.11"),
    Metric("sglang", "answer", "spec_verify_ct", "rounds"),
    Metric("sglang", "answer", "spec_accept_length", "completion per round", "0.5.6"),
    Metric("sglang", "metrics", "sglang:spec_accept_length", "mean with bonus"),
    Metric("vllm", "answer", "acceptance_histogram", "histogram"),
    Metric("vllm", "answer", "num_accepted_draft_tokens", "accepted"),
    Metric("vllm", "answer", "num_draft_tokens", "proposed"),
    Metric("vllm", "answer", "num_spec_steps", "rounds"),
    Metric("vllm", "answer", "mean_acceptance_length", "mean with bonus"),
    Metric("vllm", "metrics", "vllm:spec_decode_num_drafts", "rounds"),
    Metric("vllm", "metrics", "vllm:spec_decode_num_draft_tokens", "proposed"),
    Metric("vllm", "metrics", "vllm:spec_decode_num_accepted_tokens", "accepted"),
    Metric("vllm", "metrics", "vllm:spec_decode_num_accepted_tokens_per_pos", "histogram"),
    Metric("eyas", "answer", "accepted_histogram", "histogram"),
    Metric("eyas", "answer", "cut_rounds", "cut rounds"),
    Metric("eyas", "metrics", "eyas_rounds", "rounds"),
    Metric("eyas", "metrics", "eyas_cut_rounds", "cut rounds"),
    Metric("eyas", "metrics", "eyas_proposed_tokens", "proposed"),
    Metric("eyas", "metrics", "eyas_accepted_tokens", "accepted"),
    Metric("eyas", "metrics", "eyas_accepted_tokens_per_position", "histogram", first=1),
    # The server's timings (tools/server, read at llama-cpp-python 0.3.36): drafts only where any was made; each step
    # after the prompt's gives one token of the target's own, so that rounds follow. A step that drafted nothing is a
    # round here. Tokens end at a stop and accepted drafts do not, so a text that a round cut has up to K too few.
    Metric("llama.cpp", "answer", "draft_n", "proposed"),
    Metric("llama.cpp", "answer", "draft_n_accepted", "accepted"),
    Metric("llama.cpp", "answer", "predicted_n", "tokens"),
    # With --metrics; there without speculation too. Rounds here are those that drafted.
    Metric("llama.cpp", "metrics", "llamacpp:spec_decode_num_drafts", "rounds"),
    Metric("llama.cpp", "metrics", "llamacpp:spec_decode_num_draft_tokens", "proposed"),
    Metric("llama.cpp", "metrics", "llamacpp:spec_decode_num_accepted_tokens", "accepted"),
    Metric("llama.cpp", "metrics", "llamacpp:spec_decode_num_accepted_tokens_per_pos", "histogram"),
)
"""A version's old and new names never mean different things, so all are read wherever they stand."""

BY_NAME: dict[str, Metric] = {metric.name: metric for metric in METRICS}
COMPLETION = "completion_tokens"


@dataclass(frozen=True)
class Counts:
    """Of one request, or of many together. ``accepted``, ``proposed``: drafts · ``histogram``: rounds by accepted
    drafts, from 0 · ``completion``: tokens of the answer, the one from the prompt too · ``cut``: whether a round in it
    was ended by a stop; None: not known · ``said``: accept length in the engine's own definition.
    """

    rounds: int
    accepted: float
    proposed: int | None = None
    histogram: tuple[int, ...] | None = None
    completion: int | None = None
    cut: bool | None = None
    said: float | None = None

    @property
    def accept_length(self) -> float:
        """Tokens per round with the target's own; NaN without rounds."""
        return 1 + self.accepted / self.rounds if self.rounds else math.nan

    @property
    def num_steps(self) -> float | None:
        """Drafts proposed per round (tree nodes in a tree); None: not told."""
        return None if self.proposed is None or not self.rounds else self.proposed / self.rounds


def bad_metrics(cause: str, fix: str = "check that the address is the engine's own, and its version") -> EyasError:
    """``server.metrics``."""
    return EyasError("server.metrics", cause, fix)


def counts_of(fields: Mapping[str, Any], completion: int | None = None) -> Counts | None:
    """From one answer's figures under any engine's names; None: it has none. ``completion``: tokens of the answer.

    Raises ``server.metrics`` for figures that are no figures or contradict one another.
    """
    found: dict[str, tuple[str, Any]] = {BY_NAME[name].meaning: (name, value) for name, value in _known(fields)}
    completion = _count(COMPLETION, fields[COMPLETION]) if COMPLETION in fields else completion
    histogram = _histogram(*found["histogram"]) if "histogram" in found else None
    whole: dict[str, int] = {
        m: _count(*found[m]) for m in ("rounds", "accepted", "proposed", "cut rounds", "tokens") if m in found
    }
    said = next((_number(*found[m]) for m in ("completion per round", "mean with bonus") if m in found), None)
    if histogram is not None:
        _same("rounds", found, whole, sum(histogram))
        _same("accepted", found, whole, sum(i * n for i, n in enumerate(histogram)))
    rounds = whole.get("rounds")
    if rounds is None:
        rounds = _rounds(found, whole, said, completion)
    if rounds is None:
        return None
    accepted = _accepted(whole, found, said, rounds, completion)
    proposed = whole.get("proposed")
    if accepted is None or accepted < 0 or (proposed is not None and accepted > proposed):
        raise bad_metrics(f"the figures contradict one another: {_shown(found, completion)}")
    # Ours counts them apart, and llama.cpp's rounds follow from the tokens.
    cut = False if "cut rounds" in whole else None if "tokens" in whole else _is_cut(whole, rounds, completion)
    return Counts(rounds, accepted, proposed, histogram, completion, cut, said)


def _known(fields: Mapping[str, Any]) -> list[tuple[str, Any]]:
    """Old names first, so that a newer one beside them counts."""
    names = [m.name for m in METRICS if m.where == "answer" and fields.get(m.name) is not None]
    given = [(name, fields[name]) for name in reversed(names)]
    # SGLang's usage writes an empty histogram where it has none.
    return [(name, value) for name, value in given if value != []]


def _same(meaning: str, found: Mapping[str, tuple[str, Any]], whole: dict[str, int], implied: int) -> None:
    if whole.setdefault(meaning, implied) != implied:
        name, histogram = found[meaning][0], found["histogram"][0]
        raise bad_metrics(f"{name} is {whole[meaning]}, and {histogram} makes it {implied}")


def _rounds(
    found: Mapping[str, Any], whole: Mapping[str, int], said: float | None, completion: int | None
) -> int | None:
    """From llama.cpp's sums, or from SGLang's ratio, where it gives no more."""
    if "tokens" in whole and "accepted" in whole:
        # Less than nothing: all that a short text says is that its last round was cut.
        return whole["tokens"] - 1 - whole["accepted"] if whole["tokens"] > whole["accepted"] + 1 else None
    if "completion per round" not in found or not said or completion is None:
        return None
    if said < 1:
        raise bad_metrics(f"{found['completion per round'][0]} is {said}, and a round gives at least one token")
    return round(completion / said)


def _accepted(
    whole: Mapping[str, int], found: Mapping[str, Any], said: float | None, rounds: int, completion: int | None
) -> float | None:
    if "accepted" in whole:
        return whole["accepted"]
    if "mean with bonus" in found and said is not None:
        return (said - 1) * rounds
    if completion is None:
        return None
    # One token is the prompt's, and each round has one of the target's own; a cut round may lack it.
    return max(0, completion - 1 - rounds) if completion or not rounds else None


def _is_cut(whole: Mapping[str, int], rounds: int, completion: int | None) -> bool | None:
    if completion is None or "accepted" not in whole:
        return None
    return 1 + rounds + whole["accepted"] > completion


def _shown(found: Mapping[str, tuple[str, Any]], completion: int | None) -> str:
    parts = [f"{name} {str(value)[:60]}" for name, value in found.values()]
    return ", ".join([*parts, *([] if completion is None else [f"{COMPLETION} {completion}"])])


def _number(name: str, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= LARGEST:
        raise bad_metrics(f"{name} is {str(value)[:60]!r}, no figure")
    return float(value)


def _count(name: str, value: Any) -> int:
    number = _number(name, value)
    if number != int(number):
        raise bad_metrics(f"{name} is {value!r}, not a whole number")
    return int(number)


def _histogram(name: str, value: Any) -> tuple[int, ...]:
    if not isinstance(value, list) or not 0 < len(value) <= MAX_BINS:
        raise bad_metrics(f"{name} is {str(value)[:60]!r}, no histogram")
    return tuple(_count(name, n) for n in value)


def counts_of_rounds(accepted: Sequence[Any]) -> Counts:
    """From accepted drafts per round, one after the other."""
    each = [_count("accepted", a) for a in accepted]
    if max(each, default=0) >= MAX_BINS:
        raise bad_metrics(f"a round accepted {max(each)} drafts")
    histogram = tuple(each.count(i) for i in range(max(each, default=0) + 1))
    return Counts(len(each), sum(each), None, histogram)


_LINE = re.compile(r"^([A-Za-z_:][\w:]*?)(_total)?(?:\{([^}]*)\})?\s+(\S+)")
_POSITION = re.compile(r'\bposition="(\d{1,4})"')
Gauges = Mapping[str, Mapping[int, float]]
"""name → position (0 where it has none) → value, summed over the other labels."""


def read_metrics(text: str) -> dict[str, dict[int, float]]:
    """The figures known here out of the text of /metrics (Prometheus). Raises ``server.metrics`` for a value that is no
    figure.
    """
    found: dict[str, dict[int, float]] = {}
    for line in text.splitlines():
        match = _LINE.match(line)
        if match is None or match[1] not in BY_NAME or match[4].lower() == "nan":
            continue
        try:
            value = float(match[4])
        except ValueError as error:
            raise bad_metrics(f"{match[1]} is {match[4][:60]!r}, no figure") from error
        at = _POSITION.search(match[3] or "")
        place = found.setdefault(match[1], {})
        position = int(at[1]) if at else 0
        place[position] = place.get(position, 0.0) + _number(match[1], value)
    return found


_COUNTED = ("vllm", "eyas", "llama.cpp")
"""Engines whose counters stand in /metrics."""


def _named(metrics: Gauges) -> dict[Meaning, Metric] | None:
    """The counters of the engine that these are from."""
    for engine in _COUNTED:
        names = {m.meaning: m for m in METRICS if m.engine == engine and m.where == "metrics"}
        if names["rounds"].name in metrics:
            return names
    return None


def has_counters(metrics: Gauges) -> bool:
    """Whether counters of speculation are there: vLLM's, which registers them only when it speculates, or ours."""
    return _named(metrics) is not None


def deepest(metrics: Gauges) -> int:
    """Drafts of one round at the most, by the counters by position; 0: not known."""
    names = _named(metrics)
    if names is None:
        return 0
    histogram = names["histogram"]
    return max((at - histogram.first + 1 for at in metrics.get(histogram.name, {})), default=0)


def counts_between(before: Gauges, after: Gauges, completion: int | None = None) -> Counts:
    """From counters of vLLM or Eyas at two moments. Raises ``server.metrics``: they fall, or contradict one another."""
    names = _named(after) or _named(before)
    if names is None:
        raise bad_metrics("the text holds no counters of speculation")

    def moved(meaning: Meaning) -> dict[int, int]:
        metric = names[meaning]
        now, then = after.get(metric.name, {}), before.get(metric.name, {})
        return {at - metric.first: _count(metric.name, value - then.get(at, 0.0)) for at, value in now.items()}

    rounds, accepted, proposed = (sum(moved(m).values()) for m in ("rounds", "accepted", "proposed"))
    survived = moved("histogram")
    steps = max(survived, default=-1) + 1
    at_least = [rounds, *(survived.get(i, 0) for i in range(steps)), 0]
    histogram = tuple(a - b for a, b in pairwise(at_least))
    if survived and (min(histogram) < 0 or min(survived) < 0 or sum(survived.values()) != accepted):
        raise bad_metrics(f"the counters contradict one another: {rounds} drafts, {accepted} accepted, {survived}")
    cut = None if completion is None else 1 + rounds + accepted > completion
    # Ours counts them apart.
    cut = False if "cut rounds" in names else cut
    return Counts(rounds, accepted, proposed, histogram if survived else None, completion, cut)


def total_of(many: Sequence[Counts]) -> Counts | None:
    """All together; None of none. What one of them lacks, the total lacks."""
    if not many:
        return None
    histograms = [c.histogram for c in many if c.histogram is not None]
    longest = max((len(h) for h in histograms), default=0)
    pooled = tuple(sum(h[i] for h in histograms if i < len(h)) for i in range(longest))
    return Counts(
        rounds=sum(c.rounds for c in many),
        accepted=sum(c.accepted for c in many),
        proposed=_sum([c.proposed for c in many]),
        histogram=pooled if len(histograms) == len(many) else None,
        completion=_sum([c.completion for c in many]),
        cut=None if any(c.cut is None for c in many) else any(c.cut for c in many),
    )


def _sum(values: Sequence[int | None]) -> int | None:
    known = [value for value in values if value is not None]
    return sum(known) if len(known) == len(values) else None
