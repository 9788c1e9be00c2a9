"""Pure repairs of a draft, one property each: taps, map, missing tensors, RoPE, norms.

Every function gives back new values and leaves its arguments as they are.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from eyas.check.mapping import is_absolute, offsets_from_kept
from eyas.check.readings import Rope
from eyas.check.tensors import expected_shapes
from eyas.contract import validate_taps
from eyas.draft.config import DraftConfig
from eyas.draft.names import EMBEDDING, HEAD, KEPT, OFFSETS
from eyas.draft.vocab import check_offsets, kept_mask
from eyas.errors import EyasError

NORM_FLAGS = ("fc_norm", "norm_before_fc", "norm_output", "norm_before_residual")


@dataclass(frozen=True)
class Known:
    """What is known of the draft besides its files: from a hypothesis that was proven, or from its trainer.

    ``taps``: those trained on, in the order of fc's column blocks · ``rope`` · ``flags``: norms by name ·
    ``offsets``: d2t · ``rotation`` [H, H]: the served target's states are those trained on, times it ·
    ``embedding``, ``head``: the target's [V, H] · ``head_is_targets``: complete a missing reduced
    head by the target's rows, which is right only if it was trained so.
    """

    taps: tuple[int, ...] | None = None
    rope: Rope | None = None
    flags: Mapping[str, bool] = field(default_factory=dict)
    offsets: Tensor | None = None
    rotation: Tensor | None = None
    embedding: Tensor | None = None
    head: Tensor | None = None
    head_is_targets: bool = False


@dataclass(frozen=True)
class Parts:
    """A draft under repair: ``tensors`` by canonical name, ``notes`` of what was done."""

    config: DraftConfig
    tensors: Mapping[str, Tensor]
    notes: tuple[str, ...] = ()


def with_taps(parts: Parts, taps: Sequence[int]) -> Parts:
    """Taps in the order of fc's column blocks become rising, with the blocks (and norms per tap) permuted along."""
    config, tensors = parts.config, dict(parts.tensors)
    taps = validate_taps(taps, config.target_num_layers)
    if len(taps) != len(config.taps):
        cause = f"taps {list(taps)} are asked for, and fc.weight reads {len(config.taps)}"
        raise EyasError("draft.config", cause, "name as many taps as the draft was trained on")
    notes = parts.notes if taps == config.taps else (*parts.notes, f"taps {list(taps)} written")
    order = sorted(range(len(taps)), key=taps.__getitem__)
    rising = tuple(taps[i] for i in order)
    if rising != taps:
        width = config.target_hidden_size
        if "fc.weight" in tensors:
            blocks = tensors["fc.weight"].split(width, 1)
            tensors["fc.weight"] = torch.cat([blocks[i] for i in order], 1)
        if "input_norm.weight" in tensors:
            parts_of_norm = tensors["input_norm.weight"].split(width)
            tensors["input_norm.weight"] = torch.cat([parts_of_norm[i] for i in order])
        norms = {f"fc_norm.{new}.weight": parts.tensors.get(f"fc_norm.{old}.weight") for new, old in enumerate(order)}
        tensors |= {name: value for name, value in norms.items() if value is not None}
        notes = (*notes, f"fc.weight's column blocks permuted from {list(taps)} into rising order")
    return Parts(config.model_copy(update={"taps": rising}), tensors, notes)


def with_map(parts: Parts, offsets: Tensor | None = None) -> Parts:
    """d2t as offsets: from what is given, from target ids, or from t2d where d2t says nothing. t2d follows from it.

    A map that nothing tells stays as it is.
    """
    config, tensors = parts.config, dict(parts.tensors)
    rows, vocabulary = config.draft_vocab_size, config.vocab_size
    if not config.has_map:
        dropped = [name for name in (OFFSETS, KEPT) if tensors.pop(name, None) is not None]
        left_out = (f"{', '.join(dropped)} left out: the vocabularies are equal",) if dropped else ()
        return Parts(config, tensors, (*parts.notes, *left_out))
    d2t, t2d = tensors.get(OFFSETS), tensors.get(KEPT)
    kept = None if t2d is None or t2d.shape != (vocabulary,) else t2d.bool()
    note = ""
    if offsets is not None:
        d2t, note = offsets.long(), f"{OFFSETS} written anew"
    elif d2t is not None and d2t.dim() == 1 and is_absolute(d2t.long(), kept, vocabulary):
        d2t, note = d2t.long() - torch.arange(len(d2t)), f"{OFFSETS}: target ids turned into offsets"
    elif kept is not None and int(kept.sum()) == rows and _says_nothing(d2t):
        d2t, note = offsets_from_kept(kept), f"{OFFSETS} written from {KEPT}"
    if d2t is None or not is_map(d2t, rows, vocabulary):
        return parts
    tensors[OFFSETS], tensors[KEPT] = d2t.long(), kept_mask(d2t.long(), vocabulary)
    if not note and t2d is not None and not torch.equal(t2d.bool(), tensors[KEPT]):
        return parts  # of two maps that contradict each other, either may be right
    return Parts(config, tensors, parts.notes + ((note,) if note else ()))


