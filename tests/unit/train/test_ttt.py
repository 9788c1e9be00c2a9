"""The unrolling against a twin that is written slot by slot, from the definition."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from eyas.corpus.samples import trained_slots
from eyas.draft.config import DraftConfig
from eyas.draft.model import DraftModel
from eyas.train.attention import dense_attention
from eyas.train.batch import Batch
from eyas.train.ttt import Unrolling, slots_of, unroll

STEPS = 4
BASE = {
    "taps": (1, 2),
    "target_num_layers": 3,
    "target_hidden_size": 16,
    "vocab_size": 40,
    "draft_vocab_size": 40,
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_heads": 4,
    "num_kv_heads": 2,
    "head_dim": 4,
    "max_position_embeddings": 64,
}
SEGMENTS = [0, 0, 1, 1, 1, 1, 1, 0, 0, 2, 2, 2, 0, 3, 3, 3, 3, 3]
DOCUMENTS = ((0, 12), (12, 18))


def draft(**options) -> DraftModel:
    torch.manual_seed(3)
    model = DraftModel(DraftConfig(**{**BASE, **options}))
    with torch.no_grad():
        for p in model.parameters():
            p.normal_(0, 0.3 if p.dim() > 1 else 1.0)
    return model.double()


def example() -> Batch:
    g = torch.Generator().manual_seed(4)
    n = len(SEGMENTS)
    positions = torch.cat([torch.arange(end - begin) for begin, end in DOCUMENTS])
    features = torch.randn(n, 32, generator=g, dtype=torch.float64)
    tokens, segments = torch.randint(40, (n,), generator=g), torch.tensor(SEGMENTS)
    return Batch(
        tokens, tokens % 40, positions, segments, DOCUMENTS, (0, 1), features, torch.zeros(n, 40), torch.arange(n)
    )


def slot_by_slot(model: DraftModel, batch: Batch, t: int, steps: int) -> list[torch.Tensor]:
    """The normed states of slot t as the engine computes them: a cache of absorbed rows, then own steps."""
    begin = next(b for b, e in batch.documents if b <= t < e)
    rows = torch.arange(begin, t + 1)
    kept_k: dict[int, torch.Tensor] = {}
    kept_v: dict[int, torch.Tensor] = {}
    states = []

    def attend(layer, q, k, v):
        causal = layer not in kept_k
        kept_k[layer] = k if causal else torch.cat([kept_k[layer], k])
        kept_v[layer] = v if causal else torch.cat([kept_v[layer], v])
        fold = q.shape[1] // k.shape[1]
        keys, values = (x.repeat_interleave(fold, 1) for x in (kept_k[layer], kept_v[layer]))
        scores = torch.einsum("nhd,shd->hns", q, keys) * q.shape[-1] ** -0.5
        if causal:
            scores = scores.masked_fill(torch.ones(len(q), len(k), dtype=torch.bool).triu(1), -torch.inf)
        return torch.einsum("hns,shd->nhd", scores.softmax(-1), values).flatten(1)

    hidden = model.combine(batch.features[rows])
    step = model.step(batch.tokens[rows + 1], hidden, batch.positions[rows], attend)
    for i in range(steps):
        states.append(step.normed[-1])
        if i + 1 < steps:
            ahead, at = batch.tokens[t + 2 + i : t + 3 + i], batch.positions[t : t + 1] + i + 1
            step = model.step(ahead, step.carried[-1:], at, attend)
    return states


OPTIONS = [{}, {"num_layers": 2}, {"norm_output": True, "fc_norm": True}, {"norm_before_residual": True}]


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_every_step_of_every_slot_is_what_serving_computes(options):
    model, batch = draft(**options), example()
    slots = slots_of(batch.segments, STEPS)
    depth = {t: sum(t in rows.tolist() for rows in slots) for t in range(len(SEGMENTS))}
    truth = {t: slot_by_slot(model, batch, t, n) for t, n in depth.items() if n}
    for i, rows, normed in unroll(model, batch, slots):
        for row, state in zip(rows.tolist(), normed, strict=True):
            torch.testing.assert_close(state, truth[row][i], rtol=1e-9, atol=1e-10)


def test_slots_are_those_of_the_rule():
    slots = slots_of(torch.tensor(SEGMENTS), STEPS)
    assert [rows.tolist() for rows in slots] == [
        [1, 2, 3, 4, 8, 9, 12, 13, 14, 15],
        [1, 2, 3, 8, 12, 13, 14],
        [1, 2, 12, 13],
        [1, 12],
    ]
    assert slots_of(torch.tensor([0, 1, 1]), 3)[0].tolist() == [0]
    assert trained_slots(torch.tensor([0]), 2).tolist() == []


@pytest.mark.parametrize("how", [Unrolling(dense_attention), Unrolling(recompute=True)], ids=["dense", "recompute"])
@pytest.mark.parametrize("options", OPTIONS[:3], ids=str)
def test_values_and_gradients_do_not_depend_on_how(how, options):
    model, batch = draft(**options), example()
    slots = slots_of(batch.segments, STEPS)
    slots = [slots[0], *(rows[::2] for rows in slots[1:2]), slots[1][::2][:2], slots[1][::2][:1]]
    results = []
    for one in (Unrolling(), how):
        total = sum(((i + 1) * normed.cos()).sum() for i, _, normed in unroll(model, batch, slots, one))
        results.append(
            (total, torch.autograd.grad(total, [p for p in model.parameters() if p.requires_grad], allow_unused=True))
        )
    torch.testing.assert_close(results[0][0], results[1][0])
    for mine, truth in zip(results[0][1], results[1][1], strict=True):
        assert (mine is None) == (truth is None)
        if mine is not None:
            torch.testing.assert_close(mine, truth, rtol=1e-8, atol=1e-9)


def test_documents_do_not_reach_into_each_other():
    model, batch = draft(), example()
    other = dataclasses.replace(batch, features=batch.features.clone(), tokens=batch.tokens.clone())
    other.features[:12] += 1
    slots = slots_of(batch.segments, STEPS)
    for (_, rows, a), (_, _, b) in zip(unroll(model, batch, slots), unroll(model, other, slots), strict=True):
        second = rows >= 12
        assert torch.equal(a[second], b[second])
        assert not torch.allclose(a[~second], b[~second])
