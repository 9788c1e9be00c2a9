"""How large a target is, from its config.json alone: parameters in all, and those that one token passes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from typing import Any

from eyas.errors import EyasError
from eyas.models.config import LLAMA_FAMILY, architecture_of, parse_llama_config
from eyas.models.llama import expected_shapes


@dataclass(frozen=True)
class TargetSize:
    """Counts of parameters. ``active``: those of the decoder that one token is multiplied with, without embedding and
    head. ``exact``: read from a definition here, not estimated from the config's keys; a vision tower is not counted.
    """

    total: int
    active: int
    num_layers: int
    hidden_size: int
    vocab_size: int
    attention_width: int
    """Query elements of a position: heads × head size."""
    kv_width: int
    """Elements of keys and values that a cache holds of a position and layer, both together."""
    exact: bool


def target_size(document: Mapping[str, Any]) -> TargetSize:
    """Of a target with this config.json. Raises ``model.config`` for keys that are missing."""
    if architecture_of(document) in LLAMA_FAMILY:
        c = parse_llama_config(document)
        shapes = expected_shapes(c)
        decoder = sum(prod(shape) for name, shape in shapes.items() if ".layers." in name)
        total = sum(map(prod, shapes.values()))
        width, kv = c.num_heads * c.head_dim, 2 * c.num_kv_heads * c.head_dim
        return TargetSize(total, decoder, c.num_layers, c.hidden_size, c.vocab_size, width, kv, exact=True)
    return _estimate(document.get("text_config", document))


def _estimate(text: Mapping[str, Any]) -> TargetSize:
    """Attention of the ordinary or the latent kind (DeepSeek-V2, section 2.1), MLPs dense or of experts."""
    H, L, V = (_size(text, key) for key in ("hidden_size", "num_hidden_layers", "vocab_size"))
    attention, width, kv = _attention(text, H)
    dense_MLP = 3 * H * _size(text, "intermediate_size")
    experts = next((text[k] for k in ("n_routed_experts", "num_experts", "num_local_experts") if text.get(k)), 0)
    dense_layers = min(text.get("first_k_dense_replace") or 0, L) if experts else L
    total = active = L * (attention + 2 * H) + dense_layers * dense_MLP
    if experts:
        one = 3 * H * (text.get("moe_intermediate_size") or _size(text, "intermediate_size"))
        always = (text.get("n_shared_experts") or 0) * one + H * experts
        total += (L - dense_layers) * (always + experts * one)
        active += (L - dense_layers) * (always + _size(text, "num_experts_per_tok") * one)
    total += V * H * (1 if text.get("tie_word_embeddings") else 2)
    return TargetSize(total, active, L, H, V, width, kv, exact=False)


def _attention(text: Mapping[str, Any], H: int) -> tuple[int, int, int]:
    """(parameters of one layer's attention, query elements, cached elements of a position)."""
    heads = _size(text, "num_attention_heads")
    if not text.get("kv_lora_rank"):
        D = text.get("head_dim") or H // heads
        kv_heads = text.get("num_key_value_heads") or heads
        return 2 * H * (heads + kv_heads) * D, heads * D, 2 * kv_heads * D
    rank, plain, turned, v = (
        _size(text, key) for key in ("kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim")
    )
    wide, q_rank = heads * (plain + turned), text.get("q_lora_rank")
    queries = q_rank * (H + wide) if q_rank else H * wide
    keys = H * (rank + turned) + rank * heads * (plain + v)
    return queries + keys + heads * v * H, wide, rank + turned


def _size(text: Mapping[str, Any], key: str) -> int:
    value = text.get(key)
    if type(value) is not int or value <= 0:
        cause = f"config.json: {key} is {value!r}, not a positive integer"
        raise EyasError("model.config", cause, "use the config.json that belongs to these weights")
    return value
