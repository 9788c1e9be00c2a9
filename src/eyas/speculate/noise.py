"""Noise that is a function of (seed, position, stream, token id) and of nothing else.

Sampled text can only be the same for every K, tree and batch if the noise at a position does not depend on
how the position was reached. So there is no generator with a state here: every number is a hash of its key.
The definition is meant to be reproduced elsewhere; all integers are unsigned 64 bits and wrap around:

    mix(x)     x ^= x >> 30;  x *= 0xBF58476D1CE4E5B9;  x ^= x >> 27;  x *= 0x94D049BB133111EB;  x ^= x >> 31
    G          0x9E3779B97F4A7C15
    key k      k = 0;  for word in (seed, stream, position):  k = mix((k ^ word) + G)
    bits       h(id) = mix(k + (id + 1) * G), output id of SplitMix64 (Steele et al. 2014) seeded with k
    uniform    w(id) = ((h >> 12) + 0.5) * 2**-52, exact in float64, and never 0 or 1
    Gumbel     g(id) = -log(-log(1 - w)), float64, from -3.61 to 36.74

``log`` is built from additions, multiplications and one division of float64, each rounded as IEEE 754 says,
because the libraries' logarithms differ in the last bits between devices, vector widths and array lengths.
It is right to about 1e-15; an engine that calls its own instead draws the same tokens but for differences of
that size. Devices without float64 must draw on the CPU.

For one key the 64 bits of two ids always differ (mix is a bijection). The 52 bits used coincide for some
pair of 49,152 ids with probability 3e-7 a row, which matters only if both have the same logit and win: the
lower id is taken.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

import torch
from torch import Tensor

# One stream a purpose, so that no two decisions about one position share a number.
TARGET: Final = 0  # the target's own token
PROPOSAL: Final = 1  # the token of a probabilistic draft
ACCEPT: Final = 2  # accept or reject that token
RESIDUAL: Final = 3  # the token that replaces a rejected one, or follows when all are accepted

_MASK: Final = (1 << 64) - 1
_G: Final = 0x9E3779B97F4A7C15
_M1: Final = 0xBF58476D1CE4E5B9
_M2: Final = 0x94D049BB133111EB
_LARGEST: Final = (1 << 52) - 1
_SQRT2: Final = 1.4142135623730951
_LN2: Final = 0.6931471805599453
_SERIES: Final = tuple(1.0 / n for n in range(19, 0, -2))  # artanh(s) / s in powers of s * s, highest first
_WIDEST: Final = 40.0  # more than the largest -log(1 - w) / w, which is 36.74


def _mix(x: int) -> int:
    x = ((x ^ (x >> 30)) * _M1) & _MASK
    x = ((x ^ (x >> 27)) * _M2) & _MASK
    return x ^ (x >> 31)


def key(seed: int, position: int, stream: int) -> int:
    """The 64-bit key of one position of one request; ``seed`` counts modulo 2**64."""
    k = 0
    for word in (seed, stream, position):
        k = _mix(((k ^ (word & _MASK)) + _G) & _MASK)
    return k


def _uniform_of(bits52: int) -> float:
    return (bits52 + 0.5) * 2.0**-52


def uniform(seed: int, position: int, stream: int) -> float:
    """One number strictly between 0 and 1, with 52 random bits: the ``w`` of id 0."""
    return _uniform_of(_mix((key(seed, position, stream) + _G) & _MASK) >> 12)


def _signed(x: int) -> int:
    """The same 64 bits as torch's int64 reads them."""
    return x - (1 << 64) if x >> 63 else x


def _logical_shift(x: Tensor, n: int) -> Tensor:
    # int64 shifts copy the sign bit; the definition shifts in zeros.
    return (x >> n).bitwise_and_((1 << (64 - n)) - 1)


