"""A whole decoder layer as one native call, over the rows of several requests (kernels/cpu/layer.h).

The readable definitions in models/llama.py and draft/model.py are the truth; this computes the same, with every row's
bits independent of the batch.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from ctypes import Array, Structure, c_float, c_int, c_int64, c_void_p
from dataclasses import dataclass
from enum import IntEnum

import torch
from torch import Tensor

from eyas.kernels.backend import LayerShape
from eyas.kernels.rows import KVCache, Rows


class Kind(IntEnum):
    """How a packed matrix holds its weights, as in kernels/cpu/layer_args.h."""

    FP32 = 0
    BF16 = 1
    INT8 = 2
    INT4 = 3


class Matrix(Structure):
    """A packed matrix as the native side sees it."""

    _fields_ = (("packed", c_void_p), ("bias", c_void_p), ("kind", c_int64))


MATRICES = ("qkv", "o", "gate_up", "down")
NORMS = ("input_norm", "mlp_norm", "q_norm", "k_norm")
SIZES = ("hidden", "input_width", "heads", "kv_heads", "head_dim", "inner", "rotated", "window")
ROW_POINTERS = ("request", "positions", "slots", "tables", "table_start", "path", "path_start", "cos", "sin", "cache")


class _LayerArgs(Structure):
    _fields_ = (
        *((name, Matrix) for name in MATRICES),
        *((name, c_void_p) for name in NORMS),
        *((name, c_int64) for name in SIZES),
        ("eps", c_float),
        ("scale", c_float),
    )


class _BatchArgs(Structure):
    _fields_ = (("rows", c_int64), *((name, c_void_p) for name in ROW_POINTERS))


@dataclass(frozen=True)
class PackedMatrix:
    """A packed weight [N, K] and its bias, kept alive for the pointers that name them. ``weight``: bytes."""

    kind: Kind
    weight: Tensor
    bias: Tensor | None

    def pointers(self) -> Matrix:
        """As the native side sees it."""
        return Matrix(self.weight.data_ptr(), None if self.bias is None else self.bias.data_ptr(), self.kind)


class NativeLayer:
    """One layer's weights, ready for native calls."""

    def __init__(
        self,
        library: ctypes.CDLL,
        isa: int,
        shape: LayerShape,
        matrices: Sequence[PackedMatrix],
        norms: Sequence[Tensor | None],
    ) -> None:
        """``matrices``: qkv, o, gate_up, down. ``norms``: of the input (None: the caller gives what attention reads),
        of the MLP, and of q and k per head or None."""
        self._library, self._isa, self._keep = library, isa, (tuple(matrices), tuple(norms))
        self._takes_input = norms[0] is None
        self._args = _LayerArgs(
            *(matrix.pointers() for matrix in matrices),
            *(None if norm is None else norm.data_ptr() for norm in norms),
            shape.hidden,
            shape.input_width,
            shape.heads,
            shape.kv_heads,
            shape.head_dim,
            shape.inner,
            shape.head_dim,
            shape.window or 0,
            shape.eps,
            shape.head_dim**-0.5,
        )
        self.shape = shape

    @property
    def args(self) -> _LayerArgs:
        """As the native side sees it."""
        return self._args

    def __call__(
        self, x_RH: Tensor, input_RW: Tensor | None, turn: tuple[Tensor, Tensor], rows: Rows, cache: KVCache, layer: int
    ) -> Tensor:
        shape = self.shape
        assert self._takes_input == (input_RW is not None)
        out = x_RH.contiguous().clone()
        assert out.dtype == torch.float32, out.dtype
        assert out.shape == (len(rows), shape.hidden), out.shape
        if input_RW is not None:
            input_RW = input_RW.contiguous()
            assert input_RW.dtype == torch.float32, input_RW.dtype
            assert input_RW.shape == (len(rows), shape.input_width), input_RW.shape
        assert turn[0].numel() == turn[1].numel() == len(rows) * shape.head_dim, turn[0].shape
        assert cache.layers[layer].shape[1:] == (2 * shape.kv_heads, shape.head_dim), cache.layers[layer].shape
        batch = batch_args(self._library, rows, turn, cache, layer)
        self._library.eyas_layer(
            self._isa,
            ctypes.byref(self._args),
            ctypes.byref(batch.args),
            out.data_ptr(),
            None if input_RW is None else input_RW.data_ptr(),
            torch.get_num_threads(),
        )
        return out


