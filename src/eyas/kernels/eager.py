"""The eager backend: plain PyTorch, any device, the truth that the other backends are compared with."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from eyas.kernels.backend import Backend, Quantization
from eyas.kernels.integers import kept, rounded
from eyas.kernels.rows import Group, KVCache, Rows


class Eager(Backend):
    """Plain PyTorch on any device, with activations in the dtype of the weights, or in fp32 where it is quantised."""

    name = "eager"
    copies_weights = False

    def __init__(self, quantization: Quantization = "none") -> None:
        self.quantization = quantization

    def packed_dtype(self, weight_dtype: torch.dtype) -> torch.dtype:
        return weight_dtype

    def activation_dtype(self, weight_dtype: torch.dtype) -> torch.dtype:
        return weight_dtype if self.quantization == "none" else torch.float32

    def pack(self, weight_OI: Tensor, bias_O: Tensor | None) -> Callable[[Tensor], Tensor]:
        self.packed_bytes += weight_OI.numel() * weight_OI.element_size()
        if self.quantization == "none":
            return lambda x: F.linear(x, weight_OI, bias_O)
        weight, bias = kept(weight_OI), None if bias_O is None else bias_O.float()
        return lambda x: F.linear(rounded(x), weight, bias)

    def rms_norm(self, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        # Under autocast x is bf16 beside a weight in fp32, for which PyTorch has no fused kernel.
        return F.rms_norm(x, weight.shape, weight.to(x.dtype), eps)

    def rotate(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        size = cos.shape[-1]
        turned = x[..., :size]
        half = size // 2
        swapped = torch.cat([-turned[..., half:], turned[..., :half]], -1)
        turned = turned * cos + swapped * sin
        return turned if size == x.shape[-1] else torch.cat([turned, x[..., size:]], -1)

    def attention(self, q: Tensor, cache: KVCache, layer: int, rows: Rows, scale: float, window: int | None) -> Tensor:
        k_SKD, v_SKD = cache.k(layer), cache.v(layer)
        if len(rows.groups) == 1 and isinstance(rows.groups[0].rows, slice):
            return _attend(q, k_SKD, v_SKD, rows, rows.groups[0], scale, window).flatten(1)
        out = torch.empty_like(q)
        for group in rows.groups:
            y = _attend(q, k_SKD, v_SKD, rows, group, scale, window)
            if isinstance(group.rows, slice):
                out[group.rows] = y
            else:
                assert group.real is not None
                real = group.real.flatten().to(q.device)
                out[group.rows.flatten().to(q.device)[real]] = y[real]
        return out.flatten(1)


def _attend(
    q: Tensor, k_SKD: Tensor, v_SKD: Tensor, rows: Rows, group: Group, scale: float, window: int | None
) -> Tensor:
    """One group's attention → [count · n, heads, D]. The query heads of one key head become extra rows."""
    heads, D = q.shape[1:]
    K = k_SKD.shape[1]
    B, n, fold = group.count, group.n, heads // K
    row_index = group.rows if isinstance(group.rows, slice) else group.rows.to(q.device)
    q_BKrD = q[row_index].reshape(B, n, K, fold, D).permute(0, 2, 3, 1, 4).reshape(B, K, fold * n, D)
    if isinstance(group.keys, slice):
        k_BTKD, v_BTKD = k_SKD[None, group.keys], v_SKD[None, group.keys]
    else:
        keys = group.keys.to(q.device)
        k_BTKD, v_BTKD = k_SKD[keys], v_SKD[keys]
    key = (window, fold, q.device)
    if key not in group.prepared:
        group.prepared[key] = _folded_mask(rows, group, window, fold, q.device)
    mask = group.prepared[key]
    y = F.scaled_dot_product_attention(
        q_BKrD, k_BTKD.transpose(1, 2), v_BTKD.transpose(1, 2), attn_mask=mask, scale=scale
    )
    return y.view(B, K, fold, n, D).permute(0, 3, 1, 2, 4).reshape(B * n, heads, D)


def _folded_mask(rows: Rows, group: Group, window: int | None, fold: int, device: torch.device) -> Tensor | None:
    """[count, 1, fold · n, T] bool, one copy of the mask for each query head of a key head; or None."""
    mask = _mask(rows, group, window)
    if mask is None:
        return None
    shape = (group.count, 1, fold, group.n, mask.shape[-1])
    return mask.to(device)[:, None, None].expand(shape).reshape(group.count, 1, fold * group.n, -1)


def _mask(rows: Rows, group: Group, window: int | None) -> Tensor | None:
    """[count, n, T] bool, or None when every row attends to every key."""
    if window is None or group.key_positions.shape[1] <= window:
        return group.mask
    own = rows.positions[group.rows].view(group.count, group.n, 1)
    near = own - group.key_positions[:, None] < window
    return near if group.mask is None else near & group.mask
