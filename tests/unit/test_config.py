"""Settings: what is filled, what is refused, and what the refusals say."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eyas.config import MAX_STEPS, SamplingSettings, SpeculativeSettings, tree_capacity
from eyas.errors import EyasError

maybe = st.none() | st.integers(1, 12)


def resolved(*flags: int | None) -> tuple[int, int, int]:
    settings = SpeculativeSettings.resolve(*flags)
    return settings.num_steps, settings.eagle_topk, settings.num_draft_tokens


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        ((None, None, None), (3, 1, 4)),
        ((5, None, None), (5, 1, 6)),
        ((None, None, 16), (15, 1, 16)),
        ((None, 1, 2), (1, 1, 2)),
        ((15, 1, 16), (15, 1, 16)),
        ((5, 4, 8), (5, 4, 8)),
        ((None, 4, None), (3, 4, 8)),
        ((1, 2, None), (1, 2, 3)),
    ],
)
def test_resolve(flags: tuple[int | None, ...], expected: tuple[int, int, int]) -> None:
    assert resolved(*flags) == expected


def test_defaults_are_one_and_the_same() -> None:
    assert SpeculativeSettings() == SpeculativeSettings.resolve()


@given(maybe, maybe, maybe)
def test_resolve_keeps_what_is_given_or_refuses(steps: int | None, topk: int | None, tokens: int | None) -> None:
    try:
        settings = SpeculativeSettings.resolve(steps, topk, tokens)
    except EyasError:
        assert None not in (steps, tokens) or tokens == 1 or (topk or 1) > 1
        return
    flags = ((steps, settings.num_steps), (topk, settings.eagle_topk), (tokens, settings.num_draft_tokens))
    assert all(asked is None or asked == runs for asked, runs in flags)
    assert settings.num_draft_tokens - 1 <= tree_capacity(settings.num_steps, settings.eagle_topk)
    assert settings.ceiling <= settings.num_steps + 1
    assert settings == SpeculativeSettings(**settings.model_dump())
    assert settings.is_tree == (settings.eagle_topk > 1)


@pytest.mark.parametrize(
    ("flags", "runs", "fixes"),
    [((1, 1, 4), 2, (3, 2)), ((4, 1, 24), 5, (23, 5)), ((5, 1, 4), 6, (3, 6)), ((1, 1, 16), 2, (15, 2))],
)
def test_contradictions_name_both_flags_and_the_fix(
    flags: tuple[int, int, int], runs: int, fixes: tuple[int, int]
) -> None:
    with pytest.raises(EyasError) as caught:
        SpeculativeSettings.resolve(*flags)
    error = caught.value
    assert error.code == "flags.contradiction"
    assert f"--speculative-num-draft-tokens {flags[2]}" in error.cause
    assert f"--speculative-num-steps {flags[0]}" in error.cause
    assert f"can only be {runs}" in error.cause
    assert error.fix == f"use --speculative-num-steps {fixes[0]} or --speculative-num-draft-tokens {fixes[1]}"


@given(st.integers(1, 20), st.integers(1, 8), st.integers(2, 60))
def test_each_offered_fix_works(steps: int, topk: int, tokens: int) -> None:
    if (topk == 1 and tokens == steps + 1) or (topk > 1 and tokens - 1 <= tree_capacity(steps, topk)):
        assert resolved(steps, topk, tokens) == (steps, topk, tokens)
        return
    with pytest.raises(EyasError) as caught:
        resolved(steps, topk, tokens)
    for fix in caught.value.fix.removeprefix("use ").split(" or "):
        flag, value = fix.split(" ")
        name = flag.removeprefix("--speculative-").replace("-", "_")
        asked = {"num_steps": steps, "eagle_topk": topk, "num_draft_tokens": tokens, name: int(value)}
        SpeculativeSettings.resolve(**asked)


def test_a_tree_too_large_for_its_steps() -> None:
    with pytest.raises(EyasError) as caught:
        SpeculativeSettings.resolve(2, 2, 16)
    assert caught.value.code == "flags.contradiction"
    assert "drafts only 6" in caught.value.cause
    assert caught.value.fix == "use --speculative-num-steps 5 or --speculative-num-draft-tokens 7"
    assert resolved(5, 2, 16) == (5, 2, 16)
    assert resolved(2, 2, 7) == (2, 2, 7)


@pytest.mark.parametrize(
    ("flags", "named"),
    [
        ((0, None, None), "num-steps 0"),
        ((-1, None, None), "num-steps -1"),
        ((None, 0, None), "topk 0"),
        ((None, None, 1), "counts the root"),
        ((None, None, 0), "draft-tokens 0"),
        ((MAX_STEPS + 1, None, None), f"more than {MAX_STEPS}"),
        ((None, 65, None), "more than 64"),
        ((None, None, 1000), "draft-tokens 1000"),
        ((None, 8, 2000), "draft-tokens 2000"),
    ],
)
def test_ranges(flags: tuple[int | None, ...], named: str) -> None:
    with pytest.raises(EyasError) as caught:
        SpeculativeSettings.resolve(*flags)
    assert caught.value.code == "flags.range"
    assert named in caught.value.cause


def test_constructing_checks_as_well() -> None:
    with pytest.raises(EyasError) as caught:
        SpeculativeSettings(num_steps=1, num_draft_tokens=4)
    assert caught.value.code == "flags.contradiction"
    with pytest.raises(EyasError) as caught:
        SpeculativeSettings(num_steps=True)
    assert caught.value.code == "flags.range"


def test_probabilistic_drafts_are_chains() -> None:
    assert SpeculativeSettings.resolve(3, draft_sampling="probabilistic").draft_sampling == "probabilistic"
    with pytest.raises(EyasError) as caught:
        SpeculativeSettings.resolve(3, 2, 8, "probabilistic")
    assert caught.value.code == "flags.contradiction"
    assert "--draft-sampling probabilistic" in caught.value.cause
    assert "--speculative-eagle-topk 2" in caught.value.cause


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("temperature", -0.1),
        ("temperature", 1e-6),
        ("temperature", float("nan")),
        ("temperature", float("inf")),
        ("temperature", "1"),
        ("top_k", -1),
        ("top_p", 0.0),
        ("top_p", 1.1),
        ("min_p", 1.5),
        ("seed", -1),
        ("seed", 1 << 63),
        ("repetition_penalty", 0.0),
        ("presence_penalty", 2.5),
        ("frequency_penalty", -3.0),
        ("logit_bias", {-1: 1.0}),
        ("logit_bias", {5: 101.0}),
        ("max_new_tokens", 0),
        ("stop_token_ids", (-1,)),
        ("ignore_eos", 1),
    ],
)
def test_sampling_ranges(name: str, value: Any) -> None:
    with pytest.raises(EyasError) as caught:
        SamplingSettings(**{name: value})
    assert caught.value.code == "request.sampling"
    assert name in caught.value.cause


def test_sampling() -> None:
    plain = SamplingSettings()
    assert plain.greedy
    assert not plain.has_penalties
    drawn = SamplingSettings(temperature=1, top_k=5, presence_penalty=0.5, logit_bias={3: -100.0}, stop_token_ids=(2,))
    assert not drawn.greedy
    assert drawn.has_penalties
    assert SamplingSettings(**drawn.model_dump()) == drawn


def test_unknown_settings_are_refused() -> None:
    body: dict[str, Any] = {"temprature": 1.0}
    with pytest.raises(EyasError) as caught:
        SamplingSettings(**body)
    assert caught.value.code == "flags.unknown"
    assert "temprature" in caught.value.cause
    assert "temperature" in caught.value.fix
