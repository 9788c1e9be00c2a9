"""A running server against the walk: what each hypothesis predicts for the very texts that the server wrote."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from eyas.check.endpoint import Fit, Histogram, fit, fit_finding, judge, other_text
from eyas.check.endpoint_read import Observation, observe, read_observation
from eyas.check.findings import Finding, Link, Ranked, State
from eyas.check.forced import Text
from eyas.check.hypotheses import DECLARED
from eyas.check.measure import Rig, accepted_counts
from eyas.check.readings import Reading, arrange, declared
from eyas.check.ways import Way, ways_of
from eyas.dialects.counters import Counts, bad_metrics
from eyas.dialects.flags import Resolution
from eyas.metrics import Round
from eyas.speculate.walk import rounds_of

LONGEST_WAIT = 60.0
"""Seconds for a server to be looked at, and its first answer to begin."""
SLOWEST = 4.0
"""Tokens per second below which a server counts as hanging."""
NEAR_TIE = 0.02
"""Logits by which two tokens may differ and be exchanged by another order of summation in fp32."""
NEARLY_ALL = 0.9
"""Share of requests that the declared walk must predict to the round, for nothing else to be looked for."""
FIRST = 6
"""Requests on which every hypothesis is walked."""
NEAR = 6
NEAR_NATS = 12.0
"""How many of the best, and how far behind the best, are walked over all requests."""


def look(url: str | None, observed: Path | None, prompts: Sequence[Sequence[int]], num_tokens: int) -> Observation:
    """What the server shows for these prompts, or what a file says it showed; raises ``server.…``, ``artifact.…``."""
    if url is not None:
        seconds = LONGEST_WAIT + len(prompts) * num_tokens / SLOWEST
        return observe(url, [list(prompt) for prompt in prompts], num_tokens, seconds)
    assert observed is not None
    return read_observation(observed)


@dataclass(frozen=True)
class Asked:
    """What the server is believed to run: ``num_steps``, or what its flags resolve to, with the accept length's
    ``ceiling``. ``trained``: how the draft was trained, where a check found that its files are wrong.
    """

    num_steps: int
    runs: Resolution | None = None
    ceiling: int | None = None
    trained: Reading | None = None


def judge_server(
    seen: Observation, rig: Rig, answers: Sequence[Sequence[int]], asked: Asked
) -> tuple[list[Finding], Link, list[Ranked]]:
    """(findings, the link, hypotheses by how well they predict the accepted counts).

    ``answers``: what the target says to the same prompts, which are those of ``rig``'s texts. Where the server's
    tokens are others, the walk goes over the server's. Raises ``server.metrics`` for tokens that the target lacks.
    """
    chain = asked.runs is not None and asked.runs.eagle_topk == 1
    findings = list(judge(seen, asked.ceiling, asked.runs.num_draft_tokens if asked.runs and chain else None))
    if len(seen.requests) != len(rig.texts):
        said = f"{len(seen.requests)} requests in the file, {len(rig.texts)} prompts: counts are not compared"
        return findings, Link("server", "endpoint", "unknown", said), []
    other = other_text(seen, answers)
    texts, gap = _of_server(seen, rig, answers)
    findings += [] if other is None else [_near(other, gap)]
    broken = any(finding.weight == "fault" for finding in findings)
    if asked.runs is not None and not chain:
        said = f"it grows a tree (topk {asked.runs.eagle_topk}), and the walk predicts chains: counts are not compared"
        return findings, Link("server", "endpoint", "broken" if broken else "unknown", said), []
    if seen.total is None or not seen.total.rounds:
        return findings, _uncounted(seen, rig, asked, broken), []
    ways = list(ways_of(rig, asked.trained, _steps(seen, asked)))
    result = _fitted(seen, _Walks(Rig(rig.model, rig.target, texts)), ways)
    against = fit_finding(result, DECLARED)
    findings += [] if against is None else [_explained(against, result, ways)]
    broken = any(finding.weight == "fault" for finding in findings)
    ranking = [Ranked(one.name, (), -one.behind, one.z, one.accept_length) for one in result.ranking[:8]]
    return findings, _link(result, broken), ranking


def _uncounted(seen: Observation, rig: Rig, asked: Asked, broken: bool) -> Link:
    said = "it counts no round of speculation"
    if seen.gauge is not None:
        steps = _steps(seen, asked)
        predicted = rig.acceptance(declared(rig.model.config), steps).accept_length
        said = f"accept length {seen.gauge:.2f} over all its traffic; {predicted:.2f} is predicted for these prompts"
    return Link("server", "endpoint", "broken" if broken else "unknown", said)


def _link(result: Fit, broken: bool) -> Link:
    said = f"accept length {result.accept_length:.2f} over {result.rounds} rounds"
    by_name = {one.name: one for one in result.ranking}
    if DECLARED in by_name:
        one = by_name[DECLARED]
        said += f", predicted {one.accept_length:.2f}; {one.exact} of {result.requests} requests exact to the round"
    state: State = "broken" if broken else "unknown"
    if not broken and result.explained and DECLARED in result.between:
        others = [name for name in result.between if name != DECLARED]
        state = "sound" if others else "proven"
        said += f"; not told apart from: {' or '.join(others)}" if others else ""
    return Link("server", "endpoint", state, said)


def _of_server(seen: Observation, rig: Rig, answers: Sequence[Sequence[int]]) -> tuple[list[Text], float]:
    """(the texts that the server wrote, by how many logits its tokens lie below the target's own at most)."""
    texts, changed = list(rig.texts), []
    for i, (one, answer) in enumerate(zip(seen.requests, answers, strict=True)):
        if one.tokens is None or list(one.tokens) == list(answer) or not one.tokens:
            continue
        if max(one.tokens) >= rig.target.vocab_size:
            raise bad_metrics(f"answer {i} holds token {max(one.tokens)}, and the target has {rig.target.vocab_size}")
        changed.append(i)
    pairs = [(texts[i].tokens[: texts[i].prompt].tolist(), list(seen.requests[i].tokens or ())) for i in changed]
    again = Text.read_all(rig.target, pairs) if pairs else []
    for i, text in zip(changed, again, strict=True):
        texts[i] = text
    return texts, max((_gap(rig, text) for text in again), default=0.0)


@torch.no_grad()
def _gap(rig: Rig, text: Text) -> float:
    logits = rig.target.logits(text.normed[text.prompt - 1 : -1].to(rig.target.dtype))
    said = text.tokens[text.prompt :, None].to(logits.device)
    return float((logits.max(-1).values - logits.gather(1, said)[:, 0]).max())


def _near(other: Finding, gap: float) -> Finding:
    """Texts that part at near-ties alone are another order of summation, not another model."""
    evidence = f"the server's tokens lie at most {gap:.4f} logits below the target's own"
    if gap > NEAR_TIE:
        return replace(other, evidence=evidence)
    said = f"{other.said}: at near-ties alone"
    return replace(other, weight="note", said=said, evidence=evidence, fix="")


def _steps(seen: Observation, asked: Asked) -> int:
    """vLLM, whose rounds are chains, says what it proposes; else what the flags or the user say."""
    told = seen.total.num_steps if seen.engine == "vllm" and seen.total is not None else None
    if told is not None and told >= 0.5:
        return round(told)
    return asked.runs.num_steps if asked.runs is not None else asked.num_steps


class _Walks:
    """The walks over the server's texts; what was walked once is kept, text by text."""

    def __init__(self, rig: Rig) -> None:
        self.rig = rig
        self._accepted: dict[Reading, list[list[int]]] = {}

    def histograms(self, way: Way, seen: Observation) -> list[Histogram]:
        """Rounds by accepted drafts, one for each of the requests in ``seen``: the first ones of all."""
        texts = self.rig.texts[: len(seen.requests)]
        if way.reading is None:
            return [[len(text.tokens) - text.prompt - 1] for text in texts]
        found: list[Histogram] = []
        rows = self._rows(way.reading, len(texts), way.deepest)
        for text, accepted, one in zip(texts, rows, seen.requests, strict=True):
            rounds = list(rounds_of(accepted, text.prompt, len(text.tokens), way.num_steps))
            found.append(_histogram(rounds, way.num_steps, one.counts))
        return found

    def _rows(self, reading: Reading, first: int, num_steps: int) -> list[list[int]]:
        done = self._accepted.setdefault(reading, [])
        if len(done) < first:
            view = arrange(self.rig.model, reading, self.rig.target)
            done += [accepted_counts(view, reading, t, num_steps) for t in self.rig.texts[len(done) : first]]
        return done[:first]


def _fitted(seen: Observation, walks: _Walks, ways: Sequence[Way]) -> Fit:
    """Walks are slow. Where the declared one is exact in nearly all requests there is nothing to look for; else all are
    walked over the first requests, and over the others those that come near.
    """

    def of(chosen: Sequence[Way], part: Observation) -> Fit:
        return fit(part, {way.name: walks.histograms(way, part) for way in chosen})

    cheap = [way for way in ways if way.reading in (None, ways[0].reading)]
    result = of(cheap, seen)
    exact = {one.name: one.exact for one in result.ranking}
    if result.requests and exact[DECLARED] >= NEARLY_ALL * result.requests and result.explained:
        return result
    first = replace(seen, requests=seen.requests[:FIRST])
    if all(one.counts is None or not one.counts.rounds for one in first.requests):
        return of(ways, seen)
    begun = of(ways, first)
    near = {one.name for one in begun.ranking[:NEAR]} | {way.name for way in cheap}
    near |= {one.name for one in begun.ranking if one.behind < NEAR_NATS}
    return of([way for way in ways if way.name in near], seen)


def _histogram(rounds: Sequence[Round], num_steps: int, counts: Counts | None) -> list[int]:
    """Rounds by accepted drafts. Of a round that the text's end cut, an engine counts the drafts beyond the end too,
    and no text tells how many those are: it is put where the server has a round too many, at or above what is known.
    """
    bins, known = [0] * (num_steps + 1), None
    for one in rounds:
        if one.cut:
            known = one.accepted
        else:
            bins[one.accepted] += 1
    if known is None or (counts is not None and counts.cut is False):
        return bins
    seen = (*((counts.histogram if counts else None) or ()), *[0] * len(bins))
    bins[max(range(known, num_steps + 1), key=lambda i: (seen[i] - bins[i], -i))] += 1
    return bins


def _explained(finding: Finding, result: Fit, ways: Sequence[Way]) -> Finding:
    """With the kinds of fault that the hypotheses are, and what mends them at the server."""
    kinds = sorted({kind for way in ways if way.name in result.between for kind in way.kinds})
    data = {"hypotheses": list(result.between), "kinds": kinds}
    if finding.kind != "endpoint.mismatch":
        return replace(finding, data=data)
    if any(kind.startswith("taps.") for kind in kinds):
        fix = "write the layer ids where this engine reads them: eyas export DRAFT --to vllm (or sglang) --out FOLDER"
        return replace(finding, data=data, fix=f"{fix}; serve FOLDER")
    if any(kind.startswith(("map.", "norm.", "rope.")) for kind in kinds):
        fix = (
            "compare the served folder's config.json and tensors with the draft's: serve what eyas export DRAFT writes"
        )
        return replace(finding, data=data, fix=fix)
    return replace(finding, data=data)
