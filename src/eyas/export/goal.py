"""Where an export goes: a layout, and the engine and version that must serve it as trained."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

from torch import Tensor

from eyas.contract import TargetSizes
from eyas.dialects.checkpoint import captured_by
from eyas.dialects.engines import Engine
from eyas.dialects.limits import refuse_limits
from eyas.dialects.speculators import FIRST_LAYER, Provenance, refuse_layout, speculators_document
from eyas.draft.layout import layout_of, to_json
from eyas.draft.names import KEPT, OFFSETS
from eyas.draft.stored import DTYPES, StoredDraft
from eyas.draft.vocab import kept_mask
from eyas.errors import EyasError

GoalName = Literal["sglang", "vllm", "speculators"]


@dataclass(frozen=True)
class Goal:
    """``engine`` is the one that loads the result; for speculators it is vLLM."""

    name: GoalName
    engine: Engine

    @classmethod
    def parse(cls, name: str, version: str | None = None) -> Goal:
        """Raises ``flags.range`` for other names, ``dialect.unknown-engine`` for versions without rules."""
        engines: dict[str, tuple[GoalName, str]] = {
            "sglang": ("sglang", "sglang"),
            "vllm": ("vllm", "vllm"),
            "speculators": ("speculators", "vllm"),
        }
        if name not in engines:
            raise EyasError("flags.range", f"there is no layout {name!r}", f"use one of: {', '.join(engines)}")
        known, engine = engines[name]
        return cls(known, Engine.parse(engine if version is None else f"{engine}=={version}"))


@dataclass(frozen=True)
class Written:
    """What an export writes. ``fates``: stored tensor → its new name, or why it is not needed; ``served_by``: the
    engines that serve the result as trained; ``notes``: what was added.
    """

    document: Mapping[str, Any]
    tensors: Mapping[str, Tensor]
    fates: Mapping[str, str]
    served_by: tuple[Engine, ...]
    notes: tuple[str, ...]


def write_for(stored: StoredDraft, goal: Goal, target: TargetSizes, about: Provenance) -> Written:
    """The same draft for ``goal``. Raises ``draft.dialect`` where that means something else, or cannot be."""
    tensors, fates, notes = _tensors(stored, goal)
    served = _engines(stored, goal, target, OFFSETS in tensors)
    dtype = DTYPES[stored.tensors["fc.weight"].dtype][1]
    document = to_json(stored.config, target.architecture, served, dtype)
    if stored.shared_head:
        document["draft_vocab_size"] = None
    if goal.name == "speculators":
        document = speculators_document(document, stored.config.own_embedding, about)
    return Written(document, tensors, fates, served, notes)


def _engines(stored: StoredDraft, goal: Goal, target: TargetSizes, has_map: bool) -> tuple[Engine, ...]:
    """The goal's engine, and the other one if it can serve the same file."""
    layout = layout_of(stored.config, has_map=has_map, own_head=not stored.shared_head)
    if goal.name == "speculators":
        refuse_layout(layout)
        layout = replace(layout, speculators_format=True)
    refuse_limits(layout, goal.engine)
    both = (goal.engine, Engine.parse("vllm" if goal.engine.name == "sglang" else "sglang"))
    try:
        refuse_limits(layout, both[1])
        to_json(stored.config, target.architecture, both, "")
    except EyasError as error:
        if error.code not in ("draft.dialect", "dialect.unknown-engine"):
            raise
        return both[:1]
    return both


def _tensors(stored: StoredDraft, goal: Goal) -> tuple[dict[str, Tensor], dict[str, str], tuple[str, ...]]:
    tensors: dict[str, Tensor] = {}
    fates: dict[str, str] = {}
    identity = not stored.config.has_map and goal.name != "sglang"
    for name, tensor in stored.tensors.items():
        if name in (OFFSETS, KEPT) and identity:
            fates[stored.names[name]] = "not needed: the vocabulary is the target's, and the map its identity"
            continue
        new = FIRST_LAYER + name.removeprefix("midlayer.") if _renamed(name, goal) else name
        tensors[new], fates[stored.names[name]] = tensor, new
    if goal.name == "speculators" and OFFSETS in tensors and KEPT not in tensors:
        tensors[KEPT] = kept_mask(tensors[OFFSETS], stored.config.vocab_size)
        return tensors, fates, (f"{KEPT} was made from {OFFSETS}",)
    return tensors, fates, ()


def _renamed(name: str, goal: Goal) -> bool:
    return goal.name == "speculators" and name.startswith("midlayer.")


def check_capture(document: Mapping[str, Any], taps: tuple[int, ...], target: TargetSizes, engine: Engine) -> None:
    """Raise ``export.not-equal`` unless the engine captures ``taps`` for a config (in the engines' layout)."""
    captured = captured_by(document, target.num_layers, engine, target.architecture)
    if captured != taps:
        cause = f"{engine} captures taps {list(captured)} for the written config, and the draft reads {list(taps)}"
        raise EyasError("export.not-equal", cause, "export again; if it stays so, report it")
