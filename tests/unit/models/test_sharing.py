"""How matrices are dealt: everything once, nothing twice."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from eyas.errors import EyasError
from eyas.models.config import parse_llama_config
from eyas.models.llama import expected_shapes
from eyas.models.sharing import Share, deal
from support.rank_rig import BIASED

CONFIG = parse_llama_config(BIASED)
WHOLE = ("norm.weight", "layernorm.weight", "embed_tokens.weight")
ADDED = ("o_proj.bias", "down_proj.bias")


@given(st.integers(0, 50), st.integers(1, 9))
def test_all_are_dealt_in_order_and_evenly(count: int, size: int) -> None:
    hands = [deal(count, size, rank) for rank in range(size)]
    assert [i for hand in hands for i in hand] == list(range(count))
    sizes = [len(hand) for hand in hands]
    assert max(sizes) - min(sizes) <= 1
    assert sizes == sorted(sizes, reverse=True)


def test_smollm_on_two_ranks() -> None:
    shares = [Share.of(CONFIG, rank, 2) for rank in range(2)]
    assert [(len(s.heads), len(s.kv)) for s in shares] == [(6, 2), (3, 1)]
    assert [len(s.inner) for s in shares] == [51, 50]


@pytest.mark.parametrize("size", [1, 2, 3])
@pytest.mark.parametrize("name", expected_shapes(CONFIG))
def test_every_element_has_one_owner_or_all(name: str, size: int) -> None:
    shape = expected_shapes(CONFIG)[name]
    held = torch.zeros(shape, dtype=torch.int64)
    for rank in range(size):
        share = Share.of(CONFIG, rank, size)
        held[share.cut(name)] += int(share.brings_bias(name))
    owners = size if name.endswith(WHOLE) else 1
    assert torch.equal(held, torch.full(shape, owners))


@pytest.mark.parametrize("rank", range(2))
def test_a_part_has_the_shape_of_the_ranks_layer(rank: int) -> None:
    share = Share.of(CONFIG, rank, 2)
    for name, shape in expected_shapes(share.layer_config(CONFIG)).items():
        if ".layers." in name:
            assert torch.empty(expected_shapes(CONFIG)[name])[share.cut(name)].shape == shape


def test_more_ranks_than_key_heads_are_refused() -> None:
    with pytest.raises(EyasError, match="--tp-size 3 or less") as caught:
        Share.of(CONFIG, 0, 4)
    assert caught.value.code == "flags.range"
