"""SmolLM2 itself against transformers."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from eyas.models.registry import load_target
from parity import reference as pr

pytestmark = [pytest.mark.builtin, pytest.mark.slow]
TOKENS = torch.arange(48) * 1031 % 49152
BOUND = 1e-4
"""Of the largest value. fp32 on random tokens, whose residual stream reaches tens of thousands."""


@pytest.fixture(scope="module")
def theirs(builtin_target_folder: Path) -> pr.Reference:
    return pr.reference(builtin_target_folder, TOKENS, torch.float32)


@pytest.mark.parametrize("backend", ["eager", "onednn"])
def test_logits_every_tap_chunks_and_identity(builtin_target_folder: Path, theirs: pr.Reference, backend: str) -> None:
    target, slots = load_target(builtin_target_folder, backend=backend), torch.arange(48)
    ours, cache = pr.alone(target, TOKENS), target.new_cache(48)
    assert pr.apart(ours.logits, theirs.logits) <= BOUND
    assert all(gap <= BOUND for gap in pr.tap_gaps(ours.taps, theirs.taps))
    assert torch.equal(ours.logits.argmax(-1), theirs.logits.argmax(-1))
    assert pr.apart(target.logits(target.final_norm(ours.taps[:, -1])), theirs.logits) <= BOUND
    assert pr.apart(target.logits(target.final_norm(ours.taps[:, -2])), theirs.logits) >= 10 * BOUND
    parts = [
        pr.run(target, pr.chain_rows([(TOKENS[a:b], slots[:a], slots[a:b])]), cache) for a, b in ((0, 30), (30, 48))
    ]
    assert pr.apart(torch.cat([part.logits for part in parts]), theirs.logits) <= BOUND


def test_bf16_errs_no_more_than_transformers_bf16(builtin_target_folder: Path) -> None:
    exact = pr.reference(builtin_target_folder, TOKENS, torch.bfloat16, torch.float32)
    rough = pr.reference(builtin_target_folder, TOKENS, torch.bfloat16)
    ours = pr.alone(load_target(builtin_target_folder, torch.bfloat16), TOKENS)
    assert pr.apart(ours.logits, exact.logits) <= 2 * pr.apart(rough.logits, exact.logits)
