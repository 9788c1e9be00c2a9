"""Linear layers on integers of 8 bits, in plain PyTorch: the truth that kernels/cpu/grouped.h is compared with.

Inputs are taken in groups of 32. A weight's scale is the least half (IEEE binary16) that holds its group's largest
value in 127 steps; an activation's step is the largest value of its row's group divided by 127. A matrix whose groups
are all offset + scale · (0 … 15), as GGUF's Q4_1 has them, is kept as it is, in 4 bits.
"""

from __future__ import annotations

import torch
from torch import Tensor

from eyas.errors import EyasError

GROUP = 32
MOST = 127
LEVELS = 15
LARGEST = 65504.0 * MOST
"""The largest half, in 127 steps."""


def cannot_be_kept() -> EyasError:
    """For weights that are no finite numbers, or too large."""
    cause = "a weight is NaN, infinite, or too large to be kept as 8 bits"
    return EyasError("model.nonfinite", cause, "run it in fp32 or bf16; else fetch the weights anew")


def rounded(x: Tensor) -> Tensor:
    """Activations [..., K] as the kernels see them, fp32; NaN for the whole row where one is not finite."""
    groups = _groups(x.float())
    step = groups.abs().amax(-1, keepdim=True) / MOST
    factor = torch.where(step > 0, 1 / step, 0)
    # Of the exact product, to the nearest integer, ties to even.
    values = (groups.double() * factor.double()).round().clamp(-MOST, MOST).float() * step
    values = torch.where(groups.isfinite().all(-1, keepdim=True), values, torch.nan)
    whole = values.flatten(-2)[..., : x.shape[-1]]
    return torch.where(x.isfinite().all(-1, keepdim=True), whole, torch.nan)


def kept(weight: Tensor) -> Tensor:
    """A weight [N, K] as it is kept, fp32: exactly, where 4 bits lose nothing, else rounded to 8 bits.

    Raises ``model.nonfinite`` for NaN, infinity, and what is too large for a scale.
    """
    if not bool((weight.abs() <= LARGEST).all()):
        raise cannot_be_kept()
    return weight.float() if fits_four_bits(weight) else eight_bits(weight)


def eight_bits(weight: Tensor) -> Tensor:
    """[N, K] → the nearest values of 8 bits."""
    groups = _groups(weight.float())
    scale = _half_above(groups.abs().amax(-1, keepdim=True) / MOST)
    values = torch.where(scale > 0, (groups / scale).round().clamp(-MOST, MOST) * scale, 0)
    return values.flatten(-2)[..., : weight.shape[-1]]


def fits_four_bits(weight: Tensor) -> bool:
    """Whether every group is offset + scale · (0 … 15) to the bit, both of them halves."""
    whole = weight.shape[-1] // GROUP * GROUP
    groups, rest = weight.float()[..., :whole].unflatten(-1, (whole // GROUP, GROUP)), weight.float()[..., None, whole:]
    return all(bool(_on_a_grid(part).all()) for part in (groups, rest) if part.numel())


def _on_a_grid(groups: Tensor) -> Tensor:
    """[..., count] → [...] bool."""
    least, most = groups.amin(-1, keepdim=True), groups.amax(-1, keepdim=True)
    offset, found = least.half().float(), torch.zeros(groups.shape[:-1], dtype=torch.bool)
    for top in range(LEVELS, 0, -1):
        scale = ((most - least) / top).half().float()
        value = torch.where(scale > 0, ((groups - offset) / scale).round(), 0)
        found |= ((value >= 0) & (value <= LEVELS) & (scale * value + offset == groups)).all(-1)
    return found


def _groups(x: Tensor) -> Tensor:
    """[..., K] → [..., groups, 32], filled up with zeros."""
    return torch.nn.functional.pad(x, (0, -x.shape[-1] % GROUP)).unflatten(-1, (-1, GROUP))


def _half_above(x: Tensor) -> Tensor:
    """The least half that is not below x ≥ 0, as fp32."""
    near = x.half()
    above = (near.view(torch.int16) + 1).view(torch.float16)
    return torch.where(near.float() < x, above, near).float()
