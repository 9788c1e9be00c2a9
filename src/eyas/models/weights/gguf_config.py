"""A Hugging Face config.json from GGUF metadata."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from eyas.errors import EyasError

ARCHITECTURES = {"llama": "LlamaForCausalLM", "qwen2": "Qwen2ForCausalLM", "qwen3": "Qwen3ForCausalLM"}
# Keys that change what the layers compute in a way that no Llama-family config can express.
REFUSED = (
    "expert_count",
    "attention.scale",
    "attention.clamp_kqv",
    "attention.temperature_scale",
    "attn_logit_softcapping",
    "final_logit_softcapping",
    "embedding_scale",
    "residual_scale",
    "logit_scale",
)
# Every Llama 3 with scaled RoPE was trained with these; a GGUF holds only the resulting factor per dimension.
LLAMA3 = {"low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}


def unsupported(cause: str) -> EyasError:
    """The error for a GGUF file that cannot be converted without changing its meaning."""
    return EyasError("gguf.unsupported", cause, "use the model's original safetensors checkpoint (a hub id or folder)")


def model_config(
    metadata: Mapping[str, Any], shapes: Mapping[str, tuple[int, ...]], rope_factors: np.ndarray | None
) -> dict[str, Any]:
    """config.json (without dtype); ``rope_factors`` is the tensor rope_freqs.weight [D / 2], if there is one.

    Raises ``gguf.unsupported`` for architectures and options outside the Llama family, ``artifact.corrupt``
    for missing keys.
    """
    arch = metadata.get("general.architecture")
    if arch not in ARCHITECTURES:
        raise unsupported(f"the architecture {arch!r} is none of {', '.join(ARCHITECTURES)}")
    for key in REFUSED:
        if metadata.get(f"{arch}.{key}"):
            raise unsupported(f"{arch}.{key} = {metadata[f'{arch}.{key}']} has no place in a Llama-family config")
    read = _Reader(metadata, arch)
    window = metadata.get(f"{arch}.attention.sliding_window") or None
    model_type = "mistral" if window and arch == "llama" else arch
    heads, hidden = read.integer("attention.head_count"), read.integer("embedding_length")
    config = {
        "architectures": ["MistralForCausalLM" if model_type == "mistral" else ARCHITECTURES[arch]],
        "model_type": model_type,
        "hidden_size": hidden,
        "intermediate_size": read.integer("feed_forward_length"),
        "num_hidden_layers": read.integer("block_count"),
        "num_attention_heads": heads,
        "num_key_value_heads": read.integer("attention.head_count_kv", heads),
        "head_dim": _head_dim(read, hidden // heads),
        "hidden_act": "silu",
        "rms_norm_eps": read.number("attention.layer_norm_rms_epsilon"),
        "max_position_embeddings": read.integer("context_length"),
        "vocab_size": _shape_of(shapes, "token_embd.weight")[0],
        "tie_word_embeddings": "output.weight" not in shapes,
        **_biases(model_type, shapes),
        **_rope(read, rope_factors),
        **special_ids(metadata),
    }
    if window:
        config["sliding_window"] = int(window)
        if arch != "llama":
            raise unsupported(f"{arch}.attention.sliding_window does not say which layers use it")
    return config


def special_ids(metadata: Mapping[str, Any]) -> dict[str, int]:
    """bos, eos and pad token ids, as far as the file names them."""
    keys = {"bos_token_id": "bos", "eos_token_id": "eos", "pad_token_id": "padding"}
    ids = {name: metadata.get(f"tokenizer.ggml.{key}_token_id") for name, key in keys.items()}
    return {name: int(value) for name, value in ids.items() if value is not None}


def stop_tokens(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """generation_config.json: the special ids; end-of-turn and end-of-message, too, end a text."""
    ids: dict[str, Any] = dict(special_ids(metadata))
    ends = [metadata.get(f"tokenizer.ggml.{key}_token_id") for key in ("eos", "eot", "eom")]
    unique = list(dict.fromkeys(int(end) for end in ends if end is not None))
    if len(unique) > 1:
        ids["eos_token_id"] = unique
    return ids


def _biases(model_type: str, shapes: Mapping[str, tuple[int, ...]]) -> dict[str, bool]:
    has = {part: f"blk.0.{part}.bias" in shapes for part in ("attn_q", "attn_k", "attn_v", "attn_output")}
    mlp = {part: f"blk.0.{part}.bias" in shapes for part in ("ffn_gate", "ffn_up", "ffn_down")}
    wanted = {"qwen2": [True, True, True, False], "mistral": [False] * 4}
    expected = wanted.get(model_type, [has["attn_q"]] * 4)
    if list(has.values()) != expected or len(set(mlp.values())) > 1 or (mlp["ffn_up"] and model_type != "llama"):
        present = [part for part, there in {**has, **mlp}.items() if there]
        raise unsupported(f"a {model_type} model with exactly the biases {present or 'none'}")
    if model_type in ("qwen2", "mistral"):
        return {}
    biases = {"attention_bias": has["attn_q"]}
    return {**biases, "mlp_bias": mlp["ffn_up"]} if model_type == "llama" else biases


def _head_dim(read: _Reader, default: int) -> int:
    size = read.integer("attention.key_length", default)
    for key in ("attention.value_length", "rope.dimension_count"):
        if read.integer(key, size) != size:
            raise unsupported(f"{read.arch}.{key} is {read.integer(key)} where heads have {size} dimensions")
    return size


def _rope(read: _Reader, factors: np.ndarray | None) -> dict[str, Any]:
    theta = read.number("rope.freq_base", 10000.0)
    kind = read.metadata.get(f"{read.arch}.rope.scaling.type", "none")
    if factors is not None and kind == "none":
        scaling = _llama3(theta, factors)
    elif factors is not None:
        raise unsupported(f"RoPE factors per dimension together with the scaling {kind!r}")
    else:
        scaling = _scaling(read, kind)
    parameters = {"rope_theta": theta, **(scaling or {"rope_type": "default"})}
    # Engines on transformers 4 read the first two keys, transformers 5 the third.
    return {"rope_theta": theta, "rope_scaling": scaling, "rope_parameters": parameters}


def _scaling(read: _Reader, kind: str) -> dict[str, Any] | None:
    if kind == "none":
        return None
    if kind not in ("linear", "yarn"):
        raise unsupported(f"the RoPE scaling {kind!r}")
    scaling: dict[str, Any] = {"rope_type": kind, "factor": read.number("rope.scaling.factor")}
    if kind == "yarn":
        context = read.integer("rope.scaling.original_context_length")
        scaling["original_max_position_embeddings"] = context
        betas = {"beta_fast": "yarn_beta_fast", "beta_slow": "yarn_beta_slow"}
        given = {name: read.metadata.get(f"{read.arch}.rope.scaling.{key}") for name, key in betas.items()}
        scaling.update({name: float(value) for name, value in given.items() if value is not None})
        for key in ("attn_factor", "yarn_attn_factor", "yarn_ext_factor", "yarn_log_multiplier"):
            if f"{read.arch}.rope.scaling.{key}" in read.metadata:
                raise unsupported(f"{read.arch}.rope.scaling.{key}")
    return scaling


def _llama3(theta: float, factors: np.ndarray) -> dict[str, Any] | None:
    """The llama3 scaling whose factor per dimension is ``factors`` [D / 2], or None where all are 1."""
    if np.all(factors == 1):
        return None
    factor = float(factors.max())
    context, low, high = (
        LLAMA3["original_max_position_embeddings"],
        LLAMA3["low_freq_factor"],
        LLAMA3["high_freq_factor"],
    )
    wavelengths = 2 * math.pi * theta ** (np.arange(len(factors)) / len(factors))
    blend = np.clip((context / wavelengths - low) / (high - low), 0.0, 1.0)
    if not np.allclose(factors, 1 / ((1 - blend) / factor + blend), rtol=1e-4):
        raise unsupported("RoPE factors per dimension that are not those of Llama 3")
    return {"rope_type": "llama3", "factor": factor, **LLAMA3}


def _shape_of(shapes: Mapping[str, tuple[int, ...]], name: str) -> tuple[int, ...]:
    if name not in shapes:
        raise EyasError("model.tensor-missing", f"the GGUF file has no tensor {name}", "fetch it again")
    return shapes[name]


class _Reader:
    """Typed access to the keys under one architecture."""

    def __init__(self, metadata: Mapping[str, Any], arch: str) -> None:
        self.metadata, self.arch = metadata, arch

    def number(self, key: str, default: float | None = None) -> float:
        value = self.metadata.get(f"{self.arch}.{key}", default)
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            if isinstance(value, list):
                raise unsupported(f"{self.arch}.{key} differs by layer")
            raise EyasError("artifact.corrupt", f"the GGUF file's {self.arch}.{key} is {value!r}", "fetch it again")
        # The file holds fp32: its shortest decimal (1e-05) is what the original config said, not
        # 9.99999974e-06.
        short = float(str(np.float32(value)))
        return short if float(np.float32(short)) == value else value

    def integer(self, key: str, default: int | None = None) -> int:
        value = self.number(key, default)
        if value != int(value) or value <= 0:
            raise EyasError("artifact.corrupt", f"the GGUF file's {self.arch}.{key} is {value!r}", "fetch it again")
        return int(value)
