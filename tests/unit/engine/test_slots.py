import pytest
from hypothesis import given
from hypothesis import strategies as st

from eyas.engine.slots import PrefixCache, SlotPool, allocate


def test_allocate_takes_a_run_of_consecutive_slots_where_there_is_one() -> None:
    pool = SlotPool(10)
    assert pool.allocate(4) == [0, 1, 2, 3]
    assert pool.allocate(2) == [4, 5]
    pool.release([1, 2, 3])
    assert pool.allocate(4) == [6, 7, 8, 9]
    assert pool.allocate(3) == [1, 2, 3]
    assert pool.num_free == 0


def test_allocate_makes_do_with_scattered_slots_and_says_when_there_are_too_few() -> None:
    pool = SlotPool(6)
    pool.allocate(6)
    pool.release([1, 3, 4])
    assert pool.allocate(4) is None
    assert pool.allocate(3) == [1, 3, 4]


def test_a_slot_cannot_be_released_twice_or_shared_by_nobody() -> None:
    pool = SlotPool(3)
    pool.release([])
    taken = pool.allocate(1)
    assert taken
    pool.release(taken)
    with pytest.raises(AssertionError, match="shared"):
        pool.share(taken)
    with pytest.raises(AssertionError, match="twice"):
        pool.release(taken)


def kept(pool: SlotPool, prefixes: PrefixCache, tokens: list[int]) -> list[int]:
    """Keep a text of which all rows but the last token's are known."""
    slots = pool.allocate(len(tokens) - 1)
    assert slots is not None
    prefixes.keep(tokens, slots)
    return slots


def test_match_gives_the_rows_that_depend_on_common_tokens_only() -> None:
    pool = SlotPool(16)
    prefixes = PrefixCache(pool)
    slots = kept(pool, prefixes, [5, 6, 7, 8, 9])
    # Four tokens in common. Draft row 3 was computed from the token after them, so rows 0 … 2 are left.
    assert prefixes.match([5, 6, 7, 8, 1, 1]) == slots[:3]
    assert pool.references[slots].tolist() == [2, 2, 2, 1]
    # A prompt that is the text itself, or runs on: its last row must be computed anew, for the next token.
    assert prefixes.match([5, 6, 7, 8, 9]) == slots
    assert prefixes.match([5, 6, 7, 8, 9, 1]) == slots
    assert prefixes.match([5, 6, 7]) == slots[:2]
    assert prefixes.match([5, 1]) == []
    assert prefixes.match([1, 2, 3]) == []


def test_the_longest_match_wins_and_is_used_most_recently() -> None:
    pool = SlotPool(8)
    prefixes = PrefixCache(pool)
    long, short = kept(pool, prefixes, [1, 2, 3, 4]), kept(pool, prefixes, [1, 2, 9])
    assert prefixes.match([1, 2, 3, 4, 5]) == long
    pool.release(long)
    assert prefixes.drop_oldest()
    assert pool.references[short].tolist() == [0, 0], "the one that was not matched goes first"
    assert prefixes.drop_oldest()
    assert not prefixes.drop_oldest()
    assert pool.num_free == 8


def test_keeping_a_text_twice_or_no_rows_gives_the_slots_back() -> None:
    pool = SlotPool(8)
    prefixes = PrefixCache(pool)
    kept(pool, prefixes, [1, 2, 3])
    kept(pool, prefixes, [1, 2, 3])
    kept(pool, prefixes, [7])
    assert pool.num_free == 6


def test_slots_in_use_survive_the_dropping_of_their_text() -> None:
    pool = SlotPool(6)
    prefixes = PrefixCache(pool)
    slots = kept(pool, prefixes, [1, 2, 3, 4, 5])
    shared = prefixes.match([1, 2, 3, 9])
    assert shared == slots[:2]
    taken = allocate(pool, prefixes, 4)
    assert taken == [2, 3, 4, 5]
    assert allocate(pool, prefixes, 1) is None
    assert allocate(pool, None, 1) is None
    pool.release(shared)
    assert allocate(pool, None, 2) == [0, 1]


@given(st.lists(st.tuples(st.integers(1, 6), st.lists(st.integers(0, 1), min_size=1, max_size=6)), max_size=25))
def test_no_slot_is_lost_or_held_twice(requests: list[tuple[int, list[int]]]) -> None:
    pool = SlotPool(12)
    prefixes = PrefixCache(pool)
    for count, prompt in requests:
        shared = prefixes.match(prompt)
        assert len(shared) < len(prompt)
        fresh = allocate(pool, prefixes, count + len(prompt) - len(shared))
        assert fresh is not None
        assert not set(fresh) & set(shared)
        table = [*shared, *fresh[: len(prompt) - 1 - len(shared)]]
        pool.release(fresh[len(prompt) - 1 - len(shared) :])
        prefixes.keep(prompt, table)
        assert pool.references.max() <= len(requests) + 1
    while prefixes.drop_oldest():
        pass
    assert pool.num_free == 12
