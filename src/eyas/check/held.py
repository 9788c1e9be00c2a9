"""A draft's weights and options together: config, names, shapes, values and map as one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from torch import Tensor

from eyas.check.declared import Layers
from eyas.check.files import Opened, from_error
from eyas.check.findings import Finding
from eyas.check.headmap import FIX, check_against_head, map_told, told_by_head
from eyas.check.keys import Keys
from eyas.check.mapping import check_map, kept_ids
from eyas.check.tensors import (
    Names,
    check_replaced,
    check_shapes,
    check_trained,
    check_values,
    match_names,
    same_numbers,
)
from eyas.contract import Contract, TargetSizes
from eyas.dialects.checkpoint import EAGLE_KEY, IDS_KEY, LOOSE_KEY, check_architecture
from eyas.dialects.engines import Engine
from eyas.dialects.limits import limits
from eyas.draft.config import DraftConfig
from eyas.draft.entries import OWN_KEY, own_entry
from eyas.draft.layout import from_json, layout_of
from eyas.draft.names import EMBEDDING, HEAD, OFFSETS
from eyas.errors import EyasError

_SAID_BY_KEYS = frozenset({"map-missing", "tied-head", "full-vocabulary-head", "null-target-hidden-size", "model-type"})
"""Limits that the config's and the map's own findings name already."""


@dataclass(frozen=True)
class TargetTensors:
    """The target's own, to compare with: ``embedding`` and ``head`` [V, H]; None where it is not at hand."""

    embedding: Tensor | None = None
    head: Tensor | None = None


@dataclass(frozen=True)
class Part:
    """What was read of a draft before its weights are looked at. ``names``: canonical name → name in the file ·
    ``loaded``: tensors by their names in the file.
    """

    opened: Opened
    document: Mapping[str, Any]
    keys: Keys | None
    sizes: TargetSizes | None
    layers: Layers
    names: Mapping[str, str]
    loaded: Mapping[str, Tensor]


def fc_taps(shapes: Mapping[str, tuple[int, ...]], sizes: TargetSizes) -> int | None:
    """How many taps fc.weight reads, by its width."""
    shape = shapes.get("fc.weight", ())
    return shape[1] // sizes.hidden_size if len(shape) == 2 and shape[1] % sizes.hidden_size == 0 else None


class Weights(NamedTuple):
    """``tensors`` by canonical name, ``names`` of them in the file · ``copied``: the embedding is the target's ·
    ``offsets``: d2t that the head's rows tell, where the stored one is not that.
    """

    config: DraftConfig | None
    tensors: dict[str, Tensor]
    names: Mapping[str, str]
    copied: bool
    offsets: Tensor | None
    findings: list[Finding]


def check_weights(part: Part, own: TargetTensors, contract: Contract | None) -> Weights:
    """The weights against the config, the map and the target's own."""
    embedding = part.loaded.get(part.names.get(EMBEDDING, ""))
    # Without the target to compare with, an embedding of its shape is taken for a copy.
    copied = embedding is not None and (own.embedding is None or same_numbers(embedding, own.embedding))
    config, findings = _config(part, embedding is not None and not copied)
    shared = part.keys is not None and part.keys.document.get("draft_vocab_size", 0) is None
    names = Names(part.names, {}, ())
    if config is not None:
        names = match_names(part.names, part.opened.checkpoint.infos, config, shared)
        shapes = {name: part.opened.checkpoint.infos[file].shape for name, file in names.stored.items()}
        findings += [*names.findings, *check_shapes(shapes, config, shared)]
    tensors = {name: part.loaded[file] for name, file in names.stored.items() if file in part.loaded}
    findings += check_values(tensors, _is_fp16(part.document))
    findings += check_trained({name: value for name, value in tensors.items() if not (copied and name == EMBEDDING)})
    offsets = None
    if config is not None:
        head = tensors.get(HEAD)
        rows = len(head) if head is not None and head.dim() == 2 else config.draft_vocab_size
        offsets, found = _told_map(
            tensors, check_map(tensors, rows, config.vocab_size, contract), own.head, config.vocab_size
        )
        findings += found
        findings += check_replaced(tensors, own.head, kept_ids(tensors, rows, config.vocab_size))
    if not part.opened.whole:
        # What lies in a file that could not be opened is not missing.
        findings = [finding for finding in findings if finding.kind not in ("weights.missing", "map.absent")]
    return Weights(config, tensors, names.stored, copied, offsets, findings)


