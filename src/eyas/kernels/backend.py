"""What a forward needs from a kernel library, as one small interface.

The eager backend is the truth; every other one is compared with it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Literal, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from eyas.errors import EyasError
from eyas.kernels.rows import KVCache, Rows

Quantization = Literal["none", "int8"]
"""none: weights as they are, in fp32 or bf16 · int8: weights and activations as integers of 8 bits, scaled by group."""

BACKENDS = {
    "eager": "eyas.kernels.eager:Eager",
    "native": "eyas.kernels.native:Native",
    "onednn": "eyas.kernels.onednn:OneDNN",
}


@dataclass(frozen=True)
class LayerShape:
    """Sizes of a decoder layer, in elements; ``window`` in tokens, None: all."""

    hidden: int
    input_width: int
    """What q, k and v read: ``hidden``, or twice that in a draft's first layer."""
    heads: int
    kv_heads: int
    head_dim: int
    inner: int
    window: int | None
    eps: float


class FusedLayer(Protocol):
    """A whole decoder layer as one call."""

    def __call__(
        self, x_RH: Tensor, input_RW: Tensor | None, turn: tuple[Tensor, Tensor], rows: Rows, cache: KVCache, layer: int
    ) -> Tensor:
        """The output [R, H], a new tensor, of residual x; keys and values are written into the cache's ``layer``.

        ``input_RW``: what attention reads, where the layer was fused without a norm of its input. ``turn``: cos, sin.
        """
        ...


class FusedStack(Protocol):
    """All layers of a decoder as one call."""

    def __call__(
        self, x_RH: Tensor, turn: tuple[Tensor, Tensor], rows: Rows, cache: KVCache, taps: Tensor, ids: Sequence[int]
    ) -> Tensor:
        """The state after the last layer [R, H], a new tensor. ``taps`` [R, n, H] is filled with the states after
        ``ids`` layers each."""
        ...


class Backend(ABC):
    """A kernel library. Row results should depend on their own row only, as far as the library allows."""

    name: str
    copies_weights: bool
    """Whether packed weights are a copy, so that the originals can go."""
    quantization: Quantization = "none"
    packed_bytes: int = 0
    """Of all matrices that were packed so far: what one forward reads of them."""

    @property
    def quantisation(self) -> Quantization | None:
        """For a contract: None where weights are as they are."""
        return None if self.quantization == "none" else self.quantization

    @abstractmethod
    def packed_dtype(self, weight_dtype: torch.dtype) -> torch.dtype:
        """The dtype in which weights of ``weight_dtype`` are read from memory; int8 where they are quantised."""

    def fuse(self, shape: LayerShape, linears: Sequence[Linear], norms: Sequence[Tensor | None]) -> FusedLayer | None:
        """A whole layer as one call, or None where the backend has no such thing.

        ``linears``: qkv, o, gate_up, down. ``norms``: of the input (None: the caller gives what attention reads), of
        the MLP, of q and of k per head (None: no such norm).
        """
        return None

    def stack(self, layers: Sequence[FusedLayer]) -> FusedStack | None:
        """Layers that this backend fused as one call, or None where it has no such thing."""
        return None

    @abstractmethod
    def activation_dtype(self, weight_dtype: torch.dtype) -> torch.dtype:
        """The dtype in which activations, keys and values are kept for weights of ``weight_dtype``."""

    @abstractmethod
    def pack(self, weight_OI: Tensor, bias_O: Tensor | None) -> Callable[[Tensor], Tensor]:
        """A function x[M, I] → x · weightᵀ + bias [M, O] over a layout of its own."""

    @abstractmethod
    def rms_norm(self, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        """x · rsqrt(mean(x²) + eps) · weight over the last dimension; the mean is taken in fp32."""

    @abstractmethod
    def rotate(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """Rotary embedding of x[R, heads, D] with cos, sin [R, 1, rotated size]; halves are paired (NeoX)."""

    @abstractmethod
    def attention(self, q: Tensor, cache: KVCache, layer: int, rows: Rows, scale: float, window: int | None) -> Tensor:
        """Attention of q[R, heads, D] over each row's own path in the cache → [R, heads · D].

        ``window``: a row sees keys at most window − 1 positions back; None: all.
        """


class Linear(nn.Module):
    """y = x · weightᵀ + bias. Differentiable until :meth:`pack` gives the weight to a backend."""

    def __init__(self, in_features: int, out_features: int, bias: bool = False) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(out_features, in_features))
        self.bias = nn.Parameter(torch.empty(out_features)) if bias else None
        self._packed: Callable[[Tensor], Tensor] | None = None

    def pack(self, backend: Backend) -> None:
        """From now on compute with the backend's own layout of the present weight, without gradients."""
        bias = None if self.bias is None else self.bias.detach()
        self._packed = backend.pack(self.weight.detach(), bias)
        if backend.copies_weights:
            self.drop()

    def drop(self) -> None:
        """Let the weight go, whose copy is elsewhere."""
        self.weight = nn.Parameter(self.weight.new_empty(0), requires_grad=False)

    def forward(self, x: Tensor) -> Tensor:
        if self._packed is not None:
            return self._packed(x)
        if x.dim() == 2 and x.device.type == "cpu" and torch.is_autocast_enabled("cpu"):
            return F.linear(filled_up(x), self.weight, self.bias)[: len(x)]
        return F.linear(x, self.weight, self.bias)


EVEN_ROWS = 128


def filled_up(x: Tensor) -> Tensor:
    """``x`` [n, I] and rows of zeros, up to a multiple of EVEN_ROWS. In bf16 on a CPU oneDNN compiles a kernel for each
    number of rows that it meets, which takes longer than the product of some hundred rows.
    """
    return F.pad(x, (0, 0, 0, -len(x) % EVEN_ROWS))


def get_backend(name: str, quantization: Quantization = "none") -> Backend:
    """The backend of that name; ``auto`` takes the fastest that runs on this machine's CPU.

    Raises ``flags.range`` for one that is not there, ``flags.contradiction`` for one that has no such quantization.
    """
    if name == "auto":
        name = _fastest(quantization)
    if name not in BACKENDS:
        raise EyasError(
            "flags.range", f"there is no backend {name!r}", f"use one of: auto, {', '.join(sorted(BACKENDS))}"
        )
    module, cls = BACKENDS[name].split(":")
    backend = getattr(import_module(module), cls)(quantization=quantization)
    assert isinstance(backend, Backend)
    return backend


def _fastest(quantization: Quantization) -> str:
    """The own kernels where they were built, else oneDNN where it can, else plain PyTorch."""
    if import_module("eyas.kernels.native").load_library() is not None:
        return "native"
    return "onednn" if quantization == "none" and torch.backends.mkldnn.is_available() else "eager"
