"""What engines would replace, ignore or guess in silence is refused when a draft is read, each with its code."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from eyas.errors import EyasError
from eyas.models.llama import LlamaTarget

from .conftest import MakeDraft, code_of, edit_config, edit_tensors, write

EDITS: dict[str, tuple[str, dict[str, Any]]] = {
    "no draft_vocab_size": ("draft.config", {"remove": ("draft_vocab_size",)}),
    "draft_vocab_size null, with a head": ("draft.config", {"draft_vocab_size": None}),
    "draft_vocab_size no number": ("draft.config", {"draft_vocab_size": "10"}),
    "draft_vocab_size too large": ("draft.config", {"draft_vocab_size": 41}),
    "draft_vocab_size of another head": ("model.tensor-shape", {"draft_vocab_size": 12}),
    "target_hidden_size null": ("draft.config", {"target_hidden_size": None}),
    "tied, with a reduced head": ("draft.config", {"tie_word_embeddings": True}),
    "MLP biases": ("draft.config", {"mlp_bias": True}),
    "quantised": ("draft.config", {"quantization_config": {"quant_method": "fp8"}}),
    "a scale on the logits": ("draft.config", {"logit_scale": 0.5}),
    "another activation": ("draft.config", {"hidden_act": "gelu"}),
    "a flag that is no flag": ("draft.config", {"norm_output": "yes"}),
    "model_type of an MTP module": ("draft.config", {"model_type": "deepseek_v3"}),
    "no RoPE that can be cached": (
        "model.config",
        {"rope_scaling": {"rope_type": "dynamic", "factor": 2.0}, "rope_parameters": None},
    ),
    "two RoPE scalings": (
        "draft.config",
        {
            "rope_scaling": {"type": "linear", "factor": 2.0},
            "rope_parameters": {"rope_type": "linear", "factor": 4.0},
        },
    ),
    "two RoPE bases": ("draft.config", {"rope_theta": 500.0}),
    "ids that no engine reads, and others": ("draft.dialect", {"aux_hidden_state_layer_ids": [3, 5, 6]}),
    "ids that no engine reads, alone": (
        "draft.dialect",
        {
            "remove": ("eyas", "eagle_config", "eagle_aux_hidden_state_layer_ids"),
            "aux_hidden_state_layer_ids": [2, 4, 5],
        },
    ),
    "other number of aux states": ("draft.config", {"num_aux_hidden_states": 2}),
    "MLA": ("draft.dialect", {"architectures": ["Eagle3DeepseekV2ForCausalLM"]}),
    "EAGLE-1": ("draft.dialect", {"architectures": ["LlamaForCausalLMEagle"]}),
    "speculators": ("draft.dialect", {"speculators_model_type": "eagle3"}),
    "no taps": ("draft.dialect", {"eagle_config": {"use_aux_hidden_state": False}}),
    "ids of the other engine": ("draft.dialect", {"eagle_aux_hidden_state_layer_ids": [1, 3, 4]}),
    "ids that our entry contradicts": (
        "draft.dialect",
        {"eagle_aux_hidden_state_layer_ids": [1, 3, 4], "eagle_config": {}},
    ),
    "ids that one runner alone reads": (
        "draft.dialect",
        {"remove": ("eagle_aux_hidden_state_layer_ids",), "eagle_config": {"layer_ids": [1, 3, 4]}},
    ),
    "a layer twice": ("taps.duplicate", {"eagle_aux_hidden_state_layer_ids": [2, 2, 5]}),
    "layers beyond the target": ("draft.target-mismatch", {"eagle_aux_hidden_state_layer_ids": [2, 15, 27]}),
    "another depth": ("draft.target-mismatch", {"eyas": {"target_num_layers": 30}}),
    "another architecture": ("draft.target-mismatch", {"eyas": {"target_architecture": "Qwen3ForCausalLM"}}),
    "another hidden size": ("draft.target-mismatch", {"target_hidden_size": 32}),
    "another vocabulary": ("draft.target-mismatch", {"vocab_size": 50}),
    "an unknown entry of ours": ("draft.config", {"eyas": {"tap": [2]}}),
    "an engine without rules": ("dialect.unknown-engine", {"eyas": {"engines": ["tensorrt"]}}),
    "fc_norm without its tensors": ("model.tensor-missing", {"fc_norm": True}),
    "attention_bias without its tensors": ("model.tensor-missing", {"attention_bias": True}),
    "more layers than stored": ("model.tensor-missing", {"num_hidden_layers": 2}),
    "fewer heads than stored": ("model.tensor-shape", {"num_attention_heads": 2}),
}


@pytest.mark.parametrize("edit", EDITS)
def test_a_config_that_would_mean_something_else_is_refused(
    make_draft: MakeDraft, target: LlamaTarget, tmp_path: Path, edit: str
) -> None:
    folder = write(tmp_path / "d", make_draft())
    code, changes = EDITS[edit]
    edit_config(folder, **changes)
    assert code_of(folder, target) == code


def _set(name: str, change: Callable[[Tensor], Tensor]) -> Callable[[dict[str, Tensor]], object]:
    return lambda t: t.update({name: change(t[name]).contiguous()})


def _drop(*names: str) -> Callable[[dict[str, Tensor]], object]:
    return lambda t: [t.pop(name) for name in names]


TENSOR_EDITS: dict[str, tuple[str, Callable[[dict[str, Tensor]], object]]] = {
    "no map": ("draft.vocab-map", _drop("d2t", "t2d")),
    "absolute ids": ("draft.vocab-map", _set("d2t", lambda d: d + torch.arange(10))),
    "draft ids": ("draft.vocab-map", _set("d2t", lambda d: torch.arange(10))),
    "a map of zeros": ("draft.vocab-map", _set("d2t", torch.zeros_like)),
    "a map in int32": ("draft.vocab-map", _set("d2t", lambda d: d.int())),
    "a shorter map": ("model.tensor-shape", _set("d2t", lambda d: d[:8])),
    "a mask of another map": ("draft.vocab-map", _set("t2d", lambda d: d.roll(1))),
    "no head": ("model.tensor-missing", _drop("lm_head.weight")),
    "no fc": ("model.tensor-missing", _drop("fc.weight")),
    "a renamed layer": (
        "model.tensor-missing",
        lambda t: t.update({"layer.mlp.up_proj.weight": t.pop("midlayer.mlp.up_proj.weight")}),
    ),
    "an unknown tensor": ("model.tensor-unknown", lambda t: t.update({"mask_hidden": torch.ones(3)})),
    "a norm without its flag": ("model.tensor-unknown", lambda t: t.update({"input_norm.weight": torch.ones(48)})),
    "a bias without its flag": (
        "model.tensor-unknown",
        lambda t: t.update({"midlayer.self_attn.q_proj.bias": torch.ones(16)}),
    ),
    "one tensor by two names": (
        "model.tensor-unknown",
        lambda t: t.update({"layers.0.hidden_norm.weight": torch.ones(16)}),
    ),
    "fc of two taps": ("model.tensor-shape", _set("fc.weight", lambda w: w[:, :32])),
    "NaN": ("model.nonfinite", _set("norm.weight", lambda w: w / 0)),
    "whole numbers": ("draft.config", _set("fc.weight", lambda w: w.to(torch.int8))),
}


@pytest.mark.parametrize("edit", TENSOR_EDITS)
def test_tensors_that_engines_would_pass_over_are_refused(
    make_draft: MakeDraft, target: LlamaTarget, tmp_path: Path, edit: str
) -> None:
    folder = write(tmp_path / "d", make_draft())
    code, change = TENSOR_EDITS[edit]
    edit_tensors(folder, change)
    assert code_of(folder, target) == code


def test_files_that_are_no_checkpoint_are_refused(make_draft: MakeDraft, target: LlamaTarget, tmp_path: Path) -> None:
    folder = write(tmp_path / "d", make_draft())
    weights = folder / "model.safetensors"
    whole = weights.read_bytes()
    weights.write_bytes(whole[:-100])
    assert code_of(folder, target) == "artifact.corrupt"
    weights.rename(folder / "pytorch_model.bin")
    assert code_of(folder, target) == "artifact.pickle"
    (folder / "pytorch_model.bin").unlink()
    assert code_of(folder, target) == "artifact.missing"
    (folder / "config.json").write_text("{")
    assert code_of(folder, target) == "artifact.corrupt"
    assert code_of(tmp_path / "elsewhere", target) == "artifact.missing"


def test_a_failed_write_leaves_the_older_checkpoint(make_draft: MakeDraft, target: LlamaTarget, tmp_path: Path) -> None:
    folder = write(tmp_path / "d", make_draft())
    before = (folder / "model.safetensors").read_bytes()
    broken = make_draft()
    with torch.no_grad():
        broken.norm[0] = torch.nan
    with pytest.raises(EyasError):
        write(folder, broken)
    assert (folder / "model.safetensors").read_bytes() == before
    assert [path.name for path in tmp_path.iterdir()] == ["d"]
