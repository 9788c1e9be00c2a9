"""A draft against the target that it was trained for, where the served one was made from it afterwards.

Quantisation methods turn the residual stream by an orthogonal matrix: the target says the same, and every feature is
another vector. A fine-tune or a coarse quantisation leaves the basis and moves the states.

Shape legend: V vocabulary, H hidden.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from eyas.check.catalogue import KINDS
from eyas.check.findings import Finding
from eyas.check.forced import Text
from eyas.check.meant import model_of
from eyas.check.measure import Rig, compare
from eyas.check.mend import Parts, with_rotation
from eyas.check.readings import declared
from eyas.check.search import SURE
from eyas.errors import EyasError
from eyas.models.target import Target

ROTATED = 0.05
"""Share of the embedding that a rotation may leave unexplained: rounding, and a quantised table."""
ROWS_PER_COLUMN = 4
"""Rows of the embedding, for each of its columns, that a rotation is fitted on."""


@dataclass(frozen=True)
class Against:
    """``rotation`` [H, H]: the served target's states are the original's times it; None for no rotation, or one that
    the draft cannot be turned along with.
    """

    findings: tuple[Finding, ...]
    rotation: Tensor | None = None

    @property
    def left(self) -> tuple[str, ...]:
        """Faults that no repair mends."""
        return tuple(one.said for one in self.findings) if self.rotation is None else ()


def against_original(
    parts: Parts, own_head: bool, rig: Rig, original: Target, texts: Sequence[Text], num_steps: int
) -> Against:
    """Judge the draft of ``rig`` by its original target, of the same shape. ``texts``: what that one says."""
    rotation = rotation_between(original.embedding().float(), rig.target.embedding().float())
    if rotation is not None:
        config = parts.config
        if not own_head or (config.fc_norm and config.norm_before_fc):
            return Against((_rotation_finding("this draft cannot be turned along: its head is the target's, or it has"
                                              " two norms before fc"),))  # fmt: skip
        return _rotated(parts, rig, rotation)
    return Against(_changed(parts, rig, original, texts, num_steps))


def refuse_other_shape(original: Target, served: Target) -> None:
    """Raise ``contract.mismatch`` unless one can have been made from the other."""
    ours, theirs = served.embedding(), original.embedding()
    if ours.shape != theirs.shape or served.num_layers != original.num_layers:
        cause = f"the original target has {original.num_layers} layers and an embedding of {list(theirs.shape)}, the"
        cause += f" served one {served.num_layers} and {list(ours.shape)}"
        raise EyasError("contract.mismatch", cause, "name the target that the served one was made from")


def rotation_between(original: Tensor, served: Tensor) -> Tensor | None:
    """[H, H], orthogonal, with served ≈ original · rotation, both [V, H]; None where there is none but the identity.

    Orthogonal Procrustes (Schönemann 1966): U · Vᵀ of the singular value decomposition of originalᵀ · served.
    """
    rows = torch.linspace(0, len(original) - 1, min(len(original), ROWS_PER_COLUMN * original.shape[1])).long()
    a, b = original[rows].double(), served[rows].double()
    if float((a - b).norm()) <= ROTATED * float(b.norm()):
        return None
    u, _, vt = torch.linalg.svd(a.T @ b)
    rotation = u @ vt
    return rotation.float() if float((a @ rotation - b).norm()) <= ROTATED * float(b.norm()) else None


def _rotated(parts: Parts, rig: Rig, rotation: Tensor) -> Against:
    base = declared(rig.model.config)
    turned = Rig(model_of(with_rotation(parts, rotation), rig.target), rig.target, rig.texts)
    gain = compare(turned.measure(base), rig.measure(base))
    if gain.z < SURE:
        return Against(())
    finding = _rotation_finding(f"{gain.gain:+.3f} nats a position, z {gain.z:.1f}, with fc turned along")
    return Against((finding,), rotation)


def _rotation_finding(evidence: str) -> Finding:
    kind = "features.rotated"
    said = f"{KINDS[kind].title}: its embedding is the original's times an orthogonal matrix"
    return Finding(kind, "features", "fault", said, evidence, KINDS[kind].fix)


def _changed(parts: Parts, rig: Rig, original: Target, texts: Sequence[Text], num_steps: int) -> tuple[Finding, ...]:
    """The draft accepts plainly more with its original target, on what each of the two says itself."""
    then = Rig(model_of(parts, original), original, texts)
    base = declared(rig.model.config)
    now, before = rig.acceptance(base, num_steps), then.acceptance(base, num_steps)
    if not before.interval()[0] > now.interval()[1]:
        return ()
    kind = "target.changed"
    said = (
        f"{KINDS[kind].title}: accept length {before.accept_length:.2f} with the original, {now.accept_length:.2f} now"
    )
    data = {"original": before.accept_length, "served": now.accept_length}
    return (Finding(kind, "features", "fault", said, fix=KINDS[kind].fix, data=data),)
