"""Taps: rules, defaults, and the conventions of others, both ways."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eyas.contract import default_taps, from_convention, proposed_taps, to_convention, validate_taps
from eyas.errors import EyasError

CONVENTIONS = ("hf", "output-of-layer", "vllm")


def test_order_is_kept() -> None:
    assert validate_taps([15, 2, 27], 30) == (15, 2, 27)


@pytest.mark.parametrize(
    ("taps", "code"),
    [([], "taps.range"), ([-1], "taps.range"), ([31], "taps.range"), ([3, 3], "taps.duplicate")],
)
def test_wrong_taps(taps: list[int], code: str) -> None:
    with pytest.raises(EyasError) as caught:
        validate_taps(taps, 30)
    assert caught.value.code == code
    assert "--taps 2,15,27" in caught.value.fix


def test_both_ends_are_taps() -> None:
    assert validate_taps([0, 30], 30) == (0, 30)


def test_default() -> None:
    assert default_taps(30) == (2, 15, 27)
    assert default_taps(61) == (2, 30, 58)
    assert default_taps(7) == (2, 3, 4)


@pytest.mark.parametrize(("num_layers", "named"), [(4, "(2, 2, 1)"), (2, "(2, 1, -1)")])
def test_shallow_targets_are_refused_with_a_proposal(num_layers: int, named: str) -> None:
    with pytest.raises(EyasError) as caught:
        default_taps(num_layers)
    assert caught.value.code == "taps.too-shallow"
    assert named in caught.value.cause
    proposal = [int(tap) for tap in caught.value.fix.rsplit(" ", 1)[1].split(",")]
    assert validate_taps(proposal, num_layers) == proposed_taps(num_layers)


@given(st.integers(1, 200))
def test_default_is_refused_or_rises(num_layers: int) -> None:
    proposal = proposed_taps(num_layers)
    assert validate_taps(proposal, num_layers) == tuple(sorted(proposal))
    if num_layers >= 7:
        assert default_taps(num_layers) == (2, num_layers // 2, num_layers - 3) == proposal
    else:
        with pytest.raises(EyasError):
            default_taps(num_layers)


@given(st.data(), st.integers(1, 80), st.sampled_from(CONVENTIONS))
def test_conversions_invert(data: st.DataObject, num_layers: int, convention: Any) -> None:
    taps = data.draw(st.lists(st.integers(0, num_layers), unique=True, min_size=1, max_size=5))
    hidden = {"hf": num_layers, "output-of-layer": 0}.get(convention)
    if hidden in taps:
        with pytest.raises(EyasError) as caught:
            to_convention(taps, num_layers, convention)
        assert caught.value.code == "taps.unrepresentable"
    else:
        ids = to_convention(taps, num_layers, convention)
        assert from_convention(ids, num_layers, convention) == tuple(taps)


def test_conversions_by_hand() -> None:
    assert to_convention([2, 15, 27], 30, "output-of-layer") == (1, 14, 26)
    assert to_convention([0, 15, 29], 30, "hf") == (0, 15, 29)
    assert to_convention([0, 30], 30, "vllm") == (0, 30)
    assert from_convention([29], 30, "output-of-layer") == (30,)


@pytest.mark.parametrize("index", [30, -1])
def test_the_last_hidden_state_is_no_tap(index: int) -> None:
    with pytest.raises(EyasError) as caught:
        from_convention([2, index], 30, "hf")
    assert caught.value.code == "taps.unrepresentable"
