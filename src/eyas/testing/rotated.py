"""A Llama-style target with its residual stream turned, as quantisation methods leave it: it says the same."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

WEIGHTS = "model.safetensors"


def rotation_of(width: int, seed: int = 0) -> Tensor:
    """An orthogonal matrix [width, width], fp32."""
    generator = torch.Generator().manual_seed(seed)
    return torch.linalg.qr(torch.randn(width, width, generator=generator, dtype=torch.float64))[0].float()


def rotated_target(source: Path, folder: Path, seed: int = 0) -> Path:
    """The target in ``source`` (Hugging Face layout, one file) with states f · R for f, in ``folder``, in fp32.

    Norm weights go into the matrices behind them, and the head, if tied, becomes one of its own (QuaRot, Ashkboos et
    al. 2024, section 4).
    """
    shutil.copytree(source, folder)
    tensors = {name: value.float() for name, value in load_file(source / WEIGHTS).items()}
    embedding = tensors["model.embed_tokens.weight"]
    turn = rotation_of(embedding.shape[1], seed)
    head = tensors.get("lm_head.weight", embedding)
    tensors["lm_head.weight"] = head * _folded(tensors, "model.norm.weight") @ turn
    tensors["model.embed_tokens.weight"] = embedding @ turn
    for layer in sorted({name.rsplit(".", 2)[0].split(".mlp")[0].split(".self_attn")[0] for name in tensors}):
        if layer.startswith("model.layers."):
            _turn_layer(tensors, layer, turn)
    save_file({name: value.contiguous() for name, value in tensors.items()}, folder / WEIGHTS)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"tie_word_embeddings": False, "dtype": "float32"}))
    return folder


def _turn_layer(tensors: dict[str, Tensor], layer: str, turn: Tensor) -> None:
    norms = {"self_attn": "input_layernorm", "mlp": "post_attention_layernorm"}
    folded = {block: _folded(tensors, f"{layer}.{norm}.weight") for block, norm in norms.items()}
    reads = [("self_attn", "q"), ("self_attn", "k"), ("self_attn", "v"), ("mlp", "gate"), ("mlp", "up")]
    for block, name in reads:
        key = f"{layer}.{block}.{name}_proj.weight"
        tensors[key] = tensors[key] * folded[block] @ turn
    for key in (f"{layer}.self_attn.o_proj.weight", f"{layer}.mlp.down_proj.weight"):
        tensors[key] = turn.T @ tensors[key]


def _folded(tensors: dict[str, Tensor], name: str) -> Tensor:
    """The norm's weights, which become ones."""
    weights = tensors[name]
    tensors[name] = torch.ones_like(weights)
    return weights
