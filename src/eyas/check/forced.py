"""The draft over a finished text, every position at once: log-probabilities of what the target said, and hits.

Step i of slot t is given the text's own tokens, as in training (Li et al., EAGLE-3, section 3.2), so the same positions
can be compared between readings, however bad one of them is.

Shape legend: n tokens, m slots, L layers of the target, H hidden, h heads, D head size, d draft vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from eyas.check.readings import Reading
from eyas.draft.model import Attend, DraftModel
from eyas.models.reading import read_texts
from eyas.models.target import Outputs, Target

NUM_STEPS = 2
"""Steps compared: a fault of the recurrence leaves the first whole and shows in the second."""
SHARPNESS = tuple(0.3 * 1.25**i for i in range(8))
"""Factors on the logits, of which the best is taken: a reading must not win by being less sure of itself."""
UNSURE = 1e-3
"""Probability given to all tokens alike, so that no single position weighs more than about 18 nats."""


@dataclass(frozen=True)
class Text:
    """One conversation as the target read it: ``tokens`` [n] int64, of which ``prompt`` are the prompt's;
    ``taps`` [L + 1, n, H] fp32, every boundary; ``normed`` [n, H], the state after the final norm.
    """

    tokens: Tensor
    prompt: int
    taps: Tensor
    normed: Tensor

    @classmethod
    def read_all(cls, target: Target, conversations: Sequence[tuple[Sequence[int], Sequence[int]]]) -> list[Text]:
        """Let the target read (prompt, answer) pairs together. Memory: (L + 2) · H · 4 bytes a token."""
        whole = [[*prompt, *answer] for prompt, answer in conversations]
        outputs = read_texts(target, whole, range(target.num_layers + 1))
        return [cls.of(prompt, answer, out) for (prompt, answer), out in zip(conversations, outputs, strict=True)]

    @classmethod
    def of(cls, prompt: Sequence[int], answer: Sequence[int], out: Outputs) -> Text:
        """``out``: of all boundaries, at the positions of prompt and answer."""
        taps = out.taps.transpose(0, 1).float().cpu().contiguous()
        return cls(torch.tensor([*prompt, *answer]), len(prompt), taps, out.hidden.float().cpu())

    @property
    def conversation(self) -> tuple[list[int], list[int]]:
        """(prompt, answer)."""
        tokens = self.tokens.tolist()
        return tokens[: self.prompt], tokens[self.prompt :]

    def slots(self, step: int) -> Tensor:
        """Rows [m] whose proposal of this step (from 0) is the answer's own token after the first."""
        return torch.arange(self.prompt - 1, len(self.tokens) - 2 - step)

    def features(self, reading: Reading) -> Tensor:
        """What the draft is fed, [n, taps · H]."""
        parts = [self.taps[tap] for tap in reading.taps]
        if reading.last_normed:
            parts[-1] = self.normed
        return torch.cat(parts, -1).roll(-reading.feature_shift, 0)


@dataclass(frozen=True)
class Forced:
    """Per step and slot: ``logits`` over the draft vocabulary [m, d] and the truth's target id [m]."""

    slots: Tensor
    logits: Tensor
    truth: Tensor


@torch.no_grad()
def forced_steps(view: DraftModel, reading: Reading, text: Text, num_steps: int) -> list[Forced]:
    """The draft's logits at every slot of the answer for ``num_steps`` steps. ``view``: from ``arrange``."""
    return forced_from(view, reading, text, view.combine(text.features(reading)), num_steps)


@torch.no_grad()
def forced_from(view: DraftModel, reading: Reading, text: Text, state: Tensor, num_steps: int) -> list[Forced]:
    """The same from the output of fc [n, H]."""
    steps: list[Forced] = []
    asked = text.slots(0)
    if not len(asked):
        return steps
    # Of the prompt's rows only the keys and values are needed.
    keys, everyone = _Keys(asked, len(view.layers) - 1), torch.arange(int(asked[-1]) + 1)
    hidden = state[: len(everyone)]
    for i in range(num_steps):
        slots = text.slots(i)
        if not len(slots):
            break
        rows, hidden = (slots, hidden[: len(slots)]) if i else (everyone, hidden)
        tokens = text.tokens[(rows + 1 + i + reading.token_shift).clamp(0, len(text.tokens) - 1)]
        step = view.step(tokens, hidden, rows + i, keys.attend(rows, i), None if i else asked)
        hidden = step.carried
        out = step.normed if reading.final_norm else hidden
        steps.append(Forced(slots, view.logits(out), text.tokens[slots + 2 + i]))
    return steps


