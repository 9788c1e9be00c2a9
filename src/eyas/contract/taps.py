"""Taps: which residual streams of the target feed the draft, and how others number them.

Tap v is the residual stream after v decoder layers, before any norm: v = 0 is the embedding output, v = L the
output of the last layer before the final norm. Inside Eyas there is no other numbering. What an engine does
with the numbers, by version and architecture, is in ``eyas.dialects.taps``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from eyas.errors import EyasError

Convention = Literal["hf", "output-of-layer", "vllm"]
"""``hf``: index into transformers' ``hidden_states`` · ``output-of-layer``: 0-based layer whose output is
meant (SGLang's usual ids) · ``vllm``: the number of layers before, as tap v itself.
"""


def _listed(numbers: Sequence[int]) -> str:
    return ",".join(str(number) for number in numbers)


def validate_taps(taps: Sequence[int], num_layers: int) -> tuple[int, ...]:
    """The taps as a tuple, in the order given.

    Raises ``taps.range`` for an empty list or a tap outside 0 … ``num_layers``, ``taps.duplicate`` for one
    named twice.
    """
    assert num_layers >= 1, num_layers
    if not taps:
        raise EyasError("taps.range", "no tap is named, and a draft reads at least one", _proposal(num_layers))
    for tap in taps:
        assert type(tap) is int, tap
        if not 0 <= tap <= num_layers:
            cause = f"tap {tap} of ({_listed(taps)}) lies outside 0 … {num_layers}, the target's number of layers"
            raise EyasError("taps.range", cause, _proposal(num_layers))
    for tap in taps:
        if taps.count(tap) > 1:
            cause = f"tap {tap} is named {taps.count(tap)} times in ({_listed(taps)})"
            raise EyasError("taps.duplicate", cause, _proposal(num_layers))
    return tuple(taps)


def default_taps(num_layers: int) -> tuple[int, int, int]:
    """The taps (2, L//2, L-3) that the field's trainers and engines take when none are named.

    Raises ``taps.too-shallow`` where they do not rise within 1 … L (L < 7); the fix names taps that do.
    """
    assert num_layers >= 1, num_layers
    low, middle, high = 2, num_layers // 2, num_layers - 3
    if not 1 <= low < middle < high:
        cause = (
            f"the default taps of a target of {num_layers} layers are ({low}, {middle}, {high}): not three rising ones"
        )
        raise EyasError("taps.too-shallow", cause, _proposal(num_layers))
    return low, middle, high


def proposed_taps(num_layers: int) -> tuple[int, ...]:
    """Distinct rising taps for any depth ≥ 1: the default if there is one, else spread; 1 … L below 4.

    Tap 0 is avoided, and tap L where the depth allows, because several engines cannot capture them.
    """
    assert num_layers >= 1, num_layers
    if num_layers >= 7:
        return default_taps(num_layers)
    return (1, num_layers // 2, num_layers - 1) if num_layers >= 4 else tuple(range(1, num_layers + 1))


def _proposal(num_layers: int) -> str:
    return f"name distinct taps within 0 … {num_layers}, for example --taps {_listed(proposed_taps(num_layers))}"


def to_convention(taps: Sequence[int], num_layers: int, convention: Convention) -> tuple[int, ...]:
    """The numbers by which ``convention`` names these taps, in the same order.

    Raises ``taps.unrepresentable`` for tap L in ``hf`` (its last entry is after the final norm) and for tap 0
    in ``output-of-layer`` (no layer's output is the embedding), and whatever :func:`validate_taps` raises.
    """
    taps = validate_taps(taps, num_layers)
    if convention == "hf" and num_layers in taps:
        cause = (
            f"tap {num_layers} (last layer, before the final norm) has no hidden_states index: entry"
            f" {num_layers} is after the norm"
        )
        raise EyasError("taps.unrepresentable", cause, "take it with a hook on the last layer, or choose a lower tap")
    if convention == "output-of-layer" and 0 in taps:
        cause = "tap 0 (the embedding output) is no layer's output, so it has no layer id"
        raise EyasError(
            "taps.unrepresentable",
            cause,
            "train on taps from 1 upwards, or use an engine that captures tap 0",
        )
    return tuple(tap - 1 for tap in taps) if convention == "output-of-layer" else taps


def from_convention(ids: Sequence[int], num_layers: int, convention: Convention) -> tuple[int, ...]:
    """The taps that ``ids`` mean in ``convention``, in the same order: the inverse of :func:`to_convention`.

    Raises ``taps.unrepresentable`` for ``hf`` index L, ``taps.range`` and ``taps.duplicate`` as
    :func:`validate_taps`.
    """
    if convention == "hf" and (num_layers in ids or -1 in ids):
        cause = f"hidden_states[{num_layers}], the last one, is after the final norm, and no tap is"
        raise EyasError("taps.unrepresentable", cause, f"take tap {num_layers} with a hook, or name a lower index")
    shift = 1 if convention == "output-of-layer" else 0
    return validate_taps([number + shift for number in ids], num_layers)
