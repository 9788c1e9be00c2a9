"""The cost table, its correction, and the search over it, against brute force."""

from __future__ import annotations

import itertools
import math
import random
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from eyas.speculate.allocate import Offers, Prices, allocate, alone
from eyas.speculate.costs import CostModel, CostTable, Curve, StepShape
from support.simulated import TABLE


def test_a_curve_is_linear_between_its_points():
    curve = Curve((1, 2, 4), (1.0, 2.0, 3.0))
    assert curve.at([0, 1, 1.5, 3, 4, 6]).tolist() == [1.0, 1.0, 1.5, 2.5, 3.0, 4.0]
    assert Curve((4,), (2.0,)).at([4, 6]).tolist() == [2.0, 3.0]


@given(st.lists(st.tuples(st.integers(1, 64), st.floats(1e-4, 1)), min_size=1, max_size=12))
def test_a_fitted_curve_never_falls_and_reads_the_same_both_ways(points):
    curve = Curve.fitted(points)
    at = curve.at(np.arange(100))
    assert (np.diff(at) >= -1e-12).all()
    assert at == pytest.approx([curve.of(i) for i in range(100)])
    assert curve.seconds[-1] <= max(s for _, s in points) + 1e-12


def test_a_fitted_curve_keeps_points_that_rise():
    assert Curve.fitted([(2, 2.0), (1, 1.0), (2, 4.0)]) == Curve((1, 2), (1.0, 3.0))


def test_a_steps_parts():
    shape = StepShape(8, 2, attended=1000, proposing=2, absorbed=4, steps=(4, 1), draft_attended=500)
    target, context, draft = TABLE.parts(shape)
    assert target == pytest.approx(0.095 + 2 * 0.0002)
    assert context == pytest.approx(0.008)
    assert draft == pytest.approx(0.0037 + 0.0040 + 0.0027 + 2 * 0.0003 + 500 * 5e-7)
    assert TABLE.seconds(shape) == pytest.approx(target + context + draft)


def rows(count: int) -> StepShape:
    return StepShape(count, count, 0.0)


def test_a_slow_machine_changes_no_comparison():
    model, dice = CostModel(TABLE), random.Random(0)
    for _ in range(600):
        shape = rows(dice.choice((1, 4, 16)))
        model.observe(shape, 3 * TABLE.seconds(shape) * dice.lognormvariate(0, 0.1))
    assert model.speed == pytest.approx(3, rel=0.15)
    found = model.seconds(rows(16)) / model.seconds(rows(1))
    assert found == pytest.approx(TABLE.seconds(rows(16)) / TABLE.seconds(rows(1)), rel=0.04)


def test_errors_of_the_table_are_learnt():
    truth = replace(TABLE, step=Curve(TABLE.step.counts, tuple(4 * s for s in TABLE.step.seconds)), attend=2e-5)
    model, dice = CostModel(TABLE), random.Random(1)

    def step(K: int, context: int) -> StepShape:
        return StepShape(K + 1, 1, (K + 1) * context, int(K > 0), K, (1,) * (K - 1))

    shapes = [step(K, context) for K in (0, 1, 4) for context in (100, 4000)]
    for _ in range(1500):
        shape = dice.choice(shapes)
        model.observe(shape, truth.seconds(shape) * dice.lognormvariate(0, 0.05))
    wrong = [TABLE.seconds(a) / TABLE.seconds(shapes[0]) / truth.seconds(a) * truth.seconds(shapes[0]) for a in shapes]
    assert min(wrong) < 0.8
    for shape in shapes:
        found = model.seconds(shape) / model.seconds(shapes[0])
        assert found == pytest.approx(truth.seconds(shape) / truth.seconds(shapes[0]), rel=0.06)


def test_a_pause_is_no_news():
    model, calm = CostModel(TABLE), CostModel(TABLE)
    for i in range(300):
        calm.observe(rows(4), TABLE.seconds(rows(4)))
        model.observe(rows(4), TABLE.seconds(rows(4)) * (50 if i % 60 == 59 else 1))
    assert model.seconds(rows(4)) == pytest.approx(calm.seconds(rows(4)), rel=0.05)


def test_doubt_shrinks_with_what_is_seen():
    model = CostModel(TABLE)
    before = model.doubt(rows(1), rows(4))
    for _ in range(50):
        for shape in (rows(1), rows(4)):
            model.observe(shape, TABLE.seconds(shape))
    assert model.doubt(rows(1), rows(4)) < before / 2
    assert model.doubt(rows(4), rows(4)) == 0


