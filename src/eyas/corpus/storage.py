"""How features lie in a shard: tensors by name, the cast for storage, and the way back.

Shape legend: N positions of a shard, n of a sample, T taps, H hidden, k kept tokens.

| tensor | shape | where |
|---|---|---|
| ``taps`` | [N, T, H] | always; fp32, bf16 or float8 e4m3 |
| ``taps_scale`` | [N, T] fp32 | with fp8: value = stored · scale |
| ``hidden`` | [N, H], fp32 or bf16 (with fp8: bf16) | without top-k |
| ``top_ids``, ``top_logprobs`` | [N, k] int32, fp32 | with top-k |
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import prod

import torch
from torch import Tensor

from eyas.corpus.features import FeatureFacts, Features, Storage, TopTokens

FP8 = torch.float8_e4m3fn
FP8_MAX = torch.finfo(FP8).max
NAMES = {FP8: "F8_E4M3", torch.bfloat16: "BF16", torch.float32: "F32", torch.int32: "I32"}
"""dtype → as safetensors spells it."""
TAP_DTYPES: dict[Storage, torch.dtype] = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp8": FP8}


@dataclass(frozen=True)
class Layout:
    """What a folder's shards hold of a position."""

    num_taps: int
    hidden_size: int
    storage: Storage
    top_k: int | None

    @classmethod
    def of(cls, facts: FeatureFacts) -> Layout:
        """The layout that these facts ask for."""
        assert facts.storage != "none"
        return cls(len(facts.taps), facts.target.hidden_size, facts.storage, facts.top_k)

    def tensors(self) -> dict[str, tuple[torch.dtype, tuple[int, ...]]]:
        """Name → (dtype, shape of one position), in the order in which a shard holds them."""
        dtype, H = TAP_DTYPES[self.storage], self.hidden_size
        found: dict[str, tuple[torch.dtype, tuple[int, ...]]] = {"taps": (dtype, (self.num_taps, H))}
        if dtype == FP8:
            found["taps_scale"] = (torch.float32, (self.num_taps,))
        if self.top_k is None:
            found["hidden"] = (torch.bfloat16 if dtype == FP8 else dtype, (H,))
        else:
            found |= {"top_ids": (torch.int32, (self.top_k,)), "top_logprobs": (torch.float32, (self.top_k,))}
        return found

    def specs(self, positions: int) -> dict[str, tuple[str, tuple[int, ...]]]:
        """Name → (safetensors dtype, shape) of a shard of so many positions."""
        return {name: (NAMES[dtype], (positions, *shape)) for name, (dtype, shape) in self.tensors().items()}

    @property
    def bytes_per_token(self) -> int:
        """Bytes of one position."""
        return sum(prod(shape) * dtype.itemsize for dtype, shape in self.tensors().values())

    def new_shard(self, positions: int) -> dict[str, Tensor]:
        """Empty tensors of a shard."""
        return {name: torch.empty(positions, *shape, dtype=dtype) for name, (dtype, shape) in self.tensors().items()}

    def store(self, features: Features, shard: Mapping[str, Tensor], first: int) -> None:
        """Cast one sample's features into the positions of ``shard`` from ``first`` on."""
        place = slice(first, first + len(features.taps))
        if self.storage == "fp8":
            shard["taps"][place], shard["taps_scale"][place] = to_fp8(features.taps)
        else:
            shard["taps"][place] = features.taps
        if self.top_k is None:
            assert features.hidden is not None
            shard["hidden"][place] = features.hidden
        else:
            assert features.top is not None
            shard["top_ids"][place], shard["top_logprobs"][place] = features.top.ids, features.top.logprobs

    def load(self, read: Callable[[str], Tensor]) -> Features:
        """The features of a sample; ``read`` gives its part of a tensor. Taps stored as fp8 come as fp32."""
        taps = read("taps")
        if self.storage == "fp8":
            taps = from_fp8(taps, read("taps_scale"))
        if self.top_k is None:
            return Features(taps, read("hidden"))
        return Features(taps, None, TopTokens(read("top_ids").long(), read("top_logprobs")))


def to_fp8(x: Tensor) -> tuple[Tensor, Tensor]:
    """x [..., H] → (float8 e4m3 [..., H], scale [...] fp32): the greatest of each H becomes the greatest of the format.

    What is not smaller than 2⁻¹⁴ of the greatest is off by at most 2⁻⁴ of itself.
    """
    x = x.float()
    scale = (x.abs().amax(-1) / FP8_MAX).clamp_min(torch.finfo(torch.float32).tiny)
    return (x / scale[..., None]).clamp(-FP8_MAX, FP8_MAX).to(FP8), scale


def from_fp8(x: Tensor, scale: Tensor) -> Tensor:
    """The inverse of :func:`to_fp8`, as fp32."""
    return x.float() * scale[..., None]
