"""How well a reading explains the text: log-likelihoods of the same positions, compared in pairs.

Accept lengths cannot tell a tap from its neighbour; likelihoods of the same positions can. A difference is judged by
its z over conversations, because positions of one conversation are not independent.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from eyas.check.forced import NUM_STEPS, Text, best_sharpness, draft_ids_of, forced_steps, hits, log_likelihoods
from eyas.check.readings import Reading, arrange
from eyas.draft.model import DraftModel
from eyas.metrics import Acceptance
from eyas.models.target import Target
from eyas.speculate.walk import rounds_of


@dataclass(frozen=True)
class Measure:
    """``nats`` [P]: of the text's token at every position and step, in a fixed order; ``owner`` [P]: its text."""

    nats: Tensor
    owner: Tensor

    @property
    def mean(self) -> float:
        """Nats a position."""
        return float(self.nats.mean())


@dataclass(frozen=True)
class Difference:
    """``gain`` in nats a position, ``z``: how many standard errors that is."""

    gain: float
    z: float


def compare(better: Measure, worse: Measure) -> Difference:
    """Paired, with a standard error over conversations or over positions, whichever is larger."""
    d = (better.nats - worse.nats).double()
    total, gain = len(d), float(d.mean())
    texts = int(better.owner.max()) + 1
    sums = torch.zeros(texts, dtype=torch.float64).index_add_(0, better.owner, d - gain)
    clustered = math.sqrt(float((sums**2).sum()) * texts / max(texts - 1, 1)) / total
    alone = float(d.std()) / math.sqrt(total) if total > 1 else math.inf
    error = max(clustered, alone)
    return Difference(gain, gain / error if error else 0.0)


class Rig:
    """One draft and the texts it is tried on. What was measured once is kept."""

    def __init__(self, model: DraftModel, target: Target, texts: Sequence[Text]) -> None:
        self.model, self.target, self.texts = model, target, tuple(texts)
        self._measured: dict[Reading, Measure] = {}

    def measure(self, reading: Reading) -> Measure:
        """The likelihoods of this reading, :data:`NUM_STEPS` steps deep, at its own best sharpness."""
        if reading not in self._measured:
            view, steps, owners = arrange(self.model, reading, self.target), [], []
            ids = draft_ids_of(view.d2t, self.target.vocab_size)
            for number, text in enumerate(self.texts):
                for step in forced_steps(view, reading, text, NUM_STEPS):
                    steps.append(step)
                    owners.append(torch.full((len(step.truth),), number))
            factor = best_sharpness(steps, ids)
            nats = torch.cat([log_likelihoods(step, ids, (factor,))[0] for step in steps])
            self._measured[reading] = Measure(nats, torch.cat(owners))
        return self._measured[reading]

    def acceptance(self, reading: Reading, num_steps: int) -> Acceptance:
        """The rounds that a served chain of ``num_steps`` would have, by the walk."""
        view, found = arrange(self.model, reading, self.target), Acceptance()
        for number, text in enumerate(self.texts):
            accepted = accepted_counts(view, reading, text, num_steps)
            for one in rounds_of(accepted, text.prompt, len(text.tokens), num_steps):
                found.add(number, one)
        return found


def accepted_counts(view: DraftModel, reading: Reading, text: Text, num_steps: int) -> list[int]:
    """Per row how many of its proposals the text accepts, up to ``num_steps`` or the text's end."""
    counts, alive = torch.zeros(len(text.tokens), dtype=torch.int64), torch.ones(len(text.tokens), dtype=torch.bool)
    for step in forced_steps(view, reading, text, num_steps):
        alive[step.slots] &= hits(step, view.d2t)
        counts[step.slots] += alive[step.slots]
    return counts.tolist()