class _Keys:
    """Attention of the unrolling: step-0 keys of rows ≤ t, then a slot's own later ones.

    At step 0 every row is given, and the ``last`` layer goes on with those that are ``asked``: the final ones.
    """

    def __init__(self, asked: Tensor, last: int) -> None:
        self.asked, self.last = asked, last
        self._base: dict[int, tuple[Tensor, Tensor]] = {}
        self._later: dict[int, list[tuple[Tensor, Tensor]]] = {}

    def attend(self, rows: Tensor, step: int) -> Attend:
        """An ``Attend`` for the draft's layers at this step."""

        def run(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            fold = q.shape[1] // k.shape[1]
            k, v = k.repeat_interleave(fold, 1), v.repeat_interleave(fold, 1)
            if step == 0:
                self._base[layer] = k, v
                return _causal(q[self.asked] if layer == self.last else q, k, v)
            later = [(a[: len(q)], b[: len(q)]) for a, b in self._later.get(layer, [])] + [(k, v)]
            self._later[layer] = later
            return _merged(q, self._base[layer], later, rows).flatten(1)

        return run


def _causal(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """[m, h · D]: the queries are those of the last m of n rows."""
    q_h, k_h, v_h = (x.transpose(0, 1)[None] for x in (q, k, v))
    seen = torch.ones(len(q), len(k), dtype=torch.bool).tril(len(k) - len(q))
    return F.scaled_dot_product_attention(q_h, k_h, v_h, attn_mask=seen)[0].transpose(0, 1).flatten(1)


def _merged(q: Tensor, base: tuple[Tensor, Tensor], later: list[tuple[Tensor, Tensor]], rows: Tensor) -> Tensor:
    """[m, h, D]: one softmax over the base keys of rows ≤ t and the slot's own later keys."""
    scale, (k, v) = q.shape[-1] ** -0.5, base
    future = torch.arange(len(k))[None] > rows[:, None]
    seen = (torch.einsum("mhd,nhd->mhn", q, k) * scale).masked_fill(future[:, None], -torch.inf)
    own = torch.stack([(q * key).sum(-1) * scale for key, _ in later], -1)
    weights = torch.cat([seen, own], -1).softmax(-1)
    out = torch.einsum("mhn,nhd->mhd", weights[..., : len(k)], v)
    for j, (_, value) in enumerate(later):
        out = out + weights[..., len(k) + j, None] * value
    return out


def draft_ids_of(d2t: Tensor, vocab_size: int) -> Tensor:
    """Target id → draft id [V], −1 outside; entries of the map that are no target ids are left out."""
    ids = d2t + torch.arange(len(d2t))
    table, inside = torch.full((vocab_size,), -1), (ids >= 0) & (ids < vocab_size)
    table[ids[inside]] = torch.arange(len(d2t))[inside]
    return table


def log_likelihoods(one: Forced, draft_ids: Tensor, sharpness: Sequence[float]) -> Tensor:
    """[sharpness, m] nats of the truth, mixed with :data:`UNSURE`; tokens outside the map get that alone."""
    index, vocabulary = draft_ids[one.truth], len(draft_ids)
    found = torch.zeros(len(sharpness), len(one.truth))
    inside = index >= 0
    logits = one.logits[inside]
    at_truth = logits.gather(1, index[inside, None])[:, 0]
    for j, factor in enumerate(sharpness):
        found[j, inside] = (at_truth * factor - (logits * factor).logsumexp(-1)).exp()
    return torch.log((1 - UNSURE) * found + UNSURE / vocabulary)


def hits(one: Forced, d2t: Tensor) -> Tensor:
    """[m] bool: whether the likeliest proposal is the text's token."""
    best = one.logits.argmax(-1)
    return best + d2t[best] == one.truth
