"""Training-time test's attention: merged equals dense, values and gradients, on whole and partial rows."""

from __future__ import annotations

import pytest
import torch

from eyas.train import attention
from eyas.train.attention import BLOCKED, dense_attention, merged_attention
from eyas.train.flex import flex_merged

DOCS = ((0, 7), (7, 8), (8, 21))
HEADS, KV, D = 4, 2, 8


def inputs(rows, diagonals, dtype=torch.float64, seed=0):
    g = torch.Generator().manual_seed(seed)
    make = lambda *shape: torch.randn(*shape, generator=g, dtype=dtype).requires_grad_()  # noqa: E731
    n, total = len(rows), DOCS[-1][1]
    return (
        make(n, HEADS, D),
        make(total, KV, D),
        make(total, KV, D),
        make(diagonals, n, KV, D),
        make(diagonals, n, KV, D),
    )


def values_and_gradients(function, tensors, rows):
    out = function(*tensors, rows, DOCS)
    weights = torch.arange(out.numel(), dtype=out.dtype).reshape(out.shape).cos()
    return out, torch.autograd.grad((out * weights).sum(), tensors, allow_unused=True, materialize_grads=True)


@pytest.fixture(params=["flash", "blocked", "blocked across blocks"])
def merged(request, monkeypatch):
    if request.param == "flash":
        return merged_attention
    if request.param == "blocked across blocks":
        monkeypatch.setattr(attention, "BLOCK", 3)
    return lambda *args: attention._Merged.apply(*args, BLOCKED)


@pytest.mark.parametrize("diagonals", [0, 1, 3])
@pytest.mark.parametrize("rows", [list(range(21)), [0, 3, 6, 7, 12, 20], [20]])
def test_merged_equals_dense(merged, rows, diagonals):
    tensors, rows = inputs(rows, diagonals), torch.tensor(rows)
    out, grads = values_and_gradients(merged, tensors, rows)
    expected, truth = values_and_gradients(dense_attention, tensors, rows)
    torch.testing.assert_close(out, expected, rtol=1e-10, atol=1e-12)
    for grad, true in zip(grads, truth, strict=True):
        torch.testing.assert_close(grad, true, rtol=1e-9, atol=1e-11)


def test_large_scores_do_not_overflow(merged):
    rows = torch.tensor([2, 9, 20])
    tensors = [(20 * x).detach().requires_grad_() for x in inputs(rows, 2, torch.float32)]
    out, grads = values_and_gradients(merged, tensors, rows)
    expected, truth = values_and_gradients(dense_attention, tensors, rows)
    torch.testing.assert_close(out, expected, rtol=1e-4, atol=1e-3)
    for grad, true in zip(grads, truth, strict=True):
        assert bool(grad.isfinite().all())
        torch.testing.assert_close(grad, true, rtol=1e-3, atol=1e-1)


def test_documents_and_later_slots_are_not_seen(merged):
    rows = torch.tensor([10])
    tensors = inputs(rows, 1)
    _, grads = values_and_gradients(merged, tensors, rows)
    seen = grads[1].abs().sum((1, 2)) > 0
    assert seen.nonzero()[:, 0].tolist() == [8, 9, 10]


@pytest.mark.parametrize("diagonals", [0, 2])
@pytest.mark.parametrize("rows", [list(range(21)), [0, 6, 12, 20]])
def test_flex_attention_gives_the_same_values(rows, diagonals):
    """Its gradients need a GPU."""
    with torch.no_grad():
        tensors, rows = [x.detach() for x in inputs(rows, diagonals, torch.float32)], torch.tensor(rows)
        out = flex_merged(compiled=False)(*tensors, rows, DOCS)
        torch.testing.assert_close(out, dense_attention(*tensors, rows, DOCS), rtol=1e-4, atol=1e-5)
