"""Taps against transformers' own model: every layer's, and the last state."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from eyas.corpus.identity import check_identity, check_taps
from eyas.kernels import get_backend
from eyas.models.hf import load_hf
from eyas.models.registry import load_target
from eyas.testing import tiny_pair

CPU = torch.device("cpu")


@pytest.mark.parametrize("model", ["tiny", pytest.param("builtin", marks=pytest.mark.builtin)])
def test_every_tap_is_the_stream_of_its_layer(model: str, request: pytest.FixtureRequest) -> None:
    folder: Path = tiny_pair()[0] if model == "tiny" else request.getfixturevalue("builtin_target_folder")
    target = load_target(folder)
    reference = load_hf(folder, torch.float32, get_backend("eager"), CPU)
    tokens = [(7919 * i) % target.vocab_size for i in range(40)]
    taps = tuple(range(target.num_layers + 1))
    assert max(check_taps(target, reference, tokens, taps).values()) < 1e-4
    found = check_identity(target, tokens, taps)
    assert found.error <= 1e-5
    assert found.control > 0.1
