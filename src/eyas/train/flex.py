"""Training-time test's attention by PyTorch's flex attention, for GPUs: its kernels skip what no slot sees.

Not run on a GPU yet. On a CPU it has no backward; its values, uncompiled, are compared with the others' there.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

from eyas.train.attention import Attention, Documents


def flex_merged(compiled: bool = True) -> Attention:
    """An attention as :func:`eyas.train.attention.merged_attention`; autograd goes through outputs and log-sum-exps."""
    attend: Any = torch.compile(flex_attention, dynamic=True) if compiled else flex_attention

    def attention(q: Tensor, k: Tensor, v: Tensor, dk: Tensor, dv: Tensor, rows: Tensor, docs: Documents) -> Tensor:
        q, k, dk, dv = (x.to(v.dtype) for x in (q, k, dk, dv))
        full = q.new_zeros(len(k), *q.shape[1:]).index_copy(0, rows, q)
        query, key, value = (x.transpose(0, 1)[None] for x in (full, k, v))
        out, sums = attend(query, key, value, block_mask=_mask(docs, q.device), enable_gqa=True, return_lse=True)
        out, total = out[0].transpose(0, 1)[rows], sums[0].transpose(0, 1)[rows].to(_wide(q))
        fold, scale = q.shape[1] // k.shape[1], q.shape[-1] ** -0.5
        keys, values = (x.repeat_interleave(fold, -2) for x in (dk, dv))
        scores = (q[None] * keys).sum(-1, dtype=_wide(q)) * scale
        merged = torch.logsumexp(torch.cat([total[None], scores]), 0)
        own = ((scores - merged).exp()[..., None].to(q.dtype) * values).sum(0)
        return out * (total - merged).exp()[..., None].to(q.dtype) + own

    return attention


def _wide(x: Tensor) -> torch.dtype:
    return torch.promote_types(x.dtype, torch.float32)


def _mask(docs: Documents, device: torch.device) -> Any:
    """Earlier rows of the same document."""
    total = docs[-1][1]
    document = torch.empty(total, dtype=torch.int64, device=device)
    for number, (begin, end) in enumerate(docs):
        document[begin:end] = number

    def seen(_batch: Tensor, _head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        return (query >= key) & (document[query] == document[key])

    return create_block_mask(seen, None, None, total, total, device=device)
