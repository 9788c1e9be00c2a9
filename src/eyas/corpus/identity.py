"""Is what was captured what it is called? Measured on the running target before anything is stored or trained on.

Shape legend: n positions, L layers, H hidden, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from eyas.errors import EyasError
from eyas.models.reading import read_text, read_texts
from eyas.models.target import Outputs, Target

BOUNDS = {torch.float32: 1e-5, torch.float16: 1e-2, torch.bfloat16: 8e-2}
"""Activations' dtype → the greatest difference of two log-probabilities, in nats, that rounding explains: 1e-5 in fp32;
below it about 2⁻¹¹ and 2⁻⁸ of a logit of 20, the rounding of one state on its way through norm and head."""
CONTROL_FACTOR = 10
TAP_BOUNDS = {torch.float32: 1e-3, torch.float16: 2e-2, torch.bfloat16: 1e-1}
"""The same for a tap computed by two implementations, as a share of the tap's length: rounding adds up over layers."""
MAX_POSITIONS = 256
"""Positions that a check reads; more would only cost."""
_FIX_TARGET = "report the architecture: Eyas taps it wrongly; do not train on such features"


@dataclass(frozen=True)
class IdentityResult:
    """What :func:`check_identity` measured over ``positions`` positions, in nats: the greatest difference of a
    log-probability from the target's own, of tap L (``error``) and of tap L − 1 in its place (``control``), and the
    greatest ``bound`` that is right for the dtype.
    """

    error: float
    control: float
    bound: float
    positions: int


def check_identity(target: Target, tokens: Sequence[int], taps: Sequence[int] = ()) -> IdentityResult:
    """Check on a text that taps are what they are called; at most MAX_POSITIONS tokens are read, at least one.

    lm_head(norm(tap L)) must reproduce the target's log-probabilities, and tap L − 1 in its place must fail by at least
    10 times the bound (``features.identity``, naming both numbers). Each of ``taps`` must differ from its neighbours,
    and read alone, in the order given, be the same as among all (``features.taps``).

    Raises these, ``model.nonfinite``, ``taps.range``. Memory: L + 1 states of each position.
    """
    tokens, L = list(tokens[:MAX_POSITIONS]), target.num_layers
    assert tokens
    whole = read_text(target, tokens, range(L + 1))
    own = _logprobs(target, whole.hidden)
    if not (whole.taps.isfinite().all() and own.isfinite().all()):
        raise EyasError("model.nonfinite", "the target gives NaN or infinity on the first sample", "use --dtype fp32")
    error = _greatest(own, _logprobs(target, target.final_norm(whole.taps[:, L])))
    control = _greatest(own, _logprobs(target, target.final_norm(whole.taps[:, L - 1])))
    bound = BOUNDS[target.dtype]
    if not (error <= bound and control >= CONTROL_FACTOR * bound):
        cause = (
            f"head(norm(tap {L})) differs from the target's log-probabilities by {error:.2e} (at most {bound:.0e}), and"
            f" tap {L - 1} in its place by {control:.2e} (at least {CONTROL_FACTOR * bound:.0e})"
        )
        raise EyasError("features.identity", cause, _FIX_TARGET)
    _check_neighbours(whole, taps, L)
    if taps:
        _check_repeat(target, tokens, whole, taps)
    return IdentityResult(error, control, bound, len(tokens))


def _logprobs(target: Target, hidden_nH: Tensor) -> Tensor:
    return target.logits(hidden_nH).float().log_softmax(-1)


def _greatest(a: Tensor, b: Tensor) -> float:
    return float((a - b).abs().max())


def _check_neighbours(whole: Outputs, taps: Sequence[int], num_layers: int) -> None:
    for tap in taps:
        for other in (tap - 1, tap + 1):
            if 0 <= other <= num_layers and torch.equal(whole.taps[:, tap], whole.taps[:, other]):
                cause = f"tap {tap} is the same as tap {other}, so one layer was missed or is tapped twice"
                raise EyasError("features.taps", cause, _FIX_TARGET)


def _check_repeat(target: Target, tokens: Sequence[int], whole: Outputs, taps: Sequence[int]) -> None:
    again = read_text(target, tokens, taps)
    for column, tap in enumerate(taps):
        if not _same(target, again.taps[:, column], whole.taps[:, tap]):
            cause = f"tap {tap} read with the taps {tuple(taps)} differs from tap {tap} read with all"
            raise EyasError("features.taps", cause, _FIX_TARGET)
    if not _same(target, again.hidden, whole.hidden):
        raise EyasError("features.batch", "a second call on the same text gives another last state", _FIX_TARGET)


def check_batch(target: Target, texts: Sequence[Sequence[int]], taps: Sequence[int]) -> None:
    """Several texts in one call must give what each gives alone, and a second call what the first gave
    (``features.batch``): bit for bit on a row-exact target, elsewhere but for rounding.
    """
    texts = [list(text[:MAX_POSITIONS]) for text in texts]
    first, second = (read_texts(target, texts, taps) for _ in range(2))
    for number, (text, one, two) in enumerate(zip(texts, first, second, strict=True)):
        alone = read_text(target, text, taps)
        for others, when in ((alone, "read alone"), (two, "read a second time")):
            if not (_same(target, one.taps, others.taps) and _same(target, one.hidden, others.hidden)):
                cause = f"text {number} of {len(texts)} in one batch has other features than {when}"
                raise EyasError("features.batch", cause, _FIX_TARGET)


def _same(target: Target, a: Tensor, b: Tensor) -> bool:
    """Equal: to the bit where the target promises it, else within its dtype's rounding."""
    if target.row_exact:
        return torch.equal(a, b)
    return _distance(a, b) <= TAP_BOUNDS[target.dtype]


def _distance(a: Tensor, b: Tensor) -> float:
    """|a − b| / |b| over all positions; NaN counts as infinitely far."""
    ratio = float((a.float() - b.float()).norm() / b.float().norm().clamp_min(1e-30))
    return ratio if ratio == ratio else float("inf")


def check_taps(target: Target, reference: Target, tokens: Sequence[int], taps: Sequence[int]) -> dict[int, float]:
    """Compare taps with those of another implementation of the same weights: tap → distance, as a share of its length.

    Raises ``features.taps``, naming the tap that it is instead, if one of ``reference``'s other taps is nearer or none
    is near enough, or if the last state is not. Memory: as :func:`check_identity`, twice.
    """
    tokens = list(tokens[:MAX_POSITIONS])
    ours = read_text(target, tokens, taps)
    theirs = read_text(reference, tokens, range(reference.num_layers + 1))
    bound, found = TAP_BOUNDS[target.dtype], {}
    for column, tap in enumerate(taps):
        distances = [_distance(ours.taps[:, column], stream) for stream in theirs.taps.unbind(1)]
        nearest = min(range(len(distances)), key=distances.__getitem__)
        if nearest != tap or distances[tap] > bound:
            cause = (
                f"tap {tap} is {distances[tap]:.2e} of its length away from the reference's (at most {bound:.0e});"
                f" nearest is the reference's tap {nearest}, {distances[nearest]:.2e} away"
            )
            raise EyasError("features.taps", cause, _FIX_TARGET)
        found[tap] = distances[tap]
    last = _distance(ours.hidden, theirs.hidden)
    if last > bound:
        cause = f"the last state is {last:.2e} of its length away from the reference's (at most {bound:.0e})"
        raise EyasError("features.taps", cause, _FIX_TARGET)
    return found
