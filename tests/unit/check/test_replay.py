"""A witness replayed over a healthy pair, and over pairs with one link broken."""

from __future__ import annotations

import copy
from dataclasses import replace

import numpy as np
import pytest
import torch

from eyas.check.catalogue import KINDS
from eyas.check.replay import Replay, replay
from eyas.contract import (
    Witness,
)
from eyas.corpus.samples import Sample, SampleSet
from eyas.corpus.witness import WitnessOptions, answer_greedily, make_witness
from eyas.draft.checkpoint import read_draft
from eyas.draft.model import DraftModel
from eyas.models.target import Target
from eyas.testing import load_tiny_target, tiny_eos_ids, tiny_pair, tiny_prompts
from support.promises import contract_of, facts


@pytest.fixture(scope="module")
def target() -> Target:
    return load_tiny_target()


@pytest.fixture(scope="module")
def draft(target: Target) -> DraftModel:
    return read_draft(tiny_pair()[1], target)


@pytest.fixture(scope="module")
def witness(target: Target, draft: DraftModel) -> Witness:
    asked = [
        Sample(f"c{i}", f"p{i}", "tiny", np.array([*ids, 5], dtype=np.int32), ((len(ids), len(ids) + 1),), 0.0)
        for i, ids in enumerate(tiny_prompts()[:3])
    ]
    held_out = SampleSet(facts(), tuple(answer_greedily(target, asked, tiny_eos_ids(), max_new_tokens=24)))
    return make_witness(
        target, draft, held_out, contract_of(target, draft), 3, WitnessOptions(num_projections=6, positions=6)
    )


def broken(result: Replay) -> list[str]:
    return [link.name for link in result.links if link.state == "broken"]


def kinds(result: Replay) -> list[str]:
    assert all(finding.kind in KINDS for finding in result.findings)
    return [finding.kind for finding in result.findings]


def test_a_healthy_pair_is_proven_link_by_link(witness: Witness, target: Target, draft: DraftModel) -> None:
    result = replay(witness, target, draft)
    assert [link.state for link in result.links] == ["proven"] * 6
    assert result.findings == []
    assert result.acceptance.num_rounds == len(witness.accepted)


def test_another_target_says_other_tokens(witness: Witness, draft: DraftModel) -> None:
    other = load_tiny_target("eager")
    with torch.no_grad():
        other.layers[3].down.weight.mul_(-1)  # type: ignore[attr-defined]
    result = replay(witness, other, draft)
    assert broken(result) == ["target"]
    assert kinds(result) == ["target.other"]


def test_a_tap_with_another_boundarys_fingerprint_is_told(witness: Witness, target: Target, draft: DraftModel) -> None:
    first, second, third = witness.info.taps
    moved = replace(witness, info=witness.info.model_copy(update={"taps": (first, second + 2, third)}))
    result = replay(moved, target, draft)
    assert broken(result) == [f"tap {second + 2}"]
    assert kinds(result) == ["features.other"]
    assert result.findings[0].data["found"] == [second]


def test_a_draft_that_is_run_otherwise_is_told(witness: Witness, target: Target, draft: DraftModel) -> None:
    other = copy.deepcopy(draft)
    with torch.no_grad():
        other.head.weight.copy_(other.head.weight.roll(1, 0))
    result = replay(witness, target, other)
    assert broken(result) == ["proposals"]
    assert kinds(result) == ["draft.other"]


def test_a_fault_of_the_recurrence_leaves_first_proposals_whole(
    witness: Witness, target: Target, draft: DraftModel
) -> None:
    other = copy.deepcopy(draft)
    other.config = draft.config.model_copy(update={"norm_output": True})
    result = replay(witness, target, other)
    assert kinds(result) == ["draft.recurrence"]
