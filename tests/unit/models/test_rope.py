"""Rotary frequencies against transformers and the formula; scalings that cannot be served are refused."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

from eyas.errors import EyasError
from eyas.models.rope import RotaryTable, rope_frequencies

LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}
SCALINGS: dict[str, dict[str, Any] | None] = {
    "none": None,
    "linear": {"rope_type": "linear", "factor": 4},
    "llama3": LLAMA3,
    "yarn": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32},
    "yarn-mscale": {
        "rope_type": "yarn",
        "factor": 40.0,
        "original_max_position_embeddings": 32,
        "mscale": 1.0,
        "mscale_all_dim": 0.5,
        "beta_fast": 16,
        "truncate": False,
    },
}


@pytest.mark.parametrize("name", SCALINGS)
def test_table_is_that_of_transformers(name: str) -> None:
    scaling = SCALINGS[name]
    config = LlamaConfig(
        hidden_size=64,
        num_attention_heads=4,
        head_dim=16,
        max_position_embeddings=128,
        rope_parameters={"rope_type": "default", **(scaling or {}), "rope_theta": 1e4},
    )
    positions = torch.arange(128)
    cos, sin = LlamaRotaryEmbedding(config)(torch.zeros(1), positions[None])
    frequencies, factor = rope_frequencies(16, 1e4, scaling, 128)
    ours_cos, ours_sin = RotaryTable(frequencies, factor, 128).at(positions)
    torch.testing.assert_close(ours_cos[:, 0], cos[0], rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(ours_sin[:, 0], sin[0], rtol=1e-6, atol=1e-6)


def test_scalings_differ() -> None:
    """The comparison above would be empty if a scaling were silently left out."""
    tables = [rope_frequencies(16, 1e4, scaling, 128)[0] for scaling in SCALINGS.values()]
    assert all(not torch.equal(a, b) for i, a in enumerate(tables) for b in tables[:i])
    assert rope_frequencies(16, 1e4, SCALINGS["yarn"], 128)[1] > 1
    assert rope_frequencies(16, 1e4, LLAMA3, 128)[1] == 1


@given(st.integers(0, 60), st.integers(0, 60), st.integers(0, 60), st.integers(0, 2**31))
@settings(max_examples=40, deadline=None)
def test_only_the_distance_matters(a: int, b: int, shift: int, seed: int) -> None:
    """RoFormer, section 3.4.2: q at a and k at b give the same product as both moved by the same shift."""
    from eyas.kernels import get_backend

    generator, backend = torch.Generator().manual_seed(seed), get_backend("eager")
    table = RotaryTable(*rope_frequencies(16, 1e4, None, 128), 128)
    q, k = torch.randn(2, 1, 1, 16, generator=generator)
    products = []
    for s in (0, shift):
        turned_q = backend.rotate(q, *table.at(torch.tensor([a + s])))
        turned_k = backend.rotate(k, *table.at(torch.tensor([b + s])))
        products.append(float((turned_q * turned_k).sum()))
    assert products[0] == pytest.approx(products[1], abs=1e-4)


def test_table_moves_and_indexes_any_positions() -> None:
    table = RotaryTable(*rope_frequencies(8, 1e4, None, 16), 16)
    cos, sin = table.at(torch.tensor([15, 0, 0]))
    assert cos.shape == sin.shape == (3, 1, 8)
    assert cos[1].eq(1).all()
    assert sin[1].eq(0).all()
    half = table.to("cpu", torch.bfloat16).at(torch.tensor([3]))
    assert half[0].dtype == half[1].dtype == torch.bfloat16


@pytest.mark.parametrize(
    ("scaling", "says"),
    [
        ({"rope_type": "dynamic", "factor": 2.0}, "while keys are cached"),
        ({"rope_type": "longrope"}, "longrope"),
        ({"rope_type": "spiral"}, "spiral"),
        ({"rope_type": "linear"}, "factor = None"),
        ({"rope_type": "linear", "factor": 0}, "factor = 0"),
        ({"rope_type": "linear", "factor": "2"}, "factor = '2'"),
        ({"rope_type": "linear", "factor": True}, "factor = True"),
        ({"rope_type": "linear", "factor": 2.0, "beta_fast": 1}, "beta_fast"),
        ({"rope_type": "yarn", "factor": 2.0}, "original_max_position_embeddings"),
        ({**LLAMA3, "low_freq_factor": None}, "low_freq_factor"),
        ({**LLAMA3, "low_freq_factor": 4.0}, "not below"),
        ({"rope_type": "yarn", "factor": 2.0, "original_max_position_embeddings": 8, "truncate": 1}, "truncate"),
        ({"rope_type": "yarn", "factor": 2.0, "original_max_position_embeddings": 8, "mscale": "x"}, "mscale"),
    ],
)
def test_a_scaling_that_cannot_be_served_is_an_error(scaling: dict[str, Any], says: str) -> None:
    with pytest.raises(EyasError, match=says) as caught:
        rope_frequencies(16, 1e4, scaling, 128)
    assert caught.value.code == "model.config"
