"""Packing: several samples in one row of tokens, so that rows of equal length hold hardly any padding.

First-fit decreasing: the samples, longest first, each go into the first row that has room. Which samples of equal
length meet, and in which order the rows come, is drawn from (seed, epoch), the same everywhere.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from eyas.corpus.samples import Sample
from eyas.errors import EyasError


@dataclass(frozen=True, eq=False)
class PackedRow:
    """Samples one after the other. All arrays [T] int32.

    ``samples``: their indices. ``positions``: count from 0 in each document. ``documents``: 0, 1, … by sample:
    attention stays within one. ``segments``: 0 outside answers, else a number that no other answer of the row has.
    """

    samples: tuple[int, ...]
    tokens: npt.NDArray[np.int32]
    positions: npt.NDArray[np.int32]
    documents: npt.NDArray[np.int32]
    segments: npt.NDArray[np.int32]


def plan_rows(lengths: Sequence[int], max_length: int, seed: int, epoch: int) -> list[tuple[int, ...]]:
    """Which samples share a row: tuples of indices into ``lengths``, each index once, O(n log n).

    No row is longer than ``max_length`` tokens. Raises ``samples.too-long`` for a sample that is: cutting it is a
    decision about the data, not about packing.
    """
    size = np.asarray(lengths, dtype=np.int64)
    if size.max(initial=0) > max_length:
        longest = int(size.argmax())
        cause = f"sample {longest} has {size[longest]} tokens, and a row {max_length}"
        raise EyasError("samples.too-long", cause, "build the samples with --max-length, or allow longer rows")
    draw = np.random.Philox(key=[seed, epoch])
    shuffled = np.argsort(draw.random_raw(len(size)), kind="stable")
    decreasing = shuffled[np.argsort(-size[shuffled], kind="stable")]
    room = _Room(len(size), max_length)
    rows: list[list[int]] = [[] for _ in size]
    for index in decreasing.tolist():
        rows[room.take(int(size[index]))].append(index)
    filled = [tuple(row) for row in rows if row]
    return [filled[i] for i in np.argsort(draw.random_raw(len(filled)), kind="stable")]


def pack_row(samples: Sequence[Sample], indices: Sequence[int]) -> PackedRow:
    """The samples ``indices`` as one row, in this order."""
    chosen = [samples[i] for i in indices]
    lengths = [len(sample.tokens) for sample in chosen]
    segments, used = [], 0
    for sample in chosen:
        own = sample.segments()
        segments.append(np.where(own > 0, own + used, 0).astype(np.int32))
        used += len(sample.answers)
    none = [np.zeros(0, dtype=np.int32)]
    return PackedRow(
        tuple(indices),
        np.concatenate([*(sample.tokens for sample in chosen), *none]),
        np.concatenate([*(np.arange(n, dtype=np.int32) for n in lengths), *none]),
        np.repeat(np.arange(len(lengths), dtype=np.int32), lengths),
        np.concatenate([*segments, *none]),
    )


class _Room:
    """The room left in each of ``count`` rows, and the first row with enough of it, as a tree of maxima."""

    def __init__(self, count: int, room: int) -> None:
        self.width = 1 << max(count - 1, 0).bit_length()
        self.most = [room] * (2 * self.width)

    def take(self, length: int) -> int:
        """The first row that has room for ``length``, which it then has no more."""
        node = 1
        while node < self.width:
            node = 2 * node if self.most[2 * node] >= length else 2 * node + 1
        found = node - self.width
        self.most[node] -= length
        while node > 1:
            node //= 2
            self.most[node] = max(self.most[2 * node], self.most[2 * node + 1])
        return found
