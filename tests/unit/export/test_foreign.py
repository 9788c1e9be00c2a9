"""Drafts of other trainers, and what of them has no place elsewhere."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from eyas.draft.checkpoint import load_draft, read_draft
from eyas.models.llama import LlamaTarget
from support.drafts import (
    VOCABULARY,
    edit_config,
    edit_tensors,
    random_weights,
    write,
    write_target,
)

from .conftest import LAYOUTS, code_of, send


def foreign_speculators(target: LlamaTarget, folder: Path, **changes: Any) -> Path:
    """As that package saves: defaults left out, the target's embedding copied, its config's keys all over."""
    write(folder / "plain", random_weights(target))
    send(folder / "plain", "speculators", folder / "s")
    document = json.loads((folder / "s" / "config.json").read_text())
    del document["eyas"]
    layer = document["transformer_layer_config"]
    for key in ("attention_bias", "mlp_bias", "hidden_act", "rope_scaling", "rope_theta"):
        del layer[key]
    layer |= {"tie_word_embeddings": True, "initializer_range": 0.02, "bos_token_id": 1, "use_cache": False}
    document |= {"transformers_version": "5.19.0", "auto_map": {}, "target_hidden_size": None, **changes}
    (folder / "s" / "config.json").write_text(json.dumps(document))
    edit_tensors(folder / "s", lambda t: t.update({"embed_tokens.weight": target.embedding().clone()}))
    return folder / "s"


def test_a_draft_that_speculators_saved_becomes_one_for_sglang(target: LlamaTarget, tmp_path: Path) -> None:
    source = foreign_speculators(target, tmp_path)
    assert code_of(source, "sglang", tmp_path / "x") == "export.no-target"
    bare = write_target(tmp_path / "bare", target, weights=False)
    assert code_of(source, "sglang", tmp_path / "x", target=bare) == "export.no-target"
    folder = write_target(tmp_path / "target", target)
    done = send(source, "sglang", tmp_path / "out", target=folder)
    assert done.tensors["embed_tokens.weight"] == "embed_tokens.weight"
    assert {"transformers_version", "initializer_range", "bos_token_id"} <= done.config_left_out.keys()
    kept = json.loads((tmp_path / "out" / "manifest.json").read_text())["provenance"]
    assert kept["config_left_out"] == done.config_left_out
    assert kept["about"]["speculators_config"]["algorithm"] == "eagle3"
    config = read_draft(tmp_path / "out", target).config
    assert config == random_weights(target, layer_dialect="vllm").config
    load_draft(source, target, "eager")


@pytest.mark.parametrize(
    "changes",
    [
        {"speculators_model_type": "dflash"},
        {"transformer_layer_config": None},
        {"transformer_layer_config": {"model_type": "qwen3"}},
        {"transformer_layer_config": {}},
        {"transformer_layer_config": {"model_type": "llama", "layer_types": ["sliding_attention"]}},
    ],
    ids=str,
)
def test_other_drafts_of_that_package_are_refused(target: LlamaTarget, tmp_path: Path, changes: dict[str, Any]) -> None:
    source = foreign_speculators(target, tmp_path, **changes)
    assert code_of(source, "sglang", tmp_path / "x", target=write_target(tmp_path / "t", target)) == "draft.dialect"


def test_what_speculators_and_vllm_read_differently_is_refused(target: LlamaTarget, tmp_path: Path) -> None:
    source = foreign_speculators(target, tmp_path)
    edit_config(source, remove=("norm_before_residual",))
    folder = write_target(tmp_path / "t", target)
    assert code_of(source, "vllm", tmp_path / "x", target=folder) == "draft.dialect"


def test_a_size_said_twice_is_refused(target: LlamaTarget, tmp_path: Path) -> None:
    source = foreign_speculators(target, tmp_path, hidden_size=32)
    assert code_of(source, "vllm", tmp_path / "x", target=write_target(tmp_path / "t", target)) == "draft.config"


def test_another_targets_name_is_refused(target: LlamaTarget, tmp_path: Path) -> None:
    source = foreign_speculators(target, tmp_path)
    folder = write_target(tmp_path / "t", target)
    edit_config(folder, architectures=["Qwen3ForCausalLM"])
    assert code_of(source, "vllm", tmp_path / "x", target=folder) == "draft.target-mismatch"


def test_a_draft_of_specforge_becomes_one_for_vllm(target: LlamaTarget, tmp_path: Path) -> None:
    """It holds an identity map where the vocabulary is full, and SGLang's layer ids alone."""
    source = write(tmp_path / "d", random_weights(target, draft_vocab_size=VOCABULARY))
    edit_config(
        source, remove=("eyas", "eagle_aux_hidden_state_layer_ids", "norm_output"), pretraining_tp=1, use_cache=True
    )
    maps = {"d2t": torch.zeros(VOCABULARY, dtype=torch.int64), "t2d": torch.ones(VOCABULARY, dtype=torch.bool)}
    edit_tensors(source, lambda t: t.update(maps))
    assert code_of(source, "vllm", tmp_path / "x") == "export.no-target"
    folder = write_target(tmp_path / "t", target)
    assert "d2t" in load_file(source / "model.safetensors")
    done = send(source, "vllm", tmp_path / "out", target=folder)
    assert done.tensors["d2t"].startswith("not needed")
    assert not {"d2t", "t2d"} & load_file(tmp_path / "out" / "model.safetensors").keys()
    kept = send(source, "sglang", tmp_path / "same", target=folder)
    assert kept.tensors["d2t"] == "d2t"


