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

CHUNK = 512
"""Rows whose logits exist at once."""


class HeadLoss(NamedTuple):
    """``total``: the weighted sum of the rows' losses; it alone has gradients. ``losses`` [n] fp32 or wider, and
    ``proposals`` [n], the draft ids with the largest logits.
    """

    total: Tensor
    losses: Tensor
    proposals: Tensor


def head_loss(normed: Tensor, head: Tensor, teacher: Tensor, asked: Tensor, weights: Tensor, loss: Loss) -> HeadLoss:
    """The head over ``normed`` [n, H] with weight ``head`` [d, H], against rows ``asked`` [n] of ``teacher`` [N, d].

    ``weights`` [n]: each row's share of the total. Gradients are computed chunk by chunk on the way forward, so that
    the logits [n, d] never exist as a whole.
    """
    return HeadLoss(*_HeadLoss.apply(normed, head, teacher, asked, weights, loss))


class _HeadLoss(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, normed: Tensor, head: Tensor, *rest: Any) -> tuple[Tensor, Tensor, Tensor]:
        teacher, asked, weights, loss = rest
        wide = torch.promote_types(normed.dtype, torch.float32)
        losses = torch.empty(len(normed), dtype=wide, device=normed.device)
        grad_normed, grad_head = torch.empty_like(normed), torch.zeros_like(head)
        proposals = torch.empty(len(normed), dtype=torch.int64, device=normed.device)
        matrix = head.to(normed.dtype)
        for begin in range(0, len(normed), CHUNK):
            rows = slice(begin, begin + CHUNK)
            logits = (normed[rows] @ matrix.T).to(wide)
            with torch.enable_grad():
                leaf = logits.requires_grad_()
                values = loss(leaf.log_softmax(-1), teacher[asked[rows]].to(wide))
                (grad,) = torch.autograd.grad((values * weights[rows].to(wide)).sum(), leaf)
            losses[rows], proposals[rows] = values.detach(), logits.argmax(-1)
            grad = grad.to(normed.dtype)
            grad_normed[rows] = grad @ matrix
            grad_head += (grad.T @ normed[rows]).to(head.dtype)
        ctx.save_for_backward(grad_normed, grad_head)
        ctx.mark_non_differentiable(losses, proposals)
        return (losses * weights).sum(), losses, proposals

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        grad_normed, grad_head = ctx.saved_tensors
        scale = grads[0]
        return scale.to(grad_normed.dtype) * grad_normed, scale.to(grad_head.dtype) * grad_head, None, None, None, None
