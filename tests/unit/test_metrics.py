"""Acceptance statistics: the definitions, the field's examples, and identities for any rounds."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from eyas.metrics import (
    CHAIN_RATE,
    TREE_RATE,
    Acceptance,
    Round,
    accept_length_from_conditional,
    accept_length_from_survival,
    ceiling,
    completion_tokens,
)


@st.composite
def rounds(draw: st.DrawFn) -> Round:
    proposed = draw(st.integers(0, 8))
    accepted = draw(st.integers(0, proposed))
    return Round(accepted, proposed, cut=accepted > 0 and draw(st.booleans()))


def whole(counts: list[int], num_steps: int) -> Acceptance:
    acceptance = Acceptance()
    for a in counts:
        acceptance.add("one", Round(a, num_steps))
    return acceptance


def test_faults_input_3() -> None:
    acceptance = whole([0, 1, 3, 0, 2], 3)
    assert acceptance.accept_length == pytest.approx(2.2)
    assert acceptance.acceptance_rate == pytest.approx(0.40)
    assert [acceptance.survival(i) for i in (1, 2, 3)] == pytest.approx([0.6, 0.4, 0.2])
    assert [acceptance.conditional(i) for i in (1, 2, 3)] == pytest.approx([3 / 5, 2 / 3, 1 / 2])
    assert acceptance.max_depth == 3


def test_one_curve_read_two_ways() -> None:
    curve = [0.701, 0.370, 0.206, 0.126, 0.081]
    assert round(accept_length_from_survival(curve), 2) == 2.48
    assert round(accept_length_from_conditional(curve), 2) == 2.02


def test_marginals_multiplied_are_wrong_when_positions_differ() -> None:
    """40 % of positions accept with .87 a step, 60 % with .23: K = 10."""
    steps = range(1, 11)
    survival = [0.4 * 0.87**i + 0.6 * 0.23**i for i in steps]
    marginal = 0.4 * 0.87 + 0.6 * 0.23
    assert round(accept_length_from_survival(survival), 2) == 3.19
    assert round(accept_length_from_conditional([marginal] * 10), 2) == 1.94
    conditional = [s / before for s, before in zip(survival, [1.0, *survival], strict=False)]
    assert accept_length_from_conditional(conditional) == pytest.approx(accept_length_from_survival(survival))


def test_the_mixture_counted() -> None:
    """The same mixture as rounds: the counted figures are the joint ones."""
    draw = np.random.default_rng(0)
    acceptance = Acceptance()
    for k in range(20_000):
        failed = np.flatnonzero(draw.random(10) >= (0.87 if draw.random() < 0.4 else 0.23))
        acceptance.add(k % 100, Round(int(failed[0]) if len(failed) else 10, 10))
    assert acceptance.accept_length == pytest.approx(3.19, abs=0.06)
    low, high = acceptance.interval()
    assert low < acceptance.accept_length < high
    assert high - low < 0.2


@given(st.lists(rounds(), min_size=1, max_size=60))
def test_accept_length_is_one_plus_survival_for_any_mix_of_k(listed: list[Round]) -> None:
    acceptance = Acceptance()
    for number, r in enumerate(listed):
        acceptance.add(number % 3, r)
    if acceptance.num_rounds == 0:
        assert math.isnan(acceptance.accept_length)
        return
    survival = [acceptance.survival(i) for i in range(1, acceptance.max_depth + 2)]
    assert survival == sorted(survival, reverse=True)
    assert survival[-1] == 0
    assert acceptance.accept_length == pytest.approx(accept_length_from_survival(survival))


@given(st.integers(1, 8), st.data())
def test_conditionals_multiply_to_survival_at_a_fixed_k(num_steps: int, data: st.DataObject) -> None:
    counts = data.draw(st.lists(st.integers(0, num_steps), min_size=1, max_size=40))
    acceptance = whole(counts, num_steps)
    conditional = [acceptance.conditional(i) for i in range(1, num_steps + 1)]
    # After the first zero the rest is undefined, and nothing survives to need it.
    defined = conditional[: next((i for i, c in enumerate(conditional) if math.isnan(c)), num_steps)]
    assert accept_length_from_conditional(defined) == pytest.approx(acceptance.accept_length)


def test_conditional_leaves_out_rounds_that_did_not_propose_so_many() -> None:
    acceptance = Acceptance()
    for r in (Round(1, 1), Round(1, 1), Round(2, 2), Round(1, 2), Round(0, 0)):
        acceptance.add("one", r)
    assert acceptance.conditional(1) == 1
    assert acceptance.conditional(2) == 1 / 2
    assert acceptance.survival(2) == 1 / 5
    assert acceptance.accept_length == 2


def test_cut_rounds_are_apart_but_their_tokens_count() -> None:
    listed = [Round(2, 3), Round(0, 3), Round(1, 3, cut=True)]
    assert completion_tokens(listed) == 1 + 3 + 1 + 1
    acceptance = Acceptance()
    acceptance.add_answer("one", listed, 6)
    assert (acceptance.num_rounds, acceptance.num_cut_rounds) == (2, 1)
    assert acceptance.accept_length == 2
    assert acceptance.acceptance_rate == 2 / 6
    assert acceptance.survival(1) == 1 / 2
    with pytest.raises(AssertionError):
        acceptance.add_answer("two", listed, 7)
    assert completion_tokens([]) == 1


def test_impossible_rounds() -> None:
    for wrong in (
        (4, 3, False, None),
        (-1, 3, False, None),
        (0, 3, True, None),
        (2, 7, False, 1),
        (0, 3, False, 4),
    ):
        with pytest.raises(AssertionError):
            Round(*wrong)


def test_a_tree_says_that_its_rate_is_of_nodes() -> None:
    chain, tree = whole([1], 3), Acceptance()
    tree.add("one", Round(2, 7, depth=3))
    tree.add("one", Round(1, 7, depth=3))
    assert (chain.rate_name, tree.rate_name) == (CHAIN_RATE, TREE_RATE)
    assert tree.acceptance_rate == 3 / 14
    assert tree.conditional(4) != tree.conditional(4), "no round could accept four"
    assert tree.conditional(3) == 0


def test_ceiling() -> None:
    asked = [(1, 4, 1), (4, 24, 1), (5, 4, 1), (3, 4, 1), (15, 16, 1), (5, 8, 4), (5, 3, 4), (0, 1, 1)]
    assert [ceiling(*flags) for flags in asked] == [2, 5, 6, 4, 16, 6, 3, 1]


@given(st.lists(rounds(), max_size=30), st.lists(rounds(), max_size=30))
def test_merge_adds(first: list[Round], second: list[Round]) -> None:
    parts = [Acceptance(), Acceptance()]
    both = Acceptance()
    for key, listed in enumerate((first, second)):
        for r in listed:
            parts[key].add(key, r)
            both.add(key, r)
    merged = parts[0].merge(parts[1])
    assert merged == both
    merged.add(0, Round(1, 1))
    assert parts[0].conversations.get(0, {}) != merged.conversations[0], "the parts stay as they were"


def test_merge_refuses_one_conversation_in_both() -> None:
    with pytest.raises(AssertionError):
        whole([1], 3).merge(whole([2], 3))


def test_interval_is_by_conversation_and_seeded() -> None:
    acceptance = Acceptance()
    for conversation in range(20):
        for _ in range(50):
            acceptance.add(conversation, Round(3 if conversation % 2 else 0, 3))
    low, high = acceptance.interval(seed=1)
    assert (low, high) == acceptance.interval(seed=1)
    assert (low, high) != acceptance.interval(seed=2)
    # 1,000 independent rounds would give ± 0.1; twenty conversations that agree within themselves do not.
    assert high - low > 0.8
    assert acceptance.interval(level=0.5)[1] < high


def test_interval_covers_as_often_as_it_says() -> None:
    draw = np.random.default_rng(3)
    hits = 0
    for _ in range(80):
        acceptance = Acceptance()
        for conversation in range(40):
            skill = draw.choice([0.2, 0.6])
            for _ in range(5):
                acceptance.add(conversation, Round(int(draw.random() < skill), 1))
        low, high = acceptance.interval(resamples=200)
        hits += low <= 1.4 <= high
    assert 69 <= hits <= 80


def test_no_rounds() -> None:
    empty = Acceptance()
    figures = (
        empty.accept_length,
        empty.acceptance_rate,
        empty.survival(1),
        empty.conditional(1),
        *empty.interval(),
    )
    assert all(math.isnan(figure) for figure in figures)
    assert all(math.isnan(end) for end in whole([1, 2], 3).interval())
    assert accept_length_from_conditional([]) == accept_length_from_survival([]) == 1
