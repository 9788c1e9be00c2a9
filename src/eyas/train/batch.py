"""From samples with features to one flat batch: documents one after the other, no padding.

Shape legend: N rows of the batch, F feature size, H target hidden size, V target vocabulary, d draft vocabulary.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from eyas.corpus.features import Features, FeatureSource, TopTokens
from eyas.corpus.samples import Sample, trained_slots
from eyas.kernels.backend import filled_up
from eyas.train.attention import Documents

PARTITION_ROWS = 256
"""Rows whose logits over the target's whole vocabulary exist at once."""


@dataclass(frozen=True)
class Batch:
    """``tokens``, ``positions``, ``segments`` [N] int64, ``features`` [N, F] fp32, scaled.

    ``segments``: 0 outside answers, else a number per answer. ``samples``: the documents' indices in the source.
    ``draft_ids`` [N]: the tokens as draft ids, −1 outside the draft vocabulary.
    ``teacher`` [n, d] fp32: the target's distributions on the draft vocabulary, of the rows that a slot answers for;
    ``teacher_rows`` [N]: which of them is each row's, −1 where no slot asks.
    """

    tokens: Tensor
    draft_ids: Tensor
    positions: Tensor
    segments: Tensor
    documents: Documents
    samples: tuple[int, ...]
    features: Tensor
    teacher: Tensor
    teacher_rows: Tensor

    def to(self, device: torch.device) -> Batch:
        """The same batch there."""
        names = ("tokens", "draft_ids", "positions", "segments", "features", "teacher", "teacher_rows")
        return replace(self, **{name: getattr(self, name).to(device) for name in names})


class Collator:
    """Makes batches. Holds what all of them need: the target's head, the kept tokens, the taps' scales."""

    def __init__(self, source: FeatureSource, head_VH: Tensor, kept: Tensor, tap_scales: Tensor) -> None:
        """``head_VH``: the target's own, fp32; ``kept`` [d]: target ids of the draft vocabulary; ``tap_scales`` [taps]:
        factors that bring the taps to a common size, so that one learning rate suits all of fc.
        """
        self.source, self.head, self.kept, self.scales = source, head_VH, kept, tap_scales
        self.head_dH = head_VH[kept]
        self.draft_ids = torch.full((len(head_VH),), -1)
        self.draft_ids[kept] = torch.arange(len(kept))
        self._in_bf16 = source.facts.format.dtype == "bfloat16"
        self._log_partition: dict[int, Tensor] = {}

    def batch(self, indices: Sequence[int]) -> Batch:
        """The samples ``indices`` of the source as one batch."""
        samples, read = [self.source.samples[i] for i in indices], self.source.read_batch(indices)
        segments = number_segments(samples)
        begin, documents, places, teacher = 0, [], [], []
        with _products(self._in_bf16):
            for index, sample, features in zip(indices, samples, read, strict=True):
                end = begin + len(sample.tokens)
                documents.append((begin, end))
                asked = trained_slots(segments[begin:end], 0).nonzero()[:, 0] + 1
                places.append(begin + asked)
                teacher.append(self._teacher(index, features, asked))
                begin = end
        teacher_rows = torch.full((begin,), -1)
        at = torch.cat(places)
        teacher_rows[at] = torch.arange(len(at))
        taps = torch.cat([f.taps.cpu() for f in read]).float() * self.scales[:, None]
        tokens = torch.cat([torch.from_numpy(s.tokens).long() for s in samples])
        return Batch(
            tokens,
            self.draft_ids[tokens],
            torch.cat([torch.arange(len(s.tokens)) for s in samples]),
            segments,
            documents,
            tuple(indices),
            taps.flatten(1),
            torch.cat(teacher),
            teacher_rows,
        )

    def _teacher(self, index: int, features: Features, rows: Tensor) -> Tensor:
        """The target's probabilities [n, d] after ``rows``; tokens outside the draft vocabulary keep their mass."""
        if features.top is not None:
            return self._from_top(features.top, rows)
        assert features.hidden is not None
        hidden = features.hidden[rows].float().to(self.head.device)
        if self._in_bf16:
            hidden = filled_up(hidden)
        known = self._log_partition.get(index)
        if known is None:
            known = self._log_partition[index] = log_partition(hidden, self.head)
        return (hidden @ self.head_dH.T - known[:, None]).exp()[: len(rows)].cpu()

    def _from_top(self, top: TopTokens, rows: Tensor) -> Tensor:
        ids = self.draft_ids[top.ids[rows]]
        mass = top.logprobs[rows].float().exp() * (ids >= 0)
        return torch.zeros(len(rows), len(self.kept)).scatter_add_(1, ids.clamp(min=0), mass)


@contextmanager
def _products(in_bf16: bool) -> Iterator[None]:
    """Products of fp32 matrices as a target in bf16 makes them, from bf16 factors, and summed in fp32: exact where the
    factors were bf16 before, and some times faster where the processor has such instructions.
    """
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("medium" if in_bf16 else before)
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


def log_partition(hidden_nH: Tensor, head_VH: Tensor) -> Tensor:
    """log Σ exp of the target's logits over its whole vocabulary, [n] fp32; few rows of logits exist at once."""
    return torch.cat([(h.float() @ head_VH.T).logsumexp(-1) for h in hidden_nH.split(PARTITION_ROWS)])


def number_segments(samples: Sequence[Sample]) -> Tensor:
    """Segments of samples laid end to end, [N] int64, each answer with a number of its own."""
    parts, used = [], 0
    for sample in samples:
        segments = torch.from_numpy(sample.segments()).long()
        parts.append(torch.where(segments > 0, segments + used, 0))
        used += len(sample.answers)
    return torch.cat(parts)


def micro_batches(indices: Sequence[int], samples: Sequence[Sample], most_tokens: int) -> list[list[int]]:
    """``indices`` in order, cut so that each piece has at most ``most_tokens`` tokens, or one sample."""
    pieces: list[list[int]] = []
    room = 0
    for index in indices:
        length = len(samples[index].tokens)
        if not pieces or length > room:
            pieces.append([])
            room = most_tokens
        pieces[-1].append(index)
        room -= length
    return pieces
