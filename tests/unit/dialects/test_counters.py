"""Engines' figures → one definition: with the old names, the prompt's token, clipped ends, and figures that lie."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eyas.dialects.counters import counts_between, counts_of, counts_of_rounds, read_metrics, total_of
from eyas.errors import EyasError
from support.fake_engines import histogram_of, sglang_meta, vllm_counters

ROUNDS = [0, 1, 3, 0, 2]
"""faults.md, input 3: accept length 2.2."""
COMPLETION = 1 + sum(ROUNDS) + len(ROUNDS)

SGLANG = {
    "0.5.23": sglang_meta(ROUNDS, 3, COMPLETION),
    "0.5.11": {"spec_accepted_drafts": 6, "spec_proposed_drafts": 15, "spec_verify_ct": 5, "spec_accept_length": 2.4},
    "0.5.10": {"spec_accept_token_num": 6, "spec_draft_token_num": 15, "spec_verify_ct": 5, "spec_accept_length": 2.4},
    "0.5.10 with histogram": {"spec_accept_histogram": [2, 1, 1, 1], "spec_verify_ct": 5},
    "0.5.4": {"spec_verify_ct": 5},
    "the ratio alone": {"spec_accept_length": COMPLETION / 5},
    "usage without a histogram": {
        "spec_num_correct_drafts": 6,
        "spec_verify_ct": 5,
        "spec_correct_drafts_histogram": [],
    },
}


@pytest.mark.parametrize("version", SGLANG)
def test_every_sglang_gives_the_same_accept_length(version: str) -> None:
    counts = counts_of(SGLANG[version], COMPLETION)
    assert counts is not None
    assert (counts.rounds, counts.accepted, counts.accept_length) == (5, 6, pytest.approx(2.2))
    assert counts.cut in (False, None)


def test_sglangs_own_length_counts_the_prompts_token() -> None:
    counts = counts_of(SGLANG["0.5.23"], COMPLETION)
    assert counts is not None
    assert (counts.said, counts.accept_length) == (pytest.approx(2.4), pytest.approx(2.2))
    assert (counts.histogram, counts.num_steps) == ((2, 1, 1, 1), 3)


def test_a_stop_within_a_round_shows_as_cut() -> None:
    counts = counts_of(SGLANG["0.5.23"], COMPLETION - 1)
    assert counts is not None
    assert counts.cut is True
    assert counts.accept_length == pytest.approx(2.2)


def test_vllms_mean_and_counters() -> None:
    mean = counts_of({"mean_acceptance_length": 2.2, "num_spec_steps": 5})
    assert mean is not None
    assert mean.accept_length == pytest.approx(2.2)
    before, after = read_metrics(""), read_metrics(vllm_counters(ROUNDS, 3).decode())
    counts = counts_between(before, after, COMPLETION)
    assert (counts.rounds, counts.accepted, counts.histogram, counts.num_steps) == (5, 6, (2, 1, 1, 1), 3)
    assert counts_between(after, after).rounds == 0
    assert math.isnan(counts_between(after, after).accept_length)


@given(st.lists(st.integers(0, 4), min_size=1, max_size=30), st.lists(st.integers(0, 4), max_size=30))
def test_all_ways_agree(rounds: list[int], earlier: list[int]) -> None:
    completion = 1 + sum(rounds) + len(rounds)
    ways = [
        counts_of(sglang_meta(rounds, 4, completion), completion),
        counts_of({"accepted_histogram": histogram_of(rounds), "cut_rounds": 0}, completion),
        counts_between(
            read_metrics(vllm_counters(earlier, 4).decode()), read_metrics(vllm_counters(earlier + rounds, 4).decode())
        ),
        counts_of_rounds(rounds),
    ]
    trimmed = {tuple(histogram_of(rounds))}
    assert {way.accept_length for way in ways if way} == {1 + sum(rounds) / len(rounds)}
    assert {way.histogram[: max(rounds) + 1] for way in ways if way and way.histogram} == trimmed


def test_sums_keep_only_what_all_have() -> None:
    whole, bare = counts_of_rounds([1, 2]), counts_of({"spec_verify_ct": 4, "spec_num_correct_drafts": 2})
    assert bare is not None
    assert total_of([]) is None
    both = total_of([whole, bare])
    assert both is not None
    assert (both.rounds, both.accepted, both.histogram, both.proposed) == (6, 5, None, None)
    two = total_of([whole, counts_of_rounds([3])])
    assert two is not None
    assert two.histogram == (0, 1, 1, 1)


@pytest.mark.parametrize(
    "fields",
    [
        {"spec_verify_ct": -1},
        {"spec_verify_ct": True},
        {"spec_verify_ct": "5"},
        {"spec_verify_ct": math.nan, "spec_num_correct_drafts": 1},
        {"spec_verify_ct": 1.5, "spec_num_correct_drafts": 1},
        {"spec_verify_ct": 10**30, "spec_num_correct_drafts": 1},
        {"spec_verify_ct": 5},
        {"spec_correct_drafts_histogram": "x"},
        {"spec_correct_drafts_histogram": [1, None]},
        {"spec_correct_drafts_histogram": [0] * 5000},
        {"spec_correct_drafts_histogram": [1, 1], "spec_verify_ct": 3},
        {"spec_correct_drafts_histogram": [1, 1], "spec_num_correct_drafts": 2},
        {"spec_verify_ct": 2, "spec_num_correct_drafts": 9, "spec_num_proposed_drafts": 6},
        {"mean_acceptance_length": 0.5, "num_spec_steps": 5},
        {"spec_accept_length": 0.2, "completion_tokens": 5},
        {"spec_accept_length": 1e-300, "completion_tokens": 5},
    ],
)
def test_figures_that_lie_are_refused(fields: dict[str, object]) -> None:
    with pytest.raises(EyasError) as error:
        counts_of(fields)
    assert error.value.code == "server.metrics"


@pytest.mark.parametrize("fields", [{}, {"spec_accept_length": 0.0, "spec_accept_rate": 0.0}, {"unknown": 1}])
def test_no_figures_are_none(fields: dict[str, object]) -> None:
    assert counts_of(fields, 10) is None


@pytest.mark.parametrize(
    "after",
    [
        "vllm:spec_decode_num_drafts_total 3",
        "vllm:spec_decode_num_drafts_total x",
        "vllm:spec_decode_num_drafts_total -1",
        'vllm:spec_decode_num_drafts_total 9\nvllm:spec_decode_num_accepted_tokens_per_pos_total{position="0"} 6',
        'vllm:spec_decode_num_drafts_total 9\nvllm:spec_decode_num_accepted_tokens 14\n'
        'vllm:spec_decode_num_accepted_tokens_per_pos_total{position="1"} 14',
    ],
)  # fmt: skip
def test_counters_that_fall_or_contradict_are_refused(after: str) -> None:
    before = read_metrics("vllm:spec_decode_num_drafts_total 5")
    with pytest.raises(EyasError) as error:
        counts_between(before, read_metrics(after))
    assert error.value.code == "server.metrics"


def test_a_gauge_without_a_value_is_left_out() -> None:
    assert read_metrics("sglang:spec_accept_length NaN\nsglang:other 3") == {}
    assert read_metrics('sglang:spec_accept_length{model_name="m"} 2.5') == {"sglang:spec_accept_length": {0: 2.5}}
