"""Reading a draft's config.json entry by entry, and the taps that its places name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from eyas.contract import TargetSizes, default_taps
from eyas.dialects.checkpoint import EAGLE_KEY, IDS_KEY, LOOSE_KEY, declared_taps, read_by
from eyas.dialects.engines import Engine
from eyas.dialects.taps import taps_from_ids
from eyas.errors import EyasError

OWN_KEY = "eyas"
"""Our own entry, which engines ignore: what their keys cannot say."""

MEND = "take config.json from the draft's source again, or mend this key"


def feature_taps(document: Mapping[str, Any], target: TargetSizes) -> tuple[tuple[int, ...], tuple[str, ...]]:
    """(taps in the feature's order, notes). Every place that names taps must mean the same ones."""
    for place in (document, nested_entry(document)):
        for key in (IDS_KEY, LOOSE_KEY, "layer_ids"):
            _check_ids(place.get(key), key, target)
    # What an id means depends on the version that the file was written for.
    written = {engine.name: engine for engine in map(Engine.parse, own_entry(document).get("engines", ()))}
    sglang, vllm = (written.get(name) or Engine.parse(name) for name in ("sglang", "vllm"))
    declared = declared_taps(document, target.num_layers, target.architecture, sglang, vllm)
    elsewhere = read_by(document, vllm)
    readings = {} if declared is None else {"the layer ids": declared}
    if elsewhere is not None:
        taps = taps_from_ids(elsewhere.ids, target.num_layers, vllm, target.architecture).taps
        readings[f"{elsewhere.key} as {vllm} reads it"] = taps
    if "taps" in own_entry(document):
        readings[f"{OWN_KEY}.taps"] = tuple(own_entry(document)["taps"])
    sides = list(readings.items())
    for name, taps in sides[1:]:
        if taps != sides[0][1]:
            raise EyasError(
                "draft.dialect",
                f"{sides[0][0]} means taps {list(sides[0][1])}, and {name} means {list(taps)}",
                "write both as the draft was trained; write_draft does",
            )
    notes: tuple[str, ...] = ()
    _check_loose_ids(document, sides[0][1] if sides else None)
    if not sides:
        sides = [("default", default_taps(target.num_layers))]
        notes = (f"no layer ids in config.json: the engines' default, taps {list(sides[0][1])}",)
    count = document.get("num_aux_hidden_states", len(sides[0][1]))
    if count != len(sides[0][1]):
        raise bad_config(f"num_aux_hidden_states is {count!r}, and the taps are {list(sides[0][1])}")
    return sides[0][1], notes


def _check_loose_ids(document: Mapping[str, Any], taps: tuple[int, ...] | None) -> None:
    """Ids under a key that no engine reads: they must be the taps by one of the two meanings that trainers give it."""
    for place in (document, nested_entry(document)):
        ids = place.get(LOOSE_KEY)
        if ids is None:
            continue
        meanings = (tuple(ids), tuple(i + 1 for i in ids)) if isinstance(ids, list) else ()
        if taps not in meanings:
            said = "nothing else names the taps" if taps is None else f"the taps are {list(taps)}"
            raise EyasError(
                "draft.dialect",
                f"{LOOSE_KEY} is {ids!r}, which no engine reads, and {said}: the ids are taps to speculators, and taps"
                " minus 1 to SpecForge",
                "name the taps that the draft was trained on: `eyas export --taps` writes them for every engine",
            )


def _check_ids(ids: Any, key: str, target: TargetSizes) -> None:
    """Ids that are there must be distinct, and within a target of this depth in any convention."""
    if not isinstance(ids, list) or not all(type(i) is int for i in ids):
        return  # absent, or refused with its key by whoever reads it
    doubled = [i for i in ids if ids.count(i) > 1]
    if doubled:
        cause = f"{key} {ids} names {doubled[0]} twice, and engines take each layer once"
        raise EyasError("taps.duplicate", cause, "write the layer ids that the draft was trained on")
    if ids and max(ids) > target.num_layers:
        raise EyasError(
            "draft.target-mismatch",
            f"{key} {ids} reaches beyond the {target.num_layers} layers of this target",
            "use the target that the draft was trained for, or a draft of this target",
        )


def own_entry(document: Mapping[str, Any]) -> Mapping[str, Any]:
    own = document.get(OWN_KEY, {})
    known = {
        "target_architecture": str,
        "target_num_layers": int,
        "taps": list,
        "layer_dialect": str,
        "engines": list,
    }
    if (
        not isinstance(own, dict)
        or any(key not in known or not isinstance(value, known[key]) for key, value in own.items())
        or not all(isinstance(engine, str) for engine in own.get("engines", ()))
    ):
        raise bad_config(f"{OWN_KEY} is {own!r}")
    return own


def nested_entry(document: Mapping[str, Any]) -> Mapping[str, Any]:
    nested = document.get(EAGLE_KEY) or {}
    if not isinstance(nested, dict):
        raise bad_config(f"{EAGLE_KEY} is {nested!r}, not an object")
    return nested


def flag(document: Mapping[str, Any], key: str) -> bool:
    value = document.get(key)
    if value is not None and type(value) is not bool:
        raise bad_config(f"{key} is {value!r}, neither true nor false")
    return bool(value)


def bad_config(cause: str) -> EyasError:
    return EyasError("draft.config", f"config.json: {cause}", MEND)
