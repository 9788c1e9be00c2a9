"""What engines cannot express: each row is met by a draft that needs it, and by no plain draft."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from eyas.contract import NormOptions
from eyas.dialects.engines import Engine
from eyas.dialects.limits import LIMITS, DraftLayout, limits, refuse_limits
from eyas.errors import EyasError

NO_NORMS = {"fc_norm": False, "norm_before_fc": False, "norm_output": False, "norm_before_residual": False}
PLAIN = DraftLayout(
    norms=NormOptions(**NO_NORMS),
    num_taps=3,
    hidden_size=576,
    target_hidden_size=576,
    target_vocab_size=49152,
    draft_vocab_size=16000,
    has_vocab_map=True,
)


def layout(change: dict[str, Any]) -> DraftLayout:
    norms = {name: value for name, value in change.items() if name in NO_NORMS}
    fields = {name: value for name, value in change.items() if name not in NO_NORMS}
    return replace(PLAIN, norms=NormOptions(**{**NO_NORMS, **norms}), **fields)


# What the draft has, an engine, and the rows that it meets there.
CASES: list[tuple[dict[str, Any], str, set[str]]] = [
    ({"norm_before_residual": True}, "sglang", {"norm-before-residual"}),
    ({"norm_before_residual": True}, "vllm", set()),
    ({"num_taps": 1}, "sglang", {"fc-skipped"}),
    ({"num_taps": 1}, "vllm", set()),
    ({"num_taps": 1, "target_hidden_size": 960}, "sglang", set()),
    ({"attention": "mla", "norm_before_fc": True}, "sglang", {"mla-norm-before-fc"}),
    ({"attention": "mla", "norm_before_fc": True}, "vllm", {"mla-norm-before-fc"}),
    ({"attention": "mla", "num_layers": 2}, "sglang", {"mla-one-layer"}),
    ({"num_layers": 2}, "sglang==0.5.11", {"one-layer"}),
    ({"num_layers": 2}, "sglang==0.5.12", set()),
    ({"num_layers": 2}, "vllm", {"deep-norm"}),
    ({"num_layers": 2, "deep_norm": "input_layernorm"}, "vllm", set()),
    ({"num_layers": 2, "deep_norm": "input_layernorm"}, "sglang", {"deep-norm"}),
    ({"attention_bias": True}, "sglang", {"attention-bias"}),
    ({"attention_bias": True}, "vllm", set()),
    ({"fc_bias": True}, "vllm", {"fc-bias"}),
    ({"fc_bias": True}, "sglang", set()),
    ({"own_embeddings": True}, "sglang", {"own-embeddings"}),
    ({"own_embeddings": True, "target_hidden_size": 960}, "sglang", set()),
    ({"tied_head": True}, "sglang", {"tied-head"}),
    ({"tied_head": True}, "vllm", {"tied-head"}),
    ({"has_vocab_map": False}, "sglang", {"map-missing"}),
    ({"has_vocab_map": False}, "vllm", {"map-missing"}),
    ({"has_vocab_map": False, "draft_vocab_size": 49152}, "sglang==0.4.6.post5", {"map-required"}),
    ({"has_vocab_map": False, "draft_vocab_size": 49152}, "sglang", set()),
    ({"draft_vocab_size": 49152}, "vllm", {"map-of-equal-size"}),
    ({"draft_vocab_size": 49152}, "sglang", set()),
    ({"writes_draft_vocab_size": False}, "sglang", {"full-vocabulary-head"}),
    ({"writes_null_target_hidden_size": True}, "sglang", {"null-target-hidden-size"}),
    ({"writes_null_target_hidden_size": True}, "vllm", {"null-target-hidden-size"}),
    ({"model_type": "deepseek_v3"}, "vllm", {"model-type"}),
    ({"model_type": "kimi_k2"}, "vllm", set()),
    ({"model_prefix": "model."}, "vllm", {"model-prefix"}),
    ({"model_prefix": "model."}, "sglang", set()),
    ({"model_prefix": "model.", "attention": "mla"}, "sglang", {"model-prefix"}),
    ({"tensor_prefix": "layers.0."}, "sglang==0.5.11", {"layer-name"}),
    ({"tensor_prefix": "layers.0."}, "sglang", set()),
    ({"speculators_format": True}, "sglang", {"speculators-format"}),
    ({"speculators_format": True}, "vllm", set()),
    ({"fc_norm": True, "norm_output": True}, "vllm==0.18.0", {"fc-norm", "norm-output"}),
    ({"fc_norm": True, "norm_output": True}, "vllm", set()),
    ({"norm_before_fc": True}, "vllm==0.14.0", {"norm-before-fc"}),
    ({"norm_before_fc": True}, "vllm", set()),
]


@pytest.mark.parametrize(("change", "engine", "names"), CASES)
def test_rows(change: dict[str, Any], engine: str, names: set[str]) -> None:
    assert {row.name for row in limits(layout(change), Engine.parse(engine))} == names


def test_every_row_is_met_above() -> None:
    met = {(row.name, row.engine) for change, e, _ in CASES for row in limits(layout(change), Engine.parse(e))}
    assert met == {(row.name, row.engine) for row in LIMITS}


@pytest.mark.parametrize("engine", ["sglang", "sglang==0.4.8", "vllm", "vllm==0.9.0"])
def test_a_plain_draft_is_served_everywhere(engine: str) -> None:
    refuse_limits(PLAIN, Engine.parse(engine))


def test_refusals_list_all() -> None:
    with pytest.raises(EyasError) as caught:
        refuse_limits(layout({"norm_before_residual": True, "attention_bias": True}), Engine.parse("sglang"))
    assert caught.value.code == "draft.dialect"
    assert "sglang 0.5.23" in caught.value.cause
    assert "norm_before_residual" in caught.value.cause
    assert "attention_bias" in caught.value.cause