def _bits52(keys: Tensor, ids: Tensor) -> Tensor:
    """``h >> 12`` as int64, for int64 ``keys`` and ``ids`` that broadcast."""
    x = (ids * _signed(_G)).add_(_signed(_G)) + keys
    x = x.bitwise_xor_(_logical_shift(x, 30)).mul_(_signed(_M1))
    x = x.bitwise_xor_(_logical_shift(x, 27)).mul_(_signed(_M2))
    x = x.bitwise_xor_(_logical_shift(x, 31))
    return _logical_shift(x, 12)


def _log(x: Tensor) -> Tensor:
    """Natural logarithm of positive, normal float64, the same bits everywhere.

    x = m * 2**e with m in (sqrt(1/2), sqrt(2)], and log m = 2 artanh(s), s = (m - 1) / (m + 1), to s**19.
    """
    raw = x.view(torch.int64)
    m = (raw & ((1 << 52) - 1) | (1023 << 52)).view(torch.float64)
    high = m > _SQRT2
    m = torch.where(high, m * 0.5, m)
    e = ((raw >> 52) - 1023 + high).to(torch.float64)
    s = (m - 1.0) / (m + 1.0)
    z = s * s
    series = torch.full_like(s, _SERIES[0])
    for c in _SERIES[1:]:
        # Two operations: a fused multiply-add would round once instead of twice.
        series = series.mul_(z).add_(c)
    return e * _LN2 + s * 2.0 * series


def _log_of_one(x: float) -> float:
    """The same bits as :func:`_log`, in a fiftieth of the time for a single number."""
    m, e = math.frexp(x)
    m, e = m * 2.0, e - 1
    if m > _SQRT2:
        m, e = m * 0.5, e + 1
    s = (m - 1.0) / (m + 1.0)
    z = s * s
    series = _SERIES[0]
    for c in _SERIES[1:]:
        series = series * z + c
    return e * _LN2 + s * 2.0 * series


def _gumbel_of(bits52: Tensor) -> Tensor:
    # 1 - w is exact: it is the mirror image of w on the same grid.
    one_minus_w = (_LARGEST - bits52).to(torch.float64).add_(0.5).mul_(2.0**-52)
    return -_log(-_log(one_minus_w))


def _gumbel_of_one(bits52: int) -> float:
    return -_log_of_one(-_log_of_one(_uniform_of(_LARGEST - bits52)))


def gumbel(seed: int, positions: Sequence[int], token_ids: Tensor, stream: int = TARGET) -> Tensor:
    """Standard Gumbel noise [R, V], float64, for R positions and int64 ``token_ids`` [V], on their device."""
    keys = [_signed(key(seed, position, stream)) for position in positions]
    keys_R1 = torch.tensor(keys, dtype=torch.int64, device=token_ids.device)[:, None]
    return _gumbel_of(_bits52(keys_R1, token_ids[None, :]))


def draw(scores: Tensor, token_ids: Tensor, seed: int, position: int, stream: int = TARGET) -> int:
    """The id that maximises ``scores + gumbel``: one draw from softmax(scores), the Gumbel-max trick.

    ``scores`` [n] float32 are log-probabilities up to a constant, at least one of them finite, the rest
    finite or -inf; ``token_ids`` [n] int64, ascending. Equal sums go to the lower id.

    The logarithms, the dear part, are taken only where they can matter. With E = -log(1 - w), the winner has
    the largest exp(score) / E, and w < E < 40 w: an id whose exp(score) / w is 40 times below the largest
    cannot win, nor one whose score - log(w) is below a sum already seen.
    """
    k = torch.tensor(_signed(key(seed, position, stream)), dtype=torch.int64, device=scores.device)
    bits = _bits52(k, token_ids)
    bound = (scores - scores.max()).exp_().div_(bits.to(torch.float32).add_(0.5))
    contenders = (bound >= bound.max() / _WIDEST).nonzero()[:, 0]
    best, winner = -math.inf, -1
    lists = (x[contenders].tolist() for x in (token_ids, scores, bits))
    for token, score, b in zip(*lists, strict=True):
        # The slack is far above the rounding of either side.
        if score - math.log(_uniform_of(b)) > best - 1e-9:
            total = score + _gumbel_of_one(b)
            if total > best:
                best, winner = total, token
    return winner
