from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from eyas.draft.vocab import check_kept, check_offsets, choose_vocabulary, kept_mask, offsets_from_ids
from eyas.errors import EyasError


def refused(offsets: list[int], vocab_size: int = 20) -> str:
    with pytest.raises(EyasError) as caught:
        check_offsets(torch.tensor(offsets, dtype=torch.int64), vocab_size)
    assert caught.value.code == "draft.vocab-map"
    return caught.value.cause


def test_offsets_are_target_id_minus_draft_id() -> None:
    assert offsets_from_ids(torch.tensor([0, 3, 7, 19]), 20).tolist() == [0, 2, 5, 16]


def test_wrong_maps_are_refused_with_what_they_look_like() -> None:
    assert "absolute ids" in refused([0, 3, 7, 19])
    assert "draft ids, not offsets" in refused([0, 1, 2, 3])
    assert "absent" in refused([0, 0, 0, 0])
    assert "ascending, distinct" in refused([5, 0, 0, 0])
    assert "outside" in refused([-1, 0, 0, 0])
    assert "0 entries" in refused([])
    assert "21 entries" in refused([0] * 21)


def test_absolute_ids_of_a_large_map_are_refused_even_where_they_fit() -> None:
    ids = [i * 2 for i in range(64)]
    assert "as absolute ids do" in refused(ids, 1000)


@pytest.mark.parametrize("d2t", [torch.zeros(4, dtype=torch.int32), torch.zeros(4, 1, dtype=torch.int64)])
def test_a_map_of_another_type_or_rank_is_refused(d2t: torch.Tensor) -> None:
    with pytest.raises(EyasError, match="not one row of int64"):
        check_offsets(d2t, 20)


@given(st.sets(st.integers(0, 199), min_size=1, max_size=150))
def test_every_map_made_of_kept_ids_passes_and_gives_them_back(ids: set[int]) -> None:
    kept = torch.tensor(sorted(ids))
    if len(ids) >= 64 and bool((torch.diff(kept) > 1).all()):
        return  # so sparse a map cannot be told from absolute ids
    if ids == set(range(len(ids))) or kept.tolist() == list(range(0, 2 * len(ids), 2)):
        return  # all-zero and 0, 1, 2, … are what absent and absolute maps look like
    d2t = offsets_from_ids(kept, 200)
    assert (d2t + torch.arange(len(kept))).tolist() == sorted(ids)
    check_kept(kept_mask(d2t, 200), d2t, 200)


def test_a_vocabulary_larger_than_what_was_counted_takes_the_lowest_of_the_rest() -> None:
    counts = torch.zeros(100, dtype=torch.int64)
    counts[[3, 5, 8, 13, 21, 34, 55, 89, 90, 91]] = torch.arange(1, 11)
    kept, coverage = choose_vocabulary(counts, 32)
    assert len(kept) == 32
    assert coverage == 1.0
    assert set(kept.tolist()) >= {3, 5, 8, 13, 21, 34, 55, 89, 90, 91}
    assert kept.tolist() == sorted(set(kept.tolist()))


def test_the_share_of_tokens_inside_the_map_is_reported() -> None:
    kept, coverage = choose_vocabulary(torch.tensor([5, 1, 0, 4]), 2)
    assert kept.tolist() == [0, 3]
    assert coverage == pytest.approx(0.9)


@pytest.mark.parametrize("size", [0, -1, 101])
def test_a_vocabulary_of_no_possible_size_is_refused(size: int) -> None:
    with pytest.raises(EyasError) as caught:
        choose_vocabulary(torch.ones(100), size)
    assert caught.value.code == "draft.vocab-map"


def test_a_mask_of_another_vocabulary_is_refused() -> None:
    d2t = offsets_from_ids(torch.tensor([0, 3, 7, 19]), 20)
    mask = kept_mask(d2t, 20)
    check_kept(mask, d2t, 20)
    for wrong in (~mask, mask.long()):
        with pytest.raises(EyasError) as caught:
            check_kept(wrong, d2t, 20)
        assert caught.value.code == "draft.vocab-map"
