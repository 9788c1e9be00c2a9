"""What transformers computes, and how the tests run the same tokens through a target."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, PretrainedConfig

from eyas.kernels import KVCache, Rows
from eyas.models.target import Target

EMPTY = torch.arange(0)


@dataclass
class Reference:
    """logits [T, V] and taps [T, L + 1, H], both fp32; the last tap by a hook, before the final norm."""

    logits: Tensor
    taps: Tensor


@dataclass
class Result:
    """The same of a target, with its final-norm states [T, H]."""

    hidden: Tensor
    logits: Tensor
    taps: Tensor


def save_model(config: PretrainedConfig, folder: Path) -> Path:
    """A folder with random weights, all of them, so that no norm is 1 and no bias is 0."""
    torch.manual_seed(7)
    model = AutoModelForCausalLM.from_config(config)
    with torch.no_grad():
        for parameter in model.parameters():
            spread = torch.randn_like(parameter)
            parameter.copy_(parameter + 0.3 * spread if parameter.ndim == 1 else 0.25 * spread)
    model.save_pretrained(folder)
    return folder


@torch.no_grad()
def reference(folder: Path, tokens: Tensor, dtype: torch.dtype, compute: torch.dtype | None = None) -> Reference:
    """transformers' own forward of one sequence: weights as ``dtype``, computed in ``compute``."""
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype, attn_implementation="eager")
    model = model.to(compute or dtype).eval()
    last: list[Tensor] = []
    layers = next(m for m in model.modules() if isinstance(m, torch.nn.ModuleList))
    layers[-1].register_forward_hook(lambda _, args, y: last.append(y[0] if isinstance(y, tuple) else y))
    out = model(tokens[None], output_hidden_states=True, use_cache=False)
    taps = [*out.hidden_states[: len(layers)], last[0]]
    return Reference(out.logits[0].float(), torch.stack([tap[0] for tap in taps], 1).float())


def run(target: Target, rows: Rows, cache: KVCache) -> Result:
    """One forward with every tap."""
    out = target.new_outputs(len(rows), range(target.num_layers + 1))
    target.forward(rows, cache, out)
    return Result(out.hidden, target.logits(out.hidden), out.taps)


def chain_rows(parts: Sequence[tuple[Tensor, Tensor, Tensor]]) -> Rows:
    """Rows that continue each request (tokens, table, slots for the new rows) in a line."""
    parent, request, positions, start = [], [], [], 0
    for b, (tokens, table, _) in enumerate(parts):
        n = len(tokens)
        parent += [-1, *range(start, start + n - 1)]
        request += [b] * n
        positions.append(torch.arange(len(table), len(table) + n))
        start += n
    return Rows(
        tokens=torch.cat([tokens for tokens, _, _ in parts]),
        positions=torch.cat(positions),
        request=torch.tensor(request),
        parent=torch.tensor(parent),
        slots=torch.cat([slots for _, _, slots in parts]),
        tables=[table for _, table, _ in parts],
    )


def alone(target: Target, tokens: Tensor) -> Result:
    """A sequence by itself, in one call."""
    n = len(tokens)
    return run(target, chain_rows([(tokens, EMPTY, torch.arange(n))]), target.new_cache(n))


def apart(ours: Tensor, theirs: Tensor) -> float:
    """Largest difference, relative to the largest value; NaN if either holds one."""
    return float((ours.float() - theirs).abs().max() / theirs.abs().max())


def tap_gaps(ours: Tensor, theirs: Tensor) -> list[float]:
    """:func:`apart` of each tap; both [T, L + 1, H]."""
    assert ours.shape == theirs.shape
    return [apart(ours[:, v], theirs[:, v]) for v in range(theirs.shape[1])]
