"""GGUF files of the Llama family, converted to an ordinary Hugging Face folder."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
from torch import Tensor

from eyas.artifacts import Progress, no_progress, require_free, write_json
from eyas.errors import EyasError
from eyas.models.weights.gguf_config import model_config, stop_tokens, unsupported
from eyas.models.weights.gguf_tokenizer import write_tokenizer
from eyas.models.weights.safetensors import BITS, SINGLE, write_safetensors

WHOLE = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}
IN_LAYER = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
# Tables that follow from the config: read for the RoPE factors, never part of a Hugging Face checkpoint.
DERIVED = re.compile(r"rope_freqs\.weight|blk\.\d+\.attn_rot_embd\.weight")
DTYPES = {
    "float32": (torch.float32, "F32"),
    "bfloat16": (torch.bfloat16, "BF16"),
    "float16": (torch.float16, "F16"),
}


@dataclass(frozen=True)
class GGUFFile:
    """An opened GGUF file: its metadata as Python values and its tensors by name, memory-mapped."""

    path: Path
    metadata: Mapping[str, Any]
    tensors: Mapping[str, gguf.ReaderTensor]


def open_gguf(path: Path) -> GGUFFile:
    """Read a GGUF file's metadata and tensor table; raises ``artifact.missing`` or ``artifact.corrupt``."""
    if not path.is_file():
        raise EyasError("artifact.missing", f"there is no file {path}", "check the path")
    try:
        reader = gguf.GGUFReader(path)
        metadata = {name: field.contents() for name, field in reader.fields.items()}
    except (ValueError, IndexError, KeyError, OverflowError) as error:
        raise EyasError("artifact.corrupt", f"{path} is no whole GGUF file: {error}", "fetch it again") from error
    return GGUFFile(path, metadata, {tensor.name: tensor for tensor in reader.tensors})


def convert_gguf(path: Path, folder: Path, dtype: str = "float32", progress: Progress = no_progress) -> dict[str, Any]:
    """Write the model in ``path`` into the existing ``folder``, Hugging Face style; returns its provenance.

    Weights are dequantised in fp32 and stored as ``dtype`` (float32, bfloat16, float16), one tensor in memory
    at a time. Raises ``artifact.*``, ``gguf.unsupported``, ``pull.disk-full``.
    """
    assert dtype in DTYPES, dtype
    file = open_gguf(path)
    config = model_config(
        file.metadata, {name: _shape(tensor) for name, tensor in file.tensors.items()}, _factors(file)
    )
    names = {name: hf_name(name) for name in file.tensors if not DERIVED.fullmatch(name)}
    stored = DTYPES[dtype][1]
    specs = {hf: (stored, _shape(file.tensors[name])) for name, hf in names.items()}
    need = sum(int(np.prod(shape)) for _, shape in specs.values()) * BITS[stored] // 8
    require_free(folder, need + (16 << 20), f"converting {path.name}")
    write_tokenizer(file.metadata, folder, config["vocab_size"], config["max_position_embeddings"])
    write_safetensors(folder / SINGLE, specs, _converted(file, names, config, dtype, progress))
    write_json(folder / "config.json", {**config, "dtype": dtype})
    write_json(folder / "generation_config.json", stop_tokens(file.metadata))
    kinds = sorted({tensor.tensor_type.name for tensor in file.tensors.values()})
    facts = {key: file.metadata[key] for key in ("general.name", "general.license") if key in file.metadata}
    return {
        "gguf": path.name,
        "architecture": file.metadata["general.architecture"],
        "quantisation": kinds,
        **facts,
    }


def hf_name(name: str) -> str:
    """The Hugging Face name of a Llama-family GGUF tensor; raises ``gguf.unsupported`` for any other."""
    if name in WHOLE:
        return WHOLE[name]
    match = re.fullmatch(r"blk\.(\d+)\.(\w+)\.(weight|bias)", name)
    if match and match[2] in IN_LAYER:
        return f"model.layers.{match[1]}.{IN_LAYER[match[2]]}.{match[3]}"
    raise unsupported(f"the tensor {name} belongs to no model of the Llama family")


def dequantise(tensor: gguf.ReaderTensor) -> np.ndarray:
    """A GGUF tensor as fp32 [rows, columns] or [size]; raises ``gguf.unsupported`` without a decoder."""
    try:
        values = gguf.dequantize(tensor.data, tensor.tensor_type)
    except NotImplementedError as error:
        raise unsupported(f"{tensor.name} is quantised as {tensor.tensor_type.name}") from error
    return values.astype(np.float32, copy=False).reshape(_shape(tensor))


def rotate_half_order(weight: np.ndarray, heads: int) -> np.ndarray:
    """Undo llama.cpp's order of q and k rows: from pairs (2i, 2i + 1) per head to halves (i, i + D/2).

    ``weight`` is [heads · D, hidden] or, for a bias, [heads · D]; the result has the same shape.
    """
    pairs = weight.reshape(heads, weight.shape[0] // heads // 2, 2, *weight.shape[1:])
    return pairs.swapaxes(1, 2).reshape(weight.shape)


def _converted(
    file: GGUFFile, names: Mapping[str, str], config: Mapping[str, Any], dtype: str, progress: Progress
) -> Iterator[tuple[str, Tensor]]:
    # llama.cpp rotates interleaved pairs for this architecture alone; the others keep the Hugging Face order.
    interleaved = file.metadata["general.architecture"] == "llama"
    heads = {"attn_q": config["num_attention_heads"], "attn_k": config["num_key_value_heads"]}
    for done, (name, hf) in enumerate(names.items()):
        progress("converting tensors", done, len(names))
        values = dequantise(file.tensors[name])
        part = name.split(".")[2] if name.startswith("blk.") else ""
        if interleaved and part in heads:
            values = rotate_half_order(values, heads[part])
        # A copy where needed: the memory map is read-only, which torch does not take.
        yield hf, torch.from_numpy(np.require(values, requirements=["C", "W"])).to(DTYPES[dtype][0])
    progress("converting tensors", len(names), len(names))


def _factors(file: GGUFFile) -> np.ndarray | None:
    tensor = file.tensors.get("rope_freqs.weight")
    return None if tensor is None else dequantise(tensor)


def _shape(tensor: gguf.ReaderTensor) -> tuple[int, ...]:
    # GGUF counts dimensions from the innermost.
    return tuple(int(size) for size in reversed(tensor.shape))
