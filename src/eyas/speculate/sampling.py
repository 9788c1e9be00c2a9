"""From logits to tokens: penalties, truncation, and the draw.

The steps, in this order, on one row of logits:

1. logit bias: added.
2. Repetition penalty r: logits of tokens in the prompt or the output are divided by r if positive, else
   multiplied by it (Keskar et al. 2019).
3. Frequency and presence penalty: logit -= frequency * count + presence * [count > 0], counted in the output. Then
   what the grammar forbids is left out.
4. Temperature 0 ends here: the argmax, and the lowest id wins ties. Otherwise divide by the temperature.
5. top-k: keep tokens at least as likely as the k-th (so equals of the k-th stay).
6. top-p: of these, renormalised, keep the fewest most likely ones that reach p (Holtzman et al. 2020); of
   equally likely ones the lower ids.
7. min-p: of these, keep tokens at least min_p times as likely as the most likely one.

A row is computed by itself with the same calls in the same shapes whatever else is in the batch, so its token
depends on its own logits, history, seed and position only.

Shape legend: R rows, V vocabulary, n tokens kept.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from eyas.errors import EyasError
from eyas.speculate import noise


class SamplingParams(Protocol):
    """What a request asks for; in brackets the value that switches a step off."""

    @property
    def temperature(self) -> float: ...  # 0 is greedy

    @property
    def top_k(self) -> int: ...  # (0 or less)

    @property
    def top_p(self) -> float: ...  # (1)

    @property
    def min_p(self) -> float: ...  # (0)

    @property
    def seed(self) -> int: ...  # keys the noise together with the position

    @property
    def repetition_penalty(self) -> float: ...  # (1)

    @property
    def presence_penalty(self) -> float: ...  # (0)

    @property
    def frequency_penalty(self) -> float: ...  # (0)

    @property
    def logit_bias(self) -> Mapping[int, float]: ...  # (empty)


@dataclass(frozen=True)
class History:
    """The tokens before the one to be drawn: prompt, then generated ones, a row's own tree path last."""

    prompt: Sequence[int]
    output: Sequence[int]
    allowed: Tensor | None = None
    """[V] bool on the host: what a grammar lets the row become; None: anything."""


def edits_logits(params: SamplingParams) -> bool:
    """Whether steps 1 to 3 do anything, so that the row needs its history and a copy of its logits."""
    return bool(
        params.logit_bias or params.repetition_penalty != 1.0 or params.presence_penalty or params.frequency_penalty
    )


def penalise(logits_V: Tensor, params: SamplingParams, history: History) -> Tensor:
    """Steps 1 to 3: [V] float32, a new tensor when anything changes.

    Errors: ``request.sampling`` for a logit bias outside the vocabulary.
    """
    x = logits_V.to(torch.float32)
    if edits_logits(params):
        x = _edit(x.clone(), params, history)
    if history.allowed is None:
        return x
    assert bool(history.allowed.any()), "a grammar allows something, or the answer has ended"
    return x.masked_fill(~history.allowed.to(x.device), -math.inf)


def _edit(x: Tensor, params: SamplingParams, history: History) -> Tensor:
    if params.logit_bias:
        outside = [i for i in params.logit_bias if not 0 <= i < len(x)]
        if outside:
            cause = f"logit_bias names token {outside[0]}, but the vocabulary is 0 … {len(x) - 1}"
            raise EyasError("request.sampling", cause, "use ids of the target's tokenizer")
        x[_ids(params.logit_bias, x)] += torch.tensor(list(params.logit_bias.values())).to(x)
    if params.repetition_penalty != 1.0:
        seen = _ids({*history.prompt, *history.output}, x)
        r = params.repetition_penalty
        x[seen] = torch.where(x[seen] > 0, x[seen] / r, x[seen] * r)
    if history.output and (params.presence_penalty or params.frequency_penalty):
        counts = Counter(history.output)
        count_n = torch.tensor(list(counts.values())).to(x)
        x[_ids(counts, x)] -= params.frequency_penalty * count_n + params.presence_penalty
    return x


def _ids(tokens: Mapping[int, object] | set[int], like: Tensor) -> Tensor:
    return torch.tensor(list(tokens), dtype=torch.int64, device=like.device)


@dataclass(frozen=True)
class Kept:
    """What a row may become."""

    ids: Tensor
    """[n] int64, ascending."""
    scores: Tensor
    """[n] float32: log-probabilities up to a constant; the largest is 0."""


