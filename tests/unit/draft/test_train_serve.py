"""What is trained is what is served: the unrolled training steps equal the steps over a cache."""

from __future__ import annotations

import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from eyas.config import SamplingSettings, SpeculativeSettings
from eyas.kernels import Part, Rows
from eyas.speculate.propose import DraftProposer
from eyas.speculate.state import DecodeState

from .conftest import MakeDraft


@pytest.fixture(scope="module")
def ttt() -> ModuleType:
    """scripts/ttt.py, which is not in the package."""
    path = Path(__file__).parents[3] / "scripts" / "ttt.py"
    spec = spec_from_file_location("ttt", path)
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    sys.modules["ttt"] = module
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("options", [{}, {"norm_output": True, "fc_norm": True}], ids=["eagle-3", "eagle-3.1"])
def test_unrolled_steps_are_the_steps_over_a_cache(
    make_draft: MakeDraft, ttt: ModuleType, options: dict[str, Any]
) -> None:
    model, T, K = make_draft(**options), 12, 4
    generator = torch.Generator().manual_seed(3)
    tokens = torch.randint(model.config.vocab_size, (T + K + 1,), generator=generator)
    features = torch.randn(T, model.config.feature_size, generator=generator)
    padded = torch.nn.functional.pad(features, (0, 0, 0, K + 1))
    with torch.no_grad():
        unrolled = [normed[0] for _, normed in ttt.unroll(model, {"tokens": tokens[None], "features": padded[None]}, K)]
        for t in range(T):
            cache, table = model.new_cache(T + K), torch.arange(t + 1)
            first = Part.chain(tokens[1 : t + 2].tolist(), 0, table.tolist(), table[:0])
            step = model(Rows.build([first]), model.combine(features[: t + 1]), cache)
            for i in range(K):
                torch.testing.assert_close(step.normed[-1], unrolled[i][t], rtol=1e-4, atol=1e-5)
                if i < K - 1:
                    table = torch.arange(t + 1 + i)
                    row = Part.chain([int(tokens[t + 2 + i])], t + 1 + i, [t + 1 + i], table)
                    step = model(Rows.build([row]), step.carried[-1:], cache)


def test_a_proposed_chain_is_what_training_would_see(make_draft: MakeDraft, ttt: ModuleType) -> None:
    model, n, K = make_draft(), 9, 5
    generator = torch.Generator().manual_seed(4)
    tokens = torch.randint(model.config.vocab_size, (n + 1,), generator=generator).tolist()
    features = torch.randn(n, model.config.feature_size, generator=generator)
    state = DecodeState(tokens, n, SamplingSettings(), list(range(40)))
    state.take(list(range(n)), features)
    with torch.no_grad():
        [proposal] = DraftProposer(model, model.new_cache(40)).propose([state], [SpeculativeSettings.resolve(K)])
    assert proposal.tree.is_chain
    text = torch.tensor([*tokens, *proposal.tree.tokens[1:]])
    padded = torch.nn.functional.pad(features, (0, 0, 0, len(text) - n))
    with torch.no_grad():
        for i, normed in ttt.unroll(model, {"tokens": text[None], "features": padded[None]}, K):
            best = model.to_target_ids(model.logits(normed[0, n - 1]).argmax(-1))
            assert int(best) == proposal.tree.tokens[1 + i]


def test_a_slot_is_trained_while_its_tokens_lie_in_the_text(ttt: ModuleType) -> None:
    """Step i of slot t needs tokens t + 1 … t + 2 + i; the prompt's last position is the first slot."""
    batch = {"tokens": torch.zeros(1, 10), "length": torch.tensor([8])}
    slots = [ttt.slots_of(batch, i, torch.tensor([4]))[0].nonzero()[:, 0].tolist() for i in range(3)]
    assert slots == [[3, 4, 5], [3, 4], [3]]
