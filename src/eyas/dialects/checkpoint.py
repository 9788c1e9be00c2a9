"""Config keys of a draft checkpoint: which taps each engine reads from them, and how to write both.

SGLang reads ``eagle_config.eagle_aux_hidden_state_layer_ids`` in its own ids. vLLM reads the top-level
``eagle_aux_hidden_state_layer_ids`` as taps, and, in some versions, other places after it. Written both ways,
one file serves both.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from eyas.dialects.engines import Engine
from eyas.dialects.taps import default_capture, ids_for_taps, taps_from_ids
from eyas.errors import EyasError

IDS_KEY = "eagle_aux_hidden_state_layer_ids"
EAGLE_KEY = "eagle_config"
USE_KEY = "use_aux_hidden_state"
LOOSE_KEY = "aux_hidden_state_layer_ids"
"""No engine reads it for EAGLE-3; trainers mean taps by it (speculators) or SGLang's ids (SpecForge)."""

Runner = Literal["v1", "v2"]


@dataclass(frozen=True)
class DraftArchitecture:
    """A value of ``architectures`` in a draft's config. ``since``: engine → first version that loads it."""

    attention: Literal["gqa", "mla"]
    since: dict[str, str]


DRAFT_ARCHITECTURES: dict[str, DraftArchitecture] = {
    "LlamaForCausalLMEagle3": DraftArchitecture("gqa", {"sglang": "0.4.6.post5", "vllm": "0.9.0"}),
    "Eagle3LlamaForCausalLM": DraftArchitecture("gqa", {"vllm": "0.9.0"}),
    "Eagle3DeepseekV2ForCausalLM": DraftArchitecture("mla", {"sglang": "0.5.12", "vllm": "0.18.0"}),
    "Eagle3DeepseekV3ForCausalLM": DraftArchitecture("mla", {"vllm": "0.18.0"}),
}
# The name that every engine loads, by attention.
WRITTEN_ARCHITECTURE: dict[str, str] = {"gqa": "LlamaForCausalLMEagle3", "mla": "Eagle3DeepseekV2ForCausalLM"}


def check_architecture(name: str, engine: Engine) -> None:
    """Raises ``draft.dialect`` where the engine does not load a draft of this architecture."""
    known = DRAFT_ARCHITECTURES.get(name)
    if known is None:
        cause = f"{name!r} is no EAGLE-3 draft architecture with rules here"
        raise EyasError("draft.dialect", cause, f"use one of: {', '.join(DRAFT_ARCHITECTURES)}")
    since = known.since.get(engine.name)
    if since is None or not engine.within(since, None):
        cause = f"{engine} does not load the draft architecture {name}"
        raise EyasError(
            "draft.dialect",
            cause,
            f"write {WRITTEN_ARCHITECTURE[known.attention]}, or use {engine.name} {since or ''}".rstrip(" ,"),
        )


@dataclass(frozen=True)
class DeclaredIds:
    """Layer ids in a config and the key they stand under."""

    ids: tuple[int, ...]
    key: str


def read_by(config: Mapping[str, Any], engine: Engine, runner: Runner | None = None) -> DeclaredIds | None:
    """The layer ids that this engine version reads from a draft's config; None: it takes its default.

    ``runner``: vLLM's model runner; left out, the version's default ("v2" from 0.29 on). Raises
    ``draft.config`` for ids of a wrong type.
    """
    nested = _nested(config)
    if engine.name == "sglang":
        # Before this version the draft's config was not asked.
        return _ids(nested, IDS_KEY, EAGLE_KEY) if engine.within("0.4.10.post2", None) else None
    # vLLM takes an empty list for none, and looks further.
    top = _ids(config, IDS_KEY)
    if top is not None and top.ids:
        return top
    chosen = runner or ("v2" if engine.within("0.29", None) else "v1")
    if chosen == "v1" and not engine.within("0.22", None):
        return None
    found = _ids(nested, "layer_ids" if chosen == "v2" else IDS_KEY, EAGLE_KEY)
    return found if found is not None and found.ids else None


