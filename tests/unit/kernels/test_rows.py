"""Rows, groups and slots against brute force: which keys a row sees, and in which order."""

from __future__ import annotations

import math
from dataclasses import dataclass

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from eyas.kernels import KVCache, Part, Rows, get_backend
from eyas.kernels.rows import GROUP_ROWS, Group

HEADS, KV, D = 4, 2, 8


@dataclass
class Request:
    """Slots of the committed rows; each new row's parent within the request (-1: the last committed)."""

    table: list[int]
    parents: list[int]
    slots: list[int]

    def path(self, row: int) -> list[int]:
        """The rows from the first below the committed ones down to ``row``."""
        above = self.parents[row]
        return [*(self.path(above) if above >= 0 else []), row]

    def sees(self, row: int, window: int | None = None) -> list[int]:
        """Slots that the row attends to, in logical order."""
        slots = self.table + [self.slots[r] for r in self.path(row)]
        return slots if window is None else slots[-window:]


@st.composite
def batches(draw: st.DrawFn) -> list[Request]:
    """Up to four requests with random forests, some longer than a padded group, in adjacent slots or not."""
    sizes = draw(st.lists(st.tuples(st.integers(0, 9), st.integers(1, GROUP_ROWS + 4)), min_size=1, max_size=4))
    total = sum(length + n for length, n in sizes)
    free = draw(st.permutations(range(total + 3))) if draw(st.booleans()) else list(range(total + 3))
    requests = []
    for length, n in sizes:
        chain = draw(st.booleans())
        parents = [i - 1 if chain else draw(st.integers(-1, i - 1)) for i in range(n)]
        requests.append(Request(free[:length], parents, free[length : length + n]))
        free = free[length + n :]
    return requests


def rows_of(requests: list[Request]) -> Rows:
    return Rows.build(
        [
            Part(
                tokens=[0] * len(r.parents),
                positions=[len(r.table) + len(r.path(i)) - 1 for i in range(len(r.parents))],
                parents=r.parents,
                slots=r.slots,
                table=torch.tensor(r.table, dtype=torch.int64),
            )
            for r in requests
        ]
    )


def attended(group: Group, rows: Rows) -> dict[int, list[int]]:
    """Row → the slots that the group lets it see, in the group's order."""
    if isinstance(group.rows, slice):
        index = torch.arange(len(rows))[group.rows].view(group.count, group.n)
    else:
        index = group.rows
    keys = torch.arange(10_000)[group.keys][None] if isinstance(group.keys, slice) else group.keys
    mask = torch.ones(group.count, group.n, keys.shape[1], dtype=torch.bool) if group.mask is None else group.mask
    real = torch.ones(group.count, group.n, dtype=torch.bool) if group.real is None else group.real
    return {
        int(index[i, j]): keys[i][mask[i, j]].tolist() for i in range(group.count) for j in range(group.n) if real[i, j]
    }


@given(batches())
@settings(max_examples=150, deadline=None)
def test_each_row_sees_its_table_and_its_own_path_in_logical_order(requests: list[Request]) -> None:
    rows, start = rows_of(requests), 0
    seen: dict[int, list[int]] = {}
    for group in rows.groups:
        found = attended(group, rows)
        assert not seen.keys() & found.keys()
        seen |= found
    for request in requests:
        for row in range(len(request.parents)):
            assert seen.pop(start + row) == request.sees(row)
        start += len(request.parents)
    assert not seen


