"""The stored vocabulary map: what d2t and t2d hold, and whether they can be what the head was trained with."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from eyas.check.findings import Finding
from eyas.contract import Contract, vocab_map_sha256
from eyas.draft.names import KEPT, OFFSETS
from eyas.draft.vocab import check_kept, check_offsets, kept_mask
from eyas.errors import EyasError

_FIX = "`eyas check DRAFT --fix OUT` writes offsets: d2t[i] = target id of draft id i, minus i"
_AGAIN = "take d2t from the checkpoint that was trained, or from the vocabulary that its data was prepared with"


def check_map(
    tensors: Mapping[str, Tensor], head_rows: int, vocab_size: int, contract: Contract | None
) -> list[Finding]:
    """What is wrong with the map of a draft with ``head_rows`` for a target of ``vocab_size`` tokens."""
    d2t, t2d = tensors.get(OFFSETS), tensors.get(KEPT)
    if head_rows >= vocab_size:
        return _full(d2t, vocab_size)
    if d2t is None:
        return [_absent(t2d, head_rows, vocab_size)]
    if d2t.dim() != 1 or d2t.is_floating_point() or d2t.dtype == torch.bool:
        return [_fault("map.wrong", f"{OFFSETS} is {d2t.dtype} {list(d2t.shape)}, not one row of int64", _AGAIN)]
    if len(d2t) != head_rows:
        said = f"{OFFSETS} has {len(d2t)} entries, and the head has {head_rows} rows"
        return [_fault("map.short", said, _AGAIN, entries=len(d2t), rows=head_rows)]
    d2t = d2t.long()
    if is_absolute(d2t, t2d, vocab_size):
        said = f"{OFFSETS} holds target ids ({_start(d2t)}), where every engine reads offsets"
        return [_fault("map.absolute", said, _FIX)]
    return _offsets(d2t, t2d, vocab_size, contract)


def is_absolute(d2t: Tensor, t2d: Tensor | None, vocab_size: int) -> bool:
    """Whether a row of int64 holds ascending target ids themselves, and cannot hold offsets."""
    n = len(d2t)
    rising = n > 1 and bool((d2t[1:] > d2t[:-1]).all())
    if not rising or int(d2t[0]) < 0 or int(d2t[-1]) >= vocab_size:
        return False
    if torch.equal(d2t, torch.arange(n)):
        return False  # draft ids: this says nothing about target ids
    if t2d is not None and t2d.shape == (vocab_size,):
        return torch.equal(d2t, t2d.bool().nonzero()[:, 0])
    try:
        check_offsets(d2t, vocab_size)
    except EyasError:
        return True
    return False


def offsets_from_kept(t2d: Tensor) -> Tensor:
    """t2d [V] → offsets d2t [kept tokens] int64, draft ids in ascending order of target ids."""
    kept = t2d.bool().nonzero()[:, 0]
    return kept - torch.arange(len(kept))


def kept_ids(tensors: Mapping[str, Tensor], head_rows: int, vocab_size: int) -> Tensor | None:
    """Target ids of the head's rows as engines read the map; None where it maps outside the vocabulary."""
    d2t = tensors.get(OFFSETS)
    if head_rows >= vocab_size or d2t is None:
        return torch.arange(head_rows) if head_rows <= vocab_size else None
    if d2t.shape != (head_rows,) or d2t.is_floating_point():
        return None
    ids = d2t.long() + torch.arange(head_rows)
    return ids if bool(((ids >= 0) & (ids < vocab_size)).all()) else None


def _absent(t2d: Tensor | None, head_rows: int, vocab_size: int) -> Finding:
    said = f"the head has {head_rows} rows for {vocab_size} tokens, and there is no {OFFSETS}: engines take draft ids"
    said += " for target ids"
    if t2d is not None and t2d.shape == (vocab_size,) and int((t2d != 0).sum()) == head_rows:
        return _fault("map.absent", said, f"`eyas check DRAFT --fix OUT` writes it from {KEPT}", recoverable=True)
    return _fault("map.absent", said, _AGAIN, recoverable=False)


def _full(d2t: Tensor | None, vocab_size: int) -> list[Finding]:
    """A full vocabulary needs no map; whether an engine minds one is a matter of its limits."""
    if d2t is None or not bool(d2t.any()):
        return []
    said = f"the head has a row for each of {vocab_size} tokens, and {OFFSETS} moves {int((d2t != 0).sum())} of them"
    return [_fault("map.wrong", said, f"leave {OFFSETS} out where the vocabularies are equal")]


def _offsets(d2t: Tensor, t2d: Tensor | None, vocab_size: int, contract: Contract | None) -> list[Finding]:
    try:
        check_offsets(d2t, vocab_size)
        if t2d is not None:
            check_kept(t2d.bool() if t2d.shape == (vocab_size,) else t2d, d2t, vocab_size)
    except EyasError as error:
        return [_fault("map.wrong", error.cause, _AGAIN, code=error.code, recoverable=_recoverable(d2t, t2d))]
    if contract is not None and contract.vocab_map_sha256 != vocab_map_sha256(d2t.numpy()):
        said = f"{OFFSETS} keeps {int(kept_mask(d2t, vocab_size).sum())} tokens, and is not the map of contract.json"
        return [_fault("map.wrong", said, _AGAIN, promised=contract.vocab_map_sha256)]
    return []


def _recoverable(d2t: Tensor, t2d: Tensor | None) -> bool:
    """Whether t2d alone gives the map: it keeps as many tokens as there are rows, and d2t says nothing."""
    says_nothing = not bool(d2t.any()) or torch.equal(d2t, torch.arange(len(d2t)))
    return t2d is not None and t2d.dim() == 1 and says_nothing and int((t2d != 0).sum()) == len(d2t)


def _start(d2t: Tensor) -> str:
    return ", ".join(map(str, d2t[:4].tolist())) + ", …"


def _fault(kind: str, said: str, fix: str, **data: object) -> Finding:
    return Finding(kind, "static", "fault", said, fix=fix, data=data)
