"""A random target of 8 thin layers, drafts for it with random weights, and edits of what they are stored as."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from eyas.dialects.engines import Engine
from eyas.draft.checkpoint import write_draft
from eyas.draft.config import DraftConfig
from eyas.draft.model import DraftModel
from eyas.draft.vocab import offsets_from_ids
from eyas.kernels import get_backend
from eyas.models.config import ModelConfig
from eyas.models.llama import LlamaTarget, expected_shapes

VOCABULARY, KEPT = 40, (0, 3, 7, 8, 9, 19, 22, 23, 30, 38)
SGLANG, VLLM = Engine.parse("sglang"), Engine.parse("vllm")
LLAMA = "LlamaForCausalLM"


def make_config(**options: Any) -> DraftConfig:
    return DraftConfig(
        **{
            "taps": (2, 4, 5),
            "target_num_layers": 8,
            "target_hidden_size": 16,
            "vocab_size": VOCABULARY,
            "draft_vocab_size": len(KEPT),
            "hidden_size": 16,
            "intermediate_size": 24,
            "num_heads": 4,
            "num_kv_heads": 2,
            "head_dim": 4,
            "max_position_embeddings": 64,
            **options,
        }
    )


def small_target() -> LlamaTarget:
    config = ModelConfig(
        architecture=LLAMA,
        vocab_size=VOCABULARY,
        hidden_size=16,
        intermediate_size=24,
        num_layers=8,
        num_heads=4,
        num_kv_heads=2,
        head_dim=4,
        rms_norm_eps=1e-5,
        max_position_embeddings=128,
        rope_theta=10000.0,
        rope_scaling=None,
        tie_word_embeddings=False,
        attention_bias=False,
        output_bias=False,
        mlp_bias=False,
        qk_norm=False,
        sliding_window=None,
        windowed_layers=(False,) * 8,
    )
    generator = torch.Generator().manual_seed(1)
    tensors = {name: 0.3 * torch.randn(shape, generator=generator) for name, shape in expected_shapes(config).items()}
    return LlamaTarget(config, tensors, torch.float32, get_backend("eager"))


def random_weights(target: LlamaTarget, **options: Any) -> DraftModel:
    """A draft with the target's embedding unless it has its own, and a map if its vocabulary is reduced."""
    model = DraftModel(make_config(**options))
    generator = torch.Generator().manual_seed(2)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(0.4 * torch.randn(parameter.shape, generator=generator))
        if not model.config.own_embedding:
            model.embed_tokens.copy_(target.embedding())
        if model.config.has_map:
            kept = torch.tensor(KEPT)[: model.config.draft_vocab_size]
            model.d2t.copy_(offsets_from_ids(kept, VOCABULARY))
    return model


def write(folder: Path, model: DraftModel, *engines: Engine, dtype: torch.dtype = torch.float32) -> Path:
    write_draft(folder, model, LLAMA, dtype=dtype, engines=engines or None)
    return folder


def edit_config(folder: Path, remove: tuple[str, ...] = (), **changes: Any) -> None:
    path = folder / "config.json"
    document = {k: v for k, v in json.loads(path.read_text()).items() if k not in remove} | changes
    path.write_text(json.dumps(document))


def edit_tensors(folder: Path, edit: Callable[[dict[str, Tensor]], object]) -> None:
    tensors = load_file(folder / "model.safetensors")
    edit(tensors)
    save_file(tensors, folder / "model.safetensors")


def write_target(folder: Path, target: LlamaTarget, weights: bool = True) -> Path:
    """A target's folder as an export reads it: config.json, and the embedding if wanted."""
    folder.mkdir()
    config = {"architectures": [LLAMA], "num_hidden_layers": 8, "hidden_size": 16, "vocab_size": VOCABULARY}
    (folder / "config.json").write_text(json.dumps(config))
    if weights:
        save_file({"model.embed_tokens.weight": target.embedding().clone()}, folder / "model.safetensors")
    return folder
