"""A draft's config.json: written so that SGLang and vLLM read the same draft, and read strictly.

What an engine would replace, ignore or guess in silence is refused here, by name.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from eyas.contract import NormOptions, TargetSizes
from eyas.dialects.checkpoint import (
    DRAFT_ARCHITECTURES,
    EAGLE_KEY,
    USE_KEY,
    WRITTEN_ARCHITECTURE,
    tap_keys,
)
from eyas.dialects.engines import Engine
from eyas.dialects.limits import DraftLayout, refuse_limits
from eyas.draft.config import DraftConfig, LayerDialect
from eyas.draft.entries import MEND, OWN_KEY, bad_config, feature_taps, flag, nested_entry, own_entry
from eyas.draft.names import HEAD, deep_norm
from eyas.errors import EyasError
from eyas.models.config import ModelConfig, parse_llama_config


def norm_options(config: DraftConfig) -> NormOptions:
    """The config's norms, as contracts and dialects name them."""
    return NormOptions(
        fc_norm=config.fc_norm,
        norm_before_fc=config.norm_before_fc,
        norm_output=config.norm_output,
        norm_before_residual=config.norm_before_residual,
    )


def layout_of(config: DraftConfig, *, has_map: bool | None = None, own_head: bool = True) -> DraftLayout:
    """What a checkpoint of this draft needs from an engine. ``has_map``: whether one is stored, by default where the
    vocabulary is reduced; ``own_head``: whether the head is.
    """
    return DraftLayout(
        norms=norm_options(config),
        num_taps=len(config.taps),
        hidden_size=config.hidden_size,
        target_hidden_size=config.target_hidden_size,
        target_vocab_size=config.vocab_size,
        draft_vocab_size=config.draft_vocab_size,
        has_vocab_map=config.has_map if has_map is None else has_map,
        num_layers=config.num_layers,
        deep_norm="hidden_norm" if deep_norm(config) == "hidden_norm" else "input_layernorm",
        own_embeddings=config.own_embedding,
        own_head=own_head,
        attention_bias=config.attention_bias,
        fc_bias=config.fc_bias,
    )


def refuse_for(config: DraftConfig, engines: Sequence[Engine]) -> None:
    """Raise ``draft.dialect`` if one of these engines cannot load this draft, or would change it in silence."""
    for engine in engines:
        refuse_limits(layout_of(config), engine)


def refusal_of(config: DraftConfig, target_architecture: str, engine: Engine) -> EyasError | None:
    """Why this engine cannot serve the draft as trained, in the layout that Eyas writes; None: it can."""
    try:
        refuse_for(config, [engine])
        to_json(config, target_architecture, [engine], "")
    except EyasError as error:
        return error
    return None


def engines_serving(config: DraftConfig, target_architecture: str) -> tuple[Engine, ...]:
    """Of the newest SGLang and vLLM known, those that serve the draft as trained.

    Raises ``draft.dialect`` where none does, with the reason of each.
    """
    known = (Engine.parse("sglang"), Engine.parse("vllm"))
    refused = {engine: refusal_of(config, target_architecture, engine) for engine in known}
    reasons = [error for error in refused.values() if error is not None]
    if len(reasons) == len(known):
        cause = "; ".join(error.cause for error in reasons)
        raise EyasError("draft.dialect", f"no engine can serve such a draft: {cause}", reasons[0].fix)
    return tuple(engine for engine, error in refused.items() if error is None)


def to_json(config: DraftConfig, target_architecture: str, engines: Sequence[Engine], dtype: str) -> dict[str, Any]:
    """config.json's content for ``engines``; raises ``draft.dialect`` where one cannot capture the taps."""
    document: dict[str, Any] = {
        "architectures": [WRITTEN_ARCHITECTURE["gqa"]],
        "model_type": "llama",
        "torch_dtype": dtype,
        "hidden_size": config.hidden_size,
        "intermediate_size": config.intermediate_size,
        "num_hidden_layers": config.num_layers,
        "num_attention_heads": config.num_heads,
        "num_key_value_heads": config.num_kv_heads,
        "head_dim": config.head_dim,
        "hidden_act": "silu",
        "rms_norm_eps": config.rms_norm_eps,
        "max_position_embeddings": config.max_position_embeddings,
        **rope_entries(config.rope_theta, config.rope_scaling),
        "vocab_size": config.vocab_size,
        "draft_vocab_size": config.draft_vocab_size,
        "target_hidden_size": config.target_hidden_size,
        "num_aux_hidden_states": len(config.taps),
        "tie_word_embeddings": False,
        "attention_bias": config.attention_bias,
        "mlp_bias": False,
        "fc_norm": config.fc_norm,
        "norm_before_fc": config.norm_before_fc,
        "norm_output": config.norm_output,
        "norm_before_residual": config.norm_before_residual,
        OWN_KEY: {
            "target_architecture": target_architecture,
            "target_num_layers": config.target_num_layers,
            "taps": list(config.taps),
            "layer_dialect": config.layer_dialect,
            "engines": [f"{engine.name}=={engine.version}" for engine in engines],
        },
    }
    if config.fc_bias:
        document["bias"] = True
    return document | tap_keys(config.taps, config.target_num_layers, target_architecture, engines)


