"""The contract: what it holds, what is refused, and how it is enforced."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eyas.contract import (
    Contract,
    ContractFacts,
    NormOptions,
    RopeOptions,
    TargetShape,
    enforce,
)
from eyas.errors import EyasError

A, B = "a" * 64, "b" * 64


def a_document() -> dict[str, Any]:
    """A whole contract as JSON data."""
    shape = {"num_layers": 30, "hidden_size": 576, "vocab_size": 49152, "num_heads": 9, "num_kv_heads": 3}
    return {
        "schema_version": 2,
        "basis": "training",
        "target": {"architecture": "LlamaForCausalLM", "head_dim": 64, "weights_sha256": A, **shape},
        "tokenizer_sha256": A,
        "chat_template_sha256": B,
        "rendering": {"thinking": "none", "system_prompt": "fixed", "system_prompt_text": "Be brief – 短く"},
        "taps": [2, 15, 27],
        "norms": {
            "fc_norm": False,
            "norm_before_fc": False,
            "norm_output": True,
            "norm_before_residual": False,
        },
        "rope": {
            "theta": 100000.0,
            "scaling": {"rope_type": "linear", "factor": 2.0},
            "partial_rotary_factor": 1,
        },
        "vocab_map_sha256": None,
        "longest_trained_position": 2047,
        "features": {"dtype": "bfloat16", "quantisation": None},
        "loss_mask_rule": "answers",
        "data": {
            "conversations": 10,
            "answer_tokens": 500,
            "sources": [{"name": "own", "licence": "Apache-2.0"}],
        },
        "expected": [
            {
                "prompt_set": "mt-bench",
                "num_steps": 3,
                "temperature": 0.0,
                "draft_sampling": "one-hot",
                "accept_length": 2.1,
                "low": 2.0,
                "high": 2.2,
                "ceiling": 4,
                "survival": [0.6, 0.3, 0.2],
            }
        ],
    }


def a_contract() -> Contract:
    return Contract.from_json(json.dumps(a_document()))


def changed(path: str, value: Any) -> str:
    """The document with one field replaced, as text."""
    document = a_document()
    entry: Any = document
    *parents, last = path.split(".")
    for part in parents:
        entry = entry[int(part)] if part.isdigit() else entry[part]
    entry[last] = value
    return json.dumps(document)


class TestSchema:
    def test_round_trip_is_deterministic(self) -> None:
        contract = a_contract()
        text = contract.to_json()
        assert Contract.from_json(text) == contract
        assert Contract.from_json(text.encode()).to_json() == text
        assert text.endswith("}\n")
        assert not text.endswith("\n\n")
        assert list(json.loads(text)) == sorted(json.loads(text))

    @given(st.text(min_size=1), st.floats(1, 1e9), st.integers(0, 1 << 40), st.permutations([0, 3, 29, 30]))
    def test_any_values_round_trip(self, text: str, theta: float, position: int, taps: list[int]) -> None:
        document = a_document()
        document["rendering"]["system_prompt_text"] = text
        document["rope"]["theta"] = theta
        document["longest_trained_position"] = position
        document["taps"] = taps
        contract = Contract.from_json(json.dumps(document))
        assert Contract.from_json(contract.to_json().encode()) == contract
        assert contract.taps == tuple(taps)

    @pytest.mark.parametrize(
        ("path", "value", "named"),
        [
            ("target.num_layers", "30", "target.num_layers"),
            ("target.colour", 1, "target.colour"),
            ("colour", 1, "colour"),
            ("tokenizer_sha256", "A" * 64, "tokenizer_sha256"),
            ("taps", [2, 2], "named 2 times"),
            ("taps", [2, 31], "tap 31"),
            ("taps", [2.0], "taps.0"),
            ("norms.fc_norm", 1, "norms.fc_norm"),
            ("rope.theta", 0, "rope.theta"),
            ("rendering.system_prompt", "none", "system_prompt_text"),
            ("features.dtype", "int3", "features.dtype"),
            ("expected.0.high", 2.0, "expected.0"),
            ("expected.0.ceiling", 5, "ceiling 4, not 5"),
            ("expected.0.survival", [0.6, 0.5], "2 shares for 3 steps"),
            ("expected.0.survival", [0.6, 0.3, 0.1], "1 + the sum of survival"),
            ("data", None, "data is null exactly when"),
            ("loss_mask_rule", None, "loss_mask_rule is null exactly when"),
            ("basis", "measurement", "longest_trained_position is null exactly when"),
            ("data.sources.0.licence", "", "data.sources.0.licence"),
        ],
    )
    def test_wrong_fields_are_named(self, path: str, value: Any, named: str) -> None:
        with pytest.raises(EyasError) as caught:
            Contract.from_json(changed(path, value))
        assert caught.value.code == "contract.schema"
        assert named in caught.value.cause

    def test_every_field_is_required(self) -> None:
        for name in a_document():
            document = a_document()
            del document[name]
            with pytest.raises(EyasError) as caught:
                Contract.from_json(json.dumps(document))
            assert name in caught.value.cause

    @pytest.mark.parametrize("version", [0, 1, 3, "2", True, 1.5])
    def test_other_versions_are_refused(self, version: Any) -> None:
        with pytest.raises(EyasError) as caught:
            Contract.from_json(changed("schema_version", version))
        assert f"schema_version: {version!r}" in caught.value.cause
        assert "pip install" in caught.value.fix

    def test_a_measurement_knows_nothing_of_the_data(self) -> None:
        unknown = {"basis": "measurement", "longest_trained_position": None, "loss_mask_rule": None, "data": None}
        contract = Contract.from_json(json.dumps(a_document() | unknown))
        assert contract.data is None
        assert Contract.from_json(contract.to_json()) == contract

    @given(st.integers(0, 1500))
    def test_cut_anywhere(self, length: int) -> None:
        text = a_contract().to_json()
        with pytest.raises(EyasError) as caught:
            Contract.from_json(text[: min(length, len(text) - 2)])
        assert caught.value.code == "contract.schema"

    @pytest.mark.parametrize(
        "text",
        [
            b"\xff\xfe{}",
            b"[1]",
            b"null",
            b"[" * 100_000,
            b'{"schema_version": 2, "schema_version": 2}',
            b'{"a": NaN}',
        ],
    )
    def test_what_is_no_contract(self, text: bytes) -> None:
        with pytest.raises(EyasError) as caught:
            Contract.from_json(text)
        assert caught.value.code == "contract.schema"

    def test_read(self, tmp_path: Path) -> None:
        path = tmp_path / "contract.json"
        with pytest.raises(EyasError) as caught:
            Contract.read(path)
        assert caught.value.code == "artifact.missing"
        path.write_text(a_contract().to_json(), encoding="utf-8")
        assert Contract.read(path) == a_contract()
        path.write_bytes(b" " * (1 << 20) + b"{}")
        with pytest.raises(EyasError, match="at most"):
            Contract.read(path)


class TestEnforce:
    def facts(self, **other: Any) -> ContractFacts:
        contract = a_contract()
        shape = TargetShape(**contract.target.model_dump(exclude={"weights_sha256"}))
        values: dict[str, Any] = {
            "target": shape,
            "weights_sha256": A,
            "tokenizer_sha256": A,
            "chat_template_sha256": B,
            "rendering": contract.rendering,
            "taps": contract.taps,
            "norms": contract.norms,
            "rope": contract.rope,
            "vocab_map_sha256": None,
            "features": contract.features,
        }
        return ContractFacts(**{**values, **other})

    def test_all_equal(self) -> None:
        assert enforce(a_contract(), self.facts()) == ()

    def test_what_is_not_known_is_named_not_compared(self) -> None:
        unknown = enforce(a_contract(), ContractFacts(taps=(2, 15, 27)))
        assert "weights_sha256" in unknown
        assert "vocab_map_sha256" in unknown
        assert "taps" not in unknown

    @pytest.mark.parametrize(
        ("other", "both"),
        [
            ({"taps": (3, 15, 27)}, ["(2, 15, 27)", "(3, 15, 27)"]),
            ({"taps": (15, 2, 27)}, ["(2, 15, 27)", "(15, 2, 27)"]),
            ({"vocab_map_sha256": B}, ["None", B]),
            ({"tokenizer_sha256": B}, [A, B]),
            ({"chat_template_sha256": None}, [B, "None"]),
            ({"weights_sha256": B}, [A, B]),
            (
                {"rope": RopeOptions(theta=10000, scaling=None, partial_rotary_factor=1)},
                ["rope.theta is 100000.0", "10000.0", "rope.scaling", "linear", "None"],
            ),
            (
                {
                    "norms": NormOptions(
                        fc_norm=False, norm_before_fc=False, norm_output=False, norm_before_residual=False
                    )
                },
                ["norms.norm_output is True", "False"],
            ),
        ],
    )
    def test_both_sides_are_named(self, other: dict[str, Any], both: list[str]) -> None:
        with pytest.raises(EyasError) as caught:
            enforce(a_contract(), self.facts(**other))
        assert caught.value.code == "contract.mismatch"
        for side in both:
            assert side in caught.value.cause

    def test_the_most_telling_comes_first_and_all_are_listed(self) -> None:
        shape = TargetShape(**{**self.facts().target.model_dump(), "hidden_size": 960})  # type: ignore[union-attr]
        with pytest.raises(EyasError) as caught:
            enforce(a_contract(), self.facts(tokenizer_sha256=B, taps=(1,), target=shape))
        cause = caught.value.cause
        assert cause.index("target.hidden_size is 576") < cause.index("taps is") < cause.index("tokenizer_sha256 is")
        assert "960" in cause
        assert "target" in caught.value.fix


def test_no_torch() -> None:
    code = (
        "import sys, eyas.contract, eyas.metrics, eyas.config, eyas.dialects.taps, eyas.dialects.checkpoint,"
        " eyas.dialects.limits, eyas.dialects.flags; sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
