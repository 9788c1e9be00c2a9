"""Figures from requests whose times are known."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eyas.bench.client import Outcome, Question
from eyas.bench.load import Block
from eyas.bench.measure import Accept, figures, spread, token_gaps
from eyas.bench.stream import Chunk
from eyas.dialects.counters import Counts


def outcome(
    number: int = 0, at: tuple[float, ...] = (2.0, 3.0, 5.0), tokens: tuple[int | None, ...] = (1, 1, 4), **more
) -> Outcome:
    """Due at second 1, sent at 1.5, done at the last chunk."""
    chunks = tuple(Chunk(a, n) for a, n in zip(at, tokens, strict=True))
    total = None if None in tokens else sum(n for n in tokens if n)
    values = {"sent": 1.5, "ended": at[-1] if at else 1.5, "chunks": chunks, "completion": total, "finish": "stop"}
    return Outcome(Question(number, f"p{number}", ()), 1.0, **(values | more))


def test_a_chunks_tokens_share_the_time_since_the_chunk_before():
    assert token_gaps(outcome()) == ([(1.0, 1.0), (0.5, 4.0)], "counted")


def test_a_chunk_without_new_tokens_adds_its_time_to_the_next():
    assert token_gaps(outcome(tokens=(1, 0, 4))) == ([(0.75, 4.0)], "counted")


def test_where_the_server_does_not_tell_chunks_are_taken_as_equal():
    gaps, told = token_gaps(outcome(tokens=(None, None, None), completion=6))
    assert (gaps, told) == ([(0.5, 2.0), (1.0, 2.0)], "shared out")
    assert token_gaps(outcome(tokens=(None, None, None), completion=None)) == ([], "not known")


def test_all_figures_of_a_block():
    failed = outcome(2, at=(), tokens=(), fault="http-500", said="boom", ended=9.0)
    busy = outcome(1, refusals={429: 2}, waited=3.0, prompt_tokens=4, cached=2, counts=Counts(3, 2, 9, (1, 2)))
    first = outcome(0, prompt_tokens=4, cached=2, counts=Counts(2, 2, 6, (0, 2)))
    found = figures([Block([first, busy, failed], 8.0), Block([outcome(3, prompt_tokens=4, cached=0)], 2.0)])
    assert (found.requests, found.answered, found.faults) == (4, 3, {"http-500": 1})
    assert found.examples == {"http-500": "boom"}
    assert (found.refusals, found.waited) == ({429: 2}, 3.0)
    assert (found.tokens, found.seconds, found.tokens_per_second) == (18, 10.0, 1.8)
    assert found.requests_per_second == pytest.approx(0.3)
    assert (found.prompt_tokens, found.cached_tokens) == (12, 4)
    assert (found.ttft.p50, found.latency.p50, found.late.p50) == (1.0, 4.0, 0.5)
    assert (found.inter_token.count, found.inter_token.p50, found.inter_token.most) == (15, 0.5, 1.0)
    assert found.inter_token.mean == pytest.approx((3 * 1.0 + 12 * 0.5) / 15)
    assert (found.inter_chunk.p50, found.inter_chunk.most) == (1.0, 2.0)
    assert found.accept == Accept(1 + 4 / 5, 5, 4, 15, (1, 4), "answers")
    assert found.finishes == {"stop": 3}


def test_no_usage_is_no_tokens_and_not_none_of_them():
    found = figures([Block([outcome(), outcome(1, completion=None)], 2.0)])
    assert found.tokens is None
    assert math.isnan(found.tokens_per_second)


def test_counters_stand_in_for_answers_that_tell_less():
    counted = Accept(2.0, 5, 5, 15, None, "counters")
    assert figures([Block([outcome()], 1.0)], counted).accept == counted
    assert figures([Block([outcome(counts=Counts(2, 0))], 1.0)], counted).accept == counted


def test_nothing_at_all():
    found = figures([Block([], 0.0, "its time was up")])
    assert (found.answered, found.stopped, found.ttft.count) == (0, "its time was up", 0)
    assert math.isnan(found.latency.p99)


@given(st.lists(st.tuples(st.floats(0, 100), st.integers(1, 5)), min_size=1, max_size=50))
def test_weights_are_repetitions(pairs):
    values, weights = zip(*pairs, strict=True)
    many = [value for value, n in pairs for _ in range(n)]
    ours, theirs = spread(values, weights), spread(many)
    assert (ours.p50, ours.p90, ours.p99, ours.count) == (theirs.p50, theirs.p90, theirs.p99, theirs.count)
    ordered = sorted(many)
    assert ours.p90 == ordered[math.ceil(0.9 * len(many) - 1e-9) - 1]
