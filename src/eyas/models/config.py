"""A target's shape, read strictly from a Hugging Face config.json."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from eyas.errors import EyasError

LLAMA_FAMILY = {
    "LlamaForCausalLM": "llama",
    "MistralForCausalLM": "mistral",
    "Qwen2ForCausalLM": "qwen2",
    "Qwen3ForCausalLM": "qwen3",
}
"""Architectures that eyas.models.llama defines; every other one runs through transformers."""


@dataclass(frozen=True)
class ModelConfig:
    """The shape of a Llama-family decoder. Sizes in elements; ``sliding_window`` in tokens."""

    architecture: str
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    rms_norm_eps: float
    max_position_embeddings: int
    rope_theta: float
    rope_scaling: Mapping[str, Any] | None
    """None, or the parameters with ``rope_type``, as transformers 5 names them."""
    tie_word_embeddings: bool
    attention_bias: bool
    """Biases on q, k and v."""
    output_bias: bool
    """A bias on the attention's output projection."""
    mlp_bias: bool
    qk_norm: bool
    """RMS norms on each head of q and k before the rotation (Qwen3)."""
    sliding_window: int | None
    windowed_layers: tuple[bool, ...]
    """Per layer: does it see only the window."""

    @property
    def has_window(self) -> bool:
        return self.sliding_window is not None and any(self.windowed_layers)


def read_config(folder: Path) -> dict[str, Any]:
    """The config.json of a model folder; raises ``artifact.missing`` or ``artifact.corrupt``."""
    path = folder / "config.json"
    if not path.is_file():
        raise EyasError("artifact.missing", f"{folder} has no config.json", "give a Hugging Face model folder")
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise EyasError("artifact.corrupt", f"{path} is no JSON: {error}", "fetch the model again") from error
    if not isinstance(config, dict):
        raise EyasError("artifact.corrupt", f"{path} holds no JSON object", "fetch the model again")
    return config


def architecture_of(config: Mapping[str, Any]) -> str:
    """The one architecture that a config names; raises ``model.config``."""
    names = config.get("architectures")
    if not isinstance(names, list) or len(names) != 1 or not isinstance(names[0], str):
        raise EyasError(
            "model.config",
            f"config.json's architectures is {names!r}, not one name",
            'set it, e.g. "architectures": ["LlamaForCausalLM"]',
        )
    return names[0]


