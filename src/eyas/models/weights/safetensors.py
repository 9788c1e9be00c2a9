"""Safetensors, read strictly: every name, shape and byte range is checked before use.

The format: 8 bytes with the header's length (little endian), the header (JSON: name -> dtype, shape, byte
range), data.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import safe_open
from torch import Tensor

from eyas.contract import WeightEntry, weights_sha256
from eyas.errors import EyasError

SINGLE = "model.safetensors"
INDEX = "model.safetensors.index.json"
PICKLES = ("*.bin", "*.pt", "*.pth", "*.pkl", "*.ckpt")
# The format's own limit; anything larger is an attack or noise.
MAX_HEADER = 100_000_000
CHUNK = 1 << 24
DTYPES_BY_BITS = {
    4: ("F4",),
    8: ("BOOL", "U8", "I8", "F8_E4M3", "F8_E5M2", "F8_E8M0"),
    16: ("I16", "U16", "F16", "BF16"),
    32: ("I32", "U32", "F32"),
    64: ("I64", "U64", "F64", "C64"),
}
BITS = {dtype: bits for bits, dtypes in DTYPES_BY_BITS.items() for dtype in dtypes}
FETCH = "fetch the checkpoint again"


@dataclass(frozen=True)
class TensorInfo:
    """Where a tensor lies: dtype as safetensors spells it, absolute byte range in ``file``."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    file: Path
    begin: int
    end: int


@dataclass(frozen=True)
class StoredTensor:
    """A tensor in its file."""

    info: TensorInfo

    @property
    def shape(self) -> tuple[int, ...]:
        return self.info.shape

    def __getitem__(self, index: tuple[slice, ...]) -> Tensor:
        """The part within these slices, which is all that is read; CPU, stored dtype."""
        with safe_open(self.info.file, framework="pt") as handle:
            part: Tensor = handle.get_slice(self.info.name)[index]
        return part


@dataclass(frozen=True)
class Checkpoint:
    """The tensors of a checkpoint, by name, without their data."""

    path: Path
    infos: Mapping[str, TensorInfo]

    def load(self, names: Iterable[str] | None = None) -> dict[str, Tensor]:
        """The named tensors (default: all), CPU, stored dtype; raises ``model.tensor-missing``."""
        wanted = list(self.infos) if names is None else list(names)
        loaded: dict[str, Tensor] = {}
        with ExitStack() as stack:
            handles: dict[Path, Any] = {}
            for name in wanted:
                if name not in self.infos:
                    raise EyasError("model.tensor-missing", f"{self.path} has no tensor {name}", FETCH)
                file = self.infos[name].file
                if file not in handles:
                    handles[file] = stack.enter_context(safe_open(file, framework="pt"))
                loaded[name] = handles[file].get_tensor(name)
        return loaded

    def stored(self, names: Iterable[str]) -> dict[str, StoredTensor]:
        """The named tensors, to be read part by part."""
        return {name: StoredTensor(self.infos[name]) for name in names}


def open_checkpoint(path: Path) -> Checkpoint:
    """Open a model folder (single file or index) or one .safetensors file: checks all headers, reads no data.

    Raises ``artifact.missing``, ``artifact.corrupt``, ``artifact.pickle``, ``model.tensor-missing``,
    ``-unknown``.
    """
    if path.is_file():
        return Checkpoint(path, read_header(path))
    if (path / SINGLE).is_file():
        return Checkpoint(path, read_header(path / SINGLE))
    if (path / INDEX).is_file():
        return Checkpoint(path, _read_sharded(path))
    pickles = sorted(file.name for pattern in PICKLES for file in path.glob(pattern)) if path.is_dir() else []
    if pickles:
        raise EyasError(
            "artifact.pickle",
            f"{path} holds its weights as a pickle ({pickles[0]}), which can run code when it is read",
            "use a checkpoint in safetensors, or convert it with the tools of whoever made it",
        )
    raise EyasError("artifact.missing", f"{path} has neither {SINGLE} nor {INDEX}", "give a model folder")


def read_header(file: Path) -> dict[str, TensorInfo]:
    """The tensors of one .safetensors file; raises ``artifact.corrupt`` if any part of it does not add up."""
    size = file.stat().st_size
    with file.open("rb") as handle:
        length = int.from_bytes(handle.read(8), "little")
        if size < 8 or length > MAX_HEADER or 8 + length > size:
            raise _corrupt(file, f"its header claims {length} bytes, the file has {size}")
        raw = handle.read(length)
    try:
        header = json.loads(raw.decode("utf-8"), object_pairs_hook=_unique)
        if not isinstance(header, dict):
            raise ValueError("not an object")
    except (ValueError, RecursionError) as error:
        raise _corrupt(file, f"its header is no JSON: {error}") from error
    header.pop("__metadata__", None)
    infos = {name: _tensor_info(file, name, entry, 8 + length) for name, entry in header.items()}
    _check_layout(file, infos.values(), 8 + length, size)
    return infos


