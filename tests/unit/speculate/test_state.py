import pytest
import torch

from eyas.config import SamplingSettings
from eyas.speculate.state import DecodeState


def state(num_tokens: int = 4, prompt_length: int = 2) -> DecodeState:
    return DecodeState(list(range(num_tokens)), prompt_length, SamplingSettings(), list(range(10, 20)))


def features(first: int, count: int) -> torch.Tensor:
    """One number a position, so that it can be seen whose feature is whose."""
    return torch.arange(first, first + count, dtype=torch.float32)[:, None]


def test_take_moves_slots_from_the_spare_ones_to_the_table() -> None:
    s = state()
    s.take([10, 11], features(0, 2))
    s.take([14], features(2, 1))
    assert s.table.tolist() == [10, 11, 14]
    assert s.spare == [12, 13, 15, 16, 17, 18, 19]
    assert s.cached == 3
    assert s.root_position == 3
    assert torch.cat(s.pending).flatten().tolist() == [0, 1, 2]


def test_without_taps_no_features_are_kept() -> None:
    s = state()
    s.take([10], None)
    assert s.pending == []


def test_shared_rows_count_for_target_and_draft() -> None:
    s = state()
    s.share([3, 4])
    assert (s.cached, s.absorbed) == (2, 2)
    s.take([10], features(2, 1))
    assert s.table.tolist() == [3, 4, 10]
    with pytest.raises(AssertionError):
        s.share([5])


@pytest.mark.parametrize(
    ("kept_tokens", "rows", "pending"), [(8, 7, [3, 4, 5, 6]), (7, 6, [3, 4, 5]), (5, 4, [3]), (4, 3, [])]
)
def test_cut_forgets_rows_and_features_of_the_tokens_cut(kept_tokens: int, rows: int, pending: list[int]) -> None:
    s = state(num_tokens=8)
    s.take(range(10, 13), features(0, 3))
    s.absorbed, s.pending = 3, []
    s.take([14, 16], features(3, 2))
    s.take([13, 17], features(5, 2))
    s.cut(kept_tokens)
    assert s.tokens == list(range(kept_tokens))
    assert s.table.tolist() == [10, 11, 12, 14, 16, 13, 17][:rows]
    assert s.absorbed == 3
    assert [float(f) for chunk in s.pending for f in chunk] == pending
    assert s.spare == sorted(set(range(10, 20)) - set(s.table.tolist()))


def test_cut_into_absorbed_rows() -> None:
    s = state(num_tokens=6)
    s.take(range(10, 15), features(0, 5))
    s.absorbed, s.pending = 5, []
    s.cut(3)
    assert (s.cached, s.absorbed, s.pending) == (2, 2, [])


def test_history_knows_the_prompt_from_the_answer_and_the_path() -> None:
    s = state(num_tokens=4, prompt_length=2)
    assert (s.history().prompt, s.history().output) == ([0, 1], [2, 3])
    assert s.history([7, 8]).output == [2, 3, 7, 8]
    assert s.tokens == [0, 1, 2, 3]
