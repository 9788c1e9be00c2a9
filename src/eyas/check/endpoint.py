"""A running server, seen through its figures alone: which hypothesis predicts its accepted counts best.

A walk over a server's own text gives exactly the accepted counts that a correct engine shows (the design, section 3),
so the prediction of each hypothesis is compared request by request, and what none of them explains is said to be so.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from eyas.check.endpoint_read import Observation
from eyas.check.findings import Finding
from eyas.dialects.counters import Counts

SMOOTHING = 2.0
"""Rounds' worth of the hypothesis' own average that is added to each prediction: near-ties differ between engines."""
SURE_NATS = 6.0
"""By how much the best must explain all requests better than another, to rule it out."""
SURE_Z = 2.5
"""And how evenly over the requests: their paired z."""
FEW_REQUESTS = 3
TOLERANCE = 0.05
"""Accept length between a prediction and what is seen that near-ties may make."""
MANY_ROUNDS = 20
SATURATED = 0.95

Histogram = Sequence[int]
"""Rounds by accepted drafts, from 0."""
Predictions = Mapping[str, Sequence[Histogram]]
"""Hypothesis → one histogram a request, in the observation's order."""


@dataclass(frozen=True)
class Fitted:
    """``log_likelihood``: nats over all requests · ``behind``: nats behind the best, with the paired ``z`` · ``exact``:
    requests whose histogram it predicts to the round · ``accept_length``: that it predicts.
    """

    name: str
    log_likelihood: float
    behind: float
    z: float
    exact: int
    accept_length: float


@dataclass(frozen=True)
class Fit:
    """``ranking``: best first · ``best`` None: undecided among ``between`` · ``explained``: whether the best accounts
    for what was seen; if not, no hypothesis does · ``requests``, ``rounds``: compared.
    """

    ranking: tuple[Fitted, ...]
    best: str | None
    between: tuple[str, ...]
    explained: bool
    requests: int
    rounds: int
    accept_length: float


def fit(observation: Observation, predictions: Predictions) -> Fit:
    """Rank hypotheses by how well they predict the accepted counts of each request; where the server gives only sums,
    by its sum of accepted drafts over the rounds. Where no request has figures, all are compared together.
    """
    seen, predictions = _comparable(observation, predictions)
    scores = {
        name: np.array([_score(c, h, hs) for c, h in zip(seen, hs, strict=True)]) for name, hs in predictions.items()
    }
    order = sorted(scores, key=lambda name: (-scores[name].sum(), list(scores).index(name)))
    best = order[0] if order else None
    ranking = tuple(_fitted(name, scores, order[0], seen, predictions[name]) for name in order)
    between = tuple(one.name for one in ranking if one.name == best or not _ruled_out(one, ranking[0], seen))
    rounds = sum(c.rounds for c in seen)
    length = 1 + sum(c.accepted for c in seen) / rounds if rounds else math.nan
    explained = bool(rounds and best is not None and _explains(seen, predictions[best]))
    decided = best if len(between) == 1 else None
    return Fit(ranking, decided, between, explained, len(seen), rounds, length)


def _comparable(observation: Observation, predictions: Predictions) -> tuple[list[Counts], dict[str, list[Histogram]]]:
    kept = [i for i, one in enumerate(observation.requests) if one.counts is not None and one.counts.rounds]
    for name, histograms in predictions.items():
        assert len(histograms) == len(observation.requests), (name, len(histograms), len(observation.requests))
    if not kept and observation.total is not None and observation.total.rounds:
        return [observation.total], {name: [_pooled(hs)] for name, hs in predictions.items()}
    seen = [counts for i in kept if (counts := observation.requests[i].counts) is not None]
    return seen, {name: [hs[i] for i in kept] for name, hs in predictions.items()}


def _pooled(histograms: Sequence[Histogram]) -> list[int]:
    longest = max((len(h) for h in histograms), default=0)
    return [sum(h[i] for h in histograms if i < len(h)) for i in range(longest)]


