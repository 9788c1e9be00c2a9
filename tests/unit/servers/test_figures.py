"""llama.cpp's timings in the one definition: rounds follow from its sums."""

from __future__ import annotations

from typing import Any

import pytest

from eyas.errors import EyasError
from eyas.servers.figures import completion_of, fields_of, read_answer

TIMINGS = {"prompt_n": 12, "predicted_n": 65, "predicted_ms": 640.0, "draft_n": 99, "draft_n_accepted": 31}


def said(**timings: Any) -> dict[str, Any]:
    choice = {"message": {"content": "said"}, "finish_reason": "length"}
    return {"choices": [choice], "usage": {"completion_tokens": 65}, "timings": TIMINGS | timings}


def test_rounds_of_llama_cpp_follow_from_its_sums() -> None:
    """65 tokens: the prompt's, 31 drafts, and one of the target's own in each of 33 rounds of 3 drafts."""
    counts = read_answer(said()).counts
    assert counts is not None
    assert (counts.rounds, counts.accepted, counts.proposed, counts.num_steps) == (33, 31, 99, 3)
    assert counts.cut is None
    assert counts.accept_length == pytest.approx(1 + 31 / 33)


def test_timings_without_a_draft_are_no_figures_of_speculation() -> None:
    body = said()
    body["timings"] = {"predicted_n": 65, "predicted_ms": 640.0}
    assert read_answer(body).counts is None


def test_a_stop_within_a_round_leaves_less_tokens_than_accepted_drafts() -> None:
    """Three tokens, of a round that accepted five: how many rounds there were is not to be told."""
    assert read_answer(said(predicted_n=3, draft_n=8, draft_n_accepted=5)).counts is None


@pytest.mark.parametrize("wrong", [{"draft_n": 30}, {"predicted_n": 3.5}, {"draft_n": "many"}])
def test_timings_that_contradict_one_another(wrong: dict[str, Any]) -> None:
    with pytest.raises(EyasError) as error:
        read_answer(said(**wrong))
    assert error.value.code == "server.metrics"


def test_figures_are_found_wherever_they_stand() -> None:
    spec = {"spec_verify_ct": 3, "spec_num_correct_drafts": 4}
    assert fields_of({"choices": [], "sglext": [{"spec_tokens_details": spec}]}) == spec
    assert fields_of({"choices": [{"delta": {"content": "draft_n"}}]}) == {}


@pytest.mark.parametrize("tokens", [-1, True, "12", 1.5])
def test_a_count_that_is_none(tokens: Any) -> None:
    with pytest.raises(EyasError):
        completion_of({"usage": {"completion_tokens": tokens}})