def weight_fingerprint(checkpoint: Checkpoint, canonical: Callable[[str], str | None] | None = None) -> str:
    """The contract's fingerprint of these weights, ``eyas.contract.weights_sha256``, whatever the sharding.

    ``canonical`` renames a tensor or, with None, leaves it out (say a head that is tied); without it names stay.
    """
    named: dict[str, TensorInfo] = {}
    for info in checkpoint.infos.values():
        name = canonical(info.name) if canonical else info.name
        if name is not None:
            if name in named:
                raise EyasError("artifact.corrupt", f"{named[name].name} and {info.name} are both {name}", FETCH)
            named[name] = info
    return weights_sha256(
        WeightEntry(name, info.dtype, info.shape, _raw_bytes(info)) for name, info in sorted(named.items())
    )


def write_safetensors(
    file: Path, specs: Mapping[str, tuple[str, tuple[int, ...]]], tensors: Iterable[tuple[str, Tensor]]
) -> None:
    """Write a .safetensors file one tensor at a time: ``specs`` gives (dtype, shape), ``tensors`` the data.

    ``tensors`` comes in the order of ``specs``, on the CPU, each with the dtype and shape announced.
    """
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    offset = 0
    for name, (dtype, shape) in specs.items():
        end = offset + prod(shape) * BITS[dtype] // 8
        header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [offset, end]}
        offset = end
    raw = json.dumps(header).encode()
    raw += b" " * (-len(raw) % 8)
    with file.open("wb") as handle:
        handle.write(len(raw).to_bytes(8, "little") + raw)
        for expected, (name, tensor) in zip(specs, tensors, strict=True):
            assert (name, tuple(tensor.shape)) == (expected, specs[expected][1]), name
            assert tensor.element_size() * 8 == BITS[specs[name][0]], name
            handle.write(tensor.contiguous().reshape(-1).view(torch.uint8).numpy().astype(np.uint8, copy=False).data)
        handle.flush()
        os.fsync(handle.fileno())


def leaves_folder(shard: str) -> bool:
    """Whether a shard's name in an index is more than the name of a file beside it."""
    return "/" in shard or "\\" in shard or ":" in shard or shard in {"", ".", ".."}


def _read_sharded(folder: Path) -> dict[str, TensorInfo]:
    path = folder / INDEX
    try:
        weight_map = json.loads(path.read_text(encoding="utf-8"))["weight_map"]
        shards = {str(shard) for shard in weight_map.values()}
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise _corrupt(path, f"it is no index of shards: {error!r}") from error
    infos: dict[str, TensorInfo] = {}
    for shard in sorted(shards):
        if leaves_folder(shard):
            raise _corrupt(path, f"it names a shard outside its folder: {shard!r}")
        if not (folder / shard).is_file():
            raise EyasError("artifact.missing", f"{folder / shard}, named by {INDEX}, is not there", FETCH)
        for name, info in read_header(folder / shard).items():
            if weight_map.get(name) != shard:
                raise EyasError(
                    "model.tensor-unknown", f"{shard} holds {name}, which {INDEX} does not place there", FETCH
                )
            infos[name] = info
    for name in weight_map:
        if name not in infos:
            raise EyasError("model.tensor-missing", f"{weight_map[name]} lacks {name}, named by {INDEX}", FETCH)
    return infos


def _tensor_info(file: Path, name: str, entry: Any, base: int) -> TensorInfo:
    try:
        dtype, shape, (begin, end) = entry["dtype"], entry["shape"], entry["data_offsets"]
        if set(entry) != {"dtype", "shape", "data_offsets"} or dtype not in BITS:
            raise ValueError(f"dtype {dtype!r}")
        if not all(type(n) is int and n >= 0 for n in (*shape, begin, end)):
            raise ValueError("a size that is no natural number")
    except (KeyError, TypeError, ValueError) as error:
        raise _corrupt(file, f"its entry for {name} is malformed: {error}") from error
    if (end - begin) * 8 != prod(shape) * BITS[dtype]:
        raise _corrupt(file, f"{name} has shape {shape} of {dtype} but {end - begin} bytes")
    return TensorInfo(name, dtype, tuple(shape), file, base + begin, base + end)


def _check_layout(file: Path, infos: Iterable[TensorInfo], base: int, size: int) -> None:
    position = base
    for info in sorted(infos, key=lambda info: (info.begin, info.end)):
        if info.begin != position:
            raise _corrupt(file, f"{info.name} starts at byte {info.begin}, where {position} was due")
        position = info.end
    if position != size:
        kind = "it is cut off" if size < position else "it has bytes that belong to no tensor"
        raise _corrupt(file, f"{kind}: {size} bytes where its header says {position}")


def _raw_bytes(info: TensorInfo) -> memoryview:
    """The tensor's bytes, mapped from the file, not read into memory."""
    size = info.end - info.begin
    if not size:
        return memoryview(b"")
    return np.memmap(info.file, dtype=np.uint8, mode="r", offset=info.begin, shape=(size,)).data


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    unique = dict(pairs)
    if len(unique) != len(pairs):
        raise ValueError("a key occurs twice")
    return unique


def _corrupt(file: Path, why: str) -> EyasError:
    return EyasError("artifact.corrupt", f"{file}: {why}", FETCH)
