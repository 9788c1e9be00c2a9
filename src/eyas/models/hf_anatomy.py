"""Where a transformers model keeps what a target shows: decoder layers, final norm, embedding and head."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from eyas.models.hf_bridge import PROBE, Bridge, LayerCall, UnsupportedError


@dataclass(frozen=True)
class Anatomy:
    """The parts of one model; ``layers`` in order."""

    layers: nn.ModuleList
    norm: nn.Module


def switch_attention(model: PreTrainedModel, name: str) -> None:
    """Let the model attend by the function registered as ``name``."""
    model.set_attn_implementation(name)
    configs = {module.config._attn_implementation for module in model.modules() if isinstance(module, PreTrainedModel)}
    if configs != {name}:
        raise UnsupportedError("it does not attend through transformers' AttentionInterface")


def find_base(model: PreTrainedModel) -> PreTrainedModel:
    """The model without its head."""
    base = model.base_model
    base = model.get_decoder() if base is model else base
    if base is model or not isinstance(base, PreTrainedModel):
        raise UnsupportedError("its decoder is no model of its own")
    return base


@torch.no_grad()
def study(model: PreTrainedModel, bridge: Bridge, inputs: Mapping[str, Tensor], num_layers: int) -> Anatomy:
    """Run ``inputs`` once under the probe; fills ``bridge.calls``. Raises :class:`UnsupportedError`."""
    switch_attention(model, PROBE)
    seen: list[tuple[nn.Module, Tensor | None, Tensor | None]] = []

    def note(module: nn.Module, args: tuple[object, ...], kwargs: dict[str, object], result: object) -> None:
        seen.append((module, layer_input(args, kwargs), layer_output(result)))

    base = find_base(model)
    handles = [module.register_forward_hook(note, with_kwargs=True) for module in base.modules()]
    try:
        hidden = base(**inputs, use_cache=False).last_hidden_state
    finally:
        for handle in handles:
            handle.remove()
    _check_calls(bridge.calls, num_layers)
    layers = _find_layers(base, bridge.calls)
    last = next(y for module, _, y in reversed(seen) if module is layers[-1])
    if last is None:
        raise UnsupportedError("its layers do not return a hidden state")
    for module, x, y in reversed(seen):
        if module is not base and x is not None and y is not None and _same(x, last) and _same(y, hidden):
            return Anatomy(layers, module)
    if _same(last, hidden):
        return Anatomy(layers, nn.Identity())
    raise UnsupportedError("its final norm was not found")


def layer_input(args: tuple[object, ...], kwargs: Mapping[str, object]) -> Tensor | None:
    """The hidden state that a module was called with."""
    x = args[0] if args else kwargs.get("hidden_states")
    return x if isinstance(x, Tensor) else None


def layer_output(result: object) -> Tensor | None:
    """The hidden state in what a module returned."""
    x = result[0] if isinstance(result, tuple) and result else result
    return x if isinstance(x, Tensor) else None


def find_ends(model: PreTrainedModel, hidden_size: int) -> tuple[nn.Module, nn.Module]:
    """(embedding, head), both with a weight [vocabulary, hidden]."""
    for module, what in (
        (model.get_input_embeddings(), "embedding"),
        (model.get_output_embeddings(), "head"),
    ):
        weight = getattr(module, "weight", None)
        if not isinstance(weight, Tensor) or weight.ndim != 2 or weight.shape[1] != hidden_size:
            raise UnsupportedError(f"it has no {what} with a weight of {hidden_size} columns")
    return model.get_input_embeddings(), model.get_output_embeddings()


def _check_calls(calls: Mapping[int, LayerCall], num_layers: int) -> None:
    silent = sorted(set(range(num_layers)) - calls.keys())
    if silent or len(calls) != num_layers:
        raise UnsupportedError(
            f"layers {silent} of {num_layers} do not attend through transformers' AttentionInterface "
            "(recurrent layers, or an attention of their own)"
        )
    shapes = {(call.heads, call.kv_heads, call.head_dim) for call in calls.values()}
    if len(shapes) != 1:
        raise UnsupportedError(f"its layers have unlike heads, KV heads and head sizes: {sorted(shapes)}")


def _find_layers(base: nn.Module, calls: Mapping[int, LayerCall]) -> nn.ModuleList:
    for module in base.modules():
        if isinstance(module, nn.ModuleList) and len(module) == len(calls):
            owners = [any(part is calls[i].module for part in layer.modules()) for i, layer in enumerate(module)]
            if all(owners):
                return module
    raise UnsupportedError("no list of its modules holds one attention each")


def _same(a: Tensor, b: Tensor) -> bool:
    return a is b or (a.shape == b.shape and torch.equal(a, b))
