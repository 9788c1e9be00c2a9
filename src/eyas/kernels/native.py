"""The native backend: Eyas's own small-row linear layers, in C++ (kernels/cpu/), for Linux.

Decoding reads all weights once per token, and so does verifying several. These kernels come near that: they stream
packed weights once for all rows. An output is summed in input order, so a row's bits do not depend on how many rows
share the call, nor on threads. bf16 weights stay 16 bits in memory; sums and activations are fp32.

With ``quantization`` int8 weights are integers with a scale for each output and 32 inputs: of 4 bits where that loses
nothing, as with a model that comes from GGUF's Q4_1, else of 8. Activations are rounded to 8 bits by row and 32 inputs.
"""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import os
import sys
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path

import torch
from torch import Tensor

from eyas.errors import EyasError
from eyas.kernels.backend import FusedLayer, LayerShape, Linear, Quantization
from eyas.kernels.cpu.build import sources_digest
from eyas.kernels.eager import Eager
from eyas.kernels.integers import cannot_be_kept
from eyas.kernels.layer import Kind, Matrix, NativeLayer, NativeStack, PackedMatrix, declare

LIBRARY = Path(__file__).parent / "cpu" / "libeyas_cpu.so"
HUGE_PAGE = 1 << 21
SECTION_HEADERS = ((40, 48), (58, 60), (60, 62))
"""Where an ELF file's first 64 bytes say at which offset, of which size and how many its section headers are."""
_TRIED = (Kind.INT4, Kind.INT8)
PARALLEL_FROM = 1 << 17
"""Multiply-adds from which a second thread pays for its waking."""


def load_library() -> ctypes.CDLL | None:
    """The library, or None where it was not built, was built from other sources, or does not load."""
    return _load(LIBRARY)


@cache
def _load(path: Path) -> ctypes.CDLL | None:
    if not path.is_file() or not _is_whole(path):
        return None
    try:
        # The kernels run on the threads that torch has already; a second pool would fight for the cores.
        for openmp in sorted((Path(torch.__file__).parent / "lib").glob("libgomp*.so*")):
            ctypes.CDLL(str(openmp), mode=ctypes.RTLD_GLOBAL)
        library = ctypes.CDLL(str(path))
    except OSError:
        return None
    pointer, number, text = ctypes.c_void_p, ctypes.c_int64, ctypes.c_char_p
    if not hasattr(library, "eyas_sources"):
        return None
    library.eyas_sources.argtypes, library.eyas_sources.restype = (), text
    if library.eyas_sources() != sources_digest().encode():
        return None
    library.eyas_isa.argtypes, library.eyas_isa.restype = (number,), text
    library.eyas_machine_has.argtypes, library.eyas_machine_has.restype = (number,), ctypes.c_int
    library.eyas_packed_bytes.argtypes, library.eyas_packed_bytes.restype = (number, number, number), number
    library.eyas_pack.argtypes, library.eyas_pack.restype = (number, pointer, number, number, pointer), ctypes.c_int
    library.eyas_linear.argtypes = (number, pointer, number, number, pointer, pointer, number, ctypes.c_int)
    library.eyas_linear.restype = None
    declare(library)
    return library


def _is_whole(path: Path) -> bool:
    """Whether a 64-bit ELF file reaches to the end of its section headers, which stand last.

    Loading one that was cut off would end the process.
    """
    with path.open("rb") as file:
        head, size = file.read(64), os.fstat(file.fileno()).st_size
    if len(head) < 64 or head[:5] != b"\x7fELF\x02":
        return False
    offset, entry_size, count = (int.from_bytes(head[at:end], sys.byteorder) for at, end in SECTION_HEADERS)
    return offset + entry_size * count <= size


def instruction_sets() -> dict[str, int]:
    """What the library is compiled for and this machine has, fastest first, with the library's number for each."""
    library, found, index = load_library(), {}, 0
    while library is not None and (name := library.eyas_isa(index)) is not None:
        if library.eyas_machine_has(index):
            found[name.decode()] = index
        index += 1
    return found


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
        with contextlib.suppress(OSError):  # a kernel without huge pages; small ones hold the same
            pages.madvise(mmap.MADV_HUGEPAGE)
    block = torch.frombuffer(pages, dtype=torch.uint8)
    start = -block.data_ptr() % HUGE_PAGE
    return block[start : start + size]


def _plain(x: Tensor) -> Tensor:
    """``x``, or a copy of it where it is scattered or begins between two elements."""
    x = x.contiguous()
    return x.clone() if x.data_ptr() % x.element_size() else x