def _score(counts: Counts, predicted: Histogram, every: Sequence[Histogram]) -> float:
    """Nats of one request under a hypothesis."""
    seen = counts.histogram
    pool = _pooled(every)
    bins = max(len(pool), len(seen or ()), 2)
    average = (_padded(pool, bins) + 0.5) / (sum(pool) + 0.5 * bins)
    p = (_padded(predicted, bins) + SMOOTHING * average) / (sum(predicted) + SMOOTHING)
    if seen is not None:
        return float((_padded(seen, bins) * np.log(p)).sum())
    places = np.arange(bins)
    mean = (p * places).sum()
    # One more than the rounds' own variance: a round that the end cut short moves the sum.
    variance = counts.rounds * ((p * places**2).sum() - mean**2) + 1
    return float(-0.5 * ((counts.accepted - counts.rounds * mean) ** 2 / variance + math.log(2 * math.pi * variance)))


def _padded(histogram: Histogram, bins: int) -> np.ndarray:
    out = np.zeros(bins)
    out[: len(histogram)] = histogram
    return out


def _fitted(
    name: str, scores: Mapping[str, np.ndarray], best: str, seen: Sequence[Counts], predicted: Sequence[Histogram]
) -> Fitted:
    behind = scores[best] - scores[name]
    pooled = _pooled(predicted)
    rounds = sum(pooled)
    length = 1 + sum(i * n for i, n in enumerate(pooled)) / rounds if rounds else math.nan
    return Fitted(name, float(scores[name].sum()), float(behind.sum()), _z(behind), _exact(seen, predicted), length)


def _z(differences: np.ndarray) -> float:
    """Paired z of a sum; 0 where one request alone cannot give one."""
    if len(differences) < FEW_REQUESTS:
        return 0.0
    mean, spread = differences.mean(), differences.std(ddof=1) / math.sqrt(len(differences))
    # Requests that all differ by the same amount leave nothing to chance.
    return float(mean / spread) if spread > 1e-12 else (math.inf if mean > 1e-12 else 0.0)


def _exact(seen: Sequence[Counts], predicted: Sequence[Histogram]) -> int:
    return sum(
        c.histogram is not None and _trimmed(c.histogram) == _trimmed(h) for c, h in zip(seen, predicted, strict=True)
    )


def _trimmed(histogram: Histogram) -> list[int]:
    out = list(histogram)
    while out and not out[-1]:
        out.pop()
    return out


def _ruled_out(one: Fitted, best: Fitted, seen: Sequence[Counts]) -> bool:
    every = best.exact == len(seen) > one.exact and sum(c.rounds for c in seen) >= MANY_ROUNDS
    return every or (one.behind >= SURE_NATS and one.z >= SURE_Z)


def _explains(seen: Sequence[Counts], predicted: Sequence[Histogram]) -> bool:
    """Whether accept lengths agree request by request, and the pooled histograms in shape."""
    gaps, weights = [], []
    for counts, histogram in zip(seen, predicted, strict=True):
        rounds = sum(histogram)
        mean = sum(i * n for i, n in enumerate(histogram)) / rounds if rounds else 0.0
        gaps.append(counts.accepted / counts.rounds - mean)
        weights.append(counts.rounds)
    gap = float(np.average(gaps, weights=weights))
    spread = float(np.std(gaps, ddof=1) / math.sqrt(len(gaps))) if len(gaps) >= FEW_REQUESTS else 0.0
    if abs(gap) > max(TOLERANCE, SURE_Z * spread):
        return False
    if any(c.histogram is None for c in seen):
        return True
    ours, theirs = _pooled(predicted), _pooled([c.histogram or () for c in seen])
    bins = max(len(ours), len(theirs))
    shares = _padded(ours, bins) / max(1, sum(ours)) - _padded(theirs, bins) / max(1, sum(theirs))
    return float(np.abs(shares).sum() / 2) <= TOLERANCE + 1 / math.sqrt(max(1, sum(theirs)))