def _told_map(
    tensors: Mapping[str, Tensor], findings: Sequence[Finding], target_head: Tensor | None, vocab_size: int
) -> tuple[Tensor | None, list[Finding]]:
    """(d2t that the head's rows tell, where the stored one is not that; the map's findings with what that changes)."""
    head = tensors.get(HEAD)
    told = None if head is None or target_head is None else told_by_head(head, target_head)
    if head is None or target_head is None or told is None:
        return None, list(findings)
    faults = [f for f in findings if f.weight == "fault" and f.kind != "map.absolute"]
    # What t2d or the contract settles needs no head.
    lost = [f for f in faults if not f.data.get("recoverable") and "promised" not in f.data]
    ids = None if any(f.weight == "fault" for f in findings) else kept_ids(tensors, len(head), vocab_size)
    against = check_against_head(told, ids)
    if not lost and against is None:
        return None, list(findings)
    found = [replace(f, fix=FIX, data={**f.data, "recoverable": True}) if f in lost else f for f in findings]
    return map_told(told, head, target_head), [*found, *([] if against is None else [against])]


def _config(part: Part, own_embedding: bool) -> tuple[DraftConfig | None, list[Finding]]:
    """The config that was probably meant: keys as mended, the taps from whoever names them."""
    if part.keys is None or not part.keys.readable or part.sizes is None:
        return None, []
    taps = part.layers.taps or _stand_in(part)
    document = {key: v for key, v in part.keys.document.items() if key not in (IDS_KEY, LOOSE_KEY, "layer_ids")}
    nested = document.pop(EAGLE_KEY, None) or {}
    count = document.pop("num_aux_hidden_states", len(taps))
    findings = []
    if count != len(taps) and part.layers.taps is not None:
        said = f"config.json: num_aux_hidden_states is {count!r}, and the taps are {list(taps)}"
        findings.append(Finding("config.dialect", "static", "fault", said, fix="write the number of taps"))
    if "norm_before_fc" in nested:
        document["norm_before_fc"] = nested["norm_before_fc"]
    document[OWN_KEY] = {**own_entry(document), "taps": list(taps)}
    stored = [name for name in part.names if not (document["draft_vocab_size"] is None and name == HEAD)]
    try:
        config, _ = from_json(document, part.sizes, stored, own_embedding)
    except EyasError as error:
        known = any(finding.kind == "config.missing-key" for finding in part.keys.findings)
        return None, findings if known else [*findings, from_error("config.dialect", error)]
    return config, findings


def _stand_in(part: Part) -> tuple[int, ...]:
    """As many taps as fc.weight reads, where the files leave open which: the rest can be looked at all the same."""
    assert part.sizes is not None
    shapes = {name: part.opened.checkpoint.infos[file].shape for name, file in part.names.items()}
    count = fc_taps(shapes, part.sizes) or 3
    for capture in part.layers.captures:
        if capture.taps is not None and len(capture.taps) == count:
            return capture.taps
    return tuple(range(1, count + 1))


def check_limits(part: Part, config: DraftConfig | None, engines: Sequence[Engine], speculators: bool) -> list[Finding]:
    """What each engine version cannot express of this draft, or would replace."""
    findings = []
    architectures = part.document.get("architectures")
    for engine in engines:
        if not speculators and isinstance(architectures, list) and len(architectures) == 1 and part.keys is not None:
            try:
                if part.keys.document["architectures"] == architectures:
                    check_architecture(architectures[0], engine)
            except EyasError as error:
                findings.append(from_error("config.dialect", error, {"engine": str(engine)}))
    if config is None:
        return findings
    names = list(part.names.values())
    layout = replace(
        layout_of(config, has_map=OFFSETS in part.names, own_head=HEAD in part.names),
        model_prefix="model." if any(name.startswith("model.") for name in names) else "",
        tensor_prefix="layers.0."
        if any(name.removeprefix("model.").startswith("layers.0.") for name in names)
        else "midlayer.",
        speculators_format=speculators,
    )
    skipped = _SAID_BY_KEYS | ({"map-required"} if layout.reduced else set())
    for engine in engines:
        for row in limits(layout, engine):
            if row.name not in skipped:
                said = f"{engine}, {row.condition}: {row.consequence}"
                data = {"engine": str(engine), "limit": row.name, "does": row.kind}
                findings.append(Finding("engine.limit", "static", "fault", said, fix=row.fix, data=data))
    return findings


def _is_fp16(document: Mapping[str, Any]) -> bool:
    return "float16" in (document.get("torch_dtype"), document.get("dtype"))