class Native(Eager):
    """Own linear layers on the CPU; norms, rotary and attention are the eager ones. Activations are fp32."""

    name = "native"
    copies_weights = True

    def __init__(self, instruction_set: str | None = None, quantization: Quantization = "none") -> None:
        """``instruction_set``: base, avx2 or avx512; by default the fastest that this machine has."""
        library = load_library()
        if library is None:
            raise EyasError(
                "flags.range",
                f"the native library does not load ({LIBRARY.name} was not built, or from other sources than these)",
                "install a C++ compiler and then eyas again, or use --backend onednn",
            )
        sets = instruction_sets()
        self.instruction_set = instruction_set or next(iter(sets))
        super().__init__(quantization)
        self._library, self._arena, self._isa = library, Arena(), sets[self.instruction_set]

    def packed_dtype(self, weight_dtype: torch.dtype) -> torch.dtype:
        if self.quantization == "int8":
            return torch.int8
        return weight_dtype if weight_dtype == torch.bfloat16 else torch.float32

    def activation_dtype(self, weight_dtype: torch.dtype) -> torch.dtype:
        return torch.float32

    def pack(self, weight_OI: Tensor, bias_O: Tensor | None) -> Callable[[Tensor], Tensor]:
        packed = self._pack_matrix(weight_OI, bias_O)
        (N, K), linear, matrix = weight_OI.shape, self._library.eyas_linear, packed.pointers()
        weight = ctypes.addressof(matrix)
        pool, isa = torch.get_num_threads, self._isa

        def run(x: Tensor, keep: tuple[PackedMatrix, Matrix] = (packed, matrix)) -> Tensor:
            """``keep`` holds the memory that the pointers name."""
            assert x.dtype == torch.float32, x.dtype
            assert x.shape[-1] == K, (x.shape, K)
            assert x.device.type == "cpu", x.device
            x = _plain(x)
            y = x.new_empty(*x.shape[:-1], N)
            M = y.numel() // N if N else 0
            threads = pool() if M * N * K >= PARALLEL_FROM else 1
            linear(isa, x.data_ptr(), M, K, weight, y.data_ptr(), N, threads)
            return y

        return run

    def fuse(self, shape: LayerShape, linears: Sequence[Linear], norms: Sequence[Tensor | None]) -> NativeLayer | None:
        packed = []
        for linear in linears:
            packed.append(self._pack_matrix(linear.weight.detach(), linear.bias))
            linear.drop()
        wide = [None if norm is None else norm.detach().float().contiguous() for norm in norms]
        return NativeLayer(self._library, self._isa, shape, packed, wide)

    def stack(self, layers: Sequence[FusedLayer]) -> NativeStack:
        mine = [layer for layer in layers if isinstance(layer, NativeLayer)]
        assert len(mine) == len(layers)
        return NativeStack(self._library, self._isa, mine)

    def _pack_matrix(self, weight_OI: Tensor, bias_O: Tensor | None) -> PackedMatrix:
        if weight_OI.device.type != "cpu":
            raise EyasError(
                "flags.contradiction", f"backend native with device {weight_OI.device}", "use --backend eager"
            )
        N, K = weight_OI.shape
        assert bias_O is None or bias_O.shape == (N,), (bias_O.shape, N)
        bias = None if bias_O is None else _plain(bias_O.detach().float())
        for kind in self._kinds(weight_OI.dtype):
            weight = _plain(weight_OI.to(torch.bfloat16 if kind == Kind.BF16 else torch.float32))
            size = self._library.eyas_packed_bytes(kind, N, K)
            # What may not fit is tried elsewhere, so that the arena has no holes.
            packed = torch.zeros(size, dtype=torch.uint8) if kind in _TRIED else self._arena.zeros(size, torch.uint8)
            if self._library.eyas_pack(kind, weight.data_ptr(), N, K, packed.data_ptr()):
                if kind in _TRIED:
                    packed = self._arena.zeros(size, torch.uint8).copy_(packed)
                self.packed_bytes += size if kind in _TRIED else weight.nbytes  # without what fills up a panel
                return PackedMatrix(kind, packed, bias)
        raise cannot_be_kept()

    def _kinds(self, dtype: torch.dtype) -> tuple[Kind, ...]:
        """How weights may be kept, the best first."""
        if self.quantization == "int8":
            return (Kind.INT4, Kind.INT8)
        return (Kind.BF16,) if dtype == torch.bfloat16 else (Kind.FP32,)
