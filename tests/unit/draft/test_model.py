"""The draft's mathematics, against a plain second definition, option by option."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from eyas.draft.model import DraftModel
from eyas.errors import EyasError
from eyas.kernels import Part, Rows

from .conftest import MakeDraft, make_config

OPTIONS: list[dict[str, Any]] = [
    {},
    {"norm_output": True},
    {"fc_norm": True},
    {"norm_before_fc": True},
    {"fc_norm": True, "norm_before_fc": True},
    {"norm_before_residual": True},
    {"attention_bias": True},
    {"fc_bias": True},
    {"num_layers": 3, "layer_dialect": "vllm", "norm_before_residual": True, "norm_output": True},
    {"draft_vocab_size": 40},
    {"taps": (8,), "own_embedding": True, "hidden_size": 12, "head_dim": 6, "num_heads": 2, "num_kv_heads": 1},
]


def rms(x: Tensor, weight: Tensor) -> Tensor:
    return x * (x.pow(2).mean(-1, keepdim=True) + 1e-5).rsqrt() * weight


def turned(x: Tensor, positions: Tensor) -> Tensor:
    """RoPE of [T, heads, D] by complex numbers."""
    half = x.shape[-1] // 2
    angles = positions[:, None].double() * 10000.0 ** (-torch.arange(half).double() / half)
    z = torch.complex(x[..., :half].double(), x[..., half:].double()) * torch.polar(
        torch.ones_like(angles), angles
    ).unsqueeze(1)
    return torch.cat([z.real, z.imag], -1).float()


def reference(model: DraftModel, tokens: Tensor, features: Tensor) -> tuple[Tensor, Tensor]:
    """(state before the final norm, after it) of one causal step over a text."""
    c, T = model.config, len(tokens)
    if c.norm_before_fc:
        features = rms(features, model.feature_norm)
    if c.fc_norm:
        parts = features.split(c.target_hidden_size, -1)
        features = torch.cat([rms(x, w) for x, w in zip(parts, model.tap_norms, strict=True)], -1)
    hidden = features @ model.fc.weight.T + (model.fc.bias if c.fc_bias else 0)
    for i, layer in enumerate(model.layers):
        y = rms(hidden, layer.hidden_norm)
        residual = y if c.norm_before_residual and i == 0 else hidden
        if i == 0:
            y = torch.cat([rms(model.embed_tokens[tokens], layer.input_norm), y], -1)
        qkv = F.linear(y, layer.qkv.weight, layer.qkv.bias).view(T, -1, c.head_dim)
        q, k, v = qkv.split([c.num_heads, c.num_kv_heads, c.num_kv_heads], 1)
        q, k = turned(q, torch.arange(T)), turned(k, torch.arange(T))
        fold = c.num_heads // c.num_kv_heads
        heads = []
        for h in range(c.num_heads):
            scores = q[:, h] @ k[:, h // fold].T / c.head_dim**0.5
            scores = scores.masked_fill(~torch.ones(T, T, dtype=torch.bool).tril(), -torch.inf)
            heads.append(scores.softmax(-1) @ v[:, h // fold])
        hidden = residual + F.linear(torch.cat(heads, -1), layer.o.weight, layer.o.bias)
        gate, up = F.linear(rms(hidden, layer.mlp_norm), layer.gate_up.weight).chunk(2, -1)
        hidden = hidden + F.linear(F.silu(gate) * up, layer.down.weight)
    return hidden, rms(hidden, model.norm)


def one_text(model: DraftModel, T: int, seed: int = 5) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    tokens = torch.randint(model.config.vocab_size, (T,), generator=generator)
    return tokens, torch.randn(T, model.config.feature_size, generator=generator)


def part(tokens: Tensor, first: int, slots: list[int], table: list[int]) -> Part:
    n = len(tokens)
    return Part(
        tokens.tolist(),
        range(first, first + n),
        range(-1, n - 1),
        slots,
        torch.tensor(table, dtype=torch.int64),
    )


@pytest.mark.parametrize("options", OPTIONS, ids=lambda o: "-".join(o) or "plain")
def test_a_step_is_the_papers_with_every_option(make_draft: MakeDraft, options: dict[str, Any]) -> None:
    model = make_draft(**options)
    tokens, features = one_text(model, 7)
    with torch.no_grad():
        before, normed = reference(model, tokens, features)
        rows = Rows.build([part(tokens, 0, list(range(7)), [])])
        step = model(rows, model.combine(features), model.new_cache(7))
    torch.testing.assert_close(step.normed, normed, rtol=1e-4, atol=1e-5)
    carried = normed if model.config.norm_output else before
    torch.testing.assert_close(step.carried, carried, rtol=1e-4, atol=1e-5)
    assert not torch.allclose(before, normed, rtol=1e-2)
    torch.testing.assert_close(model.logits(step.normed), normed @ model.head.weight.T, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("options", OPTIONS[1:9], ids=lambda o: "-".join(o))
def test_every_option_changes_the_step(make_draft: MakeDraft, options: dict[str, Any]) -> None:
    """A flag that is read and not heeded would pass every other test."""
    model, plain = make_draft(**options), make_draft()
    tokens, features = one_text(model, 5)
    rows = Rows.build([part(tokens, 0, list(range(5)), [])])
    with torch.no_grad():
        ours = model(rows, model.combine(features), model.new_cache(5)).carried
        theirs = plain(rows, plain.combine(features), plain.new_cache(5)).carried
    assert not torch.allclose(ours, theirs, rtol=1e-2)


@pytest.mark.parametrize("options", [{}, {"num_layers": 2}], ids=["one-layer", "two-layers"])
def test_a_ragged_batch_and_chunks_give_what_each_text_gives_alone(
    make_draft: MakeDraft, options: dict[str, Any]
) -> None:
    model = make_draft(**options)
    texts = [one_text(model, T, seed=T) for T in (3, 9, 5)]
    alone = []
    for tokens, features in texts:
        rows = Rows.build([part(tokens, 0, list(range(len(tokens))), [])])
        alone.append(model(rows, model.combine(features), model.new_cache(16)).normed)
    cache, tables, seen = model.new_cache(64), [[], [], []], [[], [], []]
    for begin, end in ((0, 2), (2, 9)):
        parts, features = [], []
        for i, (tokens, feature) in enumerate(texts):
            chunk = tokens[begin:end]
            slots = [20 * i + 2 * t for t in range(begin, begin + len(chunk))]
            parts.append(part(chunk, begin, slots, tables[i]))
            features.append(feature[begin:end])
            tables[i] += slots
        with torch.no_grad():
            step = model(Rows.build(parts), model.combine(torch.cat(features)), cache)
        for i, piece in enumerate(step.normed.split([len(f) for f in features])):
            seen[i].append(piece)
    for expected, pieces in zip(alone, seen, strict=True):
        torch.testing.assert_close(torch.cat(pieces), expected, rtol=1e-4, atol=1e-5)


def test_step_over_a_batch_equals_forward_over_flat_rows(make_draft: MakeDraft) -> None:
    """Training calls step() on [B, T]; serving calls forward() on flat rows."""
    model = make_draft(norm_output=True)
    texts = [one_text(model, 6, seed) for seed in (1, 2)]
    tokens, features = (torch.stack(x) for x in zip(*texts, strict=True))

    def attend(_layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        k, v = (x.repeat_interleave(2, 2).transpose(1, 2) for x in (k, v))
        return F.scaled_dot_product_attention(q.transpose(1, 2), k, v, is_causal=True).transpose(1, 2).flatten(2)

    with torch.no_grad():
        batch = model.step(tokens, model.combine(features), torch.arange(6), attend)
        parts = [part(t, 0, list(range(6 * i, 6 * i + 6)), []) for i, t in enumerate(tokens)]
        flat = model(Rows.build(parts), model.combine(features.flatten(0, 1)), model.new_cache(12))
    torch.testing.assert_close(batch.carried.flatten(0, 1), flat.carried, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(batch.normed.flatten(0, 1), flat.normed, rtol=1e-4, atol=1e-5)


def test_draft_ids_map_to_target_ids(make_draft: MakeDraft) -> None:
    ids = torch.arange(10)
    assert make_draft().to_target_ids(ids).tolist() == [0, 3, 7, 8, 9, 19, 22, 23, 30, 38]
    assert make_draft(draft_vocab_size=40).to_target_ids(ids).tolist() == ids.tolist()


def test_a_packed_draft_gives_the_same_proposals(make_draft: MakeDraft) -> None:
    model, packed = make_draft(), make_draft().pack()
    tokens, features = one_text(model, 4)
    rows = Rows.build([part(tokens, 0, list(range(4)), [])])
    with torch.no_grad():
        ours = model(rows, model.combine(features), model.new_cache(4)).normed
    torch.testing.assert_close(packed(rows, packed.combine(features), packed.new_cache(4)).normed, ours)
    assert not any(p.requires_grad for p in packed.parameters())


@pytest.mark.parametrize(
    ("options", "code"),
    [
        ({"taps": (2, 2, 1)}, "taps.duplicate"),
        ({"taps": (2, 9)}, "taps.range"),
        ({"taps": ()}, "taps.range"),
        ({"hidden_size": 0}, "draft.config"),
        ({"draft_vocab_size": 41}, "draft.config"),
        ({"num_kv_heads": 3}, "draft.config"),
        ({"hidden_size": 12}, "draft.config"),
        ({"norm_output": 1}, "draft.config"),
        ({"norm_outputs": True}, "flags.unknown"),
    ],
)
def test_a_config_that_contradicts_itself_is_refused(options: dict[str, Any], code: str) -> None:
    with pytest.raises(EyasError) as caught:
        make_config(**options)
    assert caught.value.code == code