def rope_entries(theta: float, scaling: Mapping[str, Any] | None) -> dict[str, Any]:
    """RoPE in every place where it is looked for: before transformers 5 in the first two, since then in the third."""
    rope = {"rope_theta": theta, **(scaling or {"rope_type": "default"})}
    return {"rope_theta": theta, "rope_scaling": scaling, "rope_parameters": rope}


def from_json(
    document: Mapping[str, Any],
    target: TargetSizes,
    stored: Collection[str],
    own_embedding: bool,
    layer_dialect: LayerDialect | None = None,
) -> tuple[DraftConfig, tuple[str, ...]]:
    """(the config, notes on what was understood from a default) of a draft of this target.

    ``stored``: canonical names of the tensors. ``layer_dialect`` decides where the file leaves it open. Raises
    ``draft.config``, ``draft.dialect``, ``draft.target-mismatch``, ``taps.…``.
    """
    llama = _llama_part(document)
    _refuse_silent(document, llama, stored)
    _check_target(document, llama, target)
    taps, notes = feature_taps(document, target)
    draft_vocab = document["draft_vocab_size"]
    return DraftConfig(
        taps=taps,
        target_num_layers=target.num_layers,
        target_hidden_size=target.hidden_size,
        vocab_size=llama.vocab_size,
        draft_vocab_size=llama.vocab_size if draft_vocab is None else draft_vocab,
        hidden_size=llama.hidden_size,
        intermediate_size=llama.intermediate_size,
        num_heads=llama.num_heads,
        num_kv_heads=llama.num_kv_heads,
        head_dim=llama.head_dim,
        num_layers=llama.num_layers,
        rms_norm_eps=llama.rms_norm_eps,
        rope_theta=llama.rope_theta,
        rope_scaling=None if llama.rope_scaling is None else dict(llama.rope_scaling),
        max_position_embeddings=llama.max_position_embeddings,
        norm_output=flag(document, "norm_output"),
        fc_norm=flag(document, "fc_norm") or flag(document, "use_aux_norm"),
        norm_before_fc=flag({**document, **nested_entry(document)}, "norm_before_fc"),
        norm_before_residual=flag(document, "norm_before_residual"),
        attention_bias=flag(document, "attention_bias"),
        fc_bias=flag(document, "bias"),
        own_embedding=own_embedding,
        layer_dialect=_layer_dialect(document, llama.num_layers, stored, layer_dialect),
    ), notes


def _llama_part(document: Mapping[str, Any]) -> ModelConfig:
    """The keys that a draft shares with any Llama. Raises ``draft.config``, ``draft.dialect``."""
    names = document.get("architectures")
    name = names[0] if isinstance(names, list) and len(names) == 1 else names
    known = DRAFT_ARCHITECTURES.get(name) if isinstance(name, str) else None
    if known is None or known.attention != "gqa" or "speculators_model_type" in document:
        readable = [a for a, entry in DRAFT_ARCHITECTURES.items() if entry.attention == "gqa"]
        what = "the speculators format" if "speculators_model_type" in document else f"architecture {name!r}"
        raise EyasError("draft.dialect", f"a draft in {what} cannot be read", f"use one of: {', '.join(readable)}")
    if document.get("model_type", "llama") != "llama":
        raise bad_config(f"model_type is {document['model_type']!r}, not llama")
    try:
        return parse_llama_config({**document, "architectures": ["LlamaForCausalLM"]})
    except EyasError as error:
        raise EyasError("draft.config", error.cause, MEND) from error


