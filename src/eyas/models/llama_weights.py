"""From a Llama-family folder to a LlamaTarget: which stored tensors are weights, and which may be ignored."""

from __future__ import annotations

import re
from pathlib import Path

import torch
from torch import Tensor

from eyas.errors import EyasError
from eyas.kernels import Backend
from eyas.models.config import ModelConfig, parse_llama_config, read_config
from eyas.models.llama import LlamaTarget, expected_shapes
from eyas.models.strict import check_tensors
from eyas.models.weights.safetensors import Checkpoint, open_checkpoint

IGNORABLE = (r"model\.layers\.\d+\.self_attn\.rotary_emb\.inv_freq", r"model\.rotary_emb\.inv_freq")
"""Buffers that checkpoints of before 2023 hold and that follow from the config."""

DTYPES = ("F32", "BF16", "F16")
EMBEDDING, HEAD = "model.embed_tokens.weight", "lm_head.weight"


def load_llama(folder: Path, dtype: torch.dtype, backend: Backend, device: torch.device) -> LlamaTarget:
    """The target in ``folder``; raises ``artifact.…`` and ``model.…``. Weights become ``dtype``."""
    config = parse_llama_config(read_config(folder))
    return LlamaTarget(config, read_weights(open_checkpoint(folder), config), dtype, backend, device)


def read_weights(checkpoint: Checkpoint, config: ModelConfig) -> dict[str, Tensor]:
    """Exactly the tensors that ``config`` asks for, checked by name, shape and dtype before any is read."""
    check_weights(checkpoint, config)
    return checkpoint.load(expected_shapes(config))


def check_weights(checkpoint: Checkpoint, config: ModelConfig) -> None:
    """Raise ``model.…`` unless the checkpoint holds what ``config`` asks for, by name, shape and dtype, and no more."""
    infos = {name: info for name, info in checkpoint.infos.items() if not _ignorable(name)}
    doubled = config.tie_word_embeddings and HEAD in infos
    expected = expected_shapes(config)
    if doubled:
        expected[HEAD] = expected[EMBEDDING]
    check_tensors(infos, expected)
    for name, info in infos.items():
        if info.dtype not in DTYPES:
            raise EyasError(
                "model.config",
                f"{name} is stored as {info.dtype}, not as one of {', '.join(DTYPES)}",
                "use a checkpoint whose weights are not quantised",
            )
    if doubled and not torch.equal(*checkpoint.load((HEAD, EMBEDDING)).values()):
        raise EyasError(
            "model.tensor-unknown",
            f"config.json ties the head to the embedding, but the checkpoint holds a {HEAD} of other values",
            'set "tie_word_embeddings": false in config.json if the head is meant',
        )


def _ignorable(name: str) -> bool:
    return any(re.fullmatch(pattern, name) for pattern in IGNORABLE)
