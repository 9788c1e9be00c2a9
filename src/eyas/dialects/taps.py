"""Layer ids: which taps an engine captures for the ids that a draft's config gives it, and which ids to
write.

Engines concatenate the taps in rising order, whatever the order of the ids, and take each once. What an id
means depends on engine, version and target architecture, and in some models on the ids themselves: the rules
are a table, the first row that fits counts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from eyas.contract import validate_taps
from eyas.dialects.engines import Engine
from eyas.errors import EyasError

IdRule = Literal["output-of-layer", "tap", "tap unless the first is 1", "tap if the greatest is L"]

# Target architecture → the engine's family of model code. SGLang: with the first version that can capture for
# EAGLE-3.
SGLANG_TARGETS: dict[str, tuple[str, str]] = {
    "LlamaForCausalLM": ("llama", "0.4.6.post5"),
    "Llama4ForConditionalGeneration": ("mllama4", "0.4.10.post2"),
    "Qwen3ForCausalLM": ("qwen3", "0.4.10.post2"),
    "Qwen3MoeForCausalLM": ("qwen3_moe", "0.4.10.post2"),
    "GptOssForCausalLM": ("gpt_oss", "0.5.2"),
    "Qwen2ForCausalLM": ("qwen2", "0.5.2"),
    "Qwen2MoeForCausalLM": ("qwen2_moe", "0.5.2"),
    "Qwen2_5_VLForConditionalGeneration": ("qwen2_5_vl", "0.5.2"),
    "DeepseekV2ForCausalLM": ("deepseek", "0.5.6"),
    "DeepseekV3ForCausalLM": ("deepseek", "0.5.6"),
    "Glm4MoeForCausalLM": ("glm4_moe", "0.5.6"),
    "LongcatFlashForCausalLM": ("longcat_flash", "0.5.6"),
    "MiniMaxM2ForCausalLM": ("minimax_m2", "0.5.6"),
    "BailingMoeForCausalLM": ("bailing_moe", "0.5.9"),
    "Qwen3NextForCausalLM": ("qwen3_next", "0.5.9"),
    "KimiK25ForConditionalGeneration": ("deepseek", "0.5.10"),
    "Qwen3VLForConditionalGeneration": ("qwen3_vl", "0.5.11"),
    "Gemma3ForCausalLM": ("gemma3", "0.5.12"),
    "Glm4MoeLiteForCausalLM": ("glm4_moe_lite", "0.5.13"),
}
# vLLM: every target captures in one way but these, whose code fails at the embedding.
VLLM_WITHOUT_EMBEDDING = frozenset(
    {"DeepseekV2ForCausalLM", "DeepseekV3ForCausalLM", "KimiK25ForConditionalGeneration"}
)


@dataclass(frozen=True)
class TapRule:
    """From ``since`` until before ``before``, for ``families`` (None: all others), ids mean ``rule``.

    ``last``: tap L can be captured. ``broken``: what these versions capture instead of the taps.
    """

    engine: str
    since: str | None
    before: str | None
    families: frozenset[str] | None
    rule: IdRule
    last: bool
    broken: str | None = None


_GEMMA_BRANCH = "it captures the MLP branch alone, without the residual stream"
RULES: tuple[TapRule, ...] = (
    TapRule(
        "sglang",
        "0.5.13",
        None,
        frozenset({"deepseek", "glm4_moe_lite"}),
        "tap unless the first is 1",
        last=False,
    ),
    TapRule("sglang", "0.5.17", None, frozenset({"gpt_oss"}), "tap if the greatest is L", last=True),
    TapRule("sglang", "0.5.17", None, frozenset({"gemma3"}), "output-of-layer", last=True, broken=_GEMMA_BRANCH),
    TapRule("sglang", "0.5.12", "0.5.17", frozenset({"gemma3"}), "output-of-layer", last=True),
    TapRule("sglang", None, None, None, "output-of-layer", last=False),
    TapRule("vllm", None, None, None, "tap", last=True),
)


@dataclass(frozen=True)
class Reading:
    """What an engine makes of layer ids: ``taps``, rising; ``rule``; the ``shift`` added to each id."""

    taps: tuple[int, ...]
    rule: IdRule
    shift: int


def find_rule(engine: Engine, architecture: str) -> TapRule:
    """The row for this engine and target; ``dialect.unknown-engine`` where it cannot capture."""
    family = ""
    if engine.name == "sglang":
        if architecture not in SGLANG_TARGETS:
            cause = f"how {engine} captures taps of {architecture} is not known"
            raise EyasError("dialect.unknown-engine", cause, f"known targets: {', '.join(SGLANG_TARGETS)}")
        family, since = SGLANG_TARGETS[architecture]
        if not engine.within(since, None):
            cause = f"{engine} cannot capture taps of {architecture}: the first version that can is {since}"
            raise EyasError("dialect.unknown-engine", cause, f"use sglang {since} or later")
    return next(
        row
        for row in RULES
        if row.engine == engine.name
        and engine.within(row.since, row.before)
        and (row.families is None or family in row.families)
    )


def taps_from_ids(ids: Sequence[int], num_layers: int, engine: Engine, architecture: str) -> Reading:
    """The taps that the engine captures for explicit ``ids``.

    Raises ``draft.dialect`` where it fails or captures something else than a tap, ``dialect.unknown-engine``
    as :func:`find_rule`.
    """
    row = find_rule(engine, architecture)
    if not ids:
        raise EyasError(
            "draft.dialect",
            "the list of layer ids is empty",
            "write the ids of the taps, or leave the key out",
        )
    reading = _read(ids, num_layers, row)
    lowest, highest = capturable(num_layers, engine, architecture)
    if not all(lowest <= tap <= highest for tap in reading.taps):
        cause = (
            f"{engine} with {architecture} of {num_layers} layers reads layer ids {list(ids)} as taps"
            f" {list(reading.taps)},"
            f" and can capture {lowest} … {highest}"
        )
        raise EyasError("draft.dialect", cause, "write other layer ids: see `eyas export`")
    return reading


def capturable(num_layers: int, engine: Engine, architecture: str) -> tuple[int, int]:
    """The lowest and the highest tap that the engine can capture for this target.

    Raises ``draft.dialect`` where these versions capture something else than the tap.
    """
    row = find_rule(engine, architecture)
    if row.broken:
        raise EyasError(
            "draft.dialect",
            f"{engine} with {architecture}: {row.broken}",
            f"use {engine.name} before {row.since}",
        )
    lowest = 0 if engine.name == "vllm" and architecture not in VLLM_WITHOUT_EMBEDDING else 1
    return lowest, num_layers if row.last else num_layers - 1


def _read(ids: Sequence[int], num_layers: int, row: TapRule) -> Reading:
    as_taps = (
        row.rule == "tap"
        or (row.rule == "tap unless the first is 1" and ids[0] != 1)
        or (row.rule == "tap if the greatest is L" and max(ids) == num_layers)
    )
    shift = 0 if as_taps else 1
    return Reading(tuple(sorted({number + shift for number in ids})), row.rule, shift)


def ids_for_taps(taps: Sequence[int], num_layers: int, engine: Engine, architecture: str) -> tuple[int, ...]:
    """The layer ids to write, so that the engine captures exactly ``taps``.

    Raises ``draft.dialect`` where no ids do: taps not in rising order, a tap the engine cannot capture, or a
    rule that would shift them.
    """
    taps = validate_taps(taps, num_layers)
    row = find_rule(engine, architecture)
    if list(taps) != sorted(taps):
        cause = f"{engine} concatenates taps in rising order, and this draft reads them as {list(taps)}"
        raise EyasError(
            "draft.dialect",
            cause,
            "permute the column blocks of fc.weight into rising order, or retrain on rising taps",
        )
    lowest, highest = capturable(num_layers, engine, architecture)
    outside = [tap for tap in taps if not lowest <= tap <= highest]
    if outside:
        cause = (
            f"{engine} with {architecture} of {num_layers} layers captures taps {lowest} … {highest}, not {outside[0]}"
        )
        raise EyasError("draft.dialect", cause, f"train a draft on taps from {lowest} to {highest} for this engine")
    # Ids of layer outputs first: where both forms are possible, they mean the same to older versions.
    for shift in (1, 0) if engine.name == "sglang" else (0,):
        ids = tuple(tap - shift for tap in taps)
        if _read(ids, num_layers, row).taps == taps:
            return ids
    cause = f"no layer ids make {engine} with {architecture} capture taps {list(taps)}: its rule is '{row.rule}'"
    raise EyasError("draft.dialect", cause, "train a draft on taps that begin with 2 or more for this engine")


def default_capture(num_layers: int) -> tuple[int, ...]:
    """The taps that both engines capture when no ids are given: (2, L//2, L−3), rising, each once.

    On a shallow target these are fewer than three, or include the embedding: the engine then fails on fc's
    width, or reads the wrong state.
    """
    return tuple(sorted({2, num_layers // 2, num_layers - 3}))
