"""Prompts of nearly the same text end up on one side of the split, and others keep their names."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from eyas.corpus.samples import Sample
from eyas.data.alike import COMMON, MOST, prompt_grams, put_together

TEMPLATE = list(range(900, 930))


def sample(name: str, text: list[int], head: list[int] = TEMPLATE) -> Sample:
    tokens = np.array([*head, *text, 7, 8, 9], dtype=np.int32)
    prompt = len(tokens) - 2
    return Sample(f"{name}#0", name, "", tokens, ((prompt, prompt + 2),), 0.0)


def words(seed: int, n: int = 60) -> list[int]:
    return np.random.default_rng(seed).integers(10, 800, n).tolist()


def ids(*samples: Sample) -> list[str]:
    made = put_together(samples)
    assert [s.id for s in made] == [s.id for s in samples]
    return [s.prompt_id for s in made]


def test_a_near_copy_takes_the_first_ones_name():
    near = words(1)
    near[3] = 5
    assert ids(sample("a", words(1)), sample("b", words(2)), sample("c", near)) == ["a", "b", "a"]


def test_a_part_of_a_longer_prompt_is_its_text_in_any_order():
    long, short = sample("long", words(1, 200)), sample("short", words(1, 40))
    assert ids(long, short, sample("b", words(2))) == ["long", "long", "b"]
    assert ids(sample("b", words(2)), short, long) == ["b", "short", "short"]


def test_a_prompt_of_pieces_joins_what_it_is_made_of():
    pieces = [sample("a", words(1)), sample("b", words(2)), sample("c", words(3))]
    assert len(set(ids(*pieces))) == 3
    assert set(ids(*pieces, sample("d", words(1)[:40] + words(2)))) == {"a", "c"}


def test_what_two_templates_add_is_no_text():
    other = list(range(830, 860))
    many = [sample(f"a{i}", words(i, 8)) for i in range(COMMON + 5)]
    many += [sample(f"b{i}", words(100 + i, 8), other) for i in range(COMMON + 5)]
    assert len(set(ids(*many))) == len(many)


def test_many_copies_of_one_text_are_one_prompt():
    copies = [sample(f"a{i}", words(1)) for i in range(2 * COMMON)]
    assert set(ids(*copies, sample("b", words(2)))) == {"a0", "b"}


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 40), st.integers(1, 60)), min_size=1, max_size=12))
def test_no_prompt_is_another_groups_text(cuts: list[tuple[int, int, int]]):
    samples = [sample(str(i), words(seed, 100)[begin : begin + size]) for i, (seed, begin, size) in enumerate(cuts)]
    made, grams = put_together(samples), prompt_grams(samples)
    for one, own in zip(made, grams, strict=True):
        others = [g for other, g in zip(made, grams, strict=True) if other.prompt_id != one.prompt_id]
        assert len(own & set[bytes]().union(*others)) <= MOST * len(own)