def completed(parts: Parts, known: Known) -> Parts:
    """Missing tensors that are the target's: the embedding of the same width, a full-size head, a reduced one only if
    that is said. A stored copy of the target's embedding is left out: every engine then takes the target's.
    """
    config, tensors, notes = parts.config, dict(parts.tensors), list(parts.notes)
    if EMBEDDING in tensors and not config.own_embedding:
        del tensors[EMBEDDING]
        notes.append(f"{EMBEDDING} left out: it is the target's")
    if HEAD not in tensors and known.head is not None and known.head.shape[1] == config.hidden_size:
        if not config.has_map and len(known.head) == config.draft_vocab_size:
            tensors[HEAD] = known.head.cpu().to(_dtype(tensors))
            notes.append(f"{HEAD} completed from the target")
        elif known.head_is_targets:
            d2t = with_map(Parts(config, tensors), known.offsets).tensors.get(OFFSETS)
            if d2t is None:
                cause = f"which of the target's rows make up {HEAD} is not known: there is no map"
                raise EyasError("draft.vocab-map", cause, "give the map as well")
            tensors[HEAD] = known.head.cpu()[d2t + torch.arange(len(d2t))].to(_dtype(tensors))
            notes.append(f"{HEAD} completed from the target's rows, as asked for")
    return Parts(config, tensors, tuple(notes))


def with_rope(parts: Parts, rope: Rope) -> Parts:
    """The RoPE base and scaling, written in every place where they are looked for."""
    config, said = parts.config, []
    if rope.theta != config.rope_theta:
        said.append(f"RoPE base {config.rope_theta:g} changed to {rope.theta:g}")
    if rope.parameters != config.rope_scaling:
        said.append(f"RoPE scaling {config.rope_scaling} changed to {rope.parameters}")
    changes = {"rope_theta": float(rope.theta), "rope_scaling": rope.parameters}
    return Parts(config.model_copy(update=changes), parts.tensors, (*parts.notes, *said)) if said else parts


def with_rotation(parts: Parts, rotation: Tensor) -> Parts:
    """A draft for states f · rotation that was trained on f. Norm weights go into the matrices behind them, because a
    norm without weights does not mind a rotation.
    """
    config, tensors = parts.config, dict(parts.tensors)
    count, width = len(config.taps), config.target_hidden_size
    feature = torch.ones(count * width)
    for i in range(count if config.fc_norm else 0):
        feature[i * width : (i + 1) * width] = tensors[f"fc_norm.{i}.weight"].float()
        tensors[f"fc_norm.{i}.weight"] = torch.ones_like(tensors[f"fc_norm.{i}.weight"])
    if config.norm_before_fc:
        feature = feature * tensors["input_norm.weight"].float()
        tensors["input_norm.weight"] = torch.ones_like(tensors["input_norm.weight"])
    blocks = (tensors["fc.weight"].float() * feature).split(width, 1)
    tensors["fc.weight"] = torch.cat([block @ rotation for block in blocks], 1)
    if not config.own_embedding:  # the target's, which is turned as well
        norm = tensors["midlayer.input_layernorm.weight"]
        for name in (f"midlayer.self_attn.{x}_proj.weight" for x in "qkv"):
            embedded, hidden = tensors[name].float().chunk(2, 1)
            tensors[name] = torch.cat([embedded * norm.float() @ rotation, hidden], 1)
        tensors["midlayer.input_layernorm.weight"] = torch.ones_like(norm)
    return Parts(config, tensors, (*parts.notes, "fc and attention turned with the target's states"))


def with_norms(parts: Parts, flags: Mapping[str, bool]) -> Parts:
    """Norm flags set as given. Raises ``draft.config`` for other names, and for a norm whose tensors are not stored."""
    unknown = flags.keys() - set(NORM_FLAGS)
    if unknown:
        raise EyasError("draft.config", f"{', '.join(sorted(unknown))}: no norm flags", f"use {', '.join(NORM_FLAGS)}")
    changed = {name: value for name, value in flags.items() if getattr(parts.config, name) != value}
    config = parts.config.model_copy(update=changed)
    lacking = expected_shapes(config, True).keys() - expected_shapes(parts.config, True).keys() - parts.tensors.keys()
    if lacking:
        cause = f"{', '.join(sorted(lacking))}: not stored, and {', '.join(sorted(changed))} would need it"
        raise EyasError("draft.config", cause, "take the whole checkpoint from its source again")
    notes = tuple(f"{name} set to {value}" for name, value in changed.items())
    return Parts(config, parts.tensors, parts.notes + notes)


def _says_nothing(d2t: Tensor | None) -> bool:
    return d2t is None or not bool(d2t.any()) or torch.equal(d2t.long(), torch.arange(d2t.numel()))


def is_map(d2t: Tensor | None, rows: int, vocabulary: int) -> bool:
    """Whether this is a sound map of a head of ``rows``."""
    if d2t is None or d2t.shape != (rows,):
        return False
    try:
        check_offsets(d2t.long(), vocabulary)
    except EyasError:
        return False
    return True


def _dtype(tensors: Mapping[str, Tensor]) -> torch.dtype:
    return next((value.dtype for name, value in tensors.items() if name not in (OFFSETS, KEPT)), torch.bfloat16)
