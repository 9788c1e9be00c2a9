"""Where two answers to one prompt part, and whether rounding explains it.

Torch's kernels give other last bits for other row counts, so that a verified row's logits are not those of plain
decoding to the last bit. Where two tokens are so close that this decides, either is the target's own: a tie. Anything
else is a fault, and this module tells them apart.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from eyas.config import SamplingSettings
from eyas.kernels import Part, Rows
from eyas.models.target import Target
from eyas.speculate import noise
from eyas.speculate.sampling import History, penalise

ROUNDING = {torch.float32: 1e-5, torch.bfloat16: 0.12}
"""Activations' dtype → by how much a logit may differ between forwards of different row counts, as a share of the row's
largest |logit|. Twice the most that SmolLM2-135M showed on a CPU between 1 and 2, 5, 16 and 96 rows a forward, over
170 positions: 4.7e-6 in fp32 with either backend, 0.060 in bf16. Its 30 layers add up more rounding than most targets
of its width; measure again for a far deeper one."""


@dataclass(frozen=True)
class Divergence:
    """The first place where two answers differ."""

    index: int
    """In the answer."""
    plain: int | None
    """Plain decoding's token there; None if its answer had ended."""
    other: int | None
    gap: float
    """By how much logits of the target, recomputed alone, would have to move for both tokens to win; infinite where no
    move of logits explains the difference, as when one answer ends early."""
    bound: float
    """How far apart rounding can move two logits of this row."""

    @property
    def is_tie(self) -> bool:
        """True if rounding explains it; else one of the two answers is not the target's."""
        return self.gap <= self.bound

    def __str__(self) -> str:
        what = "a tie" if self.is_tie else "NOT a tie"
        return (
            f"answer token {self.index}: {self.plain} against {self.other}, {what}"
            f" (gap {self.gap:.3g}, rounding up to {self.bound:.3g})"
        )


def first_divergence(
    target: Target,
    prompt: Sequence[int],
    plain: Sequence[int],
    other: Sequence[int],
    sampling: SamplingSettings,
) -> Divergence | None:
    """Where ``other`` leaves ``plain``, two answers to ``prompt`` under ``sampling``, or None if they are equal.

    Runs the target over the common text one row at a time, as plain decoding does. For greedy and keyed sampling only:
    answers of probabilistic drafts are other draws from the same distribution.
    """
    index = next((i for i, (a, b) in enumerate(zip(plain, other, strict=False)) if a != b), min(len(plain), len(other)))
    if index == len(plain) == len(other):
        return None
    a = plain[index] if index < len(plain) else None
    b = other[index] if index < len(other) else None
    logits_V = _next_logits(target, [*prompt, *plain[:index]], len(prompt))
    r = sampling.repetition_penalty
    # A repetition penalty stretches logits, and their rounding with them. Two logits can move against each other.
    bound = 2 * ROUNDING[target.dtype] * float(logits_V.abs().max()) * max(r, 1 / r)
    if a is None or b is None:
        return Divergence(index, a, b, float("inf"), bound)
    scores_V = penalise(logits_V, sampling, History(prompt, plain[:index]))
    position = len(prompt) + index
    gap = max(cost_to_win(scores_V, token, sampling, position) for token in (a, b))
    return Divergence(index, a, b, gap, bound)


def cost_to_win(scores_V: Tensor, token: int, sampling: SamplingSettings, position: int) -> float:
    """By how much penalised logits [V] must move, at least, for ``token`` to be the one chosen for ``position``.

    Each rival must be overtaken (in perturbed score, for keyed sampling) or pushed out of what top-k, top-p and min-p
    keep, and the token itself must be among the kept. 0 for the token that is chosen.
    """
    scores = scores_V.double()
    if sampling.greedy:
        return float(scores.max() - scores[token])
    inside = _margins(scores, sampling)
    gumbel = noise.gumbel(sampling.seed, [position], torch.arange(len(scores)))[0]
    # Noise is added after the division by the temperature; in units of logits it is multiplied instead.
    perturbed = scores + gumbel * sampling.temperature
    overtake = (perturbed - perturbed[token]).clamp(min=0)
    push_out = inside.clamp(min=0)
    rivals = torch.minimum(overtake, push_out)
    rivals[token] = 0
    enter = max(0.0, -float(inside[token]))
    return max(enter, float(rivals.max()))


def _margins(scores: Tensor, sampling: SamplingSettings) -> Tensor:
    """[V] how deep each token lies inside what the truncations keep, in logits; negative for those cut off.

    Top-p is crossed when the mass above the token crosses p, whose logarithm moves no faster than the distance of two
    logits, or when the token changes places with the one across the border.
    """
    t = sampling.temperature
    margins = torch.full_like(scores, torch.inf)
    kept = torch.ones_like(scores, dtype=torch.bool)
    if 0 < sampling.top_k < len(scores):
        kept = scores >= scores.topk(sampling.top_k).values[-1]
        margins = _across(scores, kept)
    if sampling.top_p < 1:
        probs = torch.where(kept, scores / t, -torch.inf).softmax(0)
        order = probs.argsort(descending=True, stable=True)
        above = torch.empty_like(probs)
        above[order] = probs[order].cumsum(0) - probs[order]
        nucleus = above < sampling.top_p
        mass = (sampling.top_p / above.clamp(min=1e-300)).log() * t
        swap = _across(scores, nucleus)
        margins = torch.minimum(margins, torch.where(nucleus, torch.minimum(mass, swap), torch.maximum(mass, swap)))
    if sampling.min_p > 0:
        margins = torch.minimum(margins, scores - (scores.max() + t * math.log(sampling.min_p)))
    return margins


def _across(scores: Tensor, kept: Tensor) -> Tensor:
    """How far each token's score is from the nearest one on the other side; infinite where there is none."""
    outside = scores[~kept].max() if not bool(kept.all()) else scores.new_tensor(-torch.inf)
    return torch.where(kept, scores - outside, scores - scores[kept].min())


def _next_logits(target: Target, text: Sequence[int], prompt_length: int) -> Tensor:
    """Logits [V] after ``text``: the prompt in one forward, then one row a forward."""
    cache = target.new_cache(len(text))
    stops = [prompt_length, *range(prompt_length + 1, len(text) + 1)]
    start = 0
    for stop in stops:
        out = target.new_outputs(stop - start)
        part = Part.chain(text[start:stop], start, range(start, stop), torch.arange(start))
        target.forward(Rows.build([part]), cache, out)
        start = stop
    return target.logits(out.hidden[-1:])[0]
