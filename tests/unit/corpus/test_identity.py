"""The checks that run before anything is stored: each fault that they claim to find is planted."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

from eyas.corpus.identity import BOUNDS, CONTROL_FACTOR, check_batch, check_identity, check_taps
from eyas.errors import EyasError
from eyas.kernels import KVCache, Rows
from eyas.models.target import Outputs, Target
from eyas.testing import load_tiny_target, tiny_prompts
from support.feature_rig import TAPS, shared_target

TEXT = tiny_prompts()[2]
Forward = Callable[[Rows, KVCache, Outputs], None]


def faulty(plant: Callable[[Forward, Target], Forward], backend: str = "auto") -> Target:
    """The tiny target with another forward."""
    target = load_tiny_target(backend)
    target.forward = plant(target.forward, target)  # type: ignore[method-assign]
    return target


def after(change: Callable[[Rows, Outputs, Target], None]) -> Callable[[Forward, Target], Forward]:
    """A forward after which ``change`` edits what came out."""

    def plant(forward: Forward, target: Target) -> Forward:
        def run(rows: Rows, cache: KVCache, out: Outputs) -> None:
            forward(rows, cache, out)
            change(rows, out, target)

        return run

    return plant


def shifted(by: int) -> Callable[[Forward, Target], Forward]:
    """Taps captured ``by`` layers late, where there is such a layer."""

    def plant(forward: Forward, target: Target) -> Forward:
        def run(rows: Rows, cache: KVCache, out: Outputs) -> None:
            moved = tuple(min(max(tap + by, 0), target.num_layers) for tap in out.tap_ids)
            forward(rows, cache, replace(out, tap_ids=moved))

        return run

    return plant


def refusal(check: Callable[..., object], *arguments: Any) -> EyasError:
    with pytest.raises(EyasError) as refused:
        check(*arguments)
    return refused.value


@pytest.mark.parametrize("dtype", BOUNDS.keys() - {torch.float16})
@pytest.mark.parametrize("backend", ["eager", "auto"])
def test_the_right_capture_passes_and_its_control_fails_by_far(dtype: torch.dtype, backend: str) -> None:
    target = load_tiny_target(backend, dtype)
    found = check_identity(target, TEXT, TAPS)
    assert found.error <= found.bound == BOUNDS[target.dtype]
    assert found.control >= CONTROL_FACTOR * found.bound
    assert found.positions == len(TEXT)


def test_a_state_taken_a_layer_early_is_refused_with_both_numbers() -> None:
    error = refusal(check_identity, faulty(shifted(-1)), TEXT, TAPS)
    assert error.code == "features.identity"
    assert "tap 8" in error.cause
    assert "tap 7" in error.cause
    assert error.cause.count("e-") + error.cause.count("e+") >= 4


def test_a_missed_residual_addition_is_refused() -> None:
    """The last tap lacks a part of what the last layer adds: nearly the same tokens win, and it is not the same."""

    def change(rows: Rows, out: Outputs, target: Target) -> None:
        if {7, 8} <= set(out.tap_ids):
            last, before = (out.taps[:, out.tap_ids.index(tap)] for tap in (8, 7))
            last -= 0.02 * (last - before)

    assert refusal(check_identity, faulty(after(change)), TEXT).code == "features.identity"


def before_the_norm(rows: Rows, out: Outputs, target: Target) -> None:
    """The last state lacks the final norm."""
    if 8 in out.tap_ids:
        out.hidden.copy_(out.taps[:, out.tap_ids.index(8)])


def test_a_last_state_from_before_the_norm_is_refused() -> None:
    assert refusal(check_identity, faulty(after(before_the_norm)), TEXT).code == "features.identity"
    error = refusal(check_taps, faulty(after(before_the_norm)), shared_target(), TEXT, (8,))
    assert error.code == "features.taps"
    assert "the last state" in error.cause


def test_a_control_that_does_not_fail_is_refused() -> None:
    """A check that passes for the wrong state says nothing: here the last layer is doubled by the one before."""

    def change(rows: Rows, out: Outputs, target: Target) -> None:
        if {7, 8} <= set(out.tap_ids):
            out.taps[:, out.tap_ids.index(7)] = out.taps[:, out.tap_ids.index(8)]

    assert refusal(check_identity, faulty(after(change)), TEXT).code == "features.identity"


def test_a_tap_that_repeats_its_neighbour_is_refused() -> None:
    def change(rows: Rows, out: Outputs, target: Target) -> None:
        if {3, 4} <= set(out.tap_ids):
            out.taps[:, out.tap_ids.index(4)] = out.taps[:, out.tap_ids.index(3)]

    error = refusal(check_identity, faulty(after(change)), TEXT, TAPS)
    assert error.code == "features.taps"
    assert "tap 4 is the same as tap 3" in error.cause


def test_taps_that_are_captured_in_another_order_are_refused() -> None:
    def change(rows: Rows, out: Outputs, target: Target) -> None:
        if len(out.tap_ids) == len(TAPS):
            out.taps.copy_(out.taps.flip(1))

    assert refusal(check_identity, faulty(after(change)), TEXT, TAPS).code == "features.taps"


def test_not_a_number_is_refused() -> None:
    def change(rows: Rows, out: Outputs, target: Target) -> None:
        out.taps[0, -1] = float("nan")

    assert refusal(check_identity, faulty(after(change)), TEXT).code == "model.nonfinite"


def drifting(rows: Rows, out: Outputs, target: Target) -> None:
    """Each call leaves something behind for the next."""
    target.calls = getattr(target, "calls", 0) + 1  # type: ignore[attr-defined]
    out.hidden *= 1 + 0.01 * target.calls  # type: ignore[attr-defined]
    out.taps *= 1 + 0.01 * target.calls  # type: ignore[attr-defined]


def row_zeros_positions(forward: Forward, target: Target) -> Forward:
    """All requests of a batch get the positions of the first row, counted on."""

    def run(rows: Rows, cache: KVCache, out: Outputs) -> None:
        forward(replace(rows, positions=rows.positions[0] + torch.arange(len(rows))), cache, out)

    return run


def test_batches_and_repeated_calls_pass_on_a_sound_target() -> None:
    for backend in ("eager", "auto"):
        check_batch(load_tiny_target(backend), tiny_prompts()[:3], TAPS)


def test_features_that_depend_on_the_batch_are_refused() -> None:
    target = faulty(row_zeros_positions)
    target.row_exact = True
    error = refusal(check_batch, target, tiny_prompts()[:3], TAPS)
    assert error.code == "features.batch"
    assert "read alone" in error.cause


@pytest.mark.parametrize("backend", ["eager", "auto"])
def test_features_that_depend_on_the_call_are_refused(backend: str) -> None:
    assert refusal(check_batch, faulty(after(drifting), backend), tiny_prompts()[:3], TAPS).code == "features.batch"


def test_taps_agree_with_another_implementation() -> None:
    found = check_taps(shared_target(), load_tiny_target("eager"), TEXT, (0, *TAPS, 8))
    assert found.keys() == {0, *TAPS, 8}
    assert max(found.values()) < 1e-5


@pytest.mark.parametrize("by", [-1, 1, 2])
def test_a_shifted_tap_is_named_by_the_layer_that_it_is(by: int) -> None:
    error = refusal(check_taps, faulty(shifted(by)), shared_target(), TEXT, TAPS)
    assert error.code == "features.taps"
    assert f"nearest is the reference's tap {2 + by}," in error.cause


def test_a_stream_that_is_no_layers_is_refused() -> None:
    def change(rows: Rows, out: Outputs, target: Target) -> None:
        out.taps[:, 0] += 0.1 * out.taps[:, 0].roll(1, -1)

    assert refusal(check_taps, faulty(after(change)), shared_target(), TEXT, TAPS).code == "features.taps"
