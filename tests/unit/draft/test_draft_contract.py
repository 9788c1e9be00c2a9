"""The contract in a draft's folder: written with it, and enforced when it is loaded."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from eyas.contract import (
    Contract,
    ContractFacts,
    DataFacts,
    DataSource,
    FeatureFormat,
    NormOptions,
    Rendering,
    RopeOptions,
    TargetIdentity,
    vocab_map_sha256,
)
from eyas.draft.checkpoint import load_draft, target_shape, write_draft
from eyas.draft.model import DraftModel
from eyas.errors import EyasError
from eyas.models.llama import LlamaTarget

from .conftest import LLAMA, MakeDraft


def make_contract(model: DraftModel, target: LlamaTarget, **changes: Any) -> Contract:
    return Contract(
        **{
            "schema_version": 2,
            "basis": "training",
            "target": TargetIdentity(**target_shape(target).model_dump(), weights_sha256="a" * 64),
            "tokenizer_sha256": "b" * 64,
            "chat_template_sha256": None,
            "rendering": Rendering(thinking="none", system_prompt="none", system_prompt_text=None),
            "taps": model.config.taps,
            "norms": NormOptions(fc_norm=False, norm_before_fc=False, norm_output=False, norm_before_residual=False),
            "rope": RopeOptions(theta=10000.0, scaling=None, partial_rotary_factor=1.0),
            "vocab_map_sha256": vocab_map_sha256(model.d2t.numpy()),
            "longest_trained_position": 60,
            "features": FeatureFormat(dtype="float32", quantisation=None),
            "loss_mask_rule": "answer",
            "data": DataFacts(
                conversations=1, answer_tokens=1, sources=(DataSource(name="self-sampled", licence="none"),)
            ),
            "expected": (),
            **changes,
        }
    )


def test_a_contract_is_carried_and_enforced(make_draft: MakeDraft, target: LlamaTarget, tmp_path: Path) -> None:
    model = make_draft()
    write_draft(tmp_path / "d", model, LLAMA, make_contract(model, target))
    load_draft(tmp_path / "d", target, "eager", known=ContractFacts(weights_sha256="a" * 64))
    with pytest.raises(EyasError, match="weights_sha256") as caught:
        load_draft(tmp_path / "d", target, "eager", known=ContractFacts(weights_sha256="c" * 64))
    assert caught.value.code == "contract.mismatch"


def test_a_contract_of_another_draft_is_refused_on_either_side(
    make_draft: MakeDraft, target: LlamaTarget, tmp_path: Path
) -> None:
    model = make_draft()
    for changes in (
        {"taps": (1, 4, 5)},
        {"vocab_map_sha256": None},
        {"rope": RopeOptions(theta=1.0, scaling=None, partial_rotary_factor=1.0)},
    ):
        contract = make_contract(model, target, **changes)
        with pytest.raises(EyasError) as caught:
            write_draft(tmp_path / "d", model, LLAMA, contract)
        assert caught.value.code == "contract.mismatch"
        write_draft(tmp_path / "e", model, LLAMA)
        (tmp_path / "e" / "contract.json").write_text(contract.to_json())
        with pytest.raises(EyasError) as caught:
            load_draft(tmp_path / "e", target, "eager")
        assert caught.value.code == "contract.mismatch"
