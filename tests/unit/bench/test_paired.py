"""Two servers: blocks in turns, and ratios prompt by prompt."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from eyas.bench.client import Outcome, Question
from eyas.bench.load import Block
from eyas.bench.paired import compare, cut_into_blocks
from eyas.bench.settings import Load
from eyas.bench.stream import Chunk


def answer(number: int, seconds: float, prompt: str | None = None, **more) -> Outcome:
    """11 tokens, the first after a tenth of the time."""
    chunks = (Chunk(seconds / 10, 1), Chunk(seconds, 10))
    values = {"ended": seconds, "chunks": chunks, "completion": 11, "text": "said"} | more
    return Outcome(Question(number, prompt or f"p{number}", ()), 0.0, **values)


def blocks(*outcomes: Outcome) -> list[Block]:
    return [Block([o], o.ended) for o in outcomes]


def test_what_is_twice_as_fast_is_said_to_be():
    ours, theirs = (blocks(*(answer(i, slow * (1.0 + i)) for i in range(8))) for slow in (1, 2))
    found = compare(ours, theirs, True, 0)
    for ratio in (found.speed, found.first_token, found.decoding):
        assert (ratio.value, ratio.low, ratio.high, ratio.prompts) == (*[pytest.approx(2.0)] * 3, 8)
    assert (found.pairs, found.same_text) == (8, 8)


def test_only_what_both_answered_is_compared():
    ours = blocks(answer(0, 1.0), answer(1, 50.0), answer(2, 1.0))
    theirs = blocks(answer(0, 3.0), answer(1, 1.0, fault="timeout"), answer(3, 1.0))
    found = compare(ours, theirs, True, 0)
    assert (found.pairs, found.speed.value) == (1, pytest.approx(3.0))
    assert math.isnan(found.speed.low)


def test_other_texts_are_counted_where_they_should_agree():
    ours, theirs = blocks(answer(0, 1.0), answer(1, 1.0)), blocks(answer(0, 1.0), answer(1, 1.0, text="else"))
    assert compare(ours, theirs, True, 0).same_text == 1
    assert compare(ours, theirs, False, 0).same_text is None


def test_the_interval_covers_the_truth_about_as_often_as_it_says():
    dice = np.random.default_rng(5)
    covered = 0
    for trial in range(200):
        hard = dice.lognormal(0, 1, 25)
        ours = blocks(*(answer(i, float(h * dice.lognormal(0, 0.2))) for i, h in enumerate(hard)))
        theirs = blocks(*(answer(i, float(1.5 * h * dice.lognormal(0, 0.2))) for i, h in enumerate(hard)))
        speed = compare(ours, theirs, True, trial).speed
        covered += speed.low <= 1.5 <= speed.high
    assert 170 <= covered <= 200


def test_requests_of_one_prompt_are_no_more_than_one_prompt():
    ours = blocks(*(answer(i, 1.0 + i % 2, f"p{i % 2}") for i in range(20)))
    assert compare(ours, ours, True, 0).speed.prompts == 2


@given(st.integers(1, 200), st.sampled_from([Load("closed", n) for n in (1, 2, 8, 64)] + [Load("open", 3.0)]))
def test_blocks_hold_every_question_once_and_each_server_goes_first_as_often(count: int, load: Load):
    questions = [Question(i, f"p{i}", ()) for i in range(count)]
    cut = cut_into_blocks(questions, load, 2)
    assert [q for part in cut for q in part] == questions
    at_once = int(load.value) if load.kind == "closed" else 1
    assert len(cut) % 2 == 0 or count < 2 * at_once
    assert len(cut) == 1 or min(map(len, cut)) >= at_once, "a block that cannot fill its load"
    assert cut_into_blocks(questions, load, 1) == [questions]
