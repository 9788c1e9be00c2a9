"""Linear layers on integers: the own kernels against the readable definition, bit by bit against themselves, and what
nothing is lost of.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from eyas.errors import EyasError
from eyas.kernels import native
from eyas.kernels.eager import Eager
from eyas.kernels.integers import GROUP, MOST, eight_bits, fits_four_bits, kept, rounded
from eyas.kernels.layer import Kind
from eyas.kernels.native import Native, instruction_sets

SIZES = st.integers(1, 40) | st.integers(1, 200) | st.sampled_from([16, 31, 32, 33, 64, 96, 192])
SEEDS = st.integers(0, 2**31)
NATIVES = tuple(Native(name, "int8") for name in instruction_sets())


@pytest.fixture(autouse=True)
def _threads() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def numbers(*shape: int, seed: int) -> Tensor:
    """Of very different sizes, group by group, with some zeros."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(*shape, generator=generator) * 10 ** (3 * torch.randn(shape[0], 1, generator=generator))
    return torch.where(torch.rand(x.shape, generator=generator) < 0.05, 0, x)


def weights(N: int, K: int, seed: int) -> Tensor:
    """What a scale can hold."""
    return numbers(N, K, seed=seed).clamp(-1e6, 1e6)


def on_a_grid(N: int, K: int, seed: int) -> Tensor:
    """As a file of 4 bits holds it: offset + scale · (0 … 15) in groups of 32, scale and offset halves."""
    generator = torch.Generator().manual_seed(seed)
    groups = -(-K // GROUP)
    scale = (torch.rand(N, groups, 1, generator=generator) * 0.1).half().float()
    offset = torch.randn(N, groups, 1, generator=generator).half().float()
    levels = torch.randint(0, 16, (N, groups, GROUP), generator=generator)
    levels[..., 0] = 0  # a file's least value is its offset
    return (levels * scale + offset).flatten(1)[:, :K]


def same_bits(a: Tensor, b: Tensor) -> bool:
    return torch.equal(a.view(torch.int32), b.view(torch.int32))


def assert_close(y: Tensor, x: Tensor, weight: Tensor, bias: Tensor) -> None:
    """Within what the order of the sums of groups may round, of the exact product of what is kept."""
    if not len(x):
        return
    exact_x, exact_w = rounded(x).double(), kept(weight).double()
    bound = (6 * -(-x.shape[-1] // GROUP) + 8) * 2.0**-24 * (exact_x.abs() @ exact_w.abs().T + bias.double().abs())
    # An offset is added for the group's sum, which may be larger than what it is of.
    bound = bound + 2.0**-20 * exact_x.abs().amax() * exact_w.abs().amax() * x.shape[-1]
    error = (y.double() - (exact_x @ exact_w.T + bias.double())).abs()
    assert bool((error <= bound).all()), float((error / bound).max())


@given(st.integers(1, 6), SIZES, SEEDS)
@settings(max_examples=60, deadline=None)
def test_what_is_kept_is_near(rows: int, K: int, seed: int) -> None:
    """By half a step of the group's own scale."""
    x = numbers(rows, K, seed=seed)
    weight = x.clamp(-1e6, 1e6)
    for number, near in ((x, rounded(x)), (weight, eight_bits(weight))):
        groups = torch.nn.functional.pad(number, (0, -K % GROUP)).unflatten(-1, (-1, GROUP)).abs().amax(-1)
        step = (groups * 1.001 / MOST + 2.0**-24).repeat_interleave(GROUP, -1)[:, :K]
        assert bool(((number - near).abs() <= 0.5 * step * 1.01).all())


@given(SIZES, SIZES, st.integers(0, 60), st.booleans(), SEEDS)
@settings(max_examples=80, deadline=None)
def test_linear_is_the_formula(N: int, K: int, M: int, four: bool, seed: int) -> None:
    weight = on_a_grid(N, K, seed) if four else weights(N, K, seed)
    bias, x = numbers(N, 1, seed=seed + 1)[:, 0], numbers(max(M, 1), K, seed=seed + 2)[:M]
    for backend in (*NATIVES, Eager("int8")):
        y = backend.pack(weight, bias)(x)
        assert y.shape == (M, N)
        assert_close(y, x, weight, bias)


@pytest.mark.parametrize(("N", "K", "M"), [(1, 1, 1), (17, 4096, 3), (1, 33, 49), (49, 1536, 97), (16, 32, 512)])
def test_linear_is_the_formula_at_the_edges(N: int, K: int, M: int) -> None:
    weight, bias, x = weights(N, K, 1), torch.zeros(N), numbers(M, K, seed=2)
    for backend in NATIVES:
        assert_close(backend.pack(weight, None)(x), x, weight, bias)
        assert_close(backend.pack(on_a_grid(N, K, 3), None)(x), x, on_a_grid(N, K, 3), bias)


@given(SIZES, SIZES, st.integers(1, 60), st.booleans(), st.data())
@settings(max_examples=60, deadline=None)
def test_a_rows_bits_depend_on_nothing_but_the_row(N: int, K: int, M: int, four: bool, data: st.DataObject) -> None:
    seed = data.draw(SEEDS)
    first = data.draw(st.integers(0, M - 1))
    last = data.draw(st.integers(first + 1, M))
    weight = on_a_grid(N, K, seed) if four else weights(N, K, seed)
    x, order = numbers(M, K, seed=seed + 1), torch.randperm(M, generator=torch.Generator().manual_seed(seed))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(native, "PARALLEL_FROM", 0)
        for backend in NATIVES:
            linear = backend.pack(weight, None)
            torch.set_num_threads(1)
            alone = torch.cat([linear(row[None]) for row in x])
            for threads in (1, 2, 3):
                torch.set_num_threads(threads)
                assert same_bits(linear(x), alone), (backend.instruction_set, threads)
                assert same_bits(linear(x[first:last]), alone[first:last])
                assert same_bits(linear(x[order]), alone[order])


@given(st.integers(1, 40), st.integers(1, 130), SEEDS)
@settings(max_examples=60, deadline=None)
def test_what_fits_four_bits_loses_nothing(N: int, K: int, seed: int) -> None:
    weight = on_a_grid(N, K, seed)
    assert fits_four_bits(weight)
    assert torch.equal(kept(weight), weight)
    for backend in NATIVES:
        assert backend._pack_matrix(weight, None).kind == Kind.INT4
        # Every weight by itself: what a row of one 1 gives.
        ones = torch.eye(K) * 127
        assert torch.allclose(backend.pack(weight, None)(ones).T, weight * 127, rtol=1e-6, atol=1e-6)


@given(st.integers(1, 20), st.integers(20, 130), SEEDS)
@settings(max_examples=30, deadline=None)
def test_one_weight_off_the_grid_takes_eight_bits(N: int, K: int, seed: int) -> None:
    weight = on_a_grid(N, K, seed)
    weight[N // 2, K // 2] += 0.0137
    for backend in NATIVES:
        assert (backend._pack_matrix(weight, None).kind == Kind.INT4) == fits_four_bits(weight)


def test_eight_bits_of_a_file_of_eight_bits_lose_nothing() -> None:
    """GGUF's Q8_0: a half times -127 … 127, the largest of them reached."""
    generator = torch.Generator().manual_seed(0)
    values = torch.randint(-127, 128, (24, 5, GROUP), generator=generator)
    values[..., 7] = 127
    weight = (values * (torch.rand(24, 5, 1, generator=generator) * 0.01).half().float()).flatten(1)
    assert torch.equal(eight_bits(weight), weight)
    x = numbers(3, 5 * GROUP, seed=1)
    for backend in NATIVES:
        assert backend._pack_matrix(weight, None).kind == Kind.INT8
        assert_close(backend.pack(weight, None)(x), x, weight, torch.zeros(24))


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("four", [False, True])
def test_what_is_not_finite_shows_in_its_own_row(bad: float, four: bool) -> None:
    weight, x = on_a_grid(20, 70, 1) if four else weights(20, 70, 1), numbers(9, 70, seed=2)
    broken = x.clone()
    broken[4, 33] = bad
    others = torch.arange(9) != 4
    for backend in (*NATIVES, Eager("int8")):
        linear = backend.pack(weight, None)
        assert bool(linear(broken)[4].isnan().all())
        assert same_bits(linear(broken)[others], linear(x)[others])


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), 1e9])
def test_weights_that_cannot_be_kept_are_refused(bad: float) -> None:
    weight = weights(5, 40, 1)
    weight[3, 35] = bad
    for backend in (*NATIVES, Eager("int8")):
        with pytest.raises(EyasError) as error:
            backend.pack(weight, None)
        assert error.value.code == "model.nonfinite"


def test_all_instruction_sets_round_alike() -> None:
    """The integers are the same everywhere, so that only the sums of groups may differ, in their last bits."""
    weight, x = weights(40, 300, 1), numbers(50, 300, seed=2)
    outputs = [backend.pack(weight, None)(x) for backend in NATIVES]
    for other in outputs[1:]:
        torch.testing.assert_close(other, outputs[0], rtol=1e-5, atol=float(outputs[0].abs().amax()) * 1e-6)
