"""The native backend: Eyas's own small-row linear layers, in C++ (kernels/cpu/), for Linux.

Decoding reads all weights once per token, and so does verifying several. These kernels come near that: they stream
packed weights once for all rows. An output is one chain of multiply-adds in input order, so a row's bits do not depend
on how many rows share the call, nor on threads. bf16 weights stay 16 bits in memory; sums and activations are fp32.
"""

from __future__ import annotations

import ctypes
import mmap
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path

import torch
from torch import Tensor

from eyas.errors import EyasError
from eyas.kernels.backend import LayerShape, Linear
from eyas.kernels.eager import Eager
from eyas.kernels.layer import NativeLayer, PackedMatrix, declare

LIBRARY = Path(__file__).parent / "cpu" / "libeyas_cpu.so"
HUGE_PAGE = 1 << 21
PARALLEL_FROM = 1 << 17
"""Multiply-adds from which a second thread pays for its waking."""


@cache
def load_library() -> ctypes.CDLL | None:
    """The library, or None where it was not built or does not load."""
    if not LIBRARY.is_file():
        return None
    try:
        # The kernels run on the threads that torch has already; a second pool would fight for the cores.
        for openmp in sorted((Path(torch.__file__).parent / "lib").glob("libgomp*.so*")):
            ctypes.CDLL(str(openmp), mode=ctypes.RTLD_GLOBAL)
        library = ctypes.CDLL(str(LIBRARY))
    except OSError:
        return None
    pointer, number = ctypes.c_void_p, ctypes.c_int64
    library.eyas_isa.restype = ctypes.c_char_p
    library.eyas_packed_size.argtypes, library.eyas_packed_size.restype = (number, number), number
    for pack in (library.eyas_pack_32, library.eyas_pack_16):
        pack.argtypes, pack.restype = (pointer, number, number, pointer), None
    for linear in (library.eyas_linear_f32, library.eyas_linear_bf16):
        linear.argtypes = (pointer, number, number, pointer, pointer, pointer, number, ctypes.c_int)
        linear.restype = None
    declare(library)
    return library


class Arena:
    """Memory for packed weights in huge pages, because small ones cost a third of the bandwidth."""

    def __init__(self, block_bytes: int = 64 << 20) -> None:
        self.block_bytes = block_bytes
        self._block: Tensor = torch.empty(0, dtype=torch.uint8)

    def zeros(self, count: int, dtype: torch.dtype) -> Tensor:
        """[count] zeros, 64-byte aligned; the memory lives as long as any tensor cut from its block."""
        need = -(-count * dtype.itemsize // 64) * 64
        if need > len(self._block):
            self._block = _huge_block(max(need, self.block_bytes))
        piece, self._block = self._block[:need], self._block[need:]
        return piece[: count * dtype.itemsize].view(dtype)


def _huge_block(size: int) -> Tensor:
    pages = mmap.mmap(-1, size + HUGE_PAGE)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        pages.madvise(mmap.MADV_HUGEPAGE)
    block = torch.frombuffer(pages, dtype=torch.uint8)
    start = -block.data_ptr() % HUGE_PAGE
    return block[start : start + size]


class Native(Eager):
    """Own linear layers on the CPU; norms, rotary and attention are the eager ones. Activations are fp32."""

    name = "native"
    copies_weights = True

    def __init__(self) -> None:
        library = load_library()
        if library is None:
            raise EyasError(
                "flags.range",
                f"the native library is not there ({LIBRARY.name} was not built, or does not load)",
                "install a C++ compiler and then eyas again, or use --backend onednn",
            )
        self._library, self._arena = library, Arena()

    @property
    def instruction_set(self) -> str:
        """The one chosen for this processor: base, avx2 or avx512."""
        name = self._library.eyas_isa()
        assert isinstance(name, bytes)
        return name.decode()

    def packed_dtype(self, weight_dtype: torch.dtype) -> torch.dtype:
        return weight_dtype if weight_dtype == torch.bfloat16 else torch.float32

    def activation_dtype(self, weight_dtype: torch.dtype) -> torch.dtype:
        return torch.float32

    def pack(self, weight_OI: Tensor, bias_O: Tensor | None) -> Callable[[Tensor], Tensor]:
        packed = self._pack_matrix(weight_OI, bias_O)
        N, K = weight_OI.shape
        wide = packed.weight.dtype == torch.float32
        linear = self._library.eyas_linear_f32 if wide else self._library.eyas_linear_bf16
        weight, bias = packed.weight.data_ptr(), None if packed.bias is None else packed.bias.data_ptr()
        pool = torch.get_num_threads

        def run(x: Tensor, keep: PackedMatrix = packed) -> Tensor:
            """``keep`` holds the memory that the pointers name."""
            assert x.dtype == torch.float32, x.dtype
            assert x.shape[-1] == K, (x.shape, K)
            x = x.contiguous()
            y = x.new_empty(*x.shape[:-1], N)
            M = y.numel() // N if N else 0
            threads = pool() if M * N * K >= PARALLEL_FROM else 1
            linear(x.data_ptr(), M, K, weight, bias, y.data_ptr(), N, threads)
            return y

        return run

    def fuse(self, shape: LayerShape, linears: Sequence[Linear], norms: Sequence[Tensor | None]) -> NativeLayer | None:
        packed = []
        for linear in linears:
            packed.append(self._pack_matrix(linear.weight.detach(), linear.bias))
            linear.drop()
        wide = [None if norm is None else norm.detach().float().contiguous() for norm in norms]
        return NativeLayer(self._library, shape, packed, wide)

    def _pack_matrix(self, weight_OI: Tensor, bias_O: Tensor | None) -> PackedMatrix:
        if weight_OI.device.type != "cpu":
            raise EyasError(
                "flags.contradiction", f"backend native with device {weight_OI.device}", "use --backend eager"
            )
        N, K = weight_OI.shape
        weight = weight_OI.to(self.packed_dtype(weight_OI.dtype)).contiguous()
        packed = self._arena.zeros(self._library.eyas_packed_size(N, K), weight.dtype)
        pack = self._library.eyas_pack_32 if weight.dtype == torch.float32 else self._library.eyas_pack_16
        pack(weight.data_ptr(), N, K, packed.data_ptr())
        return PackedMatrix(packed, None if bias_O is None else bias_O.detach().float().contiguous())
