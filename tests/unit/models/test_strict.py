"""Tensors against what a model needs: each kind of fault by its code, with the tensor's name."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from eyas.errors import EyasError
from eyas.models.strict import check_tensors, some

EXPECTED = {"a.weight": (2, 3), "b.weight": (4,), "c.weight": (1, 1)}


def tensors() -> dict[str, Tensor]:
    return {name: torch.zeros(shape) for name, shape in EXPECTED.items()}


def test_exactly_what_is_needed_passes() -> None:
    check_tensors(tensors(), EXPECTED)
    check_tensors({}, {})


def test_a_missing_tensor_is_named() -> None:
    held = tensors()
    del held["b.weight"]
    with pytest.raises(EyasError, match=r"b\.weight") as caught:
        check_tensors(held, EXPECTED)
    assert caught.value.code == "model.tensor-missing"


def test_an_unknown_tensor_is_named() -> None:
    with pytest.raises(EyasError, match=r"d\.bias") as caught:
        check_tensors({**tensors(), "d.bias": torch.zeros(1)}, EXPECTED)
    assert caught.value.code == "model.tensor-unknown"


@pytest.mark.parametrize("shape", [(3, 2), (6,), (2, 3, 1), (2, 0)])
def test_a_misshapen_tensor_is_named_with_both_shapes(shape: tuple[int, ...]) -> None:
    with pytest.raises(EyasError, match=r"a\.weight is \[.*\], config\.json says \[2, 3\]") as caught:
        check_tensors({**tensors(), "a.weight": torch.zeros(shape)}, EXPECTED)
    assert caught.value.code == "model.tensor-shape"


def test_a_long_list_is_cut() -> None:
    assert some(["x", "y", "z"]) == "x, y, z"
    assert some([*"vwxyz"]) == "v, w, x and 2 more"
