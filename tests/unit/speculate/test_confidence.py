"""How far a draft's own probabilities tell what is accepted, and where a chain then ends."""

from __future__ import annotations

import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from eyas.speculate.confidence import EDGES, Confidence, Sureness, bin_of

PATH = st.floats(0.0, 1.0)
PRICE = st.floats(0.0, 2.0)


def taught(accepted_share: float, rounds: int = 2000) -> Confidence:
    """Of a draft whose every next token, of probability 0.9 given the one before, is accepted with this chance."""
    made, dice = Confidence(), random.Random(1)
    for _ in range(rounds):
        accepted = next((i for i in range(4) if dice.random() >= accepted_share), 4)
        made.add([0.9, 0.81, 0.729, 0.6561], 4, accepted)
    return made


@given(PATH)
def test_a_path_lies_in_its_bin(path: float) -> None:
    b = bin_of(path)
    assert EDGES[b] <= path
    assert b + 1 == len(EDGES) or path < EDGES[b + 1]


def test_at_first_a_draft_is_believed() -> None:
    made = Confidence()
    for path in (0.03, 0.25, 0.55, 0.95):
        assert made.accepted(path) == pytest.approx(path, abs=0.051)


@pytest.mark.parametrize("share", [0.3, 0.6, 0.95])
def test_what_is_accepted_is_learnt(share: float) -> None:
    made = taught(share)
    # Bins that hold other depths too are between them; the first draft's is its own.
    assert made.accepted(0.9) == pytest.approx(share, abs=0.05)


@given(st.lists(st.tuples(PATH, st.booleans()), min_size=1, max_size=60), PRICE, PRICE)
def test_the_surer_a_path_the_likelier_and_a_dearer_row_ends_the_chain_sooner(
    rounds: list[tuple[float, bool]], row: float, step: float
) -> None:
    made = Confidence()
    for path, accepted in rounds:
        made.add([path], 1, int(accepted))
    values = [made.accepted(edge) for edge in EDGES]
    assert np.diff(values).min() >= 0
    assert all(0 < value < 1 for value in values)
    here, dearer = made.chain(3, row, step), made.chain(3, row + 0.1, step)
    assert here.keep <= dearer.keep
    assert here.extend <= dearer.extend
    assert here.keep <= here.extend
    # What is kept is worth its row, and what is not is not.
    assert all((value >= row) == (b >= here.keep) for b, value in enumerate(values)), (values, row, here)


def test_a_draft_that_was_dropped_is_believed_and_teaches_nothing_of_itself() -> None:
    made = Confidence()
    before = made.accepted(0.15)
    for _ in range(50):
        made.add([0.5, 0.15], 1, 1)
    assert made.accepted(0.15) == pytest.approx(before)
    assert made.accepted(0.5) > 0.8


def test_what_is_no_longer_proposed_is_in_time_believed_again() -> None:
    made = Confidence()
    for _ in range(200):
        made.add([0.45], 1, 0)
    low = made.accepted(0.45)
    for _ in range(5000):
        made.add([0.95], 1, 1)
    assert low < 0.1
    assert made.accepted(0.45) > 0.4


@given(st.lists(PATH, max_size=50), st.floats(0, 1), PRICE)
def test_a_first_draft_is_worth_no_less_than_it_costs_or_gives(paths: list[float], usual: float, price: float) -> None:
    made, sureness = Confidence(), Sureness()
    for path in paths:
        made.add([path], 1, 0)
        sureness.add(path)
    worth = made.worth_of_first(sureness, usual, price)
    free = made.worth_of_first(sureness, usual, 0.0)
    assert max(free, price) - 1e-9 <= worth <= max(price, 1.0) + 1e-9


def test_a_request_whose_draft_is_surer_is_worth_more() -> None:
    made, sure, unsure = taught(0.6), Sureness(), Sureness()
    for _ in range(30):
        sure.add(0.9)
        unsure.add(0.1)
    assert made.worth_of_first(sure, 0.5, 0.2) > made.worth_of_first(unsure, 0.5, 0.2) + 0.2
