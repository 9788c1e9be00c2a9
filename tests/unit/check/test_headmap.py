"""The map that a head's rows tell: read off a head that was started from the target's, and not off any other."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from eyas.check.headmap import check_against_head, map_told, told_by_head

VOCABULARY, HIDDEN = 600, 32


def target_head(seed: int = 0) -> Tensor:
    return torch.randn(VOCABULARY, HIDDEN, generator=torch.Generator().manual_seed(seed))


def near(rows: Tensor, noise: float) -> Tensor:
    return rows + noise * torch.randn(rows.shape, generator=torch.Generator().manual_seed(1))


@given(st.sets(st.integers(0, VOCABULARY - 1), min_size=20, max_size=VOCABULARY - 1))
def test_the_map_of_a_head_near_the_targets_is_told(kept: set[int]) -> None:
    ids = torch.tensor(sorted(kept))
    head = near(target_head()[ids], 0.2)
    told = told_by_head(head, target_head())
    assert told is not None
    assert torch.equal(map_told(told, head, target_head()) + torch.arange(len(ids)), ids)
    assert check_against_head(told, ids) is None


def test_rows_that_are_alike_are_told_by_their_neighbours() -> None:
    target, ids = target_head(), torch.arange(0, VOCABULARY, 3)
    target[298:305] = target[300]
    told = told_by_head(target[ids], target)
    assert told is not None
    assert int(told[100]) == -1
    mapped = map_told(told, target[ids], target) + torch.arange(len(ids))
    assert bool((mapped[1:] > mapped[:-1]).all())
    assert int((mapped != ids).sum()) <= 2


def test_rows_without_room_between_their_neighbours_tell_nothing() -> None:
    """Row 5 is of no token, and the tokens of rows 4 and 6 follow each other."""
    target = target_head()
    ids = torch.cat([torch.arange(0, 300, 3), torch.arange(400, 500)])
    head = target[ids].clone()
    head[150] = torch.randn(HIDDEN, generator=torch.Generator().manual_seed(9))
    head[151:] = target[ids[151:] - 1]
    assert told_by_head(head, target) is None


def test_a_map_that_moved_is_contradicted() -> None:
    ids = torch.arange(0, VOCABULARY, 3)
    told = told_by_head(near(target_head()[ids], 0.2), target_head())
    assert told is not None
    found = check_against_head(told, ids + (torch.arange(len(ids)) > 150))
    assert found is not None
    assert found.kind == "map.wrong"
    assert found.data == {"rows": len(ids) - 151, "recoverable": True}
    assert "row 151 is token 453, not 454" in found.said


@pytest.mark.parametrize(
    "head",
    [
        torch.randn(200, HIDDEN, generator=torch.Generator().manual_seed(5)),
        torch.randn(200, HIDDEN + 1),
        target_head()[torch.arange(200).flip(0)],
        torch.full((200, HIDDEN), torch.nan),
        target_head(),
    ],
    ids=["random", "another width", "not rising", "not finite", "every token"],
)
def test_other_heads_tell_nothing(head: Tensor) -> None:
    assert told_by_head(head, target_head()) is None
