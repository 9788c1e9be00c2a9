"""The nouns of a forward: a flat ragged batch of rows, and the slots that hold keys and values.

Shape legend: R rows, B requests, S slots, T keys of one request, H hidden, D head size, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

import torch
from torch import Tensor

GROUP_ROWS = 16
"""Requests with up to this many rows share one padded attention call; longer ones (prefill) get their own."""


class KVCache:
    """Keys and values in preallocated slots, one tensor [S, 2 · kv heads, D] per layer (keys first).

    A slot belongs to a request while a table names it. Committing and rolling back edit tables, never this.
    """

    def __init__(
        self,
        num_layers: int,
        num_slots: int,
        kv_heads: int,
        head_dim: int,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
    ) -> None:
        self.num_slots, self.kv_heads = num_slots, kv_heads
        shape = (num_slots, 2 * kv_heads, head_dim)
        # Zeros, not empty: a masked key is multiplied by 0, and 0 · NaN would be NaN.
        self.layers = [torch.zeros(shape, dtype=dtype, device=device) for _ in range(num_layers)]
        self.prepared: dict[str, object] = {}
        """What a backend keeps of it between forwards."""

    def k(self, layer: int) -> Tensor:
        """Keys of a layer, [S, kv heads, D], a view."""
        return self.layers[layer][:, : self.kv_heads]

    def v(self, layer: int) -> Tensor:
        """Values of a layer, [S, kv heads, D], a view."""
        return self.layers[layer][:, self.kv_heads :]


@dataclass(frozen=True)
class Group:
    """Requests that attend in one call: ``count`` requests of up to ``n`` rows over up to T keys."""

    rows: slice | Tensor
    """Rows in order: a slice when every request has n rows, else indices [count, n] (padding: row 0)."""
    real: Tensor | None
    """[count, n] bool: which of ``rows`` are not padding; None when all are real."""
    count: int
    n: int
    keys: slice | Tensor
    """Slots in logical order: a slice when they are consecutive (one request), else [count, T]."""
    key_positions: Tensor
    """[count, T] positions of the keys, for sliding windows."""
    mask: Tensor | None
    """[count, n, T] bool, True = attend; None when every row attends to every key."""
    prepared: dict[Hashable, Tensor | None] = field(default_factory=dict)
    """Masks in the form that a backend wants, made once and used by all layers."""


class Part(NamedTuple):
    """One request's share of a batch, n rows."""

    tokens: Sequence[int]
    positions: Sequence[int]
    parents: Sequence[int]
    """Index within the part, or -1 for the request's last committed row."""
    slots: Sequence[int]
    table: Tensor

    @classmethod
    def chain(cls, tokens: Sequence[int], first_position: int, slots: Sequence[int], table: Tensor) -> Part:
        """Rows that follow one another from ``first_position`` on."""
        n = len(tokens)
        return cls(tokens, range(first_position, first_position + n), range(-1, n - 1), slots, table)


