"""The witness replayed: the first figure that differs names the broken link.

Other tokens: another target. Other fingerprints: other taps. Other proposals: the draft is run otherwise than it was
trained. Right first rounds and wrong later ones: the draft's cache.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from eyas.check.findings import Finding, Link
from eyas.config import SpeculativeSettings
from eyas.contract import Witness, project
from eyas.draft.model import DraftModel
from eyas.metrics import Acceptance
from eyas.models.reading import read_text
from eyas.models.target import Outputs, Target
from eyas.speculate.walk import whole_rounds

TIE: dict[str, float] = {"float32": 1e-3, "float16": 2e-2, "bfloat16": 2e-1}
"""Logits that lie closer than this are equal within the rounding of that dtype."""


@dataclass
class Replay:
    """What the replay proved, and the rounds it saw."""

    links: list[Link]
    findings: list[Finding]
    acceptance: Acceptance

    @property
    def broken(self) -> bool:
        """Whether a link is."""
        return any(link.state == "broken" for link in self.links)


def replay(witness: Witness, target: Target, draft: DraftModel) -> Replay:
    """Run target and draft over the witness's conversations and compare link by link, up to the first broken one."""
    result = Replay([], [], Acceptance())
    outputs = [_read(witness, target, c) for c in range(witness.num_conversations)]
    for check in _target, _features:
        check(witness, target, outputs, result)
        if result.broken:
            return result
    _draft(witness, target, draft, result)
    return result


def _read(witness: Witness, target: Target, c: int) -> Outputs:
    return read_text(target, witness.conversation(c).tolist(), range(target.num_layers + 1))


def _target(witness: Witness, target: Target, outputs: Sequence[Outputs], result: Replay) -> None:
    """The target must say the witness's tokens at temperature 0."""
    wrong, total, widest, first = 0, 0, 0.0, ""
    for c, out in enumerate(outputs):
        tokens, prompt = witness.conversation(c), int(witness.prompt_lengths[c])
        logits = target.logits(out.hidden[prompt - 1 : -1])
        said = logits.argmax(-1).cpu().numpy()
        total += len(said)
        for i in np.flatnonzero(said != tokens[prompt:]):
            gap = float(logits[i, said[i]] - logits[i, tokens[prompt + i]])
            if gap > TIE[witness.info.dtype]:
                wrong += 1
                first = first or f"conversation {c}, token {i}: {tokens[prompt + i]} expected, {said[i]} said"
                widest = max(widest, gap)
    if wrong:
        evidence = f"{wrong} of {total} tokens differ, by up to {widest:.3g} in the logit; first in {first}"
        result.links.append(Link("target", "target", "broken", evidence))
        fix = "run the target that the draft was trained for: its fingerprint stands in contract.json"
        result.findings.append(
            Finding("target.other", "target", "fault", "the target says other tokens", evidence, fix)
        )
    else:
        result.links.append(Link("target", "target", "proven", f"says the witness's {total} tokens"))


def _features(witness: Witness, target: Target, outputs: Sequence[Outputs], result: Replay) -> None:
    """Every tap's fingerprint, and where one differs, the boundary that has it."""
    seen = _fingerprints(witness, outputs)  # [positions, L + 1, projections]
    for column, tap in enumerate(witness.info.taps):
        error = _error(witness, seen[:, tap], column)
        if error <= witness.info.relative_tolerance:
            result.links.append(Link(f"tap {tap}", "features", "proven", f"fingerprint within {error:.1e}"))
            continue
        others = [v for v in range(target.num_layers + 1) if _error(witness, seen[:, v], column) < error]
        found = [v for v in others if _error(witness, seen[:, v], column) <= witness.info.relative_tolerance]
        which = f"; it is the fingerprint of boundary {found[0]}" if found else ""
        said = f"tap {tap} has another fingerprint than in training"
        evidence = f"relative difference {error:.2g}, allowed {witness.info.relative_tolerance:g}{which}"
        result.links.append(Link(f"tap {tap}", "features", "broken", evidence))
        fix = "run the target with the weights, quantisation and dtype that the contract names, or train for this one"
        result.findings.append(Finding("features.other", "features", "fault", said, evidence, fix, {"found": found}))


def _fingerprints(witness: Witness, outputs: Sequence[Outputs]) -> npt.NDArray[np.float32]:
    parts = []
    for c, out in enumerate(outputs):
        begin, end = int(witness.starts[c]), int(witness.starts[c + 1])
        rows = witness.fingerprint_rows
        mine = rows[(rows >= begin) & (rows < end)] - begin
        parts.append(project(out.taps[mine.tolist()].float().cpu().numpy(), witness.info.num_projections))
    return np.concatenate(parts)


def _error(witness: Witness, seen: npt.NDArray[np.float32], column: int) -> float:
    """The largest difference of any position, relative to the largest number of that position."""
    told = witness.fingerprints[:, column]
    scale = np.abs(told).max(-1)
    return float((np.abs(seen - told).max(-1) / np.maximum(scale, 1e-12)).max())


def _draft(witness: Witness, target: Target, draft: DraftModel, result: Replay) -> None:
    """Proposals and accepted counts of every round."""
    steps = witness.info.num_steps
    settings = SpeculativeSettings(num_steps=steps, num_draft_tokens=steps + 1)
    differing: list[tuple[int, int, int]] = []
    for c in range(witness.num_conversations):
        mine = np.flatnonzero(witness.round_conversations == c)
        expected = {int(witness.round_positions[row]): witness.proposals[row].tolist() for row in mine}
        tokens, prompt = witness.conversation(c).tolist(), int(witness.prompt_lengths[c])
        chains, rounds = whole_rounds(target, draft, tokens[:prompt], tokens[prompt:], settings)
        position = prompt + 1
        for r, (chain, one) in enumerate(zip(chains, rounds, strict=True)):
            result.acceptance.add(c, one)
            # Once a count differs, rounds begin elsewhere; where they meet again they can be compared.
            wrong = [i for i, (a, b) in enumerate(zip(expected.get(position, chain), chain, strict=True)) if a != b]
            if wrong:
                differing.append((c, r, wrong[0]))
            position += one.committed
    total = len(witness.accepted)
    if not differing:
        result.links.append(Link("proposals", "draft", "proven", f"{total} rounds of {steps} proposals, all the same"))
        result.links.append(Link("accepted", "draft", "proven", "accepted counts are those of the witness"))
        return
    kind, said = _where(differing)
    c, r, i = differing[0]
    evidence = f"{len(differing)} of {total} rounds; first in conversation {c}, round {r}, step {i + 1}"
    result.links.append(Link("proposals", "draft", "broken", evidence))
    fix = "take config.json and the weights from the draft's source again, or `eyas check` without the witness"
    result.findings.append(Finding(kind, "draft", "fault", said, evidence, fix))


def _where(differing: Sequence[tuple[int, int, int]]) -> tuple[str, str]:
    """Which link proposals that differ point to."""
    if all(step > 0 for _, _, step in differing):
        return "draft.recurrence", "first proposals are right, later ones differ: what a step carries to the next"
    if all(r > 0 for _, r, _ in differing):
        return "draft.cache", "first rounds are right, later ones differ: the draft's keys of accepted positions"
    return "draft.other", "the draft proposes other tokens: another map, head, norm or rotation than in training"
