"""The bridge between transformers' attention interface and slot tables.

transformers looks attention functions up by name and gives them the calling module, so each module carries
the bridge of its model. Under ``PROBE`` the functions only note what each layer asks for; under ``NAME`` they
attend.

Shape legend: R rows, D head size, H hidden.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface

from eyas.kernels import Backend, KVCache, Rows
from eyas.models.target import Outputs

NAME, PROBE = "eyas", "eyas-probe"

HARMLESS = frozenset(
    {"cache_position", "dropout", "is_causal", "output_attentions", "output_router_logits"}
    | {"position_embeddings", "position_ids", "scaling", "sliding_window", "use_cache"}
)
"""Arguments of an attention call that are handled here or do not change its result at inference."""


class UnsupportedError(Exception):
    """The model cannot run over slot tables; the text says why."""


@dataclass(frozen=True)
class LayerCall:
    """What one layer asks of attention; ``window`` in tokens."""

    module: nn.Module
    layer: int
    heads: int
    kv_heads: int
    head_dim: int
    scale: float
    window: int | None


@dataclass
class Bridge:
    """What the attention modules of one model share. The last three are set for the length of one forward."""

    backend: Backend
    calls: dict[int, LayerCall] = field(default_factory=dict)
    rows: Rows | None = None
    cache: KVCache | None = None
    out: Outputs | None = None

    def attach(self, model: nn.Module) -> None:
        """Give the bridge to every module, and make the two names known to transformers."""
        AttentionInterface.register(NAME, attend)
        AttentionInterface.register(PROBE, probe)
        # No mask function under NAME: transformers then makes no mask, and none is wanted.
        AttentionMaskInterface.register(PROBE, probe_mask)
        for module in model.modules():
            module.eyas_bridge = self  # type: ignore[assignment]

    def tap(self, v: int, x_1RH: Tensor | None) -> None:
        """Note the residual stream after v layers, if the present forward wants it."""
        if self.out is not None:
            assert x_1RH is not None
            for column, tap in enumerate(self.out.tap_ids):
                if tap == v:
                    self.out.taps[:, column] = x_1RH[0]


def attend(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    **options: object,
) -> tuple[Tensor, None]:
    """transformers' attention call, query [1, heads, R, D], over slots → [1, R, heads, D].

    ``options`` were judged once by :func:`probe`; transformers gives them on every call.
    """
    bridge = module.eyas_bridge
    assert isinstance(bridge, Bridge)
    assert bridge.rows is not None
    assert bridge.cache is not None
    rows, cache = bridge.rows, bridge.cache
    call = bridge.calls[int(module.layer_idx)]  # type: ignore[arg-type]
    store = cache.layers[call.layer]
    slots = rows.consecutive_slots
    where = slots if slots is not None else rows.slots.to(query.device)
    store[where, : call.kv_heads] = key[0].transpose(0, 1).to(store.dtype)
    store[where, call.kv_heads :] = value[0].transpose(0, 1).to(store.dtype)
    q_RKD = query[0].transpose(0, 1).to(store.dtype)
    y = bridge.backend.attention(q_RKD, cache, call.layer, rows, call.scale, call.window)
    return y.view(1, len(rows), call.heads, call.head_dim).to(query.dtype), None


def probe(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    **options: object,
) -> tuple[Tensor, None]:
    """Note in the bridge what this layer asks for; :class:`UnsupportedError` if it cannot be represented."""
    bridge, layer = module.eyas_bridge, getattr(module, "layer_idx", None)
    assert isinstance(bridge, Bridge)
    if type(layer) is not int or layer in bridge.calls:
        raise UnsupportedError(f"{type(module).__name__} attends twice in one layer, or in no numbered layer")
    if key.shape != value.shape or query.shape[-1] != key.shape[-1]:
        raise UnsupportedError(f"layer {layer} has keys of shape {[*key.shape]} and values of {[*value.shape]}")
    if key.shape[2] != query.shape[2]:
        raise UnsupportedError(f"layer {layer} attends to other tokens than its own (cross attention)")
    if getattr(module, "is_causal", True) is False or options.get("is_causal") is False:
        raise UnsupportedError(f"layer {layer} is not causal")
    _check_options(layer, options)
    scale = options.get("scaling")
    window = options.get("sliding_window") or None
    masked = None if attention_mask is None else int(attention_mask.flatten()[0]) or None
    if window != masked:
        raise UnsupportedError(f"layer {layer} has a window of {window} and a mask for a window of {masked}")
    bridge.calls[layer] = LayerCall(
        module,
        layer,
        heads=query.shape[1],
        kv_heads=key.shape[1],
        head_dim=key.shape[3],
        scale=float(scale) if isinstance(scale, (int, float)) else key.shape[3] ** -0.5,
        window=window if isinstance(window, int) else None,
    )
    return query.transpose(1, 2).contiguous(), None


def probe_mask(*, mask_function: Callable[..., Tensor], q_length: int, kv_length: int, **options: object) -> Tensor:
    """transformers' mask call → a stand-in [1, 1, q, kv] that tells :func:`probe` the window (0: none)."""
    if options.get("attention_mask") is not None:
        raise UnsupportedError("it makes a padding mask of its own")
    window = options.get("local_size")
    size = window if isinstance(window, int) else None
    far = 1_000_000 if size is None else size
    # At the edges of the diagonal and of the window, one of which a chunked or bidirectional mask moves.
    pairs = [(0, 0), (0, 1), (1, 0), (far - 1, 0), (far, 0), (far, 1), (2 * far, far), (2 * far, far + 1)]
    zero = torch.zeros((), dtype=torch.int64)
    for q, kv in pairs:
        try:
            seen = bool(mask_function(zero, zero, zero + q, zero + kv))
        except IndexError as error:
            raise UnsupportedError("its mask depends on more than positions") from error
        if seen != (kv <= q and (size is None or q - kv < size)):
            raise UnsupportedError(f"its mask is neither causal nor a sliding window (key {kv} of query {q}: {seen})")
    return torch.full((1, 1, 1, 1), float(size or 0)).expand(1, 1, q_length, kv_length)


def _check_options(layer: int, options: Mapping[str, object]) -> None:
    for name, value in options.items():
        if name not in HARMLESS and value is not None and value is not False:
            raise UnsupportedError(f"attention in layer {layer} takes {name}, which slot tables do not represent")
