"""The loss of a global batch, so that micro-batches and processes change nothing.

Σ_i w_i · (Σ over the valid slots of step i of the loss) / (their number in the whole global batch), w_i = decay^i / Σ
decay^j. The numbers come from the masks, before anything is computed; so a piece's loss is its share of the batch's,
and gradients of pieces add up, wherever they were computed.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from eyas.corpus.samples import Sample, trained_slots
from eyas.draft.model import DraftModel
from eyas.train.batch import Batch
from eyas.train.losses import Answers, head_loss
from eyas.train.settings import TrainSettings
from eyas.train.ttt import Unrolling, unroll


def chosen_slots(sample: Sample, settings: TrainSettings, step: int, index: int) -> list[Tensor]:
    """Per unrolled step the slots [n] of a sample that optimizer step ``step`` trains; ``index``: the sample's own.

    ``later_share`` of them go beyond the first, by a draw keyed with (seed, step, index) alone: who computes it, and
    what else is in the batch, does not matter.
    """
    segments = torch.from_numpy(sample.segments())
    slots = [trained_slots(segments, i).nonzero()[:, 0] for i in range(settings.ttt_steps)]
    if settings.later_share == 1:
        return slots
    digest = hashlib.sha256(f"{settings.seed}.{step}.{index}".encode()).digest()
    generator = torch.Generator().manual_seed(int.from_bytes(digest[:8], "big") >> 1)
    lucky = torch.rand(len(segments), generator=generator) < settings.later_share
    return [slots[0], *(rows[lucky[rows]] for rows in slots[1:])]


def count_slots(chosen: Sequence[Sequence[Tensor]], num_steps: int) -> Tensor:
    """[steps] fp64: the number of slots per unrolled step over all samples."""
    return torch.tensor([sum(len(slots[i]) for slots in chosen) for i in range(num_steps)], dtype=torch.float64)


@dataclass(frozen=True)
class Tally:
    """Per unrolled step, [steps] fp64, summed over slots: ``loss``, ``correct`` (the proposal is the text's token) and
    ``slots``. Sums of pieces and of processes add up.
    """

    loss: Tensor
    correct: Tensor
    slots: Tensor

    @classmethod
    def zero(cls, num_steps: int) -> Tally:
        return cls(*(torch.zeros(num_steps, dtype=torch.float64) for _ in range(3)))

    def __add__(self, other: Tally) -> Tally:
        return Tally(self.loss + other.loss, self.correct + other.correct, self.slots + other.slots)


class Objective(nn.Module):
    """A draft with its loss as one module: what data-parallel wrappers wrap."""

    def __init__(self, model: DraftModel, settings: TrainSettings, how: Unrolling) -> None:
        super().__init__()
        self.model, self.how, self.loss = model, how, settings.loss
        decay = torch.tensor([settings.step_decay**i for i in range(settings.ttt_steps)], dtype=torch.float64)
        self.weights = (decay / decay.sum()).tolist()

    def forward(self, batch: Batch | None, slots: list[Tensor], counts: list[float]) -> tuple[Tensor, Tally]:
        """This piece's share of the global batch's loss, and its tally. ``slots``: rows of the flat batch per step;
        ``counts``: slots per step in the global batch. Without a batch: zero, with zero gradients, for a process that
        has no sample in this step and must still take part in the sum.
        """
        tally = Tally.zero(len(self.weights))
        if batch is None:
            return sum((0.0 * p.sum() for p in self.parameters() if p.requires_grad), torch.zeros(())), tally
        present = [rows for rows in slots if len(rows)]
        if not present:
            return self.forward(None, [], counts)
        # One pass of the head over all steps: its gradient, as large as the head, exists once.
        states = [(rows + 1 + i, normed) for i, rows, normed in unroll(self.model, batch, present, self.how)]
        asked = torch.cat([rows for rows, _ in states])
        step = torch.repeat_interleave(torch.tensor([len(rows) for rows, _ in states], device=asked.device))
        shares = asked.new_tensor([w / n for w, n in zip(self.weights, counts, strict=True) if n], dtype=torch.float64)
        normed = torch.cat([normed for _, normed in states])
        answers = Answers(batch.teacher, batch.teacher_rows[asked], batch.draft_ids[asked + 1], shares[step])
        loss = head_loss(normed, self.model.head.weight, answers, self.loss)
        sums_of = ((tally.loss, loss.losses), (tally.correct, loss.hits), (tally.slots, torch.ones_like(step)))
        for sums, values in sums_of:
            sums.index_add_(0, step.cpu(), values.double().cpu())
        return loss.total, tally


def flat_slots(
    chosen: Sequence[Sequence[Tensor]], documents: Sequence[tuple[int, int]], num_steps: int
) -> list[Tensor]:
    """The samples' slots as rows of the flat batch, per unrolled step."""
    pairs = list(zip(chosen, documents, strict=True))
    return [torch.cat([slots[i] + begin for slots, (begin, _) in pairs]) for i in range(num_steps)]
