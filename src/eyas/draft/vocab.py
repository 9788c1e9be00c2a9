"""The vocabulary map: which target tokens the draft's head can propose.

In every engine d2t holds offsets: target id = draft id + d2t[draft id].
"""

from __future__ import annotations

import torch
from torch import Tensor

from eyas.errors import EyasError

MANY = 64
"""From so many entries on, a real map keeps some neighbouring ids, so that its offsets cannot rise everywhere."""


def offsets_from_ids(kept_ids: Tensor, vocab_size: int) -> Tensor:
    """Ascending, distinct target ids [n] → offsets d2t [n] int64; raises ``draft.vocab-map``."""
    ids = kept_ids.to(torch.int64)
    offsets = ids - torch.arange(len(ids))
    check_offsets(offsets, vocab_size)
    return offsets


def check_offsets(d2t: Tensor, vocab_size: int) -> None:
    """Raise ``draft.vocab-map`` unless d2t maps draft ids to distinct, ascending target ids inside the vocabulary."""
    if d2t.dim() != 1 or d2t.dtype != torch.int64:
        raise _fault(f"d2t is {d2t.dtype} {list(d2t.shape)}, not one row of int64")
    n = len(d2t)
    if not 0 < n <= vocab_size:
        raise _fault(f"d2t has {n} entries for a target vocabulary of {vocab_size}")
    ids = d2t + torch.arange(n)
    if n < vocab_size and not bool(d2t.any()) and n > 1:
        raise _fault("d2t is all zero with a reduced vocabulary: the map is absent, or holds no offsets")
    if bool((ids < 0).any()) or bool((ids >= vocab_size).any()):
        worst = int(ids[(ids < 0) | (ids >= vocab_size)][0])
        hint = "; these look like absolute ids" if bool((d2t[1:] > d2t[:-1]).all()) else ""
        raise _fault(f"d2t maps to target id {worst}, outside 0 … {vocab_size - 1}{hint}")
    if n > 1 and not bool((ids[1:] > ids[:-1]).all()):
        raise _fault("d2t does not map to ascending, distinct target ids")
    if n > 1 and bool((d2t == torch.arange(n)).all()):
        raise _fault("d2t is 0, 1, 2, …: draft ids, not offsets")
    if n >= MANY and bool((d2t[1:] > d2t[:-1]).all()):
        raise _fault("d2t rises at every entry, as absolute ids do; offsets stay equal over runs of kept ids")


def _fault(cause: str) -> EyasError:
    return EyasError(
        "draft.vocab-map", cause, "write offsets: d2t[i] = target id of draft id i, minus i (ascending ids)"
    )


def choose_vocabulary(counts: Tensor, size: int) -> tuple[Tensor, float]:
    """The ``size`` most frequent ids of ``counts`` [V] (lower ids first on ties) → (ascending ids, coverage).

    Coverage: the share of counted tokens that is kept. Raises ``draft.vocab-map`` for sizes outside 1 … V.
    """
    if not 0 < size <= len(counts):
        raise EyasError(
            "draft.vocab-map",
            f"draft vocabulary {size} of a target vocabulary of {len(counts)}",
            f"use 1 … {len(counts)}",
        )
    order = torch.argsort(counts, descending=True, stable=True)[:size]
    total = int(counts.sum())
    coverage = float(counts[order].sum()) / total if total else 0.0
    return order.sort().values, coverage


def kept_mask(d2t: Tensor, vocab_size: int) -> Tensor:
    """Offsets [n] → t2d [vocab_size] bool: which target tokens the draft can propose."""
    mask = torch.zeros(vocab_size, dtype=torch.bool)
    mask[d2t + torch.arange(len(d2t))] = True
    return mask


def check_kept(t2d: Tensor, d2t: Tensor | None, vocab_size: int) -> None:
    """Raise ``draft.vocab-map`` unless t2d is bool and marks exactly the tokens of d2t (without one: all)."""
    expected = torch.ones(vocab_size, dtype=torch.bool) if d2t is None else kept_mask(d2t, vocab_size)
    if t2d.dtype != torch.bool or not torch.equal(t2d, expected):
        raise EyasError(
            "draft.vocab-map",
            f"t2d ({t2d.dtype}) marks {int((t2d != 0).sum())} tokens, and not those {int(expected.sum())} of d2t",
            "d2t and t2d are of two vocabularies: take both from the checkpoint that was trained",
        )