@given(st.lists(st.tuples(st.integers(1, 600), st.floats(1e-3, 10)), max_size=30))
def test_corrected_seconds_never_fall_with_rows(observed):
    model = CostModel(TABLE)
    for count, seconds in observed:
        model.observe(rows(count), seconds)
    assert (np.diff(model.verify_upto(300)) >= 0).all()
    assert len(model.verify_upto(900)) > 900


# The search --------------------------------------------------------------------------------------------------------


@st.composite
def offers(draw, most_requests: int = 3, depth: int = 3) -> Offers:
    B = draw(st.integers(1, most_requests))
    gains, chances = [], st.floats(0.05, 0.98)
    for _ in range(B):
        allowed, survival = draw(st.integers(0, depth)), 1.0
        levels = [survival := survival * draw(chances) for _ in range(depth)]
        gains.append([g if i < allowed else -math.inf for i, g in enumerate(levels)])
    context = draw(st.integers(1, 4000))
    each = lambda value, kind=np.float64: np.full(B, value, dtype=kind)  # noqa: E731
    backlog = each(draw(st.integers(1, 8)))
    return Offers(np.array(gains), each(1, np.int64), [None] * B, each(context), backlog)


def seconds_of(offer: Offers, levels: tuple[int, ...], table: CostTable) -> float:
    B, contexts = len(levels), offer.contexts
    steps = tuple(sum(d < K for K in levels) for d in range(1, max(levels, default=0)))
    chosen = [b for b in range(B) if levels[b]]
    absorbed = sum(offer.absorbed[b] for b in chosen)
    read = sum(contexts[b] * (offer.absorbed[b] + levels[b] - 1) for b in chosen)
    attended = sum(contexts[b] * (1 + levels[b]) for b in range(B))
    return table.seconds(StepShape(B + sum(levels), B, attended, len(chosen), absorbed, steps, read))


def brute_force(offer: Offers) -> float:
    """Most tokens a second over all choices."""
    most = [int(np.isfinite(row).sum()) for row in offer.gains]
    rates = []
    for levels in itertools.product(*(range(m + 1) for m in most)):
        tokens = len(levels) + sum(offer.gains[b, i] for b, K in enumerate(levels) for i in range(K))
        rates.append(tokens / seconds_of(offer, levels, TABLE))
    return max(rates)


@settings(max_examples=60, deadline=None)
@given(offers())
def test_the_search_finds_the_best(offer):
    choice = allocate(offer, CostModel(TABLE), 0)
    levels = tuple(choice.levels.tolist())
    assert choice.seconds == pytest.approx(seconds_of(offer, levels, TABLE))
    assert choice.plain_seconds == pytest.approx(seconds_of(offer, (0,) * len(levels), TABLE))
    assert choice.tokens / choice.seconds >= 0.999 * brute_force(offer)


@settings(max_examples=60, deadline=None)
@given(offers(most_requests=1, depth=6), st.sampled_from([0, 100]), st.sampled_from([None, 8.0, 14.0]))
def test_one_request_is_searched_as_many_are(offer, other_rows, rate):
    costs = CostModel(TABLE)
    prices = Prices(offer, costs, other_rows)
    one, many = alone(offer, costs, other_rows, rate), prices.best(prices.order(rate or 12.0), rate)
    assert one.levels.tolist() == many.levels.tolist()
    assert (one.tokens, one.seconds, one.plain_seconds) == pytest.approx(
        (many.tokens, many.seconds, many.plain_seconds)
    )


def test_a_tree_pays_as_a_whole():
    tree = Offers(np.array([[1.2, -math.inf]]), np.array([7]), [(4, 4)], np.array([100.0]), np.array([3.0]))
    choice = allocate(tree, CostModel(TABLE), 0)
    assert choice.levels.tolist() == [1]
    expected = StepShape(8, 1, 8 * 100, 1, 3, (4, 4), (3 + 8) * 100)
    assert choice.seconds == pytest.approx(TABLE.seconds(expected))
    two = Offers(
        np.repeat(tree.gains, 2, 0), np.array([7, 7]), [(4, 4)] * 2, np.array([100.0] * 2), np.array([3.0] * 2)
    )
    assert allocate(two, CostModel(TABLE), 0).levels.max() <= 1


@pytest.mark.parametrize("B", [1, 2])
def test_requests_that_never_speculate_share_the_step(B):
    offer = Offers(np.full((B, 2), 0.5), np.ones(B, np.int64), [None] * B, np.full(B, 100.0), np.ones(B), plain=31)
    choice = allocate(offer, CostModel(TABLE), 0)
    assert choice.levels.tolist() == [0] * B
    assert choice.tokens == choice.plain_tokens == B + 31
    assert allocate(replace(offer, plain=0), CostModel(TABLE), 0).levels.min() > 0
