"""Thoughts and calls in a text, and texts that loop."""

from __future__ import annotations

import json
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eyas.data.regen.repetition import CHECK_EVERY, LONGEST_LOOP, LOOPED, WINDOW, first_repeat
from eyas.data.regen.turns import message_of, split_reasoning

CALL = '<tool_call>\n{"name": "f", "arguments": {"a": {"b": "ä"}}}\n</tool_call>'


@pytest.mark.parametrize(
    ("text", "opened", "parts"),
    [
        ("x", False, (None, "x")),
        (" x </think> y", False, (None, " x </think> y")),
        ("<think>\nHm.\n</think>\n\nx\n", False, ("Hm.", "x\n")),
        ("<think>\n\n</think>\n\nx", False, ("", "x")),
        ("Hm.\n</think>\n\nx", True, ("Hm.", "x")),
        ("<think>\nHm", False, ("Hm", "")),
        ("Hm", True, ("Hm", "")),
    ],
)
def test_thoughts_are_told_from_the_answer(text: str, opened: bool, parts: tuple[str | None, str]) -> None:
    assert split_reasoning(text, opened) == parts


@given(st.text())
def test_a_text_without_marks_stays_as_it_is(text: str) -> None:
    assert message_of(text, thinks=False, opened=True, may_call=False) == {"role": "assistant", "content": text}


def test_calls_are_read_where_tools_were_offered() -> None:
    text = f"Let me see.\n{CALL}\n{CALL}"
    message = message_of(text, thinks=True, opened=False, may_call=True)
    assert message["content"] == "Let me see."
    assert [call["id"] for call in message["tool_calls"]] == ["call_0", "call_1"]
    function = message["tool_calls"][0]["function"]
    assert (function["name"], json.loads(function["arguments"])) == ("f", {"a": {"b": "ä"}})
    assert message_of(text, thinks=True, opened=False, may_call=False)["content"] == text


@pytest.mark.parametrize(
    "call", ["{}}", "{'name': 1}", '{"arguments": {}}', '{"name": 1}', '{"name": "f", "arguments": [1]}']
)
def test_one_that_is_no_call_leaves_all_as_text(call: str) -> None:
    text = f"{CALL}<tool_call>{call}</tool_call>"
    message = message_of(text, thinks=False, opened=False, may_call=True)
    assert message == {"role": "assistant", "content": text}


def test_thoughts_and_calls_together() -> None:
    message = message_of(f"<think>\nHm.\n</think>\n\n{CALL}", thinks=True, opened=False, may_call=True)
    assert (message["reasoning_content"], message["content"]) == ("Hm.", "")
    assert len(message["tool_calls"]) == 1


@given(st.lists(st.integers(0, 500), max_size=60), st.lists(st.integers(0, 500), min_size=1, max_size=LONGEST_LOOP))
def test_every_short_loop_is_seen_soon_after_it_fills_the_end(begin: list[int], loop: list[int]) -> None:
    tokens = (begin + loop * WINDOW)[: len(begin) + LOOPED + CHECK_EVERY]
    found = first_repeat(tokens, 0)
    assert found is not None
    assert found % CHECK_EVERY == 0
    assert found >= LOOPED


def test_what_says_something_new_does_not_repeat() -> None:
    draw = random.Random(0)
    text = [draw.randrange(300) for _ in range(1000)]
    assert first_repeat(text, 0) is None
    table = [token for row in range(40) for token in (7, 7, 7, *text[3 * row : 3 * row + 3])]
    assert first_repeat(table, 0) is None


def test_a_loop_with_small_changes_is_seen() -> None:
    draw = random.Random(0)
    lines = [token for _ in range(60) for token in (*range(20), 100 + draw.randrange(3))]
    assert first_repeat(lines, 0) == WINDOW


@given(
    st.lists(st.integers(0, 500), max_size=60),
    st.lists(st.integers(0, 500), min_size=1, max_size=LONGEST_LOOP + 8),
    st.integers(0, 300),
    st.integers(0, 300),
)
def test_a_cut_does_not_depend_on_how_often_it_is_looked_for(
    begin: list[int], loop: list[int], length: int, seen: int
) -> None:
    tokens = (begin + loop * 300)[:length]
    whole = first_repeat(tokens, 0)
    step_by_step = next(
        (found for n in range(1, len(tokens) + 1) if (found := first_repeat(tokens[:n], n - 1)) is not None), None
    )
    assert whole == step_by_step
    later = first_repeat(tokens, seen)
    assert later is None or later > seen
    if whole is not None and seen < whole:
        assert later == whole
