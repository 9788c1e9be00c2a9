"""A random target of the tests' shape, and drafts for it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from eyas.dialects.engines import Engine
from eyas.draft.checkpoint import read_draft, write_draft
from eyas.draft.config import DraftConfig
from eyas.draft.model import DraftModel
from eyas.draft.vocab import offsets_from_ids
from eyas.errors import EyasError
from eyas.kernels import get_backend
from eyas.models.config import ModelConfig
from eyas.models.llama import LlamaTarget, expected_shapes

VOCABULARY, KEPT = 40, (0, 3, 7, 8, 9, 19, 22, 23, 30, 38)

MakeDraft = Callable[..., DraftModel]


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


@pytest.fixture(scope="session")
def target() -> LlamaTarget:
    config = ModelConfig(
        architecture="LlamaForCausalLM",
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


@pytest.fixture
def make_draft(target: LlamaTarget) -> MakeDraft:
    """A draft with random weights, the target's embedding unless it has its own, and a map if it is reduced."""

    def make(**options: Any) -> DraftModel:
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

    return make


SGLANG, VLLM = Engine.parse("sglang"), Engine.parse("vllm")
LLAMA = "LlamaForCausalLM"


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


def code_of(folder: Path, target: LlamaTarget) -> str:
    with pytest.raises(EyasError) as caught:
        read_draft(folder, target)
    return caught.value.code
