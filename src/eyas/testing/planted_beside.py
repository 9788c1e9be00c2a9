"""Planted faults of what lies beside the weights: contract and witness of another draft."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from safetensors.torch import load_file

from eyas.contract import Contract, Witness, WitnessInfo, project, vocab_map_sha256
from eyas.engine.session import builtin_draft_folder
from eyas.testing.planting import CONFIG, WEIGHTS, Edit, Pair, Planted, one, rope

PROJECTIONS = 2


def beside_faults(pair: Pair) -> list[Planted]:
    """Faults of the tiny draft with its contract."""
    wrong = contract(pair, {"rope": {"theta": 50 * pair.rope_theta, "scaling": None, "partial_rotary_factor": 1.0}})
    deeper = contract(pair, {"target": {"num_layers": pair.layers + 1}})
    another = contract(pair, {"vocab_map_sha256": "d" * 64})
    taps = contract(pair, {"taps": [1, pair.layers // 2 - 1, pair.layers - 2]})
    norms = contract(pair, {"norms": {"fc_norm": False, "norm_before_fc": False, "norm_output": True,
                                  "norm_before_residual": False}})  # fmt: skip
    edited = _after(contract(pair), rope(50 * pair.rope_theta))
    return [
        one("contract of other taps", "contract.other", taps, "config.dialect taps.wrong", own=True),
        one("contract of a deeper target", "contract.other target.other", deeper, own=True),
        one("contract of another map", "map.wrong contract.other", another, own=True),
        one("contract of another RoPE", "config.rope", wrong, "rope.base", own=True),
        one("contract of other norms", "config.norms", norms, "norm.output", own=True),
        one("RoPE edited under a contract", "config.rope", edited, own=True),
        one("witness of another contract", "witness.other", _after(contract(pair), _witness("e" * 64)), own=True),
    ]  # fmt: skip


def contract(pair: Pair, changes: Mapping[str, object] | None = None) -> Edit:
    """A contract of the pair's draft, as far as its sizes, taps and map go; hashes of the target are another's."""

    def edit(folder: Path) -> None:
        (folder / "contract.json").write_text(_contract(pair, folder, dict(changes or {})).to_json())

    return edit


def _contract(pair: Pair, folder: Path, changes: dict[str, object]) -> Contract:
    source = builtin_draft_folder("builtin:smollm2-135m")
    assert source is not None
    document = json.loads((source / "contract.json").read_text())
    sizes = json.loads((folder / CONFIG).read_text())
    target = document["target"] | {key: sizes[key] for key in ("hidden_size", "vocab_size", "head_dim")}
    target |= {"num_layers": pair.layers, "num_heads": sizes["num_attention_heads"]}
    target |= {"num_kv_heads": sizes["num_key_value_heads"]}
    other = changes.get("target", {})
    assert isinstance(other, dict)
    document |= {
        "taps": list(pair.taps),
        "expected": [],
        "rope": document["rope"] | {"theta": pair.rope_theta},
        "vocab_map_sha256": vocab_map_sha256(load_file(folder / WEIGHTS)["d2t"].numpy()),
        **changes,
        "target": target | other,
    }
    return Contract.from_json(json.dumps(document))


def _after(first: Edit, then: Edit) -> Edit:
    return lambda folder: (first(folder), then(folder))


def _witness(contract_sha256: str) -> Edit:
    """One that keeps every rule of the form, of made-up figures."""

    def edit(folder: Path) -> None:
        named = json.loads((folder / "contract.json").read_text())
        size = named["target"]["hidden_size"]
        tokens = np.arange(8, dtype=np.int64)
        info = WitnessInfo(
            witness_version=1,
            contract_sha256=contract_sha256,
            taps=tuple(named["taps"]),
            hidden_size=size,
            num_projections=PROJECTIONS,
            num_steps=1,
            dtype="float32",
            temperature=0.0,
            seed=None,
            relative_tolerance=1e-3,
        )
        made = Witness(
            info=info,
            tokens=tokens,
            starts=np.array([0, 8], dtype=np.int64),
            prompt_lengths=np.array([2], dtype=np.int64),
            fingerprint_rows=np.array([1], dtype=np.int64),
            fingerprints=project(np.ones((1, len(named["taps"]), size)), PROJECTIONS),
            round_conversations=np.zeros(1, dtype=np.int64),
            round_positions=np.array([3], dtype=np.int64),
            proposals=tokens[3:4].reshape(1, 1),
            accepted=np.ones(1, dtype=np.int64),
        )
        (folder / "witness.safetensors").write_bytes(made.to_bytes())

    return edit
