"""The draft as its files mean it, with what can be mended mended, ready to run."""

from __future__ import annotations

import torch

from eyas.check.mend import Known, Parts, completed, with_map
from eyas.check.static import StaticResult
from eyas.check.tensors import expected_shapes
from eyas.draft.checkpoint import assemble
from eyas.draft.model import DraftModel
from eyas.draft.names import HEAD, OFFSETS
from eyas.models.target import Target


def meant_parts(static: StaticResult, target: Target) -> Parts | None:
    """Config and tensors as far as the files tell them; None where too little of the draft is there."""
    if static.config is None or static.config.vocab_size != target.vocab_size:
        return None
    known = Known(embedding=target.embedding(), head=target.head())
    parts = with_map(completed(Parts(static.config, dict(static.tensors)), known), static.offsets)
    tensors, config = dict(parts.tensors), parts.config
    if static.document.get("draft_vocab_size", 0) is None:
        tensors.setdefault(HEAD, target.head())
    expected = expected_shapes(config, shared=False)
    if any(name not in tensors or tuple(tensors[name].shape) != tuple(shape) for name, shape in expected.items()):
        return None
    d2t = tensors.get(OFFSETS)
    if d2t is not None and (d2t.shape != (config.draft_vocab_size,) or d2t.is_floating_point()):
        return None
    if any(not bool(tensor.float().isfinite().all()) for tensor in tensors.values()):
        return None
    return Parts(config, tensors)


def model_of(parts: Parts, target: Target) -> DraftModel:
    """The draft of these parts beside ``target``, in fp32, not packed."""
    return assemble(parts.config, dict(parts.tensors), target, "eager", torch.float32)
