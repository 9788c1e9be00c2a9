"""Contract and witness of a draft that had none: what can be measured of its finished weights."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from eyas.check.measure import Rig
from eyas.check.readings import declared
from eyas.contract import Contract, ContractFacts, DataSource, ExpectedAcceptLength, Witness
from eyas.corpus.features import facts_for
from eyas.corpus.rendering import default_rendering
from eyas.corpus.samples import Sample, SampleFacts, SampleSet
from eyas.corpus.witness import make_witness
from eyas.draft.checkpoint import draft_facts
from eyas.draft.model import DraftModel
from eyas.engine.session import Session, facts_of

PROMPT_SET = "eyas check"
SOURCE = DataSource(name="eyas check prompts", licence="Apache-2.0")
WITNESS_CONVERSATIONS = 6
WITNESS_STEPS = 5


def measured_contract(session: Session, folder: Path, rig: Rig, num_steps: int, prompt_set: str) -> Contract:
    """What this draft needs and shows with this target. ``folder``: the target's; ``rig``: the draft and its texts."""
    known, facts = draft_facts(rig.model), _sample_facts(session, folder)
    assert facts.target_weights_sha256 is not None
    made = facts_for(session.target, facts.target_weights_sha256, facts, known.taps or ())
    return Contract.model_validate(
        {
            "schema_version": 2,
            "basis": "measurement",
            "target": made.target,
            "tokenizer_sha256": facts.tokenizer_sha256,
            "chat_template_sha256": facts.chat_template_sha256,
            "rendering": facts.rendering,
            "taps": known.taps,
            "norms": known.norms,
            "rope": known.rope,
            "vocab_map_sha256": known.vocab_map_sha256,
            "longest_trained_position": None,
            "features": made.format,
            "loss_mask_rule": None,
            "data": None,
            "expected": _expected(rig, num_steps, prompt_set),
        }
    )


def measured_witness(
    session: Session,
    folder: Path,
    draft: DraftModel,
    contract: Contract,
    conversations: Sequence[tuple[Sequence[int], Sequence[int]]],
) -> Witness:
    """The witness of this draft over the first few (prompt, answer) pairs, whose prompts may be given away."""
    samples = tuple(
        Sample(
            id=str(number),
            prompt_id=str(number),
            domain=PROMPT_SET,
            tokens=np.array([*prompt, *answer], dtype=np.int32),
            answers=((len(prompt), len(prompt) + len(answer)),),
            temperature=0.0,
        )
        for number, (prompt, answer) in enumerate(conversations[:WITNESS_CONVERSATIONS])
    )
    held_out = SampleSet(_sample_facts(session, folder), samples)
    return make_witness(session.target, draft, held_out, contract, WITNESS_STEPS)


def _sample_facts(session: Session, folder: Path) -> SampleFacts:
    known: ContractFacts = facts_of(folder, session.tokenizer)
    assert known.tokenizer_sha256 is not None
    return SampleFacts(
        tokenizer_sha256=known.tokenizer_sha256,
        chat_template_sha256=known.chat_template_sha256,
        target_weights_sha256=known.weights_sha256,
        rendering=default_rendering(session.tokenizer),
        loss_mask_rule="none",
        sources=(SOURCE,),
    )


def _expected(rig: Rig, num_steps: int, prompt_set: str) -> tuple[ExpectedAcceptLength, ...]:
    acceptance = rig.acceptance(declared(rig.model.config), num_steps)
    low, high = acceptance.interval()
    if not low <= acceptance.accept_length <= high:  # too few rounds for an interval
        return ()
    record = ExpectedAcceptLength(
        prompt_set=prompt_set,
        num_steps=num_steps,
        temperature=0.0,
        draft_sampling="one-hot",
        accept_length=acceptance.accept_length,
        low=low,
        high=high,
        ceiling=num_steps + 1,
        survival=tuple(acceptance.survival(i) for i in range(1, num_steps + 1)),
    )
    return (record,)
