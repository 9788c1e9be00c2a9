import pytest

from eyas.engine.slots import SEARCHED, SlotPool


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


def test_a_run_is_looked_for_among_the_lowest_free_slots_only() -> None:
    pool = SlotPool(6 * SEARCHED)
    taken = pool.allocate(4 * SEARCHED)
    assert taken
    pool.release(taken[::2])
    assert pool.num_free == 4 * SEARCHED
    assert pool.allocate(3) == [0, 2, 4]
    assert pool.allocate(3 * SEARCHED) is not None
    assert pool.num_free == SEARCHED - 3
    assert pool.allocate(SEARCHED) is None


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