def _refuse_silent(document: Mapping[str, Any], llama: ModelConfig, stored: Collection[str]) -> None:
    """Refuse what an engine would replace, drop or guess without saying so."""
    if "draft_vocab_size" not in document:
        raise bad_config("draft_vocab_size is missing: one engine fails, another takes the whole vocabulary")
    size = document["draft_vocab_size"]
    if size is not None and (type(size) is not int or size <= 0):
        raise bad_config(f"draft_vocab_size is {size!r}, not a positive integer")
    if size is None and HEAD in stored:
        raise bad_config(f"draft_vocab_size is null, which means the target's head, but the checkpoint holds {HEAD}")
    if "target_hidden_size" in document and document["target_hidden_size"] is None:
        raise bad_config("target_hidden_size is null, which engines multiply: leave it out or write a number")
    check_rope(document)
    if llama.tie_word_embeddings:
        raise bad_config("tie_word_embeddings is true: one engine then replaces the head by the target's embedding")
    if llama.mlp_bias:
        raise bad_config("mlp_bias is true, and a draft's MLP has no biases")
    if document.get("quantization_config"):
        raise bad_config("the draft's weights are quantised, which is not supported")
    for key, harmless in (("logit_scale", 1), ("qkv_bias", flag(document, "attention_bias"))):
        if document.get(key, harmless) != harmless:
            raise bad_config(f"{key} is {document[key]!r}, which only one engine heeds")
    if nested_entry(document).get(USE_KEY, True) is not True:
        raise EyasError(
            "draft.dialect",
            f"{EAGLE_KEY}.{USE_KEY} is {nested_entry(document)[USE_KEY]!r}: this draft reads no taps",
            f"set {EAGLE_KEY}.{USE_KEY} to true if it was trained on taps",
        )


def check_rope(document: Mapping[str, Any]) -> None:
    """RoPE stands in several places, and which one counts depends on the version of transformers that reads it."""
    old, new = (document.get(key) or {} for key in ("rope_scaling", "rope_parameters"))
    if not isinstance(old, dict) or not isinstance(new, dict):
        raise bad_config(f"rope_scaling is {old!r} and rope_parameters is {new!r}, not objects")
    bases = [entry["rope_theta"] for entry in (document, old, new) if entry.get("rope_theta") is not None]
    if any(base != bases[0] for base in bases):
        raise bad_config(f"rope_theta is said to be {' and '.join(map(str, bases))}")
    if old and new and _scaling(old) != _scaling(new):
        raise bad_config(f"rope_scaling is {old}, and rope_parameters is {new}")


def _scaling(entry: Mapping[str, Any]) -> dict[str, Any]:
    kind = entry.get("rope_type", entry.get("type", "default"))
    return {key: v for key, v in entry.items() if key not in ("rope_theta", "type")} | {"rope_type": kind}


def _check_target(document: Mapping[str, Any], llama: ModelConfig, target: TargetSizes) -> None:
    own = own_entry(document)
    pairs = (
        ("architecture", own.get("target_architecture", target.architecture), target.architecture),
        ("number of layers", own.get("target_num_layers", target.num_layers), target.num_layers),
        ("hidden size", document.get("target_hidden_size", llama.hidden_size), target.hidden_size),
        ("vocabulary", llama.vocab_size, target.vocab_size),
    )
    for what, wanted, actual in pairs:
        if wanted != actual:
            raise EyasError(
                "draft.target-mismatch",
                f"the draft was made for a target with {what} {wanted}, and this one has {actual}",
                "use the target that the draft was trained for, or a draft of this target",
            )


def _layer_dialect(
    document: Mapping[str, Any], num_layers: int, stored: Collection[str], wanted: LayerDialect | None
) -> LayerDialect:
    """Which norm layers after the first use: as our own entry says, else the one that is stored."""
    own = own_entry(document).get("layer_dialect", wanted)
    if own is not None:
        if own not in ("sglang", "vllm") or (wanted is not None and wanted != own):
            raise bad_config(f"{OWN_KEY}.layer_dialect is {own!r}")
        return "sglang" if own == "sglang" else "vllm"
    if num_layers == 1:
        return "sglang"
    sglang, vllm = (f"layers.1.{n}.weight" in stored for n in ("hidden_norm", "input_layernorm"))
    if sglang and vllm:
        raise EyasError(
            "draft.dialect",
            "layers after the first hold both hidden_norm, which SGLang uses, and input_layernorm, which vLLM uses",
            "say which engine the draft was trained for (layer_dialect)",
        )
    return "vllm" if vllm else "sglang"
