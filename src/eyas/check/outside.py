"""A running server against the walk: what each hypothesis predicts for the very prompts that the server answers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from eyas.check.endpoint import Histogram, fit, fit_finding, judge, other_text
from eyas.check.endpoint_read import Observation, observe, read_observation
from eyas.check.findings import Finding, Link, Ranked, State
from eyas.check.hypotheses import single_changes
from eyas.check.measure import Rig, accepted_counts
from eyas.check.readings import Reading, arrange
from eyas.metrics import Round
from eyas.speculate.walk import rounds_of

DECLARED = "as the files declare"


def look(url: str | None, observed: Path | None, prompts: Sequence[Sequence[int]], num_tokens: int) -> Observation:
    """What the server shows for these prompts, or what a file says it showed; raises ``server.…``, ``artifact.…``."""
    if url is not None:
        return observe(url, [list(prompt) for prompt in prompts], num_tokens)
    assert observed is not None
    return read_observation(observed)


def judge_server(
    seen: Observation, rig: Rig, base: Reading, answers: Sequence[Sequence[int]], num_steps: int, ceiling: int | None
) -> tuple[list[Finding], Link, list[Ranked]]:
    """(findings, the link, hypotheses by how well they predict the accepted counts).

    ``answers``: what the target says to the same prompts; ``num_steps``: the K that is believed to run.
    """
    findings = list(judge(seen, ceiling))
    other = other_text(seen, answers)
    findings += [] if other is None else [other]
    if len(seen.requests) != len(rig.texts):
        said = f"{len(seen.requests)} requests in the file, {len(rig.texts)} prompts: counts are not compared"
        return findings, Link("server", "endpoint", "unknown", said), []
    result = fit(seen, dict(_predictions(rig, base, num_steps)))
    against = fit_finding(result, DECLARED)
    findings += [] if against is None else [against]
    broken = any(finding.weight == "fault" for finding in findings)
    ranking = [Ranked(one.name, (), -one.behind, one.z, one.accept_length) for one in result.ranking[:8]]
    said = f"accept length {result.accept_length:.2f} over {result.rounds} rounds"
    state: State = "broken" if broken else "proven" if result.explained else "unknown"
    return findings, Link("server", "endpoint", state, said), ranking


def _predictions(rig: Rig, base: Reading, num_steps: int) -> Iterator[tuple[str, list[Histogram]]]:
    """Hypothesis → one histogram of accepted drafts a text."""
    yield DECLARED, _histograms(rig, base, num_steps)
    for steps in range(1, num_steps):
        yield f"K = {steps}", _histograms(rig, base, steps)
    yield "no draft is ever accepted", [[len(text.tokens) - text.prompt - 1] for text in rig.texts]
    theta = getattr(getattr(rig.target, "config", None), "rope_theta", None)
    for h in single_changes(base, rig.model.config, theta, rig.model.config.own_embedding):
        yield h.name, _histograms(rig, h.reading, num_steps)


def _histograms(rig: Rig, reading: Reading, num_steps: int) -> list[Histogram]:
    view = arrange(rig.model, reading, rig.target)
    found: list[Histogram] = []
    for text in rig.texts:
        accepted = accepted_counts(view, reading, text, num_steps)
        found.append(_histogram(list(rounds_of(accepted, text.prompt, len(text.tokens), num_steps)), num_steps))
    return found


def _histogram(rounds: Sequence[Round], num_steps: int) -> list[int]:
    bins = [0] * (num_steps + 1)
    for one in rounds:
        bins[one.accepted] += 1
    return bins
