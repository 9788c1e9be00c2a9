"""Tensor names: which stored tensors make up each of the draft's parameters.

Stored: ``midlayer.`` is the first layer, ``layers.{i}.`` are later ones, q/k/v and gate/up stand apart. In memory
they are stacked, because one product is faster than three.
"""

from __future__ import annotations

from collections.abc import Iterable

from eyas.draft.config import DraftConfig
from eyas.errors import EyasError

HEAD, EMBEDDING, OFFSETS, KEPT = "lm_head.weight", "embed_tokens.weight", "d2t", "t2d"

Pieces = list[tuple[str, tuple[int, ...]]]
"""(stored name, shape), to be stacked along dimension 0."""

# Names of the first checkpoints with a norm per tap.
OLD_TAP_NORMS = {"aux_norm_low.": "fc_norm.0.", "aux_norm_mid.": "fc_norm.1.", "aux_norm_high.": "fc_norm.2."}


def parameter_pieces(config: DraftConfig) -> dict[str, Pieces]:
    """Each parameter of ``DraftModel`` → its stored tensors. The map and a shared embedding are not among them."""
    H, feature = config.hidden_size, config.feature_size
    pieces: dict[str, Pieces] = {"fc.weight": [("fc.weight", (H, feature))]}
    if config.fc_bias:
        pieces["fc.bias"] = [("fc.bias", (H,))]
    if config.fc_norm:
        for i in range(len(config.taps)):
            pieces[f"tap_norms.{i}"] = [(f"fc_norm.{i}.weight", (config.target_hidden_size,))]
    if config.norm_before_fc:
        pieces["feature_norm"] = [("input_norm.weight", (feature,))]
    for i in range(config.num_layers):
        pieces |= _layer_pieces(config, i)
    pieces |= {"norm": [("norm.weight", (H,))], "head.weight": [(HEAD, (config.draft_vocab_size, H))]}
    if config.own_embedding:
        pieces["embed_tokens"] = [(EMBEDDING, (config.vocab_size, H))]
    return pieces


def _layer_pieces(config: DraftConfig, i: int) -> dict[str, Pieces]:
    H, D, inner = config.hidden_size, config.head_dim, config.intermediate_size
    q, kv, first = config.num_heads * D, config.num_kv_heads * D, i == 0
    ours, stored = f"layers.{i}.", "midlayer." if first else f"layers.{i}."
    width = 2 * H if first else H
    pieces: dict[str, Pieces] = {
        "qkv.weight": [(f"self_attn.{x}_proj.weight", (n, width)) for x, n in (("q", q), ("k", kv), ("v", kv))],
        "o.weight": [("self_attn.o_proj.weight", (H, q))],
        "gate_up.weight": [(f"mlp.{x}_proj.weight", (inner, H)) for x in ("gate", "up")],
        "down.weight": [("mlp.down_proj.weight", (H, inner))],
        "hidden_norm": [(f"{'hidden_norm' if first else deep_norm(config)}.weight", (H,))],
        "mlp_norm": [("post_attention_layernorm.weight", (H,))],
    }
    if first:
        pieces["input_norm"] = [("input_layernorm.weight", (H,))]
    if config.attention_bias:
        pieces["qkv.bias"] = [(f"self_attn.{x}_proj.bias", (n,)) for x, n in (("q", q), ("k", kv), ("v", kv))]
    if config.output_bias:
        pieces["o.bias"] = [("self_attn.o_proj.bias", (H,))]
    return {ours + name: [(stored + piece, shape) for piece, shape in parts] for name, parts in pieces.items()}


def deep_norm(config: DraftConfig) -> str:
    """The name of the norm before attention in layers after the first: the two engines take different ones."""
    return "hidden_norm" if config.layer_dialect == "sglang" else "input_layernorm"


def canonical_names(stored: Iterable[str]) -> dict[str, str]:
    """Names as written here → names in the file: ``layers.0.`` is ``midlayer.``, a prefix ``model.`` is dropped.

    Rotary frequencies, which follow from the config, are left out. Raises ``model.tensor-unknown`` where two
    tensors have one name.
    """
    names: dict[str, str] = {}
    for name in stored:
        plain = canonical_name(name)
        if plain is None:
            continue
        if plain in names:
            cause = f"the checkpoint holds {names[plain]} and {name}, which are the same tensor by two names"
            raise EyasError("model.tensor-unknown", cause, "keep the one that was trained")
        names[plain] = name
    return names


def canonical_name(name: str) -> str | None:
    """One name in a file → the name as written here; None for rotary frequencies."""
    if name.endswith("rotary_emb.inv_freq"):
        return None
    plain = name.removeprefix("model.")
    if plain.startswith("layers.0."):
        plain = "midlayer." + plain.removeprefix("layers.0.")
    for old, new in OLD_TAP_NORMS.items():
        if plain.startswith(old):
            plain = new + plain.removeprefix(old)
    return plain
