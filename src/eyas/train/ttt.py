"""Training-time test (Li et al., EAGLE-3, section 3.2): the draft unrolled over its own states.

Step i of slot t takes the draft's state of step i − 1 (step 0: the target's feature) and the true token t + 1 + i, at
RoPE position t + i, attends to the step-0 keys of slots ≤ t and to its own later ones, and answers for token t + 2 + i.
Because later steps see only step-0 keys and a slot's own, slots that no step asks for are not unrolled at all.

Shape legend: N rows of the batch, n slots of a step, c KV heads, D head size, H hidden.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from eyas.corpus.samples import trained_slots
from eyas.draft.model import DraftModel
from eyas.train.attention import Attention, merged_attention
from eyas.train.batch import Batch


@dataclass(frozen=True)
class Unrolling:
    """How to unroll. ``recompute``: gradient checkpointing, the backward computes a step's activations again."""

    attention: Attention = merged_attention
    recompute: bool = False


@dataclass(frozen=True)
class _Bank:
    """One layer's keys and values: step 0 [N, c, D], and those of later steps [m, n, c, D] of the slots still asked."""

    k: Tensor
    v: Tensor
    later_k: Tensor
    later_v: Tensor

    def of(self, index: Tensor) -> _Bank:
        """Only the slots ``index`` of the last step go on."""
        return _Bank(self.k, self.v, self.later_k[:, index], self.later_v[:, index])


def slots_of(segments: Tensor, num_steps: int) -> list[Tensor]:
    """Per step the slots [n] that the loss sees, each a subset of those before; stops at the first step with none."""
    steps = [trained_slots(segments, i).nonzero()[:, 0] for i in range(num_steps)]
    return [rows for rows in steps if len(rows)]


def unroll(
    model: DraftModel, batch: Batch, slots: Sequence[Tensor], how: Unrolling = Unrolling()
) -> Iterator[tuple[int, Tensor, Tensor]]:
    """Yield (i, rows [n], normed states [n, H]) per step; the state of row t answers for token t + 2 + i.

    ``slots``: per step the rows of the flat batch to go on with, each a subset of the ones before.
    """
    everyone = torch.arange(len(batch.tokens), device=batch.tokens.device)
    carried, banks, before = model.combine(batch.features), None, everyone
    for i, rows in enumerate(slots):
        index = torch.searchsorted(before.contiguous(), rows.contiguous())
        if banks is None:
            state, tokens, at = carried, batch.tokens.roll(-1), batch.positions
        else:
            state, tokens, at = carried[index], batch.tokens[rows + 1 + i], batch.positions[rows] + i
            banks = [bank.of(index) for bank in banks]
        args = (model, batch, rows, how.attention, state, tokens, at, banks)
        if how.recompute and torch.is_grad_enabled():
            carried, normed, banks = checkpoint(_step, *args, use_reentrant=False)
        else:
            carried, normed, banks = _step(*args)
        before = rows
        yield i, rows, normed


def _step(
    model: DraftModel,
    batch: Batch,
    rows: Tensor,
    attention: Attention,
    state: Tensor,
    tokens: Tensor,
    positions: Tensor,
    banks: list[_Bank] | None,
) -> tuple[Tensor, Tensor, list[_Bank]]:
    """One step: (carried [n, H], normed [n, H], the banks after it)."""
    after: list[_Bank] = []
    everyone, last = torch.arange(len(batch.tokens), device=rows.device), len(model.layers) - 1

    def attend(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        if banks is None:
            asked = rows if layer == last else everyone
            bank = _Bank(k, v, *(x.new_empty(0, len(rows), *x.shape[1:]) for x in (k, v)))
            after.append(bank)
            none = bank.later_k.new_empty(0, len(asked), *k.shape[1:])
            return attention(q[asked], k, v, none, none, asked, batch.documents).flatten(1)
        old = banks[layer]
        new_k, new_v = torch.cat([old.later_k, k[None]]), torch.cat([old.later_v, v[None]])
        after.append(_Bank(old.k, old.v, new_k, new_v))
        return attention(q, old.k, old.v, new_k, new_v, rows, batch.documents).flatten(1)

    step = model.step(tokens, state, positions, attend, rows if banks is None else None)
    return step.carried, step.normed, after
