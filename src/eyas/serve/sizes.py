"""What a target and its draft take in memory, from their files' headers alone: known before anything is loaded."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from pathlib import Path

import torch

from eyas.artifacts import human_bytes
from eyas.draft.stored import read_document
from eyas.environment import free_memory
from eyas.errors import EyasError
from eyas.kernels import get_backend
from eyas.models.config import LLAMA_FAMILY, architecture_of, parse_llama_config, read_config
from eyas.models.registry import parse_dtype
from eyas.models.size import target_size
from eyas.models.weights.safetensors import open_checkpoint


@dataclass(frozen=True)
class Sizes:
    """``weights``, ``slot`` in bytes: all weights, and one token in the caches of target and draft. ``context``: tokens
    that the target takes.
    """

    weights: int
    slot: int
    context: int


def sizes_of(target: Path, draft: Path | None, dtype: str, backend: str, device: str) -> Sizes:
    """Raises ``model.config``, ``artifact.…``, ``draft.…``, ``flags.range``."""
    kernels = get_backend("eager" if backend == "auto" and not device.startswith("cpu") else backend)
    weights = parse_dtype(dtype)
    packed, active = kernels.packed_dtype(weights).itemsize, kernels.activation_dtype(weights).itemsize
    document = read_config(target)
    size = target_size(document)
    parameters, kept = size.total, size.num_layers * size.kv_width
    if draft is not None:
        own = target_size(read_document(draft)[1])
        kept += own.num_layers * own.kv_width
        parameters += sum(prod(info.shape) for info in open_checkpoint(draft).infos.values())
    return Sizes(parameters * packed, kept * active, _context(document))


def free_bytes(device: str) -> int:
    """Memory of the device that nothing holds now."""
    return torch.cuda.mem_get_info(device)[0] if device.startswith("cuda") else free_memory()


def check_device(device: str) -> None:
    """Raises ``flags.range`` for a device that is not there."""
    try:
        kind = torch.device(device).type
    except RuntimeError as error:
        raise EyasError("flags.range", f"--device {device} is no device", "use cpu or cuda") from error
    if kind not in ("cpu", "cuda") or (kind == "cuda" and not torch.cuda.is_available()):
        raise EyasError("flags.range", f"--device {device} is not there for PyTorch", "use --device cpu")


def shown(count: int, slot: int) -> str:
    """Slots with what they take."""
    return f"{human_bytes(slot)} a token, {human_bytes(count * slot)} in all"


def _context(document: dict[str, object]) -> int:
    if architecture_of(document) in LLAMA_FAMILY:
        return parse_llama_config(document).max_position_embeddings
    text = document.get("text_config", document)
    value = text.get("max_position_embeddings") if isinstance(text, dict) else None
    if type(value) is not int or value < 1:
        cause = f"config.json: max_position_embeddings is {value!r}, not a positive integer"
        raise EyasError("model.config", cause, "set it in config.json, or use the config that belongs to the weights")
    return value
