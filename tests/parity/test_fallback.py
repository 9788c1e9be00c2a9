"""Other architectures through transformers' own code: its logits and taps, or a refusal with the reason."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import (
    BloomConfig,
    CohereConfig,
    Gemma2Config,
    Gemma3TextConfig,
    GemmaConfig,
    GPT2Config,
    GPTNeoXConfig,
    GptOssConfig,
    Llama4TextConfig,
    MambaConfig,
    MixtralConfig,
    Olmo2Config,
    Phi3Config,
    PhiConfig,
    PretrainedConfig,
    StableLmConfig,
)

from eyas.errors import EyasError
from eyas.models.hf import HFTarget
from eyas.models.registry import load_target
from parity import reference as pr

SMALL: dict[str, Any] = {
    "vocab_size": 97,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
FULL, SLIDING = "full_attention", "sliding_attention"

RUNS: dict[str, PretrainedConfig] = {
    "gpt-neox": GPTNeoXConfig(**SMALL),
    "gemma": GemmaConfig(**SMALL, head_dim=8),
    "gemma3-windows": Gemma3TextConfig(
        **SMALL, head_dim=8, sliding_window=6, layer_types=[SLIDING, FULL, SLIDING, FULL]
    ),
    "phi": PhiConfig(**SMALL),
    "olmo2": Olmo2Config(**SMALL),
    "stablelm": StableLmConfig(**SMALL),
    "gpt2": GPT2Config(vocab_size=97, n_embd=32, n_layer=4, n_head=4, n_positions=64, bos_token_id=1, eos_token_id=2),
    "mixtral": MixtralConfig(**SMALL, num_local_experts=2),
}
REFUSED: dict[str, tuple[PretrainedConfig, str]] = {
    "gemma2": (Gemma2Config(**SMALL, head_dim=8, final_logit_softcapping=None), "softcap"),
    "gpt-oss": (GptOssConfig(**SMALL, head_dim=8, num_local_experts=2, num_experts_per_tok=1), "s_aux"),
    "cohere": (CohereConfig(**SMALL), "scaled"),
    "bloom": (BloomConfig(vocab_size=97, hidden_size=32, n_layer=2, n_head=4), "AttentionInterface"),
    "mamba": (MambaConfig(vocab_size=97, hidden_size=32, num_hidden_layers=2), "recurrent"),
    "llama4-chunks": (
        Llama4TextConfig(**SMALL, attention_chunk_size=4, head_dim=8, num_local_experts=2, intermediate_size_mlp=32),
        "causal",
    ),
    "phi3-longrope": (
        Phi3Config(
            **SMALL,
            rope_parameters={
                "rope_type": "longrope",
                "short_factor": [1.0] * 4,
                "long_factor": [2.0] * 4,
                "original_max_position_embeddings": 32,
            },
        ),
        "longrope",
    ),
}
TOKENS = torch.arange(24) * 37 % 97
TIGHT = 2e-5
"""Of the largest value: fp32 sums in another order."""


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("fallback")
    return {name: pr.save_model(config, root / name) for name, config in RUNS.items()}


@pytest.mark.parametrize("backend", ["eager", "onednn"])
@pytest.mark.parametrize("name", RUNS)
def test_logits_taps_and_identity(name: str, backend: str, folders: dict[str, Path]) -> None:
    target, theirs = (
        load_target(folders[name], backend=backend),
        pr.reference(folders[name], TOKENS, torch.float32),
    )
    ours = pr.alone(target, TOKENS)
    assert isinstance(target, HFTarget)
    assert pr.apart(ours.logits, theirs.logits) <= TIGHT
    assert all(gap <= TIGHT for gap in pr.tap_gaps(ours.taps, theirs.taps))
    last = pr.apart(target.logits(target.final_norm(ours.taps[:, -1])), theirs.logits)
    early = pr.apart(target.logits(target.final_norm(ours.taps[:, -2])), theirs.logits)
    assert last <= TIGHT
    assert early >= 10 * TIGHT
    assert target.embedding().shape == target.head().shape == (target.vocab_size, target.hidden_size)


@pytest.mark.parametrize("name", RUNS)
def test_ragged_chunks_and_trees(name: str, folders: dict[str, Path]) -> None:
    """Two requests prefilled together; then a chain of one beside a tree of the other, in one call."""
    target = load_target(folders[name])
    cache, slots = target.new_cache(48), torch.arange(48).flip(0)
    prompts, tables = [TOKENS[:10], TOKENS[3:20]], [slots[:10], slots[10:27]]
    pr.run(target, pr.chain_rows([(p, pr.EMPTY, s) for p, s in zip(prompts, tables, strict=True)]), cache)
    parent, depth = [-1, 0, 1, -1, 3, 3, 5, -1], [0, 1, 2, 0, 1, 1, 2, 0]
    request = [0, 0, 0, 1, 1, 1, 1, 1]
    tokens = (torch.arange(8) * 31 + 4) % 97
    positions = torch.tensor([len(prompts[b]) + d for b, d in zip(request, depth, strict=True)])
    rows = pr.Rows(tokens, positions, torch.tensor(request), torch.tensor(parent), slots[30:38], tables)
    ours = pr.run(target, rows, cache)
    for row, b in enumerate(request):
        path, above = [row], parent[row]
        while above >= 0:
            path.insert(0, above)
            above = parent[above]
        theirs = pr.reference(folders[name], torch.cat([prompts[b], tokens[path]]), torch.float32)
        assert pr.apart(ours.logits[row], theirs.logits[-1]) <= TIGHT
        assert all(gap <= TIGHT for gap in pr.tap_gaps(ours.taps[row : row + 1], theirs.taps[-1:]))


@pytest.mark.parametrize("name", ["gpt-neox", "phi"])
def test_bf16_errs_no_more_than_transformers_bf16(name: str, folders: dict[str, Path]) -> None:
    exact = pr.reference(folders[name], TOKENS, torch.bfloat16, torch.float32)
    error = pr.apart(pr.reference(folders[name], TOKENS, torch.bfloat16).logits, exact.logits)
    for backend in ("eager", "onednn"):
        ours = pr.alone(load_target(folders[name], torch.bfloat16, backend), TOKENS)
        assert pr.apart(ours.logits, exact.logits) <= 2 * error


def test_windows_are_learned_per_layer(folders: dict[str, Path]) -> None:
    target = load_target(folders["gemma3-windows"])
    assert isinstance(target, HFTarget)
    assert target.windows == (6, None, 6, None)


@pytest.mark.parametrize("name", REFUSED)
def test_what_slot_tables_cannot_represent_is_refused_with_the_reason(name: str, tmp_path: Path) -> None:
    config, reason = REFUSED[name]
    with pytest.raises(EyasError, match=reason) as caught:
        load_target(pr.save_model(config, tmp_path))
    assert caught.value.code == "model.unknown-architecture"


def test_two_targets_in_one_process_do_not_mix(folders: dict[str, Path]) -> None:
    first, second = load_target(folders["phi"]), load_target(folders["gpt-neox"])
    for target, name in ((first, "phi"), (second, "gpt-neox"), (first, "phi")):
        theirs = pr.reference(folders[name], TOKENS[:5], torch.float32)
        assert pr.apart(pr.alone(target, TOKENS[:5]).logits, theirs.logits) <= TIGHT