def judge(
    observation: Observation, ceiling: int | None = None, num_draft_tokens: int | None = None
) -> tuple[Finding, ...]:
    """What the figures show by themselves. ``ceiling``: the accept length that the launch's flags allow;
    ``num_draft_tokens``: what they run in a round, the root counted.
    """
    total, found = observation.total, []
    if observation.speculates is False or (total is not None and not total.rounds):
        said = "the server answers without speculation: it counts no round"
        return (_finding("endpoint.plain", "fault", said, "", "switch it on, and check the launch with --flags"),)
    if total is None:
        return ()
    length, evidence = total.accept_length, f"{total.rounds} rounds, {total.accepted:g} drafts accepted"
    if total.accepted == 0 and total.rounds >= MANY_ROUNDS:
        said = "no draft was accepted: accept length exactly 1.00"
        fix = "check the draft's files, map and taps: eyas check DRAFT --target T"
        found.append(_finding("endpoint.none-accepted", "fault", said, evidence, fix))
    proposed = total.num_steps
    if num_draft_tokens is not None and proposed is not None and abs(proposed + 1 - num_draft_tokens) > 0.5:
        said = f"a round proposes {proposed:.3g} drafts, and the flags run {num_draft_tokens - 1}"
        found.append(_finding("endpoint.ceiling", "fault", said, evidence, "compare the server's start with the flags"))
    longest = len(_trimmed(total.histogram)) if total.histogram else None
    if ceiling is not None and (length > ceiling + 1e-6 or (longest or 0) > ceiling):
        said = (
            f"accept length {length:.2f}, rounds of up to {longest or length:.3g} tokens, and the flags allow {ceiling}"
        )
        found.append(_finding("endpoint.ceiling", "fault", said, evidence, "check that --flags are this server's"))
    elif ceiling is not None and ceiling > 1 and (length - 1) / (ceiling - 1) > SATURATED:
        said = f"accept length {length:.2f} of at most {ceiling}: the flags limit it, not the draft"
        found.append(_finding("endpoint.saturated", "warning", said, evidence, "draft more steps"))
    return tuple(found)


def other_text(observation: Observation, expected: Sequence[Sequence[int]]) -> Finding | None:
    """A finding if the server's tokens are not those that the target says, greedily, to the same prompts; None where
    they are, or where it gives no tokens.
    """
    differ, compared, first = 0, 0, None
    for one, right in zip(observation.requests, expected, strict=True):
        if one.tokens is None:
            continue
        compared += 1
        length = min(len(one.tokens), len(right))
        at = next((i for i in range(length) if one.tokens[i] != right[i]), None)
        if at is not None:
            differ, first = differ + 1, at if first is None else min(first, at)
    if not differ:
        return None
    said = f"{differ} of {compared} answers are not what the target says; the first differs at token {first}"
    fix = "compare the server's model, template and quantisation with the target; later tokens may differ by near-ties"
    # A wrong model or template shows in the first tokens, other arithmetic in later ones.
    weight = "fault" if differ == compared and (first or 0) == 0 else "warning"
    return _finding("endpoint.other-text", weight, said, "", fix)


def fit_finding(result: Fit, declared: str) -> Finding | None:
    """A finding if what was seen speaks against the ``declared`` hypothesis; None if it fits."""
    names = {one.name: one for one in result.ranking}
    evidence = (
        f"{result.requests} requests, {result.rounds} rounds: accept length {result.accept_length:.2f}, predicted "
    )
    evidence += ", ".join(
        f"{one.name} {one.accept_length:.2f} ({one.behind:.1f} nats behind)" for one in result.ranking[:4]
    )
    if not result.rounds or (result.explained and declared in result.between):
        return None
    if not result.explained:
        said = "no hypothesis predicts the accepted counts that the server shows"
        fix = "replay the witness on the server's own text, and send more prompts"
        return _finding("endpoint.unexplained", "warning", said, evidence, fix)
    behind = names[declared].behind if declared in names else math.nan
    said = f"the server accepts as if it ran the draft with: {' or '.join(result.between)}"
    return _finding("endpoint.mismatch", "fault", f"{said}, not as declared ({behind:.1f} nats behind)", evidence,
                    "mend what the hypothesis names, and start the server again")  # fmt: skip


def _finding(kind: str, weight: str, said: str, evidence: str, fix: str) -> Finding:
    assert weight in ("fault", "warning")
    return Finding(kind, "endpoint", "fault" if weight == "fault" else "warning", said, evidence, fix)