def keep(penalised_V: Tensor, params: SamplingParams) -> Kept:
    """Steps 4 to 7 on a row of finite maximum, temperature > 0."""
    assert params.temperature > 0
    # Subtracting first keeps a tiny temperature from overflowing.
    scores = (penalised_V - penalised_V.max()) / params.temperature
    kept = Kept(torch.arange(len(scores), device=scores.device), scores)
    if 0 < params.top_k < len(scores):
        kept = _where(kept, scores >= scores.topk(params.top_k).values[-1])
    if params.top_p < 1.0:
        kept = _where(kept, _nucleus(kept.scores, params.top_p))
    if params.min_p > 0.0:
        kept = _where(kept, kept.scores >= math.log(params.min_p))
    return kept


def _where(kept: Kept, mask: Tensor) -> Kept:
    index = mask.nonzero()[:, 0]
    return Kept(kept.ids[index], kept.scores[index])


def _nucleus(scores: Tensor, top_p: float) -> Tensor:
    """Mask [n] of the fewest most likely tokens whose probability reaches ``top_p``; at least one."""
    probs = scores.exp()
    enough = top_p * float(probs.sum(dtype=torch.float64))
    width = min(64, len(probs))
    # Sorting the vocabulary costs ten times more than its head, which nearly always suffices.
    while True:
        head = probs.topk(width).values
        reached = (head.cumsum(0, dtype=torch.float64) >= enough).nonzero()
        if len(reached) or width == len(probs):
            break
        width = min(8 * width, len(probs))
    count = int(reached[0]) + 1 if len(reached) else width
    mask = probs > head[count - 1]
    equals = (probs == head[count - 1]).nonzero()[:, 0]
    mask[equals[: count - int(mask.sum())]] = True
    return mask


def process(logits_V: Tensor, params: SamplingParams, history: History, position: int) -> Tensor:
    """What the next token is drawn from: log-probabilities [V] float32, -inf for what is cut off.

    ``position`` is the one the token will take (its row's position + 1). At temperature 0 the argmax has
    log-probability 0.

    Errors: ``model.nonfinite``, ``request.sampling``.
    """
    x = penalise(logits_V, params, history)
    _require_finite(x.max()[None], [position])
    out = torch.full_like(x, -math.inf)
    if params.temperature == 0:
        out[x.argmax()] = 0.0
        return out
    kept = keep(x, params)
    out[kept.ids] = kept.scores.log_softmax(0)
    return out


def target_tokens(
    logits_RV: Tensor,
    params: Sequence[SamplingParams],
    positions: Sequence[int],
    histories: Sequence[History],
) -> Tensor:
    """The target's own token of each row, [R] int64: greedy, or drawn with the noise of (seed, position).

    Row r has its request's ``params[r]``, and ``positions[r]``, the position that its token will take (the
    row's position + 1). Of ``histories[r]`` the tokens are read only where ``edits_logits(params[r])``.

    Errors: ``model.nonfinite`` naming the position, ``request.sampling``.
    """
    assert len(logits_RV) == len(params) == len(positions) == len(histories)
    best_R, tokens_R = logits_RV.max(-1)
    _require_finite(best_R, positions)
    for r, p in enumerate(params):
        if p.temperature == 0 and not edits_logits(p) and histories[r].allowed is None:
            continue
        x = penalise(logits_RV[r], p, histories[r])
        tokens_R[r] = x.argmax() if p.temperature == 0 else _drawn(x, p, positions[r])
    return tokens_R


def _drawn(penalised_V: Tensor, params: SamplingParams, position: int) -> int:
    kept = keep(penalised_V, params)
    return noise.draw(kept.scores, kept.ids, params.seed, position)


class TokenLogprobs(NamedTuple):
    """A token's log-probability under the target's own distribution, before every step above, and the likeliest."""

    own: float
    top_ids: tuple[int, ...]
    top: tuple[float, ...]
    """Of ``top_ids``, highest first."""


def token_logprobs(logits_nV: Tensor, tokens: Sequence[int], top: int) -> tuple[TokenLogprobs, ...]:
    """Of the token that each row became; ``top`` likeliest ones beside it."""
    found = []
    for logits_V, token in zip(logits_nV, tokens, strict=True):
        # A row by itself, so that its figures do not depend on the others.
        logprobs = logits_V.float().log_softmax(-1)
        best = logprobs.topk(min(top, len(logprobs)))
        found.append(TokenLogprobs(float(logprobs[token]), tuple(best.indices.tolist()), tuple(best.values.tolist())))
    return tuple(found)


def _require_finite(best: Tensor, positions: Sequence[int]) -> None:
    # A maximum carries NaN and +inf on; a row of -inf alone has nothing to choose.
    finite = torch.isfinite(best)
    if not bool(finite.all()):
        bad = [p for p, ok in zip(positions, finite.tolist(), strict=True) if not ok]
        raise EyasError(
            "model.nonfinite",
            f"the logits for position {', '.join(map(str, bad))} are NaN or infinite",
            "run the model in fp32 or bf16, as fp16 overflows; else its weights are damaged: fetch them anew",
        )
