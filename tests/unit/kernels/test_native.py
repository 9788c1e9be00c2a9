"""The own linear layers, on every instruction set that this machine has: values, bits, bad input, memory.

Where the library was not built there is nothing to loop over; test_native_library.py holds that it is built wherever
there is a compiler.
"""

from __future__ import annotations

import gc
import mmap
from collections.abc import Callable, Iterator

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from eyas.errors import EyasError
from eyas.kernels import native
from eyas.kernels.native import Arena, Native, instruction_sets

CHAIN = 96
"""Inputs that the kernel sums before they join the total; with K it gives the bound of its rounding."""
DTYPES = (torch.float32, torch.bfloat16)
SIZES = st.integers(1, 40) | st.integers(1, 300) | st.sampled_from([16, 48, 95, 96, 97, 192, 256])
SEEDS = st.integers(0, 2**31)
NATIVES = tuple(Native(name) for name in instruction_sets())

Linear = Callable[[Tensor], Tensor]


@pytest.fixture(autouse=True)
def _threads() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.fixture
def always_parallel(monkeypatch: pytest.MonkeyPatch) -> None:
    """Threads even for the smallest product, so that some have no work."""
    monkeypatch.setattr(native, "PARALLEL_FROM", 0)


def matrix(N: int, K: int, seed: int, dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(N, K, generator=generator).to(dtype), torch.randn(N, generator=generator).to(dtype)


def inputs(M: int, K: int, seed: int) -> Tensor:
    return torch.randn(M, K, generator=torch.Generator().manual_seed(seed + 1))


def same_bits(a: Tensor, b: Tensor) -> bool:
    return torch.equal(a.view(torch.int32), b.view(torch.int32))


def assert_is_the_product(y: Tensor, x: Tensor, weight: Tensor, bias: Tensor | None) -> None:
    """Within the bound that the order of summation guarantees (Higham, Accuracy and Stability, section 3.1)."""
    w, b = weight.double(), torch.zeros(len(weight)).double() if bias is None else bias.double()
    roundings = min(CHAIN, x.shape[-1]) + 1 + -(-x.shape[-1] // CHAIN) + 1
    bound = roundings * 2.0**-24 * 1.01 * (x.double().abs() @ w.abs().T + b.abs())
    error = (y.double() - (x.double() @ w.T + b)).abs()
    assert y.shape == (*x.shape[:-1], len(weight))
    assert bool((error <= bound).all()), float((error / bound).max())


@given(SIZES, SIZES, st.integers(0, 70), st.sampled_from(DTYPES), st.booleans(), SEEDS)
@settings(max_examples=120, deadline=None)
def test_linear_is_the_formula(N: int, K: int, M: int, dtype: torch.dtype, biased: bool, seed: int) -> None:
    weight, bias = matrix(N, K, seed, dtype)
    x = inputs(M, K, seed)
    for backend in NATIVES:
        y = backend.pack(weight, bias if biased else None)(x)
        assert_is_the_product(y, x, weight, bias if biased else None)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(("N", "K", "M"), [(1, 1, 1), (17, 1, 3), (1, 193, 49), (5, 4096, 2), (49, 1536, 97)])
def test_linear_is_the_formula_at_the_edges(N: int, K: int, M: int, dtype: torch.dtype) -> None:
    weight, bias = matrix(N, K, 0, dtype)
    for backend in NATIVES:
        assert_is_the_product(backend.pack(weight, bias)(inputs(M, K, 0)), inputs(M, K, 0), weight, bias)


def test_an_empty_batch_gives_no_rows_and_no_inputs_give_the_bias() -> None:
    for backend in NATIVES:
        weight, bias = matrix(20, 7, 0)
        assert backend.pack(weight, bias)(torch.empty(0, 7)).shape == (0, 20)
        assert torch.equal(backend.pack(weight[:, :0], bias)(torch.empty(2, 0)), bias.expand(2, 20))


@pytest.mark.usefixtures("always_parallel")
@given(SIZES, SIZES, st.integers(1, 64), st.sampled_from(DTYPES), st.booleans(), st.data())
@settings(max_examples=60, deadline=None)
def test_a_rows_bits_depend_on_nothing_but_the_row(
    N: int, K: int, M: int, dtype: torch.dtype, biased: bool, data: st.DataObject
) -> None:
    seed = data.draw(SEEDS)
    first = data.draw(st.integers(0, M - 1))
    last = data.draw(st.integers(first + 1, M))
    weight, bias = matrix(N, K, seed, dtype)
    x, order = inputs(M, K, seed), torch.randperm(M, generator=torch.Generator().manual_seed(seed))
    for backend in NATIVES:
        linear = backend.pack(weight, bias if biased else None)
        torch.set_num_threads(1)
        alone = torch.cat([linear(row[None]) for row in x])
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            assert same_bits(linear(x), alone), (backend.instruction_set, threads)
            assert same_bits(linear(x[first:last]), alone[first:last])
            assert same_bits(linear(x[order]), alone[order])


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
@given(st.integers(1, 40), st.integers(1, 200), st.integers(1, 30), st.data())
@settings(max_examples=15, deadline=None)
def test_what_is_not_finite_shows_where_it_belongs(
    dtype: torch.dtype, bad: float, N: int, K: int, M: int, data: st.DataObject
) -> None:
    """In x: in the whole row, and in no other. In a weight: in its output of every row, and in no other."""
    row, k, n = (data.draw(st.integers(0, size - 1)) for size in (M, K, N))
    weight, bias = matrix(N, K, 1, dtype)
    x = inputs(M, K, 1)
    broken_x, broken_weight = x.clone(), weight.clone()
    broken_x[row, k], broken_weight[n, k] = bad, bad
    rows, outputs = torch.arange(M) != row, torch.arange(N) != n
    for backend in NATIVES:
        clean = backend.pack(weight, bias)(x)
        y = backend.pack(weight, bias)(broken_x)
        assert torch.equal(y[row], bad * weight[:, k].sign().float()) or (bad != bad and bool(y[row].isnan().all()))
        assert same_bits(y[rows], clean[rows])
        z = backend.pack(broken_weight, bias)(x)
        assert torch.equal(z[:, n], bad * x[:, k].sign()) or (bad != bad and bool(z[:, n].isnan().all()))
        assert same_bits(z[:, outputs], clean[:, outputs])


def unaligned(x: Tensor) -> Tensor:
    """The same values, beginning one byte after an element's boundary."""
    memory = bytearray(x.numel() * x.element_size() + 64)
    start = -torch.frombuffer(memory, dtype=torch.uint8).data_ptr() % 16 + 1
    copy = torch.frombuffer(memory, dtype=x.dtype, count=x.numel(), offset=start).view(x.shape)
    torch.frombuffer(memory, dtype=torch.uint8, count=x.numel() * x.element_size(), offset=start).copy_(
        x.contiguous().view(torch.uint8).flatten()
    )
    assert copy.data_ptr() % x.element_size() == 1
    return copy


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_scattered_and_unaligned_memory_gives_the_same(dtype: torch.dtype) -> None:
    weight, bias = matrix(37, 50, 2, dtype)
    x = inputs(6, 50, 2)
    padded, wide = torch.randn(12, 60), torch.randn(37, 100).to(dtype)
    padded[::2, 5:55], wide[:, ::2] = x, weight
    assert native._plain(unaligned(weight)).data_ptr() % weight.element_size() == 0
    for backend in NATIVES:
        linear = backend.pack(weight, bias)
        expected = linear(x)
        for same in (padded[::2, 5:55], x.t().contiguous().t(), unaligned(x)):
            assert same_bits(linear(same), expected)
        for same in (wide[:, ::2], weight.t().contiguous().t(), unaligned(weight)):
            assert same_bits(backend.pack(same, unaligned(bias))(x), expected)
        assert same_bits(linear(x.view(2, 3, 50)), expected.view(2, 3, 37))
        assert same_bits(linear(x[0]), expected[0])
        assert same_bits(linear(x[:1].expand(4, 50)), expected[:1].expand(4, 37).contiguous())


def test_other_dtypes_of_weights_are_packed_as_fp32() -> None:
    weight, bias = matrix(9, 11, 3)
    for backend in NATIVES:
        for dtype in (torch.float16, torch.float64):
            assert backend.packed_dtype(dtype) == torch.float32
            x = inputs(3, 11, 3)
            expected = backend.pack(weight.to(dtype).float(), bias.to(dtype).float())(x)
            assert same_bits(backend.pack(weight.to(dtype), bias.to(dtype))(x), expected)


def test_a_wrong_call_is_our_own_fault() -> None:
    weight, bias = matrix(9, 11, 4)
    for backend in NATIVES:
        linear = backend.pack(weight, bias)
        for wrong in (torch.zeros(3, 10), torch.zeros(3, 11).double(), torch.empty(3, 11, device="meta")):
            with pytest.raises(AssertionError):
                linear(wrong)
        with pytest.raises(AssertionError):
            backend.pack(weight, bias[:8])
        with pytest.raises(EyasError, match="meta") as caught:
            backend.pack(torch.empty(3, 4, device="meta"), None)
        assert caught.value.code == "flags.contradiction"


def test_packed_weights_outlive_the_backend_and_what_they_were_packed_from() -> None:
    for name in instruction_sets():
        backend = Native(name)
        weight, bias = matrix(300, 200, 5)
        x = inputs(4, 200, 5)
        expected = x.double() @ weight.double().T + bias.double()
        linear = backend.pack(weight, bias)
        weight.fill_(torch.nan)
        del backend, weight, bias
        gc.collect()
        rubbish = [Arena(1 << 20).zeros(1 << 18, torch.float32).fill_(torch.nan) for _ in range(8)]
        torch.testing.assert_close(linear(x).double(), expected, rtol=1e-4, atol=1e-4)
        assert len(rubbish) == 8


@given(st.lists(st.tuples(st.integers(0, 3000), st.sampled_from(DTYPES)), max_size=12))
@settings(max_examples=30, deadline=None)
def test_the_arena_gives_aligned_zeros_that_are_nobody_elses(wanted: list[tuple[int, torch.dtype]]) -> None:
    arena = Arena(block_bytes=4096)
    pieces = []
    for i, (count, dtype) in enumerate(wanted):
        piece = arena.zeros(count, dtype)
        assert piece.shape == (count,)
        assert piece.dtype == dtype
        assert piece.data_ptr() % 64 == 0
        assert not piece.any()
        pieces.append(piece.fill_(i + 1))
    del arena
    for i, piece in enumerate(pieces):
        assert bool((piece == i + 1).all())


def test_an_arena_does_without_huge_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mmap, "MADV_HUGEPAGE", 12345, raising=False)
    assert not Arena(4096).zeros(100, torch.float32).any()
