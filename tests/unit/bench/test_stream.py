"""A stream as servers send it, and as they should not."""

from __future__ import annotations

import json
from typing import Any

import pytest

from eyas.bench.stream import Refused, Stream


def delta(text: str = "", finish: str | None = None, **more: Any) -> str:
    choice = {"index": 0, "delta": {"content": text}, "finish_reason": finish}
    choice |= {"token_ids": more.pop("ids")} if "ids" in more else {}
    return json.dumps({"choices": [choice], **more})


def usage(tokens: Any, **more: Any) -> str:
    return json.dumps({"choices": [], "usage": {"prompt_tokens": 7, "completion_tokens": tokens, **more}})


def read(*events: str, max_tokens: int = 10) -> Stream:
    """Event i comes at second i."""
    stream = Stream(max_tokens)
    for at, event in enumerate(events):
        stream.take(event, float(at))
    stream.close()
    return stream


def code(*events: str, max_tokens: int = 10) -> str:
    with pytest.raises(Refused) as refused:
        read(*events, max_tokens=max_tokens)
    return refused.value.code


def test_what_an_answer_says_of_itself():
    stream = read(
        delta(), delta("ab"), delta("c"), delta(finish="length"), usage(3, prompt_tokens_details={"cached_tokens": 5})
    )
    assert [(c.at, c.tokens) for c in stream.chunks] == [(1.0, None), (2.0, None)]
    assert ("".join(stream.parts), stream.finish) == ("abc", "length")
    assert (stream.completion, stream.prompt, stream.cached) == (3, 7, 5)


def test_tokens_of_a_chunk_by_its_ids():
    """Half a character is a token without text."""
    stream = read(delta("ab", ids=[4, 5]), delta("", ids=[6]), delta("ä", ids=[7]), delta(finish="stop"), usage(4))
    assert [c.tokens for c in stream.chunks] == [2, 1, 1]


def test_tokens_of_a_chunk_by_the_running_usage():
    stream = read(*(delta("x", usage={"completion_tokens": n}) for n in (1, 4, 5)), delta(finish="stop"), usage(5))
    assert [c.tokens for c in stream.chunks] == [1, 3, 1]


def test_tokens_and_figures_by_llama_cpps_timings():
    def timings(tokens: int, accepted: int) -> dict[str, Any]:
        return {"predicted_n": tokens, "draft_n": 9, "draft_n_accepted": accepted}

    stream = read(
        delta("x", timings=timings(1, 0)),
        delta("y", timings=timings(4, 2)),
        delta(finish="stop", timings=timings(6, 3)),
        usage(6),
    )
    counts, doubt = stream.counts()
    assert [c.tokens for c in stream.chunks] == [1, 3, 2]
    assert doubt is None
    assert counts is not None
    assert (counts.rounds, counts.accepted, counts.proposed) == (2, 3, 9)


def test_thoughts_and_calls_are_text_of_the_answer():
    thought = json.dumps({"choices": [{"delta": {"reasoning_content": "hm", "reasoning": "hm"}}]})
    call = json.dumps({"choices": [{"delta": {"tool_calls": [{"index": 0}]}}]})
    text = json.dumps({"choices": [{"text": "so"}]})
    stream = read(thought, call, text, delta(finish="tool_calls"))
    assert "".join(stream.parts) == 'hm[{"index": 0}]so'
    assert stream.completion is None


@pytest.mark.parametrize(
    ("events", "expected"),
    [
        ((delta("a"),), "cut"),
        ((delta("a"), delta(finish="stop"), usage(11)), "usage"),
        ((delta("a"), delta(finish="stop"), usage(0)), "usage"),
        ((delta("a"), delta(finish="stop"), usage("three")), "usage"),
        ((delta("a", usage={"completion_tokens": 4}), delta("b", usage={"completion_tokens": 3})), "usage"),
        (("{",), "bad-stream"),
        (("[1]",), "bad-stream"),
        ((json.dumps({"error": {"message": "out of memory"}}),), "error"),
        (tuple(delta("a") for _ in range(200)), "endless"),
    ],
)
def test_no_whole_answer(events: tuple[str, ...], expected: str):
    assert code(*events) == expected


def test_an_answer_of_no_tokens_is_whole():
    assert read(delta(finish="stop"), usage(0)).completion == 0


def test_figures_that_cannot_be_are_a_doubt_and_no_figures():
    stream = read(delta("a", spec_verify_ct=2, spec_num_correct_drafts=9, spec_num_proposed_drafts=4), "[DONE]")
    counts, doubt = stream.counts()
    assert counts is None
    assert "contradict" in str(doubt)