def brute_attention(q_hD: Tensor, k_TKD: Tensor, v_TKD: Tensor) -> Tensor:
    """One row's attention by the formula, head by head."""
    heads = []
    for h in range(HEADS):
        k, v = k_TKD[:, h // (HEADS // KV)], v_TKD[:, h // (HEADS // KV)]
        heads.append(torch.softmax(k @ q_hD[h] / math.sqrt(D), 0) @ v)
    return torch.cat(heads)


@given(batches(), st.one_of(st.none(), st.integers(1, 12)), st.integers(0, 2**31))
@settings(max_examples=60, deadline=None)
def test_attention_with_and_without_a_window_is_the_formula(
    requests: list[Request], window: int | None, seed: int
) -> None:
    rows, generator = rows_of(requests), torch.Generator().manual_seed(seed)
    cache = KVCache(1, 200, KV, D)
    cache.layers[0].normal_(generator=generator)
    q = torch.randn(len(rows), HEADS, D, generator=generator)
    ours, start = get_backend("eager").attention(q, cache, 0, rows, D**-0.5, window), 0
    for request in requests:
        for row in range(len(request.parents)):
            slots = request.sees(row, window)
            theirs = brute_attention(q[start + row], cache.k(0)[slots], cache.v(0)[slots])
            torch.testing.assert_close(ours[start + row], theirs, rtol=1e-5, atol=1e-5)
        start += len(request.parents)


def test_prefill_gets_a_group_of_its_own_and_short_requests_share_one() -> None:
    def chain(n: int, first: int) -> Part:
        table = torch.arange(first, first + 2)
        return Part([0] * n, range(2, 2 + n), range(-1, n - 1), range(first + 2, first + 2 + n), table)

    rows = Rows.build([chain(3, 0), chain(GROUP_ROWS + 1, 10), chain(1, 40), chain(GROUP_ROWS, 50)])
    assert [(group.count, group.n) for group in rows.groups] == [(1, GROUP_ROWS + 1), (3, GROUP_ROWS)]
    even = Rows.build([chain(2, 0), chain(2, 10)])
    assert [(group.count, group.n, group.rows) for group in even.groups] == [(2, 2, slice(0, 4))]


def test_one_row_over_adjacent_slots_needs_neither_mask_nor_gather() -> None:
    rows = Rows.build([Part([7], [3], [-1], [5], torch.tensor([2, 3, 4]))])
    (group,) = rows.groups
    assert group.mask is None
    assert group.keys == slice(2, 6)
    assert rows.consecutive_slots == slice(5, 6)


def test_build_turns_parents_within_a_part_into_rows() -> None:
    empty = torch.arange(0)
    rows = Rows.build([Part([5, 6], [0, 1], [-1, 0], [8, 9], empty), Part([7, 8], [0, 0], [-1, -1], [3, 1], empty)])
    assert rows.parent.tolist() == [-1, 0, -1, -1]
    assert rows.request.tolist() == [0, 0, 1, 1]
    assert rows.tokens.tolist() == [5, 6, 7, 8]
    assert rows.consecutive_slots is None


def test_a_child_before_its_parent_or_a_table_without_rows_is_our_own_fault() -> None:
    empty = torch.arange(0)
    late = Rows.build([Part([0, 0], [1, 0], [1, -1], [0, 1], empty)])
    with pytest.raises(AssertionError):
        _ = late.groups
    one = torch.tensor([0])
    idle = Rows(one, one, one, torch.tensor([-1]), one, [empty, empty])
    with pytest.raises(AssertionError):
        _ = idle.groups


def test_cache_views_share_one_tensor_and_start_finite() -> None:
    cache = KVCache(2, 5, KV, D, torch.bfloat16)
    assert cache.k(1).shape == cache.v(1).shape == (5, KV, D)
    assert not cache.layers[1].any()
    cache.k(1)[2], cache.v(1)[2] = 1, 2
    assert cache.layers[1][2].tolist() == [[1] * D] * KV + [[2] * D] * KV
    assert not cache.layers[0].any()


@given(st.integers(1, 6), st.integers(1, 6), st.integers(0, 2**31))
@settings(max_examples=40, deadline=None)
def test_roll_back_is_an_edit_of_the_table(kept: int, dropped: int, seed: int) -> None:
    """Rows that were written and then left out of the table leave no trace, even as NaN."""
    generator, backend = torch.Generator().manual_seed(seed), get_backend("eager")
    cache = KVCache(1, 20, KV, D)
    slots = torch.randperm(20, generator=generator)
    cache.layers[0][slots[:kept]] = torch.randn(kept, 2 * KV, D, generator=generator)
    cache.layers[0][slots[kept : kept + dropped]] = math.nan
    here = slots[kept + dropped : kept + dropped + 1]
    cache.layers[0][here] = torch.randn(1, 2 * KV, D, generator=generator)
    q = torch.randn(1, HEADS, D, generator=generator)
    rows = Rows.build([Part([0], [kept], [-1], here.tolist(), slots[:kept])])
    ours = backend.attention(q, cache, 0, rows, D**-0.5, None)
    seen = torch.cat([slots[:kept], here])
    torch.testing.assert_close(ours[0], brute_attention(q[0], cache.k(0)[seen], cache.v(0)[seen]))


def test_nan_shows_in_its_own_request_and_in_no_other() -> None:
    cache = KVCache(1, 30, KV, D)
    cache.layers[0].normal_()
    cache.layers[0][[0, 2]] = math.nan
    # The first request sees slots 0 to 3; the second is shorter, so its keys are padded.
    parts = [
        Part([0, 0], [2, 3], [-1, 0], [2, 3], torch.tensor([0, 1])),
        Part([0], [1], [-1], [11], torch.tensor([10])),
    ]
    y = get_backend("eager").attention(torch.randn(3, HEADS, D), cache, 0, Rows.build(parts), 1.0, None)
    assert y[:2].isnan().all()
    assert y[2].isfinite().all()
