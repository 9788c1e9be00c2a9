"""Losses of a draft's distribution q against the target's p, one number a slot.

p [n, d] is the target's probability of each token of the draft vocabulary, out of its whole vocabulary: what lies
outside is mass that q can never reach, so p's rows sum to less than 1 and are not renormalised. q is over the draft
vocabulary. With acceptance α = Σ min(p, q), the probability that a drawn proposal is accepted:

- ``soft-cross-entropy``: −Σ p log q (Li et al., EAGLE-3)
- ``forward-kl``: Σ p log(p / q): the same gradients; its value says how much is left to gain
- ``lk``: −log α (Samarin et al. 2026, LK losses)
- ``lk-hybrid``: λ · forward KL + (1 − λ) · (1 − α), λ = exp(−3 α) of the slot, not differentiated (the same)
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Literal, NamedTuple, get_args

import torch
from torch import Tensor

from eyas.kernels.backend import filled_up

LossName = Literal["soft-cross-entropy", "forward-kl", "lk", "lk-hybrid"]
Loss = Callable[[Tensor, Tensor], Tensor]
"""(log q [n, d], p [n, d]) → [n], all fp32 or wider."""

_HYBRID_DECAY = 3.0
_TINY = 1e-20


def soft_cross_entropy(log_q: Tensor, p: Tensor) -> Tensor:
    return -(p * log_q).sum(-1)


def forward_kl(log_q: Tensor, p: Tensor) -> Tensor:
    return (torch.xlogy(p, p) - p * log_q).sum(-1)


def acceptance(log_q: Tensor, p: Tensor) -> Tensor:
    """α [n]: Σ min(p, q)."""
    return torch.minimum(p, log_q.exp()).sum(-1)


def lk(log_q: Tensor, p: Tensor) -> Tensor:
    # A start at which the two share nothing would give an infinite loss, and no gradient to leave it by.
    return -(acceptance(log_q, p) + _TINY).log()


def lk_hybrid(log_q: Tensor, p: Tensor) -> Tensor:
    alpha = acceptance(log_q, p)
    share = torch.exp(-_HYBRID_DECAY * alpha.detach())
    return share * forward_kl(log_q, p) + (1 - share) * (1 - alpha)


LOSSES: Mapping[LossName, Loss] = {
    "soft-cross-entropy": soft_cross_entropy,
    "forward-kl": forward_kl,
    "lk": lk,
    "lk-hybrid": lk_hybrid,
}
assert set(LOSSES) == set(get_args(LossName))

CHUNK = 1024
"""Rows whose logits exist at once, in the draft's precision: enough for matrix products to be worth their set-up."""
PIECE = 32
"""Rows whose loss is computed at once, in fp32 or wider: few enough for their logits to stay in a core's cache."""


class HeadLoss(NamedTuple):
    """``total``: the weighted sum of the rows' losses; it alone has gradients. ``losses`` [n] fp32 or wider, and
    ``hits`` [n]: whether the largest logit is the text's own token's.
    """

    total: Tensor
    losses: Tensor
    hits: Tensor


class Answers(NamedTuple):
    """What rows [n] of the head answer for: rows ``asked`` [n] of the target's distributions ``teacher`` [N, d], the
    text's own tokens ``truth`` [n] as draft ids (−1: not in the draft vocabulary), and each row's weight in the total.
    """

    teacher: Tensor
    asked: Tensor
    truth: Tensor
    weights: Tensor


def head_loss(normed: Tensor, head: Tensor, answers: Answers, loss: LossName) -> HeadLoss:
    """The head over ``normed`` [n, H] with weight ``head`` [d, H], against ``answers``.

    Gradients are computed chunk by chunk on the way forward, so that the logits [n, d] never exist as a whole.
    """
    return HeadLoss(*_HeadLoss.apply(normed, head, answers, loss))


class _HeadLoss(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, normed: Tensor, head: Tensor, *rest: Any) -> tuple[Tensor, Tensor, Tensor]:
        answers, loss = rest
        wide = torch.promote_types(normed.dtype, torch.float32)
        losses = torch.empty(len(normed), dtype=wide, device=normed.device)
        hits = torch.empty(len(normed), dtype=torch.bool, device=normed.device)
        grad_normed, grad_head = torch.empty_like(normed), torch.zeros_like(head)
        matrix = head.to(normed.dtype)
        for begin in range(0, len(normed), CHUNK):
            chunk = normed[begin : begin + CHUNK]
            states = chunk if normed.dtype == wide else filled_up(chunk)
            logits = states @ matrix.T
            for at in range(0, len(chunk), PIECE):
                part = logits[at : min(at + PIECE, len(chunk))]
                rows = slice(begin + at, begin + at + len(part))
                losses[rows], hits[rows], grad = _piece(part.to(wide), answers, rows, loss)
                part.copy_(grad)  # the logits' place is their gradient's from here on
            grad_normed[begin : begin + CHUNK] = (logits @ matrix)[: len(chunk)]
            grad_head += logits.T @ states
        ctx.save_for_backward(grad_normed, grad_head)
        ctx.mark_non_differentiable(losses, hits)
        return (losses * answers.weights).sum(), losses, hits

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        grad_normed, grad_head = ctx.saved_tensors
        scale = grads[0]
        return scale.to(grad_normed.dtype) * grad_normed, scale.to(grad_head.dtype) * grad_head, None, None


def _piece(logits: Tensor, answers: Answers, rows: slice, loss: LossName) -> tuple[Tensor, Tensor, Tensor]:
    """(losses [m], hits [m], gradient [m, d] of the weighted losses) of a few rows' logits [m, d]."""
    p = answers.teacher[answers.asked[rows]].to(logits.dtype)
    weights = answers.weights[rows].to(logits.dtype)
    truth, top = answers.truth[rows], logits.amax(-1)
    hits = (logits.gather(1, truth.clamp(min=0)[:, None])[:, 0] == top) & (truth >= 0)
    if loss in ("soft-cross-entropy", "forward-kl"):
        known = torch.special.xlogy(p, p).sum(-1) if loss == "forward-kl" else 0
        values, grad = _cross_entropy(logits, p, top, weights)
        return values + known, hits, grad
    with torch.enable_grad():
        leaf = logits.requires_grad_()
        values = LOSSES[loss](leaf.log_softmax(-1), p)
        (grad,) = torch.autograd.grad((values * weights).sum(), leaf)
    return values.detach(), hits, grad


def _cross_entropy(z: Tensor, p: Tensor, top: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
    """−Σ p log softmax(z) [m], and its weighted gradient w (Σp · softmax(z) − p) [m, d]; overwrites z and p.

    By hand, because autograd goes over [m, d] three times as often.
    """
    mass, linear = p.sum(-1), torch.linalg.vecdot(p, z)
    q = z.sub_(top[:, None]).exp_()
    total = q.sum(-1)
    values = mass * (top + total.log()) - linear
    grad = q.mul_((weights * mass / total)[:, None]).sub_(p.mul_(weights[:, None]))
    return values, grad
