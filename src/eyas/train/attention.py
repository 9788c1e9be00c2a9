"""Attention of training-time test: causal over the keys of step 0, and over a slot's own keys of later steps.

Step i of slot t sees the step-0 keys of slots ≤ t and its own keys of steps 1 … i: a triangle and a diagonal (Li et
al., EAGLE-3, section 3.2). Both parts are one softmax. With o₀ and l₀ the output and log-sum-exp of the triangle, and
s_j the scores of the diagonal,

    l = log(exp l₀ + Σ_j exp s_j),    o = exp(l₀ − l) o₀ + Σ_j exp(s_j − l) v_j

and because a flash kernel's backward recomputes exp(s − l) from l and needs only o and its gradient beside it, the
triangle's gradients are the same kernel's, given the merged o and l. So memory is linear in the length, and nothing is
computed twice. Documents of one flat batch do not see each other.

Shape legend: N rows of the batch, n rows that ask, h heads, g heads per KV head, c KV heads, D head size, m diagonals.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

Documents = Sequence[tuple[int, int]]
"""(begin, end) of each document's rows in the flat batch."""
Attention = Callable[[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Documents], Tensor]
"""(q[n, h, D], k[N, c, D], v[N, c, D], diagonal k[m, n, c, D], diagonal v, rows[n], documents) → [n, h, D]."""


class Triangle(NamedTuple):
    """A causal attention over [1, h, T, D] with its log-sum-exp [1, h, T], and its backward given any of both."""

    forward: Callable[[Tensor, Tensor, Tensor], tuple[Tensor, Tensor]]
    backward: Callable[[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor], tuple[Tensor, Tensor, Tensor]]


def merged_attention(q: Tensor, k: Tensor, v: Tensor, dk: Tensor, dv: Tensor, rows: Tensor, docs: Documents) -> Tensor:
    """The attention that training uses, on any device: see :data:`Attention`."""
    triangle = _FLASH_CPU if q.device.type == "cpu" else BLOCKED
    # Under autocast the rotation leaves q and k in fp32.
    q, k, dk, dv = (x.to(v.dtype) for x in (q, k, dk, dv))
    return _Merged.apply(q, k, v, dk, dv, rows, docs, triangle)


def dense_attention(q: Tensor, k: Tensor, v: Tensor, dk: Tensor, dv: Tensor, rows: Tensor, docs: Documents) -> Tensor:
    """The same written down plainly with an n × N mask: the truth that :func:`merged_attention` is compared with."""
    scale, fold = q.shape[-1] ** -0.5, q.shape[1] // k.shape[1]
    k, v, dk, dv = (x.repeat_interleave(fold, -2) for x in (k, v, dk, dv))
    document = torch.zeros(len(k), dtype=torch.int64, device=q.device)
    for number, (begin, end) in enumerate(docs):
        document[begin:end] = number
    other = torch.arange(len(k), device=q.device)
    seen = (other[None] <= rows[:, None]) & (document[None] == document[rows][:, None])
    triangle = torch.einsum("nhd,shd->nhs", q, k) * scale
    diagonal = torch.einsum("nhd,mnhd->nhm", q, dk) * scale
    scores = torch.cat([triangle.masked_fill(~seen[:, None], -torch.inf), diagonal], -1)
    weights = scores.softmax(-1)
    own = torch.einsum("nhm,mnhd->nhd", weights[..., len(k) :], dv)
    return torch.einsum("nhs,shd->nhd", weights[..., : len(k)], v) + own


class _Merged(torch.autograd.Function):
    """See the module's head. Rows that do not ask take part with a zero query and a zero gradient."""

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, dk: Tensor, dv: Tensor, rows: Tensor, *rest: Any) -> Tensor:
        docs, triangle = rest
        full, lse = torch.zeros(len(k), *q.shape[1:], dtype=q.dtype, device=q.device), []
        full[rows] = q
        outs = []
        for begin, end in docs:
            part = slice(begin, end)
            o_T, l_T = triangle.forward(*(_heads(x[part], q.shape[1]) for x in (full, k, v)))
            outs.append(o_T[0].transpose(0, 1))
            lse.append(l_T[0].transpose(0, 1))
        out, total = torch.cat(outs)[rows], torch.cat(lse)[rows]
        scores = _diagonal(q, dk)
        merged = torch.logsumexp(torch.cat([total[None], scores]), 0)
        out = out * (total - merged).exp()[..., None].to(q.dtype)
        weights = (scores - merged).exp().to(q.dtype)
        for j in range(len(dv)):
            out += weights[j][..., None] * _expand(dv[j], q.shape[1])
        ctx.save_for_backward(q, k, v, dk, dv, rows, out, merged)
        ctx.docs, ctx.triangle = docs, triangle
        return out

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        q, k, v, dk, dv, rows, out, merged = ctx.saved_tensors
        grad = grads[0].contiguous()
        wide = torch.zeros(3, len(k), *q.shape[1:], dtype=q.dtype, device=q.device)
        wide[:, rows] = torch.stack([grad, q, out])
        lse = torch.zeros(len(k), q.shape[1], dtype=merged.dtype, device=q.device)
        lse[rows] = merged
        pieces = []
        for begin, end in ctx.docs:
            part = slice(begin, end)
            grad_T, q_T, o_T, k_T, v_T = (_heads(x[part], q.shape[1]) for x in (*wide, k, v))
            pieces.append(
                [
                    x[0].transpose(0, 1)
                    for x in ctx.triangle.backward(grad_T, q_T, k_T, v_T, o_T, lse[part].T[None].contiguous())
                ]
            )
        grad_q, grad_k, grad_v = (torch.cat(x) for x in zip(*pieces, strict=True))
        own_q, own_k, own_v = _diagonal_backward(grad, q, dk, dv, out, merged)
        grad_k, grad_v = (x.unflatten(1, (k.shape[1], -1)).sum(2) for x in (grad_k, grad_v))
        return grad_q[rows] + own_q, grad_k, grad_v, own_k, own_v, None, None, None