def test_taps_may_be_named_where_the_files_do_not(target: LlamaTarget, tmp_path: Path) -> None:
    source = write(tmp_path / "d", random_weights(target, taps=(1, 3, 6)))
    edit_config(source, remove=("eyas", "eagle_aux_hidden_state_layer_ids", "eagle_config"))
    folder = write_target(tmp_path / "t", target)
    done = send(source, "vllm", tmp_path / "out", target=folder, taps=(1, 3, 6))
    assert done.taps == (1, 3, 6)
    assert any("default" in note for note in send(source, "vllm", tmp_path / "default", target=folder).notes)
    edit_config(source, aux_hidden_state_layer_ids=[0, 2, 5])
    assert code_of(source, "vllm", tmp_path / "x", target=folder) == "draft.dialect"
    assert send(source, "vllm", tmp_path / "named", target=folder, taps=(1, 3, 6)).taps == (1, 3, 6)
    assert code_of(tmp_path / "out", "vllm", tmp_path / "x", taps=(1, 3, 5)) == "draft.dialect"


def _rename(old: str, new: str) -> Any:
    return lambda t: t.update({new: t.pop(old)})


def test_names_of_others_are_read_and_every_tensor_is_accounted_for(target: LlamaTarget, tmp_path: Path) -> None:
    source = write(tmp_path / "d", random_weights(target, fc_norm=True))
    for i, name in enumerate(("low", "mid", "high")):
        edit_tensors(source, _rename(f"fc_norm.{i}.weight", f"aux_norm_{name}.weight"))
    edit_tensors(source, lambda t: t.update({"midlayer.self_attn.rotary_emb.inv_freq": torch.ones(2)}))
    stored = load_file(source / "model.safetensors").keys()
    done = send(source, "vllm", tmp_path / "out")
    assert done.tensors.keys() == stored
    assert done.tensors["aux_norm_mid.weight"] == "fc_norm.1.weight"
    assert done.tensors["midlayer.self_attn.rotary_emb.inv_freq"].startswith("not needed")


@pytest.mark.parametrize(
    ("tensor", "code"),
    [("midlayer.self_attn.q_norm.weight", "model.tensor-unknown"), ("mask_hidden", "model.tensor-unknown")],
)
def test_a_tensor_without_a_place_is_refused(target: LlamaTarget, tmp_path: Path, tensor: str, code: str) -> None:
    source = write(tmp_path / "d", random_weights(target))
    edit_tensors(source, lambda t: t.update({tensor: torch.ones(4)}))
    for to in LAYOUTS:
        assert code_of(source, to, tmp_path / "x") == code


@pytest.mark.parametrize(
    "entry",
    [
        {"residual_multiplier": 0.5},
        {"pretraining_tp": 2},
        {"layer_types": ["sliding_attention"]},
        {"eagle_config": {"use_aux_hidden_state": True, "eagle_aux_hidden_state_layer_ids": [1, 3, 4], "gamma": 4}},
    ],
    ids=str,
)
def test_an_entry_without_a_place_is_refused(target: LlamaTarget, tmp_path: Path, entry: dict[str, Any]) -> None:
    source = write(tmp_path / "d", random_weights(target))
    edit_config(source, **entry)
    assert code_of(source, "speculators", tmp_path / "x") == "export.no-place"
