"""Accept lengths on held-out conversations, by the walk, from one unrolling for every K.

Step i of slot t is given the text's token in place of the draft's own proposal. As long as every proposal before was
the text's token both are the same, and after the first that was not, nothing counts. So the unrolling tells for every
slot how many of its proposals the target would accept, and the walk over the answer, jumping a + 1 tokens each round,
picks the slots at which rounds begin: for any K up to the steps unrolled, min(a, K) is what a chain of K shows.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import get_args

import torch
from torch import Tensor

from eyas.config import DraftSampling
from eyas.contract import ExpectedAcceptLength
from eyas.corpus.samples import Sample
from eyas.draft.model import DraftModel
from eyas.metrics import Acceptance, Round, ceiling
from eyas.speculate import noise
from eyas.speculate.walk import rounds_of
from eyas.train.batch import Batch, Collator
from eyas.train.ttt import slots_of, unroll

MAX_STEPS = 7
ALL = "all"
HEADLINE_STEPS = 5
ENOUGH = 8
"""Conversations; fewer would choose a checkpoint by chance."""


@dataclass(frozen=True)
class Group:
    """What is counted together."""

    domain: str
    temperature: float
    draft_sampling: DraftSampling


@dataclass
class Evaluation:
    """Accept lengths by group and K = 1 … 7."""

    acceptance: dict[tuple[Group, int], Acceptance] = field(default_factory=dict)

    def add(self, group: Group, num_steps: int, conversation: str, rounds: Sequence[Round]) -> None:
        """Count one answer's rounds."""
        acceptance = self.acceptance.setdefault((group, num_steps), Acceptance())
        for one in rounds:
            acceptance.add(conversation, one)

    def records(self) -> list[ExpectedAcceptLength]:
        """What the contract says to expect; groups with too few rounds for an interval are left out."""
        found = []
        for (group, num_steps), acceptance in sorted(self.acceptance.items(), key=lambda item: _order(item[0])):
            low, high = acceptance.interval()
            mean = acceptance.accept_length
            if not low <= mean <= high:  # also NaN: fewer than two conversations with whole rounds
                continue
            found.append(
                ExpectedAcceptLength(
                    prompt_set=group.domain,
                    num_steps=num_steps,
                    temperature=group.temperature,
                    draft_sampling=group.draft_sampling,
                    accept_length=mean,
                    low=low,
                    high=high,
                    ceiling=ceiling(num_steps, num_steps + 1, 1),
                    survival=tuple(acceptance.survival(i) for i in range(1, num_steps + 1)),
                )
            )
        return found

    def to_json(self) -> dict:
        """Records with survival_i and conditional_i of the deepest chain."""
        curves = [
            {
                "prompt_set": group.domain,
                "temperature": group.temperature,
                "draft_sampling": group.draft_sampling,
                "survival": [acceptance.survival(i) for i in range(1, num_steps + 1)],
                "conditional": [acceptance.conditional(i) for i in range(1, num_steps + 1)],
                "rounds": acceptance.num_rounds,
                "conversations": len(acceptance.conversations),
            }
            for (group, num_steps), acceptance in sorted(self.acceptance.items(), key=lambda item: _order(item[0]))
            if num_steps == MAX_STEPS
        ]
        return {"expected": [record.model_dump(mode="json") for record in self.records()], "curves": curves}

    def headline(self) -> float:
        """The accept length that checkpoints are chosen by: at K = 5, over all domains, at the lowest temperature of
        which there are enough conversations, else at the most frequent one. NaN for no rounds.
        """
        groups = {
            group.temperature: acceptance
            for (group, num_steps), acceptance in self.acceptance.items()
            if group.domain == ALL and group.draft_sampling == "one-hot" and num_steps == HEADLINE_STEPS
        }
        if not groups:
            return math.nan
        enough = [t for t, acceptance in groups.items() if len(acceptance.conversations) >= ENOUGH]
        most = max(groups, key=lambda t: len(groups[t].conversations))
        return groups[min(enough, default=most)].accept_length


def _order(key: tuple[Group, int]) -> tuple[str, float, str, int]:
    group, num_steps = key
    return group.domain, group.temperature, group.draft_sampling, num_steps


@torch.no_grad()
def evaluate(model: DraftModel, collator: Collator, indices: Sequence[int]) -> Evaluation:
    """The walk over the samples ``indices`` of the collator's source, one at a time.

    One-hot acceptance for every temperature, each counted apart; acceptance of drawn proposals for temperature 1, where
    a token x of the target is accepted with probability min(1, q(x) / p(x)). Every group is also counted under "all".
    Samples whose temperature is not known are left out: nothing could be promised by them.
    """
    result = Evaluation()
    # The likeliest tokens alone do not tell what the others' probabilities are.
    whole = collator.source.facts.top_k is None
    for index in indices:
        sample = collator.source.samples[index]
        if math.isnan(sample.temperature):
            continue
        batch = collator.batch([index]).to(model.norm.device)
        counts = accepted_counts(model, batch, collator.draft_ids.to(model.norm.device), index)
        for sampling, accepted in counts.items():
            if sampling == "probabilistic" and (sample.temperature != 1.0 or not whole):
                continue
            for domain in {sample.domain or ALL, ALL}:
                group = Group(domain, sample.temperature, sampling)
                for num_steps in range(1, MAX_STEPS + 1):
                    rounds = list(walk_counts(accepted, sample, num_steps))
                    result.add(group, num_steps, sample.prompt_id, rounds)
    return result


def accepted_counts(model: DraftModel, batch: Batch, draft_ids: Tensor, seed: int) -> dict[DraftSampling, list[int]]:
    """Per way of drafting how many of each row's proposals the target's text accepts, up to 7 or the answer's end.

    ``draft_ids`` [V]: draft id of a target id, −1 outside; ``seed`` keys the draws of "probabilistic".
    """
    names: tuple[DraftSampling, ...] = get_args(DraftSampling)
    counts = {name: torch.zeros_like(batch.tokens) for name in names}
    alive = {name: torch.ones_like(batch.tokens, dtype=torch.bool) for name in counts}
    for i, rows, normed in unroll(model, batch, slots_of(batch.segments, MAX_STEPS)):
        logits, truth = model.logits(normed), batch.tokens[rows + 2 + i]
        hits: dict[DraftSampling, Tensor] = {
            "one-hot": model.to_target_ids(logits.argmax(-1)) == truth,
            "probabilistic": _drawn(
                logits,
                batch.teacher[batch.teacher_rows[rows + 1 + i]],
                draft_ids[truth],
                rows + 2 + i,
                seed + i * 2**32,
            ),
        }
        for name, hit in hits.items():
            alive[name][rows] &= hit
            counts[name][rows] += alive[name][rows]
    return {name: count.tolist() for name, count in counts.items()}


def _drawn(logits: Tensor, p: Tensor, ids: Tensor, at: Tensor, seed: int) -> Tensor:
    """Whether a token of the target would be accepted by drawn proposals: u p(x) < q(x)."""
    inside = ids >= 0
    index = ids.clamp(min=0)[:, None]
    q_x, p_x = (x.gather(1, index)[:, 0] for x in (logits.softmax(-1), p))
    u = q_x.new_tensor([noise.uniform(seed, position, noise.ACCEPT) for position in at.tolist()])
    return inside & (u * p_x < q_x)


def walk_counts(accepted: Sequence[int], sample: Sample, num_steps: int) -> Iterator[Round]:
    """The rounds of a chain of ``num_steps`` over a sample's answers, given each row's accepted proposals."""
    for begin, end in sample.answers:
        yield from rounds_of(accepted, begin, end, num_steps)
