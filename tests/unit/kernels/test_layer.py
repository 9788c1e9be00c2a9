"""Whole layers as native calls: every row's bits are those of its text read alone, one row at a time."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from eyas.kernels import KVCache, LayerShape, Linear, Part, Rows
from eyas.kernels.backend import Quantization
from eyas.kernels.native import Native, instruction_sets

QUANTIZATIONS: tuple[Quantization, ...] = ("none", "int8")
HIDDEN, HEADS, KV, D, INNER = 24, 6, 2, 12, 40
NATIVES = tuple(Native(name, kept) for name in instruction_sets() for kept in QUANTIZATIONS)


@pytest.fixture(autouse=True)
def _threads() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@dataclass
class Layer:
    """A random layer over a cache of its own; ``bare``: it has no norm of its input and reads twice the width."""

    backend: Native
    dtype: torch.dtype
    window: int | None
    bare: bool

    def __post_init__(self) -> None:
        generator = torch.Generator().manual_seed(7)
        width = 2 * HIDDEN if self.bare else HIDDEN
        sizes = ((width, (HEADS + 2 * KV) * D), (HEADS * D, HIDDEN), (HIDDEN, 2 * INNER), (INNER, HIDDEN))
        linears = []
        for inputs, outputs in sizes:
            linear = Linear(inputs, outputs, bias=True).requires_grad_(False).to(self.dtype)
            assert linear.bias is not None
            linear.weight.copy_(torch.randn(outputs, inputs, generator=generator) / inputs**0.5)
            linear.bias.copy_(torch.randn(outputs, generator=generator))
            linears.append(linear)
        norms = [1 + 0.1 * torch.randn(size, generator=generator) for size in (HIDDEN, HIDDEN, D, D)]
        shape = LayerShape(HIDDEN, width, HEADS, KV, D, INNER, self.window, 1e-5)
        self.run = self.backend.fuse(shape, linears, [None if self.bare else norms[0], *norms[1:]])
        self.cache = KVCache(1, 80, KV, D)

    def __call__(self, rows: Rows) -> Tensor:
        """Row results [R, H]; a row's input is a function of its token and position."""
        assert self.run is not None
        wave = torch.outer(1.0 + rows.tokens, torch.arange(1.0, 1 + 2 * HIDDEN)).sin()
        angle = torch.outer(rows.positions.float(), 0.3 ** torch.arange(float(D // 2))).repeat(1, 2)
        return self.run(wave[:, :HIDDEN], wave if self.bare else None, (angle.cos(), angle.sin()), rows, self.cache, 0)


@dataclass
class Request:
    """Committed tokens, then a forest of rows: tokens, and each one's parent within the forest."""

    text: list[int]
    tokens: list[int]
    parents: list[int]

    def path(self, row: int) -> list[int]:
        above = self.parents[row]
        return [*(self.path(above) if above >= 0 else []), row]


TOKENS = st.integers(0, 30)


@st.composite
def requests(draw: st.DrawFn) -> list[Request]:
    made = []
    for _ in range(draw(st.integers(1, 3))):
        tokens = draw(st.lists(TOKENS, min_size=1, max_size=12))
        parents = [draw(st.integers(-1, i - 1)) for i in range(len(tokens))]
        made.append(Request(draw(st.lists(TOKENS, max_size=10)), tokens, parents))
    return made


def alone(layer: Layer, tokens: list[int]) -> Tensor:
    """[n, H]: a text read one row at a time, from slot 0 on."""
    slots = torch.arange(len(tokens))
    return torch.cat([layer(Rows.build([Part([t], [i], [-1], [i], slots[:i])])) for i, t in enumerate(tokens)])


def together(layer: Layer, batch: list[Request], slots: list[int]) -> Tensor:
    """[R, H]: all committed texts in one call, then all forests in one call, over scattered slots."""
    texts, forests, free = [], [], iter(slots)
    for request in batch:
        n, table = len(request.text), torch.tensor([next(free) for _ in request.text], dtype=torch.int64)
        if n:
            texts.append(Part(request.text, range(n), range(-1, n - 1), table.tolist(), table[:0]))
        positions = [n + len(request.path(row)) - 1 for row in range(len(request.tokens))]
        own = [next(free) for _ in request.tokens]
        forests.append(Part(request.tokens, positions, request.parents, own, table))
    if texts:
        layer(Rows.build(texts))
    return layer(Rows.build(forests))


@pytest.mark.parametrize("bare", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@given(requests(), st.none() | st.integers(1, 9), st.integers(1, 3), st.permutations(range(66)))
@settings(max_examples=25, deadline=None)
def test_a_rows_bits_are_those_of_its_text_alone(
    dtype: torch.dtype, bare: bool, batch: list[Request], window: int | None, threads: int, slots: list[int]
) -> None:
    for backend in NATIVES:
        layer = Layer(backend, dtype, window, bare)
        torch.set_num_threads(threads)
        found = together(layer, batch, slots)
        torch.set_num_threads(1)
        expected = [
            alone(layer, request.text + [request.tokens[i] for i in request.path(row)])[-1]
            for request in batch
            for row in range(len(request.tokens))
        ]
        assert found.isfinite().all()
        assert torch.equal(found, torch.stack(expected)), backend.instruction_set


def test_instruction_sets_agree_up_to_rounding() -> None:
    text = list(range(20))
    for kept, near in ("none", 1e-4), ("int8", 2e-2):
        natives = [backend for backend in NATIVES if backend.quantization == kept]
        results = [alone(Layer(backend, torch.float32, None, False), text) for backend in natives]
        for other in results[1:]:
            torch.testing.assert_close(other, results[0], rtol=near, atol=near)


def test_nan_shows_in_its_own_request_and_in_no_other() -> None:
    batch = [Request([1, 2, 3], [4, 5], [-1, 0]), Request([6, 7], [8], [-1])]
    for backend in NATIVES:
        layer = Layer(backend, torch.float32, None, False)
        clean = together(layer, batch, list(range(66)))
        layer.cache.layers[0][1] = torch.nan
        tables = (torch.tensor([0, 1, 2]), torch.tensor([5, 6]))
        parts = [Part([4, 5], [3, 4], [-1, 0], [3, 4], tables[0]), Part([8], [2], [-1], [7], tables[1])]
        y = layer(Rows.build(parts))
        assert y[:2].isnan().all()
        assert torch.equal(y[2], clean[2])
