"""What a target and its draft take in memory, from their files' headers alone: known before anything is loaded."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import torch

from eyas.artifacts import human_bytes
from eyas.draft.stored import read_document
from eyas.environment import free_memory
from eyas.errors import EyasError
from eyas.kernels import get_backend
from eyas.models.config import LLAMA_FAMILY, architecture_of, parse_llama_config, read_config
from eyas.models.llama import expected_shapes
from eyas.models.registry import parse_numerics
from eyas.models.sharing import Share
from eyas.models.size import target_size
from eyas.models.weights.safetensors import open_checkpoint


@dataclass(frozen=True)
class Sizes:
    """``weights``, ``slot`` in bytes: all weights, and one token in the caches of target and draft; of all ranks
    together on a CPU, of the fullest on GPUs. ``context``: tokens that the target takes.
    """

    weights: int
    slot: int
    context: int


def sizes_of(target: Path, draft: Path | None, dtype: str, backend: str, device: str, tp_size: int = 1) -> Sizes:
    """Raises ``model.config``, ``artifact.…``, ``draft.…``, ``flags.range``."""
    weights, quantization = parse_numerics(dtype)
    kernels = get_backend("eager" if backend == "auto" and not device.startswith("cpu") else backend, quantization)
    packed, active = kernels.packed_dtype(weights).itemsize, kernels.activation_dtype(weights).itemsize
    document = read_config(target)
    together = range(tp_size if device.startswith("cpu") else 1)
    held = [_held(document, rank, tp_size) for rank in together]
    parameters, kept = sum(weights for weights, _ in held), sum(slot for _, slot in held)
    if draft is not None:
        own = target_size(read_document(draft)[1])
        kept += len(together) * own.num_layers * own.kv_width
        parameters += len(together) * sum(prod(info.shape) for info in open_checkpoint(draft).infos.values())
    return Sizes(parameters * packed, kept * active, _context(document))


def _held(document: dict[str, Any], rank: int, tp_size: int) -> tuple[int, int]:
    """Parameters, and elements of keys and values of one token, that a rank holds of the target."""
    if tp_size == 1:
        size = target_size(document)
        return size.total, size.num_layers * size.kv_width
    config = parse_llama_config(document)
    share = Share.of(config, rank, tp_size)
    shapes = expected_shapes(share.layer_config(config))
    if not config.tie_word_embeddings:
        shapes["lm_head.weight"] = (len(share.vocabulary), config.hidden_size)
    return sum(map(prod, shapes.values())), config.num_layers * 2 * len(share.kv) * config.head_dim


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


def check_ranks(target: Path, tp_size: int, device: str) -> None:
    """Raises ``flags.unsupported``, ``flags.range``, ``flags.contradiction`` for ranks that cannot share the target."""
    if tp_size == 1:
        return
    document = read_config(target)
    architecture = architecture_of(document)
    if architecture not in LLAMA_FAMILY:
        cause = f"--tp-size {tp_size}: layers of a {architecture} are not shared between processes"
        raise EyasError("flags.unsupported", cause, "use --tp-size 1, or SGLang or vLLM")
    Share.of(parse_llama_config(document), 0, tp_size)
    if device.startswith("cuda:"):
        cause = f"--tp-size {tp_size} with --device {device}: each rank has a GPU of its own"
        raise EyasError("flags.contradiction", cause, "use --device cuda, and choose GPUs by CUDA_VISIBLE_DEVICES")
    if device == "cuda" and torch.cuda.device_count() < tp_size:
        cause = f"--tp-size {tp_size}, and there are {torch.cuda.device_count()} GPUs"
        raise EyasError("flags.range", cause, "use one GPU for each rank, or --device cpu")


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
