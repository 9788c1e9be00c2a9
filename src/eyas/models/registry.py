"""From a model folder to a target. Loaders are named as strings, so that only the one in use is imported."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from eyas.errors import EyasError
from eyas.kernels import Backend, Quantization, get_backend
from eyas.models.config import LLAMA_FAMILY, architecture_of, read_config

if TYPE_CHECKING:
    from eyas.models.ranks import Ranks
    from eyas.models.target import Target

LOADERS = dict.fromkeys(LLAMA_FAMILY, "eyas.models.llama_weights:load_llama")
SHARDED = dict.fromkeys(LLAMA_FAMILY, "eyas.models.sharded:load_sharded")
"""Of a target that several processes share."""
FALLBACK = "eyas.models.hf:load_hf"
"""For every other architecture."""

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}
NUMERICS: dict[str, tuple[torch.dtype, Quantization]] = {
    **{name: (dtype, "none") for name, dtype in DTYPES.items()},
    "int8": (torch.float32, "int8"),
}
"""How a target computes: the dtype in which weights are read, and what they are packed as."""

Loader = Callable[[Path, torch.dtype, Backend, torch.device], "Target"]
ShardedLoader = Callable[[Path, torch.dtype, Backend, "Ranks"], "Target"]


def parse_numerics(name: str) -> tuple[torch.dtype, Quantization]:
    """``fp32``, ``bf16`` or ``int8`` → (dtype of the weights, quantization); raises ``flags.range``."""
    if name not in NUMERICS:
        raise EyasError("flags.range", f"dtype {name!r}", f"use one of {', '.join(NUMERICS)}")
    return NUMERICS[name]


def load_target(
    folder: Path,
    dtype: torch.dtype = torch.float32,
    backend: str = "auto",
    device: torch.device | str = "cpu",
    ranks: Ranks | None = None,
    quantization: Quantization = "none",
) -> Target:
    """The target in a Hugging Face folder, its weights as ``dtype`` (fp32 or bf16), or packed from it, ready to run.

    ``ranks``: this process and those that share the target with it, on their own device. Raises ``artifact.…`` (absent,
    cut, a pickle), ``model.…`` (config, tensors), ``flags.range``, ``flags.unsupported`` (an architecture that is not
    shared).
    """
    if dtype not in DTYPES.values():
        raise EyasError("flags.range", f"dtype {dtype}", f"use one of {', '.join(DTYPES)}")
    config = read_config(folder)
    architecture = architecture_of(config)
    _refuse_quantised(config)
    place = torch.device(device) if ranks is None else ranks.device
    name = "eager" if backend == "auto" and place.type != "cpu" else backend
    if ranks is not None:
        return _load_sharded(folder, architecture, dtype, get_backend(name, quantization), ranks)
    module, _, function = LOADERS.get(architecture, FALLBACK).partition(":")
    load: Loader = getattr(import_module(module), function)
    return load(folder, dtype, get_backend(name, quantization), place)


def _load_sharded(folder: Path, architecture: str, dtype: torch.dtype, backend: Backend, ranks: Ranks) -> Target:
    if architecture not in SHARDED:
        cause = f"--tp-size {ranks.size}: layers of a {architecture} are not shared between processes"
        raise EyasError("flags.unsupported", cause, "use --tp-size 1, or SGLang or vLLM")
    module, _, function = SHARDED[architecture].partition(":")
    load: ShardedLoader = getattr(import_module(module), function)
    return load(folder, dtype, backend, ranks)


def _refuse_quantised(config: dict[str, Any]) -> None:
    quantised = config.get("quantization_config")
    if quantised:
        method = quantised.get("quant_method") if isinstance(quantised, dict) else quantised
        raise EyasError(
            "model.config",
            f"the weights are quantised ({method}), which is not supported",
            "use a checkpoint with fp32, bf16 or fp16 weights",
        )
