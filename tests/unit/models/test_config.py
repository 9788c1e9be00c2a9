"""config.json → ModelConfig: what transformers means by it, and an error for what it cannot mean."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from transformers import LlamaConfig, MistralConfig, PretrainedConfig, Qwen2Config, Qwen3Config

from eyas.errors import EyasError
from eyas.models.config import architecture_of, parse_llama_config, read_config

PLAIN: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": 100,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "max_position_embeddings": 128,
}


def family(name: str, **more: Any) -> dict[str, Any]:
    return {**PLAIN, "architectures": [f"{name}ForCausalLM"], **more}


def test_a_plain_llama() -> None:
    config = parse_llama_config(PLAIN)
    assert (config.num_kv_heads, config.head_dim, config.rms_norm_eps, config.rope_theta) == (4, 16, 1e-6, 1e4)
    assert config.rope_scaling is None
    assert not any((config.attention_bias, config.output_bias, config.mlp_bias, config.qk_norm))
    assert not config.tie_word_embeddings
    assert not config.has_window


def test_biases_and_norms_of_each_family() -> None:
    llama = parse_llama_config(family("Llama", attention_bias=True, mlp_bias=True))
    assert (llama.attention_bias, llama.output_bias, llama.mlp_bias) == (True, True, True)
    qwen2 = parse_llama_config(family("Qwen2"))
    assert (qwen2.attention_bias, qwen2.output_bias, qwen2.qk_norm) == (True, False, False)
    qwen3 = parse_llama_config(family("Qwen3"))
    assert (qwen3.attention_bias, qwen3.qk_norm, qwen3.head_dim) == (False, True, 128)


@pytest.mark.parametrize(
    ("raw", "window", "layers"),
    [
        (family("Llama", sliding_window=8), None, [False] * 3),
        (family("Mistral", sliding_window=None), None, [False] * 3),
        (family("Mistral", sliding_window=8), 8, [True] * 3),
        (family("Mistral"), 4096, [True] * 3),
        (family("Qwen2", sliding_window=8, max_window_layers=1), None, [False] * 3),
        (family("Qwen2", sliding_window=8, use_sliding_window=True, max_window_layers=1), 8, [False, True, True]),
        (family("Qwen2", sliding_window=8, use_sliding_window=True), 8, [False] * 3),
        (
            family(
                "Qwen3",
                sliding_window=8,
                use_sliding_window=True,
                layer_types=["sliding_attention", "full_attention", "full_attention"],
            ),
            8,
            [True, False, False],
        ),
    ],
)
def test_windows(raw: dict[str, Any], window: int | None, layers: list[bool]) -> None:
    config = parse_llama_config(raw)
    assert config.sliding_window == window
    assert list(config.windowed_layers) == layers
    assert config.has_window == any(layers)


@pytest.mark.parametrize("spelling", ["rope_type", "type"])
def test_older_and_newer_spellings_of_rope_are_one(spelling: str) -> None:
    yarn = {"factor": 4.0, "original_max_position_embeddings": 64}
    older = parse_llama_config(family("Qwen2", rope_theta=5e4, rope_scaling={**yarn, spelling: "yarn"}))
    newer = parse_llama_config(family("Qwen2", rope_parameters={**yarn, "rope_type": "yarn", "rope_theta": 5e4}))
    assert older == newer
    assert older.rope_theta == 5e4
    assert older.rope_scaling == {**yarn, "rope_type": "yarn"}


def test_yarn_takes_the_original_length_from_the_config_and_extends_the_context() -> None:
    config = parse_llama_config(family("Qwen2", rope_scaling={"type": "yarn", "factor": 4.0}))
    assert config.rope_scaling is not None
    assert config.rope_scaling["original_max_position_embeddings"] == 128
    assert config.max_position_embeddings == 512
    wide = parse_llama_config(
        family("Qwen2", rope_scaling={"type": "yarn", "factor": 2.0, "original_max_position_embeddings": 32})
    )
    assert wide.max_position_embeddings == 128


@pytest.mark.parametrize(
    "config",
    [
        LlamaConfig(hidden_size=64, num_attention_heads=4, num_key_value_heads=2, tie_word_embeddings=True),
        MistralConfig(hidden_size=64, num_attention_heads=4, num_key_value_heads=2, sliding_window=16),
        Qwen2Config(hidden_size=64, num_attention_heads=4, num_key_value_heads=4, rope_parameters={"rope_theta": 1e6}),
        Qwen3Config(hidden_size=64, num_attention_heads=4, num_key_value_heads=4, head_dim=32),
    ],
)
def test_what_transformers_saves_is_read_as_it_means_it(config: PretrainedConfig, tmp_path: Path) -> None:
    config.architectures = [type(config).__name__.replace("Config", "ForCausalLM")]
    config.save_pretrained(tmp_path)
    ours = parse_llama_config(read_config(tmp_path))
    assert ours.head_dim == (getattr(config, "head_dim", None) or 16)
    assert ours.num_kv_heads == config.num_key_value_heads
    assert ours.rope_theta == config.rope_parameters["rope_theta"]
    assert ours.tie_word_embeddings == config.tie_word_embeddings
    assert ours.sliding_window == getattr(config, "sliding_window", None)
    assert replace(ours) == ours


@pytest.mark.parametrize(
    "change",
    [
        {"hidden_size": None},
        {"hidden_size": "64"},
        {"vocab_size": 0},
        {"num_hidden_layers": -1},
        {"num_attention_heads": True},
        {"num_key_value_heads": 3},
        {"intermediate_size": 9.5},
        {"max_position_embeddings": None},
        {"head_dim": 15},
        {"hidden_act": "gelu"},
        {"rms_norm_eps": 0},
        {"rms_norm_eps": "1e-5"},
        {"rope_theta": "big"},
        {"rope_theta": float("inf")},
        {"rope_scaling": "linear"},
        {"rope_parameters": {"full_attention": {"rope_type": "default"}}},
        {"partial_rotary_factor": 0.5},
        {"rope_scaling": {"type": "yarn", "factor": "four"}},
        {"architectures": ["MistralForCausalLM"], "sliding_window": 0},
        {"architectures": ["MistralForCausalLM"], "layer_types": ["full_attention"] * 3},
        {"architectures": ["Qwen2ForCausalLM"], "use_sliding_window": True, "layer_types": ["full_attention"]},
        {"architectures": ["Qwen2ForCausalLM"], "use_sliding_window": True, "layer_types": ["chunked"] * 3},
        {"architectures": ["Qwen2ForCausalLM"], "use_sliding_window": True, "max_window_layers": "all"},
        {"architectures": []},
        {"architectures": ["LlamaForCausalLM", "MistralForCausalLM"]},
        {"architectures": "LlamaForCausalLM"},
    ],
    ids=str,
)
def test_a_config_that_cannot_be_meant_is_an_error(change: dict[str, Any]) -> None:
    raw = {key: value for key, value in {**PLAIN, **change}.items() if value is not None}
    with pytest.raises(EyasError) as caught:
        parse_llama_config(raw)
    assert caught.value.code == "model.config"
    assert caught.value.fix


def test_another_architecture_is_not_of_this_family() -> None:
    with pytest.raises(EyasError, match="GPT2LMHeadModel") as caught:
        parse_llama_config({**PLAIN, "architectures": ["GPT2LMHeadModel"]})
    assert caught.value.code == "model.unknown-architecture"
    with pytest.raises(EyasError, match="architectures is None"):
        architecture_of({})


@pytest.mark.parametrize(
    ("content", "code"),
    [
        (None, "artifact.missing"),
        (b"{", "artifact.corrupt"),
        (b"[1]", "artifact.corrupt"),
        (b"\xff\xfe", "artifact.corrupt"),
        (b"", "artifact.corrupt"),
    ],
)
def test_a_config_file_that_is_none(content: bytes | None, code: str, tmp_path: Path) -> None:
    if content is not None:
        (tmp_path / "config.json").write_bytes(content)
    with pytest.raises(EyasError) as caught:
        read_config(tmp_path)
    assert caught.value.code == code


def test_a_good_file_is_read(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(PLAIN))
    assert read_config(tmp_path) == PLAIN