def parse_llama_config(config: Mapping[str, Any]) -> ModelConfig:
    """A ModelConfig from a Llama-family config.json; raises ``model.config`` or ``model.unknown-…``."""
    architecture = architecture_of(config)
    if architecture not in LLAMA_FAMILY:
        raise EyasError(
            "model.unknown-architecture",
            f"{architecture} is none of {', '.join(LLAMA_FAMILY)}",
            "load it with load_target, which runs other architectures through transformers",
        )
    family = LLAMA_FAMILY[architecture]
    need = _Reader(config)
    heads, layers = need.integer("num_attention_heads"), need.integer("num_hidden_layers")
    hidden = need.integer("hidden_size")
    kv_heads = need.integer("num_key_value_heads", heads)
    if heads % kv_heads:
        raise _bad(f"{heads} heads do not divide by {kv_heads} KV heads")
    if config.get("hidden_act", "silu") != "silu":
        raise _bad(f"hidden_act is {config['hidden_act']!r}, not silu")
    theta, scaling = parse_rope(config)
    window, windowed = _window(config, family, layers)
    bias = bool(config.get("attention_bias", False))
    return ModelConfig(
        architecture=architecture,
        vocab_size=need.integer("vocab_size"),
        hidden_size=hidden,
        intermediate_size=need.integer("intermediate_size"),
        num_layers=layers,
        num_heads=heads,
        num_kv_heads=kv_heads,
        head_dim=_head_dim(need, family, hidden // heads),
        rms_norm_eps=need.number("rms_norm_eps", 1e-6),
        max_position_embeddings=_context(need.integer("max_position_embeddings"), scaling),
        rope_theta=theta,
        rope_scaling=scaling,
        tie_word_embeddings=bool(config.get("tie_word_embeddings", False)),
        attention_bias=True if family == "qwen2" else bias,
        output_bias=bias and family != "qwen2",
        mlp_bias=bool(config.get("mlp_bias", False)),
        qk_norm=family == "qwen3",
        sliding_window=window,
        windowed_layers=windowed,
    )


class _Reader:
    def __init__(self, config: Mapping[str, Any]) -> None:
        self.config = config

    def integer(self, key: str, default: int | None = None) -> int:
        value = self.config.get(key)
        value = default if value is None else value
        if type(value) is not int or value <= 0:
            raise _bad(f"{key} is {value!r}, not a positive integer")
        return value

    def number(self, key: str, default: float) -> float:
        value = self.config.get(key, default)
        if type(value) not in (int, float) or not 0 < value < math.inf:
            raise _bad(f"{key} is {value!r}, not a positive number")
        return float(value)


def _head_dim(need: _Reader, family: str, even_share: int) -> int:
    # transformers gives a Qwen3 without head_dim 128, whatever its hidden size.
    head_dim = need.integer("head_dim", 128 if family == "qwen3" else even_share)
    if head_dim % 2:
        raise _bad(f"head_dim is {head_dim}, which rotary embedding cannot halve")
    return head_dim


def parse_rope(config: Mapping[str, Any]) -> tuple[float, Mapping[str, Any] | None]:
    """(theta, scaling) from ``rope_scaling``, else from transformers 5's ``rope_parameters``; ``model.config``."""
    given = config.get("rope_scaling") or config.get("rope_parameters") or {}
    if not isinstance(given, dict) or any(isinstance(value, dict) for value in given.values()):
        raise _bad(f"RoPE parameters {given!r} are not one flat object")
    scaling = {"rope_theta": config.get("rope_theta", 10000.0)} | given
    scaling["rope_type"] = scaling.get("rope_type", scaling.pop("type", "default"))
    theta = _Reader(scaling).number("rope_theta", 10000.0)
    partial = scaling.pop("partial_rotary_factor", config.get("partial_rotary_factor", 1.0))
    if partial not in (None, 1, 1.0):
        raise _bad(f"partial_rotary_factor is {partial!r}, which this family does not have")
    del scaling["rope_theta"]
    if scaling["rope_type"] == "default":
        return theta, None
    if scaling["rope_type"] in ("llama3", "yarn"):
        original = scaling.get("original_max_position_embeddings", config.get("max_position_embeddings"))
        scaling["original_max_position_embeddings"] = config.get("original_max_position_embeddings", original)
    return theta, scaling


def _context(stated: int, scaling: Mapping[str, Any] | None) -> int:
    """Positions that a model takes. Qwen's way to YaRN leaves max_position_embeddings at the old length."""
    if scaling is None or scaling["rope_type"] != "yarn":
        return stated
    need = _Reader(scaling)
    return max(stated, int(need.integer("original_max_position_embeddings") * need.number("factor", 1.0)))


def _window(config: Mapping[str, Any], family: str, layers: int) -> tuple[int | None, tuple[bool, ...]]:
    """The sliding window and which layers use it: all (Mistral) or those from max_window_layers on (Qwen)."""
    qwen = family.startswith("qwen")
    none = None, (False,) * layers
    # An absent key means 4096 to transformers, both for Mistral and for Qwen; null means no window.
    if family == "llama" or (qwen and not config.get("use_sliding_window", False)):
        return none
    if config.get("sliding_window", 4096) is None:
        return none
    window = _Reader(config).integer("sliding_window", 4096)
    kinds = config.get("layer_types")
    if kinds is None:
        first = config.get("max_window_layers", 28) if qwen else 0
        if type(first) is not int or first < 0:
            raise _bad(f"max_window_layers is {first!r}, not a natural number")
        return window, tuple(i >= first for i in range(layers))
    if not isinstance(kinds, list) or len(kinds) != layers:
        raise _bad(f"layer_types is {kinds!r}, not one kind for each of {layers} layers")
    unknown = set(map(str, kinds)) - ({"sliding_attention", "full_attention"} if qwen else {"sliding_attention"})
    if unknown:
        raise _bad(f"layer_types names {', '.join(sorted(unknown))}, which this architecture does not have")
    return window, tuple(kind == "sliding_attention" for kind in kinds)


def _bad(cause: str) -> EyasError:
    return EyasError("model.config", f"config.json: {cause}", "use the config.json that belongs to these weights")
