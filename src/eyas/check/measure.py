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

from eyas.check.forced import NUM_STEPS, SHARPNESS, Forced, Text, draft_ids_of, forced_steps, hits, log_likelihoods
from eyas.check.readings import Reading, arrange
from eyas.draft.model import DraftModel
from eyas.metrics import Acceptance
from eyas.models.target import Target
from eyas.speculate.walk import rounds_of

LEAD = 2
"""Texts on which a reading's sharpness is chosen; with it, the others are measured."""


@dataclass(frozen=True)
class Measure:
    """``nats`` [P]: of the text's token at every position and step, in a fixed order; ``owner`` [P]: its text;
    ``depth`` [P]: the step, from 0.
    """

    nats: Tensor
    owner: Tensor
    depth: Tensor

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


@dataclass
class _Tried:
    """What is known of one reading: its sharpness, and per text measured so far nats [m] and steps [m], and accepted
    drafts of each row.
    """

    sharpness: float
    nats: list[Tensor]
    depth: list[Tensor]
    accepted: list[list[int]]


class Rig:
    """One draft and the texts it is tried on. What was measured once is kept, text by text."""

    def __init__(self, model: DraftModel, target: Target, texts: Sequence[Text]) -> None:
        self.model, self.target, self.texts = model, target, list(texts)
        self._tried: dict[Reading, _Tried] = {}

    def measure(self, reading: Reading, first: int | None = None) -> Measure:
        """The likelihoods of this reading on the first so many texts (None: on all of them), :data:`NUM_STEPS` steps
        deep, at its own best sharpness.
        """
        tried = self._try(reading, len(self.texts) if first is None else min(first, len(self.texts)))
        nats, depth = tried.nats[:first], tried.depth[:first]
        owner = [torch.full((len(one),), number) for number, one in enumerate(nats)]
        return Measure(torch.cat(nats), torch.cat(owner), torch.cat(depth))

    def accept_length(self, reading: Reading) -> float:
        """At K = :data:`NUM_STEPS`, on the texts that this reading was measured on."""
        found, tried = Acceptance(), self._try(reading, min(LEAD, len(self.texts)))
        for number, accepted in enumerate(tried.accepted):
            text = self.texts[number]
            for one in rounds_of(accepted, text.prompt, len(text.tokens), NUM_STEPS):
                found.add(number, one)
        return found.accept_length

    def _try(self, reading: Reading, first: int) -> _Tried:
        tried = self._tried.get(reading)
        if tried is not None and len(tried.nats) >= first:
            return tried
        view = arrange(self.model, reading, self.target)
        ids = draft_ids_of(view.d2t, self.target.vocab_size)
        lead = [] if tried else [forced_steps(view, reading, text, NUM_STEPS) for text in self.texts[:LEAD]]
        if tried is None:
            tried = self._tried[reading] = _Tried(
                best_sharpness([one for steps in lead for one in steps], ids), [], [], []
            )
        for number in range(len(tried.nats), max(first, len(lead))):
            text = self.texts[number]
            steps = lead[number] if number < len(lead) else forced_steps(view, reading, text, NUM_STEPS)
            tried.nats.append(torch.cat([log_likelihoods(one, ids, (tried.sharpness,))[0] for one in steps]))
            tried.depth.append(torch.cat([torch.full((len(one.truth),), i) for i, one in enumerate(steps)]))
            tried.accepted.append(_accepted(view, text, steps))
        return tried

    def acceptance(self, reading: Reading, num_steps: int, first: int | None = None) -> Acceptance:
        """The rounds that a served chain of ``num_steps`` would have, by the walk, on the first so many texts."""
        view, found = arrange(self.model, reading, self.target), Acceptance()
        for number, text in enumerate(self.texts[:first]):
            accepted = accepted_counts(view, reading, text, num_steps)
            for one in rounds_of(accepted, text.prompt, len(text.tokens), num_steps):
                found.add(number, one)
        return found


def best_sharpness(steps: Sequence[Forced], draft_ids: Tensor) -> float:
    """The factor of :data:`SHARPNESS` that explains these steps best."""
    nats = torch.cat([log_likelihoods(one, draft_ids, SHARPNESS) for one in steps], 1)
    return SHARPNESS[int(nats.mean(1).argmax())]


def accepted_counts(view: DraftModel, reading: Reading, text: Text, num_steps: int) -> list[int]:
    """Per row how many of its proposals the text accepts, up to ``num_steps`` or the text's end."""
    return _accepted(view, text, forced_steps(view, reading, text, num_steps))


def _accepted(view: DraftModel, text: Text, steps: Sequence[Forced]) -> list[int]:
    counts, alive = torch.zeros(len(text.tokens), dtype=torch.int64), torch.ones(len(text.tokens), dtype=torch.bool)
    for step in steps:
        alive[step.slots] &= hits(step, view.d2t)
        counts[step.slots] += alive[step.slots]
    return counts.tolist()