class NativeStack:
    """Layers one after the other as one native call; none of them takes an input of its own."""

    def __init__(self, library: ctypes.CDLL, isa: int, layers: Sequence[NativeLayer]) -> None:
        self._library, self._isa, self._layers = library, isa, tuple(layers)
        self._args = (c_void_p * len(layers))(*(ctypes.addressof(layer.args) for layer in layers))

    def __call__(
        self, x_RH: Tensor, turn: tuple[Tensor, Tensor], rows: Rows, cache: KVCache, taps: Tensor, ids: Sequence[int]
    ) -> Tensor:
        out, shape, count = x_RH.contiguous().clone(), self._layers[0].shape, len(self._layers)
        assert out.dtype == taps.dtype == torch.float32, (out.dtype, taps.dtype)
        assert out.shape == (len(rows), shape.hidden), out.shape
        assert taps.shape == (len(rows), len(ids), shape.hidden), taps.shape
        assert taps.is_contiguous()
        assert turn[0].numel() == turn[1].numel() == len(rows) * shape.head_dim, turn[0].shape
        batch, places = batch_args(self._library, rows, turn, cache, 0), (c_void_p * (count + 1))()
        for tap in ids:
            places[tap] = taps.data_ptr() + ids.index(tap) * shape.hidden * taps.element_size()
        self._library.eyas_layers(
            self._isa,
            self._args,
            count,
            ctypes.byref(batch.args),
            _stores(cache, shape, count),
            out.data_ptr(),
            places,
            len(ids) * shape.hidden,
            torch.get_num_threads(),
        )
        for column, tap in enumerate(ids):
            if ids.index(tap) < column:  # the native side knows one place for a tap
                taps[:, column] = taps[:, ids.index(tap)]
        return out


def _stores(cache: KVCache, shape: LayerShape, count: int) -> Array[c_void_p]:
    """Where each layer's keys and values lie; kept with the cache, whose tensors stay where they are."""
    stores = cache.prepared.get("native")
    if stores is None:
        assert len(cache.layers) == count, (len(cache.layers), count)
        for store in cache.layers:
            assert store.shape[1:] == (2 * shape.kv_heads, shape.head_dim), store.shape
            assert store.dtype == torch.float32
            assert store.is_contiguous()
        stores = cache.prepared["native"] = (c_void_p * count)(*(store.data_ptr() for store in cache.layers))
    assert isinstance(stores, Array)
    return stores


@dataclass
class _Batch:
    """A batch as the native side sees it, and the tensors that its pointers name."""

    args: _BatchArgs
    keep: tuple[Tensor, ...]


def batch_args(library: ctypes.CDLL, rows: Rows, turn: tuple[Tensor, Tensor], cache: KVCache, layer: int) -> _Batch:
    """The batch for one layer; what all layers of a forward share is made once and kept with the rows."""
    batch = rows.prepared.get("native")
    if not isinstance(batch, _Batch):
        batch = _prepare(library, rows)
        rows.prepared["native"] = batch
    cos, sin = turn
    assert cos.dtype == sin.dtype == torch.float32
    assert cos.is_contiguous()
    assert sin.is_contiguous()
    store = cache.layers[layer]
    assert store.dtype == torch.float32
    batch.args.cos, batch.args.sin, batch.args.cache = cos.data_ptr(), sin.data_ptr(), store.data_ptr()
    return batch


def _prepare(library: ctypes.CDLL, rows: Rows) -> _Batch:
    R = len(rows)
    lengths = torch.tensor([0, *(len(table) for table in rows.tables)])
    starts, tables = lengths.cumsum(0), torch.cat([*rows.tables, lengths[:0]])
    path_start, parent = torch.empty(R + 1, dtype=torch.int64), rows.parent.contiguous()
    assert bool((parent < torch.arange(R)).all()), "a parent comes before its children"
    library.eyas_paths(parent.data_ptr(), R, path_start.data_ptr(), None)
    path = torch.empty(int(path_start[-1]), dtype=torch.int64)
    library.eyas_paths(parent.data_ptr(), R, path_start.data_ptr(), path.data_ptr())
    parts = (rows.request, rows.positions, rows.slots, tables, starts, path, path_start)
    keep = tuple(tensor.contiguous() for tensor in parts)
    return _Batch(_BatchArgs(R, *(tensor.data_ptr() for tensor in keep)), keep)


def declare(library: ctypes.CDLL) -> None:
    """Tell ctypes what the library's functions take."""
    library.eyas_paths.argtypes, library.eyas_paths.restype = (c_void_p, c_int64, c_void_p, c_void_p), None
    library.eyas_layer.argtypes = (c_int64, c_void_p, c_void_p, c_void_p, c_void_p, c_int)
    library.eyas_layer.restype = None
    pointers = (c_int64, c_void_p, c_int64, c_void_p, c_void_p, c_void_p, c_void_p, c_int64, c_int)
    library.eyas_layers.argtypes, library.eyas_layers.restype = pointers, None