def captured_by(
    config: Mapping[str, Any],
    num_layers: int,
    engine: Engine,
    architecture: str,
    runner: Runner | None = None,
) -> tuple[int, ...]:
    """The taps that this engine version captures for a draft with this config, in the order of the feature.

    ``num_layers``, ``architecture``: the target's. Raises ``draft.dialect`` as ``taps_from_ids``, and for a
    draft that asks SGLang for the final norm's output instead of taps; ``draft.config``.
    """
    if engine.name == "sglang" and _nested(config).get(USE_KEY, True) is False:
        cause = f"{EAGLE_KEY}.{USE_KEY} is false: {engine} then feeds the state after the final norm, which is no tap"
        raise EyasError("draft.dialect", cause, f"set {EAGLE_KEY}.{USE_KEY} to true")
    declared = read_by(config, engine, runner)
    if declared is None:
        return default_capture(num_layers)
    return taps_from_ids(declared.ids, num_layers, engine, architecture).taps


def tap_keys(
    taps: Sequence[int], num_layers: int, architecture: str, engines: Sequence[Engine] | None = None
) -> dict[str, Any]:
    """Config entries that make each of ``engines`` capture exactly ``taps``.

    By default for the newest SGLang and vLLM known. Raises ``draft.dialect`` where one of them cannot; leave
    it out of ``engines`` to write for the other alone.
    """
    chosen = engines or (Engine.parse("sglang"), Engine.parse("vllm"))
    entries: dict[str, Any] = {}
    for engine in chosen:
        ids = list(ids_for_taps(taps, num_layers, engine, architecture))
        written = {EAGLE_KEY: {USE_KEY: True, IDS_KEY: ids}} if engine.name == "sglang" else {IDS_KEY: ids}
        for key, value in written.items():
            if entries.setdefault(key, value) != value:
                cause = f"{engine} needs {key} {value}, and another of the versions asked for needs {entries[key]}"
                raise EyasError("draft.dialect", cause, "write one checkpoint for each of these versions")
    for engine in chosen:
        captured = captured_by(entries, num_layers, engine, architecture)
        if captured != tuple(taps):
            cause = f"{engine} does not read these keys: it would capture {list(captured)}, not {list(taps)}"
            raise EyasError(
                "draft.dialect",
                cause,
                f"use a later version of {engine.name}, or train a draft on its default taps",
            )
    return entries


def declared_taps(
    config: Mapping[str, Any],
    num_layers: int,
    architecture: str,
    sglang: Engine | None = None,
    vllm: Engine | None = None,
) -> tuple[int, ...] | None:
    """The taps that a config declares, rising, each place read in its engine's convention; None if none.

    Raises ``draft.dialect``, naming both, where the two places mean different taps; ``draft.config`` for ids
    of a wrong type.
    """
    nested, top = _ids(_nested(config), IDS_KEY, EAGLE_KEY), _ids(config, IDS_KEY)
    readers = ((nested, sglang or Engine.parse("sglang")), (top, vllm or Engine.parse("vllm")))
    readings = [
        (declared, engine, taps_from_ids(declared.ids, num_layers, engine, architecture).taps)
        for declared, engine in readers
        if declared is not None
    ]
    if len(readings) == 2 and readings[0][2] != readings[1][2]:
        sides = [f"{d.key} {list(d.ids)} means taps {list(taps)} to {engine}" for d, engine, taps in readings]
        cause = f"the config declares two different sets of taps: {sides[0]}, and {sides[1]}"
        raise EyasError(
            "draft.dialect",
            cause,
            "ask whoever trained it which is right, and write that one in both places",
        )
    return readings[0][2] if readings else None


def _nested(config: Mapping[str, Any]) -> Mapping[str, Any]:
    nested = config.get(EAGLE_KEY)
    if nested is None:
        return {}
    if not isinstance(nested, Mapping):
        raise EyasError(
            "draft.config",
            f"{EAGLE_KEY} is {nested!r}, not an object",
            f"remove {EAGLE_KEY} or write an object",
        )
    return nested


def _ids(config: Mapping[str, Any], key: str, parent: str = "") -> DeclaredIds | None:
    ids = config.get(key)
    path = f"{parent}.{key}" if parent else key
    if ids is None:
        return None
    if not isinstance(ids, list) or not all(isinstance(i, int) and not isinstance(i, bool) for i in ids):
        raise EyasError(
            "draft.config",
            f"{path} is {ids!r}, not a list of whole numbers",
            f"write {path} as a list of layer ids",
        )
    return DeclaredIds(tuple(ids), path)
