"""A packed draft serves; only an unpacked one can be trained or written."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor

from eyas.draft.checkpoint import load_draft, read_draft, write_draft
from eyas.draft.model import DraftModel
from eyas.errors import EyasError
from eyas.models.llama import LlamaTarget

from .conftest import LLAMA, MakeDraft, make_config, write


def loss_of(draft: DraftModel) -> Tensor:
    """Of one step over two positions that attend to themselves alone."""
    kv, heads = draft.config.num_kv_heads, draft.config.num_heads

    def attend(_: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return v.repeat_interleave(heads // kv, -2).flatten(-2) + 0 * (q.sum() + k.sum())

    features = torch.ones(2, draft.config.feature_size)
    step = draft.step(torch.tensor([1, 2]), draft.combine(features), torch.arange(2), attend)
    return draft.logits(step.normed).square().sum()


def test_a_draft_that_was_read_can_be_trained_and_written(
    make_draft: MakeDraft, target: LlamaTarget, tmp_path: Path
) -> None:
    draft = read_draft(write(tmp_path / "d", make_draft()), target)
    assert not draft.packed
    optimizer = torch.optim.SGD([p for p in draft.parameters() if p.requires_grad], lr=1e-3)
    before = float(loss_of(draft).detach())
    for _ in range(3):
        optimizer.zero_grad()
        loss_of(draft).backward()
        optimizer.step()
    untouched = [n for n, p in draft.named_parameters() if p.requires_grad and (p.grad is None or not p.grad.any())]
    assert [name for name in untouched if "qkv" not in name] == []
    assert float(loss_of(draft).detach()) < before
    write_draft(tmp_path / "again", draft, LLAMA, dtype=torch.float32)
    assert torch.equal(read_draft(tmp_path / "again", target).fc.weight, draft.fc.weight)


@pytest.mark.parametrize("backend", ["eager", "onednn", "auto"])
def test_a_packed_draft_says_that_it_cannot(
    make_draft: MakeDraft, target: LlamaTarget, tmp_path: Path, backend: str
) -> None:
    draft = load_draft(write(tmp_path / "d", make_draft()), target, backend)
    assert draft.packed
    with pytest.raises(AssertionError, match="cannot be trained"):
        loss_of(draft)
    with pytest.raises(AssertionError, match="write the draft that was trained"):
        write_draft(tmp_path / "e", draft, LLAMA)


def test_heads_that_rotary_embedding_cannot_halve_are_refused() -> None:
    with pytest.raises(EyasError, match="head_dim is 5") as caught:
        make_config(head_dim=5)
    assert caught.value.code == "draft.config"
