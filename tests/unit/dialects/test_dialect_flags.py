"""Asked flags → what runs: the silent clamp, the automatic choice, and the failures."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eyas.config import SpeculativeSettings
from eyas.dialects.engines import Engine
from eyas.dialects.flags import Flags, Resolution, sglang_resolve, vllm_from_settings, vllm_resolve
from eyas.errors import EyasError

LLAMA, KIMI, DEEPSEEK, OSS = (
    "LlamaForCausalLM",
    "KimiK25ForConditionalGeneration",
    "DeepseekV3ForCausalLM",
    "GptOssForCausalLM",
)


def runs(resolution: Resolution) -> tuple[int, int, int]:
    return resolution.num_steps, resolution.eagle_topk, resolution.num_draft_tokens


@pytest.mark.parametrize("version", ["0.4.6.post5", "0.5.2", "0.5.23"])
@pytest.mark.parametrize(
    ("asked", "draft_tokens"),
    [((1, 1, 4), 2), ((4, 1, 24), 5), ((5, 1, 4), 6), ((3, 1, 4), 4), ((1, 1, 16), 2)],
)
def test_faults_input_1(version: str, asked: tuple[int, int, int], draft_tokens: int) -> None:
    resolution = sglang_resolve(Flags(*asked), Engine.parse(f"sglang=={version}"), KIMI)
    assert runs(resolution) == (asked[0], 1, draft_tokens)
    assert resolution.ceiling == draft_tokens
    if asked[2] == draft_tokens:
        assert resolution.changes == ()
    else:
        (change,) = resolution.overridden
        assert change.flag == "--speculative-num-draft-tokens"
        assert (change.asked, change.effective) == (asked[2], draft_tokens)
        assert "steps + 1" in change.rule


@given(st.integers(1, 20), st.none() | st.integers(1, 40))
def test_a_chain_always_runs_steps_plus_one(steps: int, tokens: int | None) -> None:
    resolution = sglang_resolve(Flags(steps, 1, tokens), Engine.parse("sglang"), LLAMA)
    assert runs(resolution) == (steps, 1, steps + 1)
    assert bool(resolution.overridden) == (tokens not in (None, steps + 1))
    assert bool(resolution.filled) == (tokens is None)


def test_faults_input_2() -> None:
    """vLLM's K = 3 is SGLang's three steps and four draft tokens."""
    settings = SpeculativeSettings.resolve(3, 1, 4)
    assert vllm_from_settings(settings) == 3
    assert runs(vllm_resolve(3)) == (3, 1, 4)
    assert vllm_resolve(3).ceiling == settings.ceiling == 4
    # Taken for draft tokens it would be K = 2.
    assert SpeculativeSettings.resolve(None, 1, 3).num_steps == 2


@given(st.integers(1, 15))
def test_vllm_round_trip(num_speculative_tokens: int) -> None:
    settings = SpeculativeSettings.resolve(*runs(vllm_resolve(num_speculative_tokens)))
    assert vllm_from_settings(settings) == num_speculative_tokens


def test_vllm_refusals() -> None:
    with pytest.raises(EyasError) as caught:
        vllm_from_settings(SpeculativeSettings.resolve(3, 4, 8))
    assert caught.value.code == "draft.dialect"
    with pytest.raises(EyasError) as caught:
        vllm_resolve(0)
    assert caught.value.code == "flags.range"


@pytest.mark.parametrize(
    ("version", "architecture", "expected"),
    [
        ("0.4.6.post5", DEEPSEEK, (5, 4, 8)),
        ("0.4.8", DEEPSEEK, (3, 1, 4)),
        ("0.4.10.post2", OSS, (5, 4, 8)),
        ("0.5.2", OSS, (3, 1, 4)),
        ("0.5.7", "Qwen3ForCausalLM", (5, 4, 8)),
        ("0.5.8", "Qwen3ForCausalLM", (3, 1, 4)),
        ("0.5.23", LLAMA, (5, 4, 8)),
        ("0.5.23", KIMI, (3, 1, 4)),
    ],
)
def test_automatic_choice(version: str, architecture: str, expected: tuple[int, int, int]) -> None:
    resolution = sglang_resolve(Flags(), Engine.parse(f"sglang=={version}"), architecture)
    assert runs(resolution) == expected
    assert len(resolution.filled) == 3
    assert resolution.overridden == ()


@pytest.mark.parametrize(
    ("flags", "named"),
    [
        (Flags(None, 1, None), "assertion"),
        (Flags(None, None, 4), "assertion"),
        (Flags(3, None, 4), "TypeError"),
        (Flags(3, 4, None), "sizes its buffers"),
        (Flags(2, 2, 16), "drafts only 6"),
    ],
)
def test_what_the_engine_would_fail_on(flags: Flags, named: str) -> None:
    with pytest.raises(EyasError) as caught:
        sglang_resolve(flags, Engine.parse("sglang"), LLAMA)
    assert caught.value.code == "flags.contradiction"
    assert named in caught.value.cause


def test_a_tree_runs_as_asked() -> None:
    resolution = sglang_resolve(Flags(5, 4, 8), Engine.parse("sglang"), LLAMA)
    assert runs(resolution) == (5, 4, 8)
    assert resolution.changes == ()
    assert resolution.ceiling == 6


def test_values_below_one() -> None:
    with pytest.raises(EyasError) as caught:
        sglang_resolve(Flags(0, 1, 1), Engine.parse("sglang"), LLAMA)
    assert caught.value.code == "flags.range"


class TestPages:
    """Trees on pages of more than one token."""

    def resolve(self, version: str, backend: str | None) -> Resolution:
        engine = Engine.parse(f"sglang=={version}")
        return sglang_resolve(Flags(3, 4, 8), engine, LLAMA, page_size=64, attention_backend=backend)

    def test_topk_was_once_set_to_one(self) -> None:
        resolution = self.resolve("0.4.8", "flashinfer")
        assert runs(resolution) == (3, 1, 4)
        assert [change.flag for change in resolution.overridden] == [
            "--speculative-eagle-topk",
            "--speculative-num-draft-tokens",
        ]

    @pytest.mark.parametrize(
        ("version", "backend", "runs_tree"),
        [
            ("0.4.10.post2", "anything", True),
            ("0.5.2", "flashinfer", True),
            ("0.5.2", "fa3", False),
            ("0.5.6", "fa3", True),
            ("0.5.12", "triton", False),
            ("0.5.13", "triton", True),
            ("0.5.23", None, True),
        ],
    )
    def test_backends(self, version: str, backend: str | None, runs_tree: bool) -> None:
        if runs_tree:
            assert runs(self.resolve(version, backend)) == (3, 4, 8)
            return
        with pytest.raises(EyasError) as caught:
            self.resolve(version, backend)
        assert caught.value.code == "flags.contradiction"
        assert "--page-size 64" in caught.value.cause
        assert f"--attention-backend {backend}" in caught.value.cause
