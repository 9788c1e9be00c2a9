"""Rotary position embedding with the scalings of the Llama family.

Su et al., RoFormer, section 3.4. The frequencies of scaled variants come from transformers, so that they are
its own.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from eyas.errors import EyasError

SCALINGS: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "linear": (("factor",), ()),
    "llama3": (("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"), ()),
    "yarn": (
        ("factor", "original_max_position_embeddings"),
        ("attention_factor", "beta_fast", "beta_slow", "mscale", "mscale_all_dim", "truncate"),
    ),
}
"""Kind of scaling → the parameters that it needs, and those that it may have."""


def rope_frequencies(
    head_dim: int, theta: float, scaling: Mapping[str, Any] | None, max_position_embeddings: int
) -> tuple[Tensor, float]:
    """(inverse frequencies [head_dim / 2] fp32, factor on cos and sin).

    Raises ``model.config`` for ``dynamic`` scaling: its frequencies change with the length, so that keys in a
    cache would be wrong; for kinds that are not known; and for missing, unknown or impossible parameters.
    """
    if scaling is None:
        return 1.0 / theta ** (torch.arange(0, head_dim, 2, dtype=torch.int64).float() / head_dim), 1.0
    _check_scaling(scaling)
    from transformers import LlamaConfig
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    config = LlamaConfig(
        hidden_size=head_dim,
        num_attention_heads=1,
        head_dim=head_dim,
        max_position_embeddings=max_position_embeddings,
        rope_parameters={**scaling, "rope_theta": theta},
    )
    frequencies, factor = ROPE_INIT_FUNCTIONS[scaling["rope_type"]](config, "cpu")
    return frequencies.float(), float(factor)


def _check_scaling(scaling: Mapping[str, Any]) -> None:
    kind = scaling["rope_type"]
    if kind not in SCALINGS:
        raise EyasError(
            "model.config",
            f"RoPE scaling {kind!r} is none of {', '.join(SCALINGS)}"
            + (": its frequencies change while keys are cached" if kind == "dynamic" else ""),
            "serve without it: remove rope_scaling from config.json and stay within the trained context",
        )
    needed, optional = SCALINGS[kind]
    for key in needed:
        value = scaling.get(key)
        if not isinstance(value, (int, float)) or isinstance(value, bool) or not 0 < value < math.inf:
            raise _bad(f"RoPE scaling {kind} has {key} = {value!r}, not a positive number")
    for key, value in scaling.items():
        if key not in {"rope_type", *needed, *optional}:
            raise _bad(f"RoPE scaling {kind} has no parameter {key!r}")
        if (
            key in optional
            and value is not None
            and type(value) not in ((bool,) if key == "truncate" else (int, float))
        ):
            raise _bad(f"RoPE scaling {kind} has {key} = {value!r}")
    if kind == "llama3" and scaling["low_freq_factor"] >= scaling["high_freq_factor"]:
        raise _bad("RoPE scaling llama3 has a low_freq_factor that is not below its high_freq_factor")


def _bad(cause: str) -> EyasError:
    return EyasError("model.config", cause, "use the config.json that belongs to these weights")


class RotaryTable:
    """cos and sin of every position up to a length, made once. Positions index it."""

    def __init__(self, frequencies: Tensor, factor: float, length: int) -> None:
        angles = torch.arange(length).float()[:, None] * frequencies
        angles = torch.cat([angles, angles], -1)
        self.cos, self.sin = angles.cos() * factor, angles.sin() * factor

    def to(self, device: torch.device | str, dtype: torch.dtype) -> RotaryTable:
        """The same table elsewhere."""
        self.cos, self.sin = self.cos.to(device, dtype), self.sin.to(device, dtype)
        return self

    def at(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        """(cos, sin), each [R, 1, rotated size], for positions [R]."""
        index = positions.to(self.cos.device)
        return self.cos[index][:, None], self.sin[index][:, None]
