"""Copies of the tiny draft with a contract, and faults planted in them."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file

from eyas.contract import Contract, TargetSizes, Witness, WitnessInfo, project, sha256_hex, vocab_map_sha256
from eyas.testing import tiny_pair

TINY = TargetSizes(architecture="LlamaForCausalLM", num_layers=8, hidden_size=64, vocab_size=512)
ONE = "c" * 64


def tiny_contract(**changes: Any) -> Contract:
    """A contract of the tiny draft; only the hashes of target and tokenizer are made up."""
    d2t = load_file(tiny_pair()[1] / "model.safetensors")["d2t"]
    document = {
        "schema_version": 2,
        "basis": "training",
        "target": {**TINY.model_dump(), "num_heads": 4, "num_kv_heads": 2, "head_dim": 16, "weights_sha256": ONE},
        "tokenizer_sha256": ONE,
        "chat_template_sha256": None,
        "rendering": {"thinking": "none", "system_prompt": "none", "system_prompt_text": None},
        "taps": [2, 4, 5],
        "norms": {"fc_norm": False, "norm_before_fc": False, "norm_output": False, "norm_before_residual": False},
        "rope": {"theta": 10000.0, "scaling": None, "partial_rotary_factor": 1.0},
        "vocab_map_sha256": vocab_map_sha256(d2t.numpy()),
        "longest_trained_position": 200,
        "features": {"dtype": "float32", "quantisation": None},
        "loss_mask_rule": "answers",
        "data": {"conversations": 1, "answer_tokens": 1, "sources": [{"name": "own", "licence": "Apache-2.0"}]},
        "expected": [],
        **changes,
    }
    return Contract.from_json(json.dumps(document))


def tiny_witness(contract: Contract, **changes: Any) -> Witness:
    """A witness that keeps every rule, of made-up figures."""
    info = {
        "witness_version": 1,
        "contract_sha256": sha256_hex(contract.to_json().encode()),
        "taps": contract.taps,
        "hidden_size": 64,
        "num_projections": 2,
        "num_steps": 1,
        "dtype": "float32",
        "temperature": 0.0,
        "seed": None,
        "relative_tolerance": 1e-3,
        **changes,
    }
    tokens = np.arange(8, dtype=np.int64)
    return Witness(
        info=WitnessInfo(**info),
        tokens=tokens,
        starts=np.array([0, 8], dtype=np.int64),
        prompt_lengths=np.array([2], dtype=np.int64),
        fingerprint_rows=np.array([1], dtype=np.int64),
        fingerprints=project(np.ones((1, len(info["taps"]), 64)), 2),
        round_conversations=np.zeros(1, dtype=np.int64),
        round_positions=np.array([3], dtype=np.int64),
        proposals=tokens[3:4].reshape(1, 1),
        accepted=np.ones(1, dtype=np.int64),
    )


def tiny_copy(folder: Path, contract: bool = True, witness: bool = False) -> Path:
    """The tiny draft in ``folder``, with contract and witness if wanted."""
    shutil.copytree(tiny_pair()[1], folder)
    if contract:
        (folder / "contract.json").write_text(tiny_contract().to_json())
    if witness:
        (folder / "witness.safetensors").write_bytes(tiny_witness(tiny_contract()).to_bytes())
    return folder


def as_foreign(folder: Path) -> Path:
    """Without what Eyas adds: no contract, no own entry, no manifest."""
    for name in ("contract.json", "witness.safetensors", "manifest.json"):
        (folder / name).unlink(missing_ok=True)
    path = folder / "config.json"
    document = json.loads(path.read_text())
    del document["eyas"]
    path.write_text(json.dumps(document))
    return folder


def noise(shape: tuple[int, ...], seed: int = 0) -> torch.Tensor:
    """What an initialisation leaves."""
    return (torch.randn(shape, generator=torch.Generator().manual_seed(seed)) * 0.02).bfloat16()
