"""What a draft accepts on the texts of a check: against its contract, and against the own engine."""

from __future__ import annotations

from collections.abc import Sequence

from eyas.check.findings import Link, Survival
from eyas.check.measure import Rig
from eyas.check.readings import declared
from eyas.config import SamplingSettings, SpeculativeSettings
from eyas.contract import Contract
from eyas.engine.engine import Engine
from eyas.engine.session import Session
from eyas.metrics import Acceptance

ACCEPT_LENGTH = "accept length"
"""The link between what is predicted and what the engine shows."""


def survival_of(acceptance: Acceptance, contract: Contract | None, num_steps: int) -> Survival:
    """What was measured beside what the contract expects of a greedy chain of as many steps, the mean of its sets."""
    records = [
        record.survival
        for record in (contract.expected if contract else ())
        if record.num_steps == num_steps and record.temperature == 0 and record.draft_sampling == "one-hot"
    ]
    expected = tuple(sum(shares) / len(records) for shares in zip(*records, strict=True))
    measured = tuple(acceptance.survival(i) for i in range(1, num_steps + 1))
    return Survival(num_steps, measured, acceptance.accept_length, acceptance.interval(), expected)


def compared_with_engine(
    session: Session, rig: Rig, conversations: Sequence[tuple[list[int], list[int]]], num_steps: int
) -> Link:
    """The own engine must show exactly what the walk predicts. ``conversations``: the first of the rig's texts."""
    settings = SpeculativeSettings(num_steps=num_steps, num_draft_tokens=num_steps + 1)
    slots = sum(len(p) + len(a) + num_steps + 2 for p, a in conversations) + 1
    engine = Engine(session.target, rig.model, eos_ids=session.eos_ids, num_slots=slots)
    asked = [SamplingSettings(max_new_tokens=len(answer)) for _, answer in conversations]
    requests = [engine.submit(prompt, how, settings) for (prompt, _), how in zip(conversations, asked, strict=True)]
    engine.run()
    seen = Acceptance()
    for number, request in enumerate(requests):
        for one in request.rounds:
            seen.add(number, one)
    walked = rig.acceptance(declared(rig.model.config), num_steps, len(conversations))
    same = seen.num_rounds == walked.num_rounds and seen.accept_length == walked.accept_length
    said = f"engine {seen.accept_length:.3f}, walk {walked.accept_length:.3f} over {seen.num_rounds} rounds"
    return Link(ACCEPT_LENGTH, "acceptance", "proven" if same else "unknown", said)
