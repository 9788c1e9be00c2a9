"""The EAGLE-3 draft: one definition, for training and for serving.

Li et al., EAGLE-3 (2025), section 3: a feature of several taps is projected to the hidden size, joined with the
embedding of the next token, and one decoder layer predicts the token after it. What attends to what is the caller's
(training-time test, or a cache), so that the mathematics stands here once.

Shape legend: … any leading dimensions (rows, or batch × time), H hidden, D head size.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from eyas.draft.config import DraftConfig
from eyas.kernels import Backend, FusedLayer, KVCache, LayerShape, Linear, Rows, get_backend
from eyas.models.rope import RotaryTable, rope_frequencies

Attend = Callable[[int, Tensor, Tensor, Tensor], Tensor]
"""attend(layer, q[…, heads, D], k[…, kv heads, D], v[…, kv heads, D]) → […, heads · D], q and k rotated."""
Keep = Tensor | None
"""Indices [n] of the rows to go on with after the last attention; None for all."""


class Step(NamedTuple):
    """What one step gives: both […, H]."""

    carried: Tensor
    """The state that the next step takes in place of a feature."""
    normed: Tensor
    """The state after the final norm, which the head reads."""


class DraftLayer(nn.Module):
    """A decoder layer. The first one attends from cat(embedding, hidden), later ones from the hidden state."""

    def __init__(self, config: DraftConfig, first: bool, backend: Backend) -> None:
        super().__init__()
        H, D = config.hidden_size, config.head_dim
        self.heads, self.kv, self.D = config.num_heads, config.num_kv_heads, D
        self.eps, self.backend, self.norm_before_residual = (
            config.rms_norm_eps,
            backend,
            config.norm_before_residual,
        )
        self.input_norm = nn.Parameter(torch.ones(H)) if first else None
        self.hidden_norm = nn.Parameter(torch.ones(H))
        self.mlp_norm = nn.Parameter(torch.ones(H))
        self.qkv = Linear(2 * H if first else H, (self.heads + 2 * self.kv) * D, config.attention_bias)
        self.o = Linear(self.heads * D, H, config.output_bias)
        self.gate_up = Linear(H, 2 * config.intermediate_size)
        self.down = Linear(config.intermediate_size, H)
        self.fused: FusedLayer | None = None

    def reads(self, embedded: Tensor, hidden: Tensor) -> tuple[Tensor, Tensor]:
        """(what attention reads, the residual): cat(norm(embedding), norm(hidden)) in the first layer."""
        normed = self.backend.rms_norm(hidden, self.hidden_norm, self.eps)
        if self.input_norm is None:
            return normed, hidden
        y = torch.cat([self.backend.rms_norm(embedded, self.input_norm, self.eps), normed], -1)
        return y, normed if self.norm_before_residual else hidden

    def forward(
        self, embedded: Tensor, hidden: Tensor, turn: tuple[Tensor, Tensor], attend: Attend, index: int, keep: Keep
    ) -> Tensor:
        heads = self.heads
        y, residual = self.reads(embedded, hidden)
        residual = residual if keep is None else residual[keep]
        qkv = self.qkv(y).unflatten(-1, (heads + 2 * self.kv, self.D))
        qk = self.backend.rotate(qkv[..., : heads + self.kv, :], *turn)
        mixed = attend(index, qk[..., :heads, :], qk[..., heads:, :], qkv[..., heads + self.kv :, :])
        hidden = residual + self.o(mixed)
        gate, up = self.gate_up(self.backend.rms_norm(hidden, self.mlp_norm, self.eps)).chunk(2, -1)
        return hidden + self.down(F.silu(gate) * up)

    def pack(self) -> None:
        """Give the weights to the backend: as a whole layer where it has one, else matrix by matrix."""
        width = self.qkv.weight.shape[1]
        shape = LayerShape(
            len(self.hidden_norm), width, self.heads, self.kv, self.D, self.down.weight.shape[1], None, self.eps
        )
        linears = (self.qkv, self.o, self.gate_up, self.down)
        self.fused = self.backend.fuse(shape, linears, (None, self.mlp_norm, None, None))
        if self.fused is None:
            for linear in linears:
                linear.pack(self.backend)


class DraftModel(nn.Module):
    """fc over taps, decoder layers, final norm, head over the draft vocabulary.

    The embedding is the target's unless the config says ``own_embedding``; it is given, never made up.
    """

    d2t: Tensor
    """[draft vocabulary] int64: target id of draft id i is i + d2t[i]."""

    def __init__(self, config: DraftConfig, backend: Backend | None = None, num_positions: int | None = None) -> None:
        """``num_positions``: how far rotary angles are tabulated; left out, as far as the config says."""
        super().__init__()
        self.config, self.backend = config, backend or get_backend("eager")
        H, n = config.hidden_size, len(config.taps)
        self.fc = Linear(config.feature_size, H, config.fc_bias)
        self.tap_norms = (
            nn.ParameterList([torch.ones(config.target_hidden_size) for _ in range(n)]) if config.fc_norm else None
        )
        self.feature_norm = nn.Parameter(torch.ones(config.feature_size)) if config.norm_before_fc else None
        self.layers = nn.ModuleList(DraftLayer(config, i == 0, self.backend) for i in range(config.num_layers))
        self.norm = nn.Parameter(torch.ones(H))
        self.head = Linear(H, config.draft_vocab_size)
        self.embed_tokens = nn.Parameter(torch.empty(config.vocab_size, H), requires_grad=config.own_embedding)
        self.register_buffer("d2t", torch.zeros(config.draft_vocab_size, dtype=torch.int64))
        frequencies, factor = rope_frequencies(
            config.head_dim, config.rope_theta, config.rope_scaling, config.max_position_embeddings
        )
        self.rotary = RotaryTable(frequencies, factor, num_positions or config.max_position_embeddings)
        self.packed = False
        """True once the weights are the backend's: the draft then serves, and cannot be trained or written."""
        self.notes: tuple[str, ...] = ()
        """What was completed from the target, or understood from a default, when a checkpoint was read."""

    @property
    def decoder_layers(self) -> list[DraftLayer]:
        return [layer for layer in self.layers if isinstance(layer, DraftLayer)]

    def combine(self, features: Tensor) -> Tensor:
        """fc over the feature […, n · target hidden] → […, H], with the norms that the options ask for."""
        config, norm = self.config, self.backend.rms_norm
        if self.feature_norm is not None:
            features = norm(features, self.feature_norm, config.rms_norm_eps)
        if self.tap_norms is not None:
            taps = features.unflatten(-1, (len(config.taps), config.target_hidden_size)).unbind(-2)
            features = torch.cat(
                [norm(t, w, config.rms_norm_eps) for t, w in zip(taps, self.tap_norms, strict=True)], -1
            )
        return self.fc(features)

    def step(self, tokens: Tensor, hidden: Tensor, positions: Tensor, attend: Attend, keep: Keep = None) -> Step:
        """One step: ``tokens``[…] are those after the hidden states' positions; ``hidden``[…, H] is combine() of
        the target's feature, or the carried state of the step before; ``positions``[…] those of the hidden states.

        ``keep``: of flat rows [R], those that are wanted; the last layer's ``attend`` gives only them.
        """
        assert not (self.packed and torch.is_grad_enabled()), "a packed draft cannot be trained: use read_draft's"
        embedded = F.embedding(tokens, self.embed_tokens).to(hidden.dtype)
        turn = self.rotary.at(positions)
        for i, layer in enumerate(self.layers):
            hidden = layer(embedded, hidden, turn, attend, i, keep if i == len(self.layers) - 1 else None)
        return self._finish(hidden)

    def _finish(self, hidden: Tensor) -> Step:
        normed = self.backend.rms_norm(hidden, self.norm, self.config.rms_norm_eps)
        return Step(normed if self.config.norm_output else hidden, normed)

    def logits(self, normed: Tensor) -> Tensor:
        """fp32 logits […, draft vocabulary]."""
        return self.head(normed).float()

    def to_target_ids(self, draft_ids: Tensor) -> Tensor:
        """Draft ids → target ids, same shape."""
        return draft_ids + self.d2t[draft_ids]

    # Serving ---------------------------------------------------------------------------------------------------

    def pack(self) -> DraftModel:
        """Hand the matrices to the backend; no gradients, and no writing, from here on."""
        self.requires_grad_(False)
        self.packed = True
        for part in (self.fc, self.head):
            part.pack(self.backend)
        for layer in self.decoder_layers:
            layer.pack()
        return self

    def new_cache(self, num_slots: int) -> KVCache:
        """An empty cache of the draft's shape."""
        c = self.config
        return KVCache(c.num_layers, num_slots, c.num_kv_heads, c.head_dim, self.norm.dtype, self.norm.device)

    @torch.no_grad()
    def forward(self, rows: Rows, hidden_RH: Tensor, cache: KVCache) -> Step:
        """One step over a flat ragged batch: rows.tokens are the tokens after rows.positions."""
        scale = self.config.head_dim**-0.5

        def attend(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            slots = rows.consecutive_slots
            where = slots if slots is not None else rows.slots.to(q.device)
            store, kv = cache.layers[layer], cache.kv_heads
            store[where, :kv], store[where, kv:] = k, v
            return self.backend.attention(q, cache, layer, rows, scale, None)

        device = hidden_RH.device
        if all(layer.fused is not None for layer in self.decoder_layers):
            return self._fused_step(rows, hidden_RH, cache)
        return self.step(rows.tokens.to(device), hidden_RH, rows.positions, attend)

    def _fused_step(self, rows: Rows, hidden: Tensor, cache: KVCache) -> Step:
        embedded = F.embedding(rows.tokens, self.embed_tokens).to(hidden.dtype)
        turn = self.rotary.at(rows.positions)
        for i, layer in enumerate(self.decoder_layers):
            assert layer.fused is not None
            y, residual = layer.reads(embedded, hidden)
            hidden = layer.fused(residual, y, turn, rows, cache, i)
        return self._finish(hidden)
