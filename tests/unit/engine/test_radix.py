"""The prefix cache against a list of texts kept by hand."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eyas.engine.radix import PrefixCache
from eyas.engine.slots import SlotPool


def kept(pool: SlotPool, cache: PrefixCache, tokens: list[int], drafted: int | None = None) -> list[int]:
    """Keep a text of which all rows but the last token's are known."""
    slots = pool.allocate(len(tokens) - 1)
    assert slots is not None
    cache.keep(tokens, slots, len(slots) if drafted is None else drafted)
    return slots


@pytest.fixture
def pool() -> SlotPool:
    return SlotPool(32)


def test_match_gives_the_rows_that_depend_on_common_tokens_only(pool: SlotPool) -> None:
    cache = PrefixCache(pool)
    slots = kept(pool, cache, [5, 6, 7, 8, 9])
    # Four tokens in common. Draft row 3 was computed from the token after them, so rows 0 … 2 are left.
    assert cache.match([5, 6, 7, 8, 1, 1], drafted=True) == slots[:3]
    assert pool.references[slots].tolist() == [2, 2, 2, 1]
    # A prompt that is the text itself, or runs on: its last row must be computed anew, for the next token.
    assert cache.match([5, 6, 7, 8, 9], drafted=True) == slots
    assert cache.match([5, 6, 7, 8, 9, 1], drafted=True) == slots
    assert cache.match([5, 6, 7], drafted=True) == slots[:2]
    for other in ([5], [5, 1], [1, 2, 3]):
        assert cache.match(other, drafted=True) == []
        assert cache.length(other, drafted=True) == 0


def test_texts_share_their_beginning_and_fork(pool: SlotPool) -> None:
    cache = PrefixCache(pool)
    one = kept(pool, cache, [1, 2, 3, 4, 5])
    two = kept(pool, cache, [1, 2, 3, 8, 9])
    assert pool.num_free == 32 - 4 - 2, "the two common rows of the second text were given back"
    assert cache.match([1, 2, 3, 8, 9, 7], drafted=True) == [*one[:2], *two[2:]]
    assert cache.num_rows == 6


def test_rows_without_the_drafts_are_only_for_those_who_need_no_draft(pool: SlotPool) -> None:
    cache = PrefixCache(pool)
    slots = kept(pool, cache, [1, 2, 3, 4, 5, 6], drafted=2)
    assert cache.match([1, 2, 3, 4, 5, 6], drafted=True) == slots[:2]
    assert cache.match([1, 2, 3, 4, 5, 6], drafted=False) == slots
    assert cache.length([1, 2, 3, 4, 5, 6], drafted=True) == 2
    better = kept(pool, cache, [1, 2, 3, 4, 5, 6])
    assert cache.match([1, 2, 3, 4, 5, 6], drafted=True) == [*slots[:2], *better[2:]]


def test_least_recently_used_ends_go_first_and_held_rows_stay(pool: SlotPool) -> None:
    cache = PrefixCache(pool)
    old, new = kept(pool, cache, [1, 2, 3, 4]), kept(pool, cache, [1, 2, 8, 9])
    held = cache.match([1, 2, 3, 4], drafted=True)
    assert held == old
    assert cache.num_evictable == 2
    assert cache.evict(1) == 2, "the end that nobody holds, as a whole"
    assert pool.references[new[1:]].tolist() == [0, 0]
    assert cache.evict(5) == 0
    pool.release(held)
    assert cache.evict(99) == 3
    assert pool.num_free == 32
    assert cache.num_rows == 0


def test_a_shared_beginning_can_be_given_up_without_the_rest_that_is_not_shared(pool: SlotPool) -> None:
    """A short match of a long text must not hold all of it."""
    cache = PrefixCache(pool)
    kept(pool, cache, list(range(20)))
    held = cache.match([0, 1, 2, 99], drafted=True)
    assert len(held) == 2
    assert cache.num_evictable == 17
    assert cache.evict(17) == 17


def test_clearing_leaves_shared_rows_to_those_who_hold_them(pool: SlotPool) -> None:
    cache = PrefixCache(pool)
    kept(pool, cache, [1, 2, 3, 4])
    held = cache.match([1, 2, 3, 4], drafted=True)
    cache.clear()
    assert pool.num_free == 32 - len(held)
    pool.release(held)
    assert pool.num_free == 32


TEXT = st.lists(st.integers(0, 1), min_size=1, max_size=8)


@given(st.lists(st.tuples(TEXT, st.integers(0, 8)), max_size=30), TEXT)
def test_a_match_is_the_longest_of_all_kept_texts(texts: list[tuple[list[int], int]], wanted: list[int]) -> None:
    pool = SlotPool(400)
    cache = PrefixCache(pool)
    known: set[tuple[int, ...]] = set()
    drafted: set[tuple[int, ...]] = set()
    for tokens, rows in texts:
        kept(pool, cache, tokens, min(rows, len(tokens) - 1))
        known |= {tuple(tokens[:n]) for n in range(2, len(tokens) + 1)}
        drafted |= {tuple(tokens[:n]) for n in range(2, min(rows, len(tokens) - 1) + 2)}
    beginnings = [tuple(wanted[:n]) for n in range(2, len(wanted) + 1)]
    found = cache.match(wanted, drafted=False)
    assert len(found) == sum(text in known for text in beginnings)
    assert len(set(found)) == len(found)
    pool.release(found)
    with_draft = cache.match(wanted, drafted=True)
    assert with_draft == cache.match(wanted, drafted=False)[: len(with_draft)]
    assert len(with_draft) <= sum(text in drafted for text in beginnings)


@given(st.lists(st.tuples(TEXT, st.integers(0, 8), st.integers(0, 6)), max_size=30))
def test_no_slot_is_lost_or_held_twice(steps: list[tuple[list[int], int, int]]) -> None:
    pool = SlotPool(300)
    cache = PrefixCache(pool)
    held: list[list[int]] = []
    for tokens, rows, evicted in steps:
        kept(pool, cache, tokens, min(rows, len(tokens) - 1))
        held.append(cache.match(tokens, drafted=bool(rows % 2)))
        before = pool.num_free
        assert cache.evict(evicted) == pool.num_free - before
        assert all((pool.references[slots] > 0).all() for slots in held if slots)
    cache.clear()
    for slots in held:
        pool.release(slots)
    assert pool.num_free == 300
