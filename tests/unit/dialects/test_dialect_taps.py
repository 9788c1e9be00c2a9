"""Layer ids by engine, version and architecture: the table's rules, and that writing and reading agree."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eyas.contract import default_taps
from eyas.dialects.engines import Engine, Version
from eyas.dialects.taps import (
    SGLANG_TARGETS,
    capturable,
    default_capture,
    ids_for_taps,
    taps_from_ids,
)
from eyas.errors import EyasError

LLAMA, KIMI, DEEPSEEK, OSS = (
    "LlamaForCausalLM",
    "KimiK25ForConditionalGeneration",
    "DeepseekV3ForCausalLM",
    "GptOssForCausalLM",
)
ENGINES = [
    "sglang==0.4.10.post2",
    "sglang==0.5.12",
    "sglang==0.5.13",
    "sglang==0.5.17",
    "sglang",
    "vllm==0.18",
    "vllm",
]


def read(ids: list[int], num_layers: int, engine: str, architecture: str) -> tuple[int, ...]:
    return taps_from_ids(ids, num_layers, Engine.parse(engine), architecture).taps


@pytest.mark.parametrize(
    ("ids", "num_layers", "engine", "architecture", "taps"),
    [
        ([1, 14, 26], 30, "sglang", LLAMA, (2, 15, 27)),
        ([2, 15, 27], 30, "sglang", LLAMA, (3, 16, 28)),
        ([2, 15, 27], 30, "vllm", LLAMA, (2, 15, 27)),
        ([27, 2, 15, 2], 30, "vllm", LLAMA, (2, 15, 27)),
        ([26, 1, 14], 30, "sglang", LLAMA, (2, 15, 27)),
        ([0, 30], 30, "vllm", LLAMA, (0, 30)),
        # Kimi-K2: both forms name the same taps since 0.5.13.
        ([1, 29, 57], 61, "sglang", KIMI, (2, 30, 58)),
        ([2, 30, 58], 61, "sglang", KIMI, (2, 30, 58)),
        ([2, 30, 58], 61, "sglang==0.5.12", KIMI, (3, 31, 59)),
        ([2, 30, 58], 61, "vllm", KIMI, (2, 30, 58)),
        ([3, 31, 59], 61, "sglang==0.5.13", DEEPSEEK, (3, 31, 59)),
        # The rule looks at the first id as written, not at the least.
        ([29, 1, 57], 61, "sglang", DEEPSEEK, (1, 29, 57)),
        ([1, 11, 20], 24, "sglang", OSS, (2, 12, 21)),
        ([2, 12, 24], 24, "sglang", OSS, (2, 12, 24)),
        ([2, 12, 23], 24, "sglang", OSS, (3, 13, 24)),
    ],
)
def test_reading(ids: list[int], num_layers: int, engine: str, architecture: str, taps: tuple[int, ...]) -> None:
    assert read(ids, num_layers, engine, architecture) == taps


def test_defaults_written_explicitly() -> None:
    """None given equals the default given explicitly, in each engine's ids."""
    for num_layers, architecture in ((30, LLAMA), (61, KIMI), (24, OSS)):
        taps = default_taps(num_layers)
        assert default_capture(num_layers) == taps
        sglang = ids_for_taps(taps, num_layers, Engine.parse("sglang"), architecture)
        assert sglang == (1, num_layers // 2 - 1, num_layers - 4)
        assert ids_for_taps(taps, num_layers, Engine.parse("vllm"), architecture) == taps
        assert read(list(sglang), num_layers, "sglang", architecture) == taps


def test_default_of_shallow_targets_is_not_three_taps() -> None:
    assert default_capture(4) == (1, 2)
    assert default_capture(3) == (0, 1, 2)


@given(st.data(), st.sampled_from(ENGINES), st.sampled_from([LLAMA, KIMI, DEEPSEEK, OSS]), st.integers(8, 64))
def test_what_is_written_is_what_is_captured(
    data: st.DataObject, text: str, architecture: str, num_layers: int
) -> None:
    engine = Engine.parse(text)
    taps = tuple(sorted(data.draw(st.sets(st.integers(0, num_layers), min_size=1, max_size=4))))
    try:
        ids = ids_for_taps(taps, num_layers, engine, architecture)
    except EyasError as error:
        reason = error.code
    else:
        assert taps_from_ids(ids, num_layers, engine, architecture).taps == taps
        return
    if reason == "dialect.unknown-engine":
        assert not engine.within(SGLANG_TARGETS[architecture][1], None)
        return
    lowest, highest = capturable(num_layers, engine, architecture)
    inside = lowest <= taps[0] and taps[-1] <= highest
    assert not inside or (taps[0] == 1 and architecture in (KIMI, DEEPSEEK)), (taps, reason)


@pytest.mark.parametrize(
    ("taps", "engine", "architecture"),
    [
        ((0, 3, 15), "sglang", LLAMA),
        ((2, 15, 30), "sglang", LLAMA),
        ((2, 27, 15), "sglang", LLAMA),
        ((2, 27, 15), "vllm", LLAMA),
        ((1, 15, 27), "sglang", DEEPSEEK),
        ((0, 15, 27), "vllm", DEEPSEEK),
        ((2, 15, 27), "sglang==0.5.20", "Gemma3ForCausalLM"),
    ],
)
def test_what_cannot_be_written_is_refused(taps: tuple[int, ...], engine: str, architecture: str) -> None:
    with pytest.raises(EyasError) as caught:
        ids_for_taps(taps, 30, Engine.parse(engine), architecture)
    assert caught.value.code == "draft.dialect"


def test_ids_that_fall_outside_are_refused() -> None:
    for ids, engine in (([29], "sglang"), ([31], "vllm"), ([-1], "vllm"), ([], "sglang")):
        with pytest.raises(EyasError) as caught:
            read(ids, 30, engine, LLAMA)
        assert caught.value.code == "draft.dialect"


def test_gemma_is_right_before_it_broke() -> None:
    assert read([1, 14, 29], 30, "sglang==0.5.16", "Gemma3ForCausalLM") == (2, 15, 30)


def test_targets_without_rules() -> None:
    for engine, architecture in (("sglang", "MambaForCausalLM"), ("sglang==0.5.9", KIMI)):
        with pytest.raises(EyasError) as caught:
            read([1], 30, engine, architecture)
        assert caught.value.code == "dialect.unknown-engine"


class TestEngines:
    def test_versions_are_ordered(self) -> None:
        texts = ["0.4.6.post5", "0.4.8", "0.4.10.post2", "0.5.2", "0.5.12", "0.5.13"]
        versions = [Version.parse(text) for text in texts]
        assert versions == sorted(versions)
        assert [str(version) for version in versions] == texts
        assert Version.parse("0.32") == Version.parse("v0.32.0+cpu")

    @pytest.mark.parametrize(
        "text", ["tgi==1.0", "sglang==0.4.5", "sglang==main", "vllm==0.8.5", "sglang==0.5.13rc1", ""]
    )
    def test_unknown(self, text: str) -> None:
        with pytest.raises(EyasError) as caught:
            Engine.parse(text)
        assert caught.value.code == "dialect.unknown-engine"

    def test_newer_versions_are_extrapolated(self) -> None:
        assert Engine.parse("sglang==0.9.0").extrapolated
        assert not Engine.parse("sglang").extrapolated