@dataclass(frozen=True)
class Rows:
    """A flat ragged batch without padding; rows of one request are adjacent, parents before children.

    Prefill chunks, decode rows, chains and trees are all this. All tensors are int64 and on the host.
    """

    tokens: Tensor
    """[R] token ids."""
    positions: Tensor
    """[R] RoPE positions."""
    request: Tensor
    """[R] index into ``tables``, non-decreasing, without gaps."""
    parent: Tensor
    """[R] the row that this row hangs on, or -1 for the request's last committed row."""
    slots: Tensor
    """[R] where each row's keys and values are written; disjoint from every table."""
    tables: Sequence[Tensor]
    """Per request the slots of its committed rows in logical order, [length]."""
    prepared: dict[str, object] = field(default_factory=dict)
    """What a backend makes of the batch once, for all layers."""

    @classmethod
    def build(cls, parts: Sequence[Part]) -> Rows:
        """The batch of these parts, in order."""
        parent: list[int] = []
        for part in parts:
            start = len(parent)
            parent += [start + p if p >= 0 else -1 for p in part.parents]
        return cls(
            tokens=torch.tensor([token for part in parts for token in part.tokens]),
            positions=torch.tensor([position for part in parts for position in part.positions]),
            request=torch.tensor([b for b, part in enumerate(parts) for _ in part.tokens]),
            parent=torch.tensor(parent),
            slots=torch.tensor([slot for part in parts for slot in part.slots]),
            tables=[part.table for part in parts],
        )

    def __len__(self) -> int:
        return self.tokens.numel()

    @cached_property
    def groups(self) -> list[Group]:
        """How the rows attend; shared by all layers of a forward."""
        counts = torch.bincount(self.request, minlength=len(self.tables)).tolist()
        assert all(counts), "every table needs rows"
        starts = [0]
        for count in counts:
            starts.append(starts[-1] + count)
        groups: list[Group] = []
        batch: list[int] = []
        for b, count in enumerate(counts):
            if count <= GROUP_ROWS:
                batch.append(b)
            else:
                groups.append(self._single(b, starts[b], count))
        if len(batch) == 1:
            groups.append(self._single(batch[0], starts[batch[0]], counts[batch[0]]))
        elif batch:
            groups.append(self._padded(batch, starts, counts))
        return groups

    @cached_property
    def consecutive_slots(self) -> slice | None:
        """The written slots as a slice when they are consecutive, which makes the write a plain copy."""
        return _as_slice(self.slots)

    def _single(self, b: int, start: int, n: int) -> Group:
        table = self.tables[b]
        slots = torch.cat([table, self.slots[start : start + n]])
        keys = _as_slice(slots)
        ancestors = self._ancestors(start, n)
        mask = None
        if n > 1:
            mask = torch.cat([torch.ones(n, len(table), dtype=torch.bool), ancestors], 1)[None]
        return Group(
            rows=slice(start, start + n),
            real=None,
            count=1,
            n=n,
            keys=slots[None] if keys is None else keys,
            key_positions=torch.cat([torch.arange(len(table)), self.positions[start : start + n]])[None],
            mask=mask,
        )

    def _padded(self, batch: list[int], starts: list[int], counts: list[int]) -> Group:
        n = max(counts[b] for b in batch)
        width = max(len(self.tables[b]) + counts[b] for b in batch)
        shape = (len(batch), width)
        # A padding key is a slot of the request itself, so that NaN cannot leak from one request to another.
        keys = self.slots[[starts[b] for b in batch]][:, None].repeat(1, width)
        key_positions = torch.zeros(shape, dtype=torch.int64)
        mask = torch.zeros(len(batch), n, width, dtype=torch.bool)
        rows, real = (
            torch.zeros(len(batch), n, dtype=torch.int64),
            torch.zeros(len(batch), n, dtype=torch.bool),
        )
        for i, b in enumerate(batch):
            start, m, length = starts[b], counts[b], len(self.tables[b])
            keys[i, :length], keys[i, length : length + m] = self.tables[b], self.slots[start : start + m]
            key_positions[i, :length] = torch.arange(length)
            key_positions[i, length : length + m] = self.positions[start : start + m]
            mask[i, :m, :length] = True
            mask[i, :m, length : length + m] = self._ancestors(start, m)
            mask[i, m:, 0] = True  # a padding row attends to something, so that its softmax is finite
            rows[i, :m], real[i, :m] = torch.arange(start, start + m), True
        uniform = bool(real.all()) and _as_slice(rows.flatten())
        return Group(uniform or rows, None if uniform else real, len(batch), n, keys, key_positions, mask)

    def _ancestors(self, start: int, n: int) -> Tensor:
        """[n, n] bool: row i sees row j iff j lies on i's own path (itself included)."""
        parent = self.parent[start : start + n].tolist()
        if parent == [-1, *range(start, start + n - 1)]:
            return torch.ones(n, n, dtype=torch.bool).tril_()
        seen = torch.eye(n, dtype=torch.bool)
        for i, p in enumerate(parent):
            if p >= 0:
                assert start <= p < start + i, "a parent comes before its children"
                seen[i] |= seen[p - start]
        return seen


def _as_slice(slots: Tensor) -> slice | None:
    n = slots.numel()
    if n == 0 or (n > 1 and not bool((slots[1:] - slots[:-1] == 1).all())):
        return None
    first = int(slots[0])
    return slice(first, first + n)
