"""A reading: one way in which a draft's weights can be run. The files declare one; a hypothesis is another.

The weights stay as they are. What changes is what stands around them: which taps, in which order, which norms, which
rotation, which tokens the head's rows mean.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from eyas.draft.config import DraftConfig
from eyas.draft.model import DraftLayer, DraftModel
from eyas.models.rope import RotaryTable, rope_frequencies
from eyas.models.target import Target

Map = Literal["offsets", "absolute", "missing"]
"""What d2t holds: offsets, as every engine reads it; target ids; or nothing, so that draft ids are target ids."""


@dataclass(frozen=True)
class Rope:
    """``theta``: the base · ``scaling``: its kind and parameters, sorted by name, () for none · ``share``: of a head's
    dimensions, how many are rotated: the first ones, in pairs half of them apart.
    """

    theta: float
    scaling: tuple[tuple[str, Any], ...] = ()
    share: float = 1.0

    @classmethod
    def of(cls, theta: float, scaling: Mapping[str, Any] | None) -> Rope:
        """What a config says."""
        return cls(theta, tuple(sorted((scaling or {}).items())))

    @property
    def parameters(self) -> dict[str, Any] | None:
        """The scaling as a config has it."""
        return dict(self.scaling) or None


@dataclass(frozen=True)
class Reading:
    """How the draft is run.

    ``feature_shift``: row t takes the feature of position t + shift (1 looks ahead) · ``token_shift``: −1 gives it the
    embedding of token t instead of t + 1 · ``last_normed``: the last tap is taken after the target's final norm ·
    ``swapped``: attention reads cat(hidden, embedding).
    """

    taps: tuple[int, ...]
    rope: Rope
    norm_output: bool = False
    norm_before_residual: bool = False
    final_norm: bool = True
    last_normed: bool = False
    feature_shift: int = 0
    token_shift: int = 0
    swapped: bool = False
    map: Map = "offsets"
    head: Literal["own", "target"] = "own"
    embedding: Literal["own", "target"] = "own"


def declared(config: DraftConfig) -> Reading:
    """The reading that a draft's files ask for."""
    return Reading(
        taps=config.taps,
        rope=Rope.of(config.rope_theta, config.rope_scaling),
        norm_output=config.norm_output,
        norm_before_residual=config.norm_before_residual,
    )


def arrange(model: DraftModel, reading: Reading, target: Target) -> DraftModel:
    """The draft run that way: a view that shares its weights. ``model``: not packed."""
    assert not model.packed
    view = copy.copy(model)
    view._modules, view._buffers = dict(model._modules), dict(model._buffers)
    view._parameters = dict(model._parameters)
    changes = {"norm_output": reading.norm_output, "norm_before_residual": reading.norm_before_residual}
    view.config = model.config.model_copy(update=changes)
    layers = [_arrange_layer(layer, reading, i == 0) for i, layer in enumerate(model.decoder_layers)]
    view.layers = torch.nn.ModuleList(layers)
    if reading.rope != Rope.of(model.config.rope_theta, model.config.rope_scaling):
        view.rotary = _rotary(model, reading.rope)
    view.d2t = map_of(model.d2t, reading.map)
    if reading.embedding == "target":
        view.embed_tokens = torch.nn.Parameter(target.embedding().float(), requires_grad=False)
    if reading.head == "target":
        view.head = copy.copy(model.head)
        view.head._parameters = dict(model.head._parameters)
        rows = target.head().float()[_kept(view.d2t, target.vocab_size)]
        view.head.weight = torch.nn.Parameter(rows, requires_grad=False)
    return view


def narrowed(view: DraftModel, rows: Tensor) -> DraftModel:
    """A view whose head has only these rows [m] int64 of the draft vocabulary."""
    narrow = copy.copy(view)
    narrow._modules, narrow._buffers = dict(view._modules), dict(view._buffers)
    narrow.head = copy.copy(view.head)
    narrow.head._parameters = dict(view.head._parameters)
    narrow.head.weight = torch.nn.Parameter(view.head.weight[rows], requires_grad=False)
    narrow.d2t = rows + view.d2t[rows] - torch.arange(len(rows))
    return narrow


def map_of(d2t: Tensor, held: Map) -> Tensor:
    """Offsets [n] int64, given what ``d2t`` holds."""
    if held == "absolute":
        return d2t - torch.arange(len(d2t), device=d2t.device)
    return torch.zeros_like(d2t) if held == "missing" else d2t


def _kept(d2t: Tensor, vocab_size: int) -> Tensor:
    return (d2t + torch.arange(len(d2t), device=d2t.device)).clamp(0, vocab_size - 1)


def _arrange_layer(layer: DraftLayer, reading: Reading, first: bool) -> DraftLayer:
    view = copy.copy(layer)
    view.norm_before_residual = reading.norm_before_residual
    if first and reading.swapped:

        def reads(embedded: Tensor, hidden: Tensor) -> tuple[Tensor, Tensor]:
            y, residual = DraftLayer.reads(view, embedded, hidden)
            left, right = y.chunk(2, -1)
            return torch.cat([right, left], -1), residual

        view.reads = reads  # type: ignore[method-assign]
    if reading.rope.share < 1:
        view._modules = dict(layer._modules)
        view.qkv = copy.copy(layer.qkv)
        view.qkv._parameters = dict(layer.qkv._parameters)
        rows = _paired(layer, reading.rope.share)
        for name, value in layer.qkv._parameters.items():
            if value is not None:
                view.qkv._parameters[name] = torch.nn.Parameter(value[rows], requires_grad=False)
    return view


def rotated_size(head_dim: int, share: float) -> int:
    """Dimensions of a head that are rotated: even, and rounded down."""
    return int(head_dim * share) // 2 * 2


def _paired(layer: DraftLayer, share: float) -> Tensor:
    """Rows of qkv, so that a rotation of the whole head turns those pairs that a partial one does. Scores of queries
    and keys do not mind an exchange of dimensions in both.
    """
    D, turned = layer.D, rotated_size(layer.D, share)
    half, rest = torch.arange(turned // 2), torch.arange(turned, D)
    first = torch.cat([half, rest[: len(rest) // 2]])
    head = torch.cat([first, half + turned // 2, rest[len(rest) // 2 :]])
    turning = torch.cat([head + i * D for i in range(layer.heads + layer.kv)])
    return torch.cat([turning, torch.arange(len(turning), len(turning) + layer.kv * D)])


def _rotary(model: DraftModel, rope: Rope) -> RotaryTable:
    config, turned = model.config, rotated_size(model.config.head_dim, rope.share)
    length = config.max_position_embeddings
    frequencies, factor = rope_frequencies(turned, rope.theta, rope.parameters, length)
    still = torch.zeros((config.head_dim - turned) // 2)
    return RotaryTable(torch.cat([frequencies, still]), factor, length)
