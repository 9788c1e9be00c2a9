"""Packed rows: every token once, rows within the limit, and the same slots trained as without packing."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from eyas.corpus.packing import pack_row, plan_rows
from eyas.corpus.samples import Sample, trained_slots
from eyas.errors import EyasError

LIMIT = 24


@st.composite
def made(draw: st.DrawFn) -> Sample:
    """A sample of 1 … LIMIT tokens with some answers."""
    length = draw(st.integers(1, LIMIT))
    edges = sorted(draw(st.lists(st.integers(1, length), unique=True, max_size=6)))
    answers = tuple(zip(edges[::2], edges[1::2], strict=False))
    tokens = np.array(draw(st.lists(st.integers(0, 99), min_size=length, max_size=length)), dtype=np.int32)
    return Sample("s", "p", "d", tokens, answers, 0.0)


SAMPLES = st.lists(made(), max_size=12)
SEEDS = st.integers(0, 3)


@given(SAMPLES, SEEDS, SEEDS)
@settings(max_examples=60, deadline=None)
def test_every_token_is_there_once_and_trained_as_alone(samples, seed, epoch):
    rows = [pack_row(samples, row) for row in plan_rows([len(s.tokens) for s in samples], LIMIT, seed, epoch)]
    assert sorted(index for row in rows for index in row.samples) == list(range(len(samples)))
    for row in rows:
        assert 0 < len(row.tokens) <= LIMIT
        own = [samples[i] for i in row.samples]
        assert np.array_equal(row.tokens, np.concatenate([s.tokens for s in own]))
        assert np.array_equal(row.positions, np.concatenate([np.arange(len(s.tokens)) for s in own]))
        assert np.array_equal(row.documents, np.repeat(np.arange(len(own)), [len(s.tokens) for s in own]))
        begins = np.cumsum([0, *(len(s.tokens) for s in own)])
        for step in range(4):
            trained = np.flatnonzero(trained_slots(row.segments, step)).tolist()
            alone = [
                int(begin + slot)
                for begin, sample in zip(begins, own, strict=False)
                for slot in np.flatnonzero(trained_slots(sample.segments(), step))
            ]
            assert trained == alone
            for slot in trained:
                assert len(set(row.documents[slot : slot + 3 + step].tolist())) == 1


@given(SAMPLES)
@settings(max_examples=30, deadline=None)
def test_no_two_answers_of_a_row_share_a_number(samples):
    for indices in plan_rows([len(s.tokens) for s in samples], LIMIT, 0, 0):
        row = pack_row(samples, indices)
        runs = [k for k, before in zip(row.segments[1:], row.segments, strict=False) if k and k != before]
        assert len(runs) == len(set(runs))


@given(st.lists(st.integers(1, LIMIT), max_size=60), SEEDS, SEEDS)
@settings(max_examples=60, deadline=None)
def test_first_fit_decreasing(lengths, seed, epoch):
    """As the plain method does it, which tries the rows one after the other."""
    rows = plan_rows(lengths, LIMIT, seed, epoch)
    assert rows == plan_rows(lengths, LIMIT, seed, epoch)
    plain: list[int] = []
    for length in sorted(lengths, reverse=True):
        at = next((i for i, used in enumerate(plain) if used + length <= LIMIT), len(plain))
        plain[at : at + 1] = [(plain[at] if at < len(plain) else 0) + length]
    assert sorted(sum(lengths[i] for i in row) for row in rows) == sorted(plain)
    assert len(rows) <= math.ceil(sum(lengths) / LIMIT) * 11 / 9 + 1


def test_another_epoch_or_seed_packs_otherwise():
    lengths = [3, 3, 3, 3, 5, 5, 7, 7, 8, 8, 8] * 3
    plans = [plan_rows(lengths, LIMIT, seed, epoch) for seed, epoch in ((0, 0), (0, 1), (1, 0))]
    assert plans[0] != plans[1] != plans[2] != plans[0]


def test_the_order_is_the_same_on_every_machine():
    assert plan_rows([4, 4, 4, 4, 4, 9, 9], 13, seed=7, epoch=2) == [(6, 4), (5, 0), (1, 3, 2)]


def test_a_sample_longer_than_a_row_is_refused():
    with pytest.raises(EyasError) as caught:
        plan_rows([3, 9], 8, 0, 0)
    assert caught.value.code == "samples.too-long"
    assert "9 tokens" in caught.value.cause
