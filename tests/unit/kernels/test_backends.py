"""Backends against formulas and against each other; whether a row's bits depend on its company."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from backends import RUNNABLE as NAMES
from eyas.errors import EyasError
from eyas.kernels import Linear, get_backend

ROW_TOLERANCE = {"AVX2": 0.0}
"""oneDNN's packed kernel gives a row the same bits in any company on AVX2. On other CPUs it may choose its kernel
by the number of rows; there the same is claimed within ``OTHERWISE`` of the largest value."""
OTHERWISE = 3e-6

SHAPES = st.tuples(st.integers(1, 70), st.integers(1, 70)) | st.sampled_from([(960, 576), (576, 1536), (97, 48)])


def weights(O: int, I: int, seed: int, dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor]:  # noqa: E741
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(O, I, generator=generator).to(dtype), torch.randn(O, generator=generator).to(dtype)


@given(SHAPES, st.integers(1, 64), st.booleans(), st.integers(0, 2**31))
@settings(max_examples=60, deadline=None)
def test_onednn_row_bits_do_not_depend_on_the_other_rows(
    shape: tuple[int, int], M: int, biased: bool, seed: int
) -> None:
    weight, bias = weights(*shape, seed)
    linear = get_backend("onednn").pack(weight, bias if biased else None)
    x = torch.randn(M, shape[1], generator=torch.Generator().manual_seed(seed + 1))
    together, one_by_one = linear(x), torch.cat([linear(row[None]) for row in x])
    allowed = ROW_TOLERANCE.get(torch.backends.cpu.get_cpu_capability(), OTHERWISE) * float(together.abs().max())
    assert float((together - one_by_one).abs().max()) <= allowed


@pytest.mark.parametrize("name", NAMES)
@given(SHAPES, st.integers(0, 20), st.booleans(), st.integers(0, 2**31))
@settings(max_examples=30, deadline=None)
def test_linear_is_the_formula(name: str, shape: tuple[int, int], M: int, biased: bool, seed: int) -> None:
    weight, bias = weights(*shape, seed)
    x = torch.randn(M, shape[1], generator=torch.Generator().manual_seed(seed + 1))
    ours = get_backend(name).pack(weight, bias if biased else None)(x)
    theirs = x.double() @ weight.double().T + (bias.double() if biased else 0)
    assert ours.shape == (M, shape[0])
    torch.testing.assert_close(ours.double(), theirs, rtol=1e-5, atol=1e-5 * shape[1] ** 0.5)


@pytest.mark.parametrize("name", NAMES)
def test_bf16_weights_keep_their_values(name: str) -> None:
    backend, (weight, bias) = get_backend(name), weights(33, 40, 0, torch.bfloat16)
    dtype = backend.activation_dtype(torch.bfloat16)
    x = torch.randn(5, 40, generator=torch.Generator().manual_seed(1)).to(dtype)
    ours = backend.pack(weight, bias)(x)
    assert ours.dtype == dtype
    theirs = x.double() @ weight.double().T + bias.double()
    bound = 1e-5 if dtype == torch.float32 else 2e-2
    torch.testing.assert_close(ours.double(), theirs, rtol=bound, atol=bound * float(theirs.abs().max()))
    assert backend.activation_dtype(torch.float32) == torch.float32


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_nonfinite_input_shows_in_its_own_row_only(name: str, bad: float) -> None:
    backend, (weight, bias) = get_backend(name), weights(17, 24, 3)
    x = torch.randn(4, 24)
    x[2, 5] = bad
    y = backend.pack(weight, bias)(x)
    assert not y[2].isfinite().any()
    assert y[[0, 1, 3]].isfinite().all()
    normed = backend.rms_norm(x, torch.ones(24), 1e-5)
    assert normed[2].isnan().any()
    assert normed[[0, 1, 3]].isfinite().all()


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("shape", [(3, 24), (2, 5, 16), (0, 8)])
def test_rms_norm_is_the_formula(name: str, shape: tuple[int, ...]) -> None:
    x, weight = 3 * torch.randn(shape), torch.randn(shape[-1])
    wide = x.double()
    theirs = wide / (wide.pow(2).mean(-1, keepdim=True) + 1e-5).sqrt() * weight.double()
    torch.testing.assert_close(get_backend(name).rms_norm(x, weight, 1e-5).double(), theirs, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("size", [16, 8])
def test_rotate_is_multiplication_by_a_complex_unit(name: str, size: int) -> None:
    """Halves of the rotated part are real and imaginary; what lies beyond it stays."""
    x, angle = torch.randn(5, 3, 16), torch.randn(5, size // 2)
    twice = torch.cat([angle, angle], -1)[:, None]
    ours = get_backend(name).rotate(x, twice.cos(), twice.sin())
    turned = torch.complex(x[..., : size // 2], x[..., size // 2 : size]) * torch.polar(
        torch.ones_like(angle), angle
    ).unsqueeze(1)
    theirs = torch.cat([turned.real, turned.imag, x[..., size:]], -1)
    torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-5)


def test_linear_learns_until_it_is_packed() -> None:
    for name in NAMES:
        linear = Linear(6, 4, bias=True)
        torch.nn.init.normal_(linear.weight)
        assert linear.bias is not None
        torch.nn.init.normal_(linear.bias)
        x = torch.randn(2, 6)
        loose = linear(x)
        assert loose.requires_grad
        linear.pack(get_backend(name))
        packed = linear(x)
        assert not packed.requires_grad
        torch.testing.assert_close(packed, loose.detach())


def test_backends_go_by_name() -> None:
    assert get_backend("auto").name in NAMES
    assert [get_backend(name).name for name in NAMES] == list(NAMES)
    with pytest.raises(EyasError) as caught:
        get_backend("cuda-graphs")
    assert caught.value.code.startswith("flags.")


def test_onednn_on_another_device_is_a_contradiction() -> None:
    with pytest.raises(EyasError, match="meta") as caught:
        get_backend("onednn").pack(torch.empty(3, 4, device="meta"), None)
    assert caught.value.code == "flags.contradiction"