def _heads(x: Tensor, heads: int) -> Tensor:
    """[T, c, D] → [1, h, T, D]."""
    return _expand(x, heads).transpose(0, 1)[None]


def _expand(x: Tensor, heads: int) -> Tensor:
    """[…, c, D] → […, h, D]."""
    return x if x.shape[-2] == heads else x.repeat_interleave(heads // x.shape[-2], -2)


def _diagonal(q: Tensor, dk: Tensor) -> Tensor:
    """Scores [m, n, h], in fp32 below fp64."""
    wide = torch.promote_types(q.dtype, torch.float32)
    scores = [(q * _expand(k_j, q.shape[1])).sum(-1, dtype=wide) for k_j in dk]
    return torch.stack(scores) * q.shape[-1] ** -0.5 if scores else q.new_zeros(0, *q.shape[:2], dtype=wide)


def _diagonal_backward(
    grad: Tensor, q: Tensor, dk: Tensor, dv: Tensor, out: Tensor, merged: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of q [n, h, D], dk and dv [m, n, c, D] through the diagonal's terms."""
    heads, scale = q.shape[1], q.shape[-1] ** -0.5
    weights = (_diagonal(q, dk) - merged).exp().to(q.dtype)
    mean = (grad * out).sum(-1)
    grad_q, grad_dk, grad_dv = torch.zeros_like(q), torch.empty_like(dk), torch.empty_like(dv)
    for j in range(len(dk)):
        pulled = (grad * _expand(dv[j], heads)).sum(-1)
        grad_s = (weights[j] * (pulled - mean) * scale)[..., None]
        grad_q += grad_s * _expand(dk[j], heads)
        grad_dk[j] = (grad_s * q).unflatten(1, (dk.shape[2], -1)).sum(2)
        grad_dv[j] = (weights[j][..., None] * grad).unflatten(1, (dk.shape[2], -1)).sum(2)
    return grad_q, grad_dk, grad_dv


# The triangle -------------------------------------------------------------------------------------------------------

_aten = torch.ops.aten


def _flash_backward(
    grad: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """In fp32 at least: the kernel's bf16 products are small ones, and up to three times slower."""
    wide = torch.promote_types(q.dtype, torch.float32)
    backward = _aten._scaled_dot_product_flash_attention_for_cpu_backward
    grads = backward(*(x.to(wide) for x in (grad, q, k, v, out)), lse, 0.0, True)
    one, two, three = (x.to(q.dtype) for x in grads)
    return one, two, three


_FLASH_CPU = Triangle(
    lambda q, k, v: _aten._scaled_dot_product_flash_attention_for_cpu(q, k, v, 0.0, True), _flash_backward
)

BLOCK = 256
"""Queries that :data:`BLOCKED` takes at a time."""


def _blocked_scores(q: Tensor, k: Tensor, begin: int) -> Tensor:
    """Masked scores [1, h, b, e] of the queries from ``begin`` on, e the keys that the last of them sees."""
    end = min(begin + BLOCK, q.shape[2])
    scores = q[:, :, begin:end] @ k[:, :, :end].transpose(-1, -2) * q.shape[-1] ** -0.5
    future = torch.ones(end - begin, end, dtype=torch.bool, device=q.device).triu(begin + 1)
    return scores.to(torch.promote_types(q.dtype, torch.float32)).masked_fill(future, -torch.inf)


def _blocked_forward(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    outs, sums = [], []
    for begin in range(0, q.shape[2], BLOCK):
        scores = _blocked_scores(q, k, begin)
        sums.append(scores.logsumexp(-1))
        weights = (scores - sums[-1][..., None]).exp().to(v.dtype)
        outs.append(weights @ v[:, :, : scores.shape[-1]])
    return torch.cat(outs, 2), torch.cat(sums, 2)


def _blocked_backward(
    grad: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    grad_q, grad_k, grad_v = torch.empty_like(q), torch.zeros_like(k), torch.zeros_like(v)
    for begin in range(0, q.shape[2], BLOCK):
        scores = _blocked_scores(q, k, begin)
        rows, seen = slice(begin, begin + scores.shape[2]), scores.shape[3]
        weights = (scores - lse[:, :, rows, None]).exp().to(v.dtype)
        g, mean = grad[:, :, rows], (grad[:, :, rows] * out[:, :, rows]).sum(-1, keepdim=True)
        grad_s = weights * (g @ v[:, :, :seen].transpose(-1, -2) - mean) * q.shape[-1] ** -0.5
        grad_q[:, :, rows] = grad_s @ k[:, :, :seen]
        grad_k[:, :, :seen] += grad_s.transpose(-1, -2) @ q[:, :, rows]
        grad_v[:, :, :seen] += weights.transpose(-1, -2) @ g
    return grad_q, grad_k, grad_v


BLOCKED = Triangle(_blocked_forward, _blocked_backward)
"""In plain PyTorch, block by block: for devices whose kernels do not tell the log-sum-exp."""
