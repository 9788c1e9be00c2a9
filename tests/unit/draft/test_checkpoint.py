"""Checkpoints: what is written is what SGLang and vLLM read, and what is read is what was trained."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoConfig

from eyas.dialects.checkpoint import captured_by
from eyas.dialects.engines import Engine
from eyas.draft.checkpoint import load_draft, read_draft
from eyas.draft.stored import write_stored
from eyas.errors import EyasError
from eyas.kernels import Part, Rows
from eyas.models.llama import LlamaTarget
from eyas.models.weights.safetensors import INDEX, SINGLE, open_checkpoint

from .conftest import KEPT, LLAMA, SGLANG, VLLM, VOCABULARY, MakeDraft, code_of, edit_config, edit_tensors, write

ROUND_TRIPS: list[tuple[dict[str, Any], tuple[Engine, ...]]] = [
    ({}, ()),
    ({"norm_output": True, "fc_norm": True}, ()),
    ({"norm_before_fc": True}, ()),
    ({"draft_vocab_size": VOCABULARY}, ()),
    ({"rope_theta": 500.0, "rope_scaling": {"rope_type": "linear", "factor": 2.0}}, ()),
    ({"norm_before_residual": True}, (VLLM,)),
    ({"attention_bias": True}, (VLLM,)),
    ({"fc_bias": True}, (SGLANG,)),
    ({"num_layers": 2, "layer_dialect": "sglang"}, (SGLANG,)),
    ({"num_layers": 2, "layer_dialect": "vllm"}, (VLLM,)),
    ({"own_embedding": True}, (VLLM,)),
    ({"taps": (0, 8)}, (VLLM,)),
    ({"own_embedding": True, "hidden_size": 12, "head_dim": 6, "num_heads": 2, "num_kv_heads": 1}, ()),
]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
@pytest.mark.parametrize(("options", "engines"), ROUND_TRIPS, ids=lambda x: "-".join(map(str, x)) or "plain")
def test_a_round_trip_gives_the_same_config_and_bits(
    make_draft: MakeDraft,
    target: LlamaTarget,
    tmp_path: Path,
    options: dict[str, Any],
    engines: tuple[Engine, ...],
    dtype: torch.dtype,
) -> None:
    model = make_draft(**options)
    again = read_draft(write(tmp_path / "d", model, *engines, dtype=dtype), target)
    assert again.config == model.config
    ours, theirs = model.state_dict(), again.state_dict()
    assert ours.keys() == theirs.keys()
    for name, value in ours.items():
        rounds = value.is_floating_point() and not (name == "embed_tokens" and not model.config.own_embedding)
        assert torch.equal(theirs[name], value.to(dtype).float() if rounds else value), name


def test_the_files_are_what_both_engines_read(make_draft: MakeDraft, tmp_path: Path) -> None:
    folder = write(tmp_path / "d", make_draft(fc_norm=True), dtype=torch.bfloat16)
    tensors = load_file(folder / "model.safetensors")
    attention = {f"midlayer.self_attn.{x}_proj.weight" for x in "qkvo"}
    mlp = {f"midlayer.mlp.{x}_proj.weight" for x in ("gate", "up", "down")}
    norms = {f"midlayer.{x}.weight" for x in ("input_layernorm", "hidden_norm", "post_attention_layernorm")}
    rest = {"fc.weight", "norm.weight", "lm_head.weight", "d2t", "t2d", *(f"fc_norm.{i}.weight" for i in range(3))}
    assert tensors.keys() == attention | mlp | norms | rest
    assert tensors["midlayer.self_attn.k_proj.weight"].shape == (8, 32)
    assert tensors["fc.weight"].dtype == torch.bfloat16
    assert tensors["d2t"].dtype == torch.int64
    assert (tensors["d2t"] + torch.arange(10)).tolist() == list(KEPT)
    assert tensors["t2d"].nonzero()[:, 0].tolist() == list(KEPT)
    document = json.loads((folder / "config.json").read_text())
    assert document["architectures"] == ["LlamaForCausalLMEagle3"]
    assert document["eagle_config"]["eagle_aux_hidden_state_layer_ids"] == [1, 3, 4]
    assert document["eagle_aux_hidden_state_layer_ids"] == [2, 4, 5]
    for engine in (SGLANG, VLLM):
        assert captured_by(document, 8, engine, LLAMA) == (2, 4, 5)
    assert {document[key] for key in ("tie_word_embeddings", "mlp_bias", "norm_output")} == {False}
    assert document["num_aux_hidden_states"] == 3


def test_transformers_reads_the_rope_that_was_trained(make_draft: MakeDraft, tmp_path: Path) -> None:
    scaling = {"rope_type": "linear", "factor": 2.0}
    folder = write(tmp_path / "d", make_draft(rope_theta=500.0, rope_scaling=scaling))
    assert AutoConfig.from_pretrained(folder).rope_parameters == {"rope_theta": 500.0, **scaling}
    document = json.loads((folder / "config.json").read_text())
    assert (document["rope_theta"], document["rope_scaling"]) == (500.0, scaling)


def test_a_draft_that_an_engine_would_change_is_not_written_for_it(make_draft: MakeDraft, tmp_path: Path) -> None:
    for options in ({"norm_before_residual": True}, {"own_embedding": True}, {"num_layers": 2}, {"taps": (5, 2, 4)}):
        with pytest.raises(EyasError) as caught:
            write(tmp_path / "d", make_draft(**options))
        assert caught.value.code == "draft.dialect"
    assert not list(tmp_path.iterdir())


def test_weights_that_overflow_are_not_written(make_draft: MakeDraft, tmp_path: Path) -> None:
    model = make_draft()
    with torch.no_grad():
        model.fc.weight[0, 0] = 1e5
    with pytest.raises(EyasError, match=r"fc\.weight holds NaN or infinity as float16") as caught:
        write(tmp_path / "d", model, dtype=torch.float16)
    assert caught.value.code == "model.nonfinite"


def test_the_head_and_embedding_of_the_target_are_used_only_where_the_file_says_so(
    make_draft: MakeDraft, target: LlamaTarget, tmp_path: Path
) -> None:
    folder = write(tmp_path / "d", make_draft(draft_vocab_size=VOCABULARY))
    edit_tensors(folder, lambda t: t.pop("lm_head.weight"))
    assert code_of(folder, target) == "model.tensor-missing"
    edit_config(folder, draft_vocab_size=None)
    model = read_draft(folder, target)
    assert torch.equal(model.head.weight, target.head())
    assert any("the head is the target's" in note for note in model.notes)
    assert any("the embedding is the target's" in note for note in model.notes)


def test_a_stored_copy_of_the_targets_embedding_is_shared(
    make_draft: MakeDraft, target: LlamaTarget, tmp_path: Path
) -> None:
    folder = write(tmp_path / "d", make_draft())
    edit_tensors(folder, lambda t: t.update({"embed_tokens.weight": target.embedding().clone()}))
    assert not read_draft(folder, target).config.own_embedding
    edit_tensors(folder, lambda t: t.update({"embed_tokens.weight": t["embed_tokens.weight"] + 1}))
    model = read_draft(folder, target)
    assert model.config.own_embedding
    assert torch.equal(model.embed_tokens, target.embedding() + 1)


@pytest.mark.parametrize("prefix", ["layers.0.", "model.layers.0.", "model.midlayer."])
def test_other_names_of_the_first_layer_are_read(
    make_draft: MakeDraft, target: LlamaTarget, tmp_path: Path, prefix: str
) -> None:
    model = make_draft()
    folder = write(tmp_path / "d", model)
    tensors = load_file(folder / "model.safetensors")
    save_file({k.replace("midlayer.", prefix): v for k, v in tensors.items()}, folder / "model.safetensors")
    assert torch.equal(read_draft(folder, target).layers[0].qkv.weight, model.layers[0].qkv.weight)


def test_several_layers_tell_their_dialect_by_their_norms(
    make_draft: MakeDraft, target: LlamaTarget, tmp_path: Path
) -> None:
    for dialect, engine in (("sglang", SGLANG), ("vllm", VLLM)):
        folder = write(tmp_path / dialect, make_draft(num_layers=2, layer_dialect=dialect), engine)
        edit_config(folder, remove=("eyas",))
        assert read_draft(folder, target).config.layer_dialect == dialect
    ones = {"layers.1.hidden_norm.weight": torch.ones(16)}
    edit_tensors(folder, lambda t: t.update(ones))
    assert code_of(folder, target) == "draft.dialect"


def test_the_taps_are_read_from_either_engines_keys(make_draft: MakeDraft, target: LlamaTarget, tmp_path: Path) -> None:
    top, nested = "eagle_aux_hidden_state_layer_ids", "eagle_config"
    for removed in (("eyas",), ("eyas", top), ("eyas", nested)):
        folder = write(tmp_path / "d", make_draft(taps=(1, 3, 6)))
        edit_config(folder, remove=removed)
        assert read_draft(folder, target).config.taps == (1, 3, 6)
    edit_config(folder, remove=(top, nested))
    model = read_draft(folder, target)
    assert model.config.taps == (2, 4, 5)
    assert any("default" in note for note in model.notes)


@pytest.mark.parametrize("backend", ["eager", "onednn"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_loaded_draft_serves(
    make_draft: MakeDraft, target: LlamaTarget, tmp_path: Path, backend: str, dtype: torch.dtype
) -> None:
    folder = write(tmp_path / "d", make_draft(), dtype=dtype)
    draft = load_draft(folder, target, backend, dtype)
    assert any("contract" in note for note in draft.notes)
    rows = Rows.build([Part([1, 2], range(2), range(-1, 1), range(2), torch.empty(0, dtype=torch.int64))])
    features = torch.ones(2, 48, dtype=draft.norm.dtype)
    expected = read_draft(folder, target)
    with torch.no_grad():
        ours = draft(rows, draft.combine(features), draft.new_cache(2)).normed.float()
        theirs = expected(rows, expected.combine(features.float()), expected.new_cache(2)).normed
    torch.testing.assert_close(ours, theirs, rtol=0.1, atol=0.1 if dtype == torch.bfloat16 else 1e-4)


def test_rotary_angles_reach_as_far_as_the_target(make_draft: MakeDraft, target: LlamaTarget, tmp_path: Path) -> None:
    draft = read_draft(write(tmp_path / "d", make_draft(max_position_embeddings=64)), target)
    assert draft.config.max_position_embeddings == 64
    assert len(draft.rotary.cos) == target.max_positions == 128


def test_an_index_keeps_engines_from_loading_the_witness(tmp_path: Path) -> None:
    """vLLM loads every .safetensors in a folder without one, and fails at the witness's first tensor."""
    tensors, alone, beside = {"fc.weight": torch.ones(2, 3), "d2t": torch.arange(2)}, tmp_path / "a", tmp_path / "b"
    for folder, files in ((alone, {"contract.json": b"{}"}), (beside, {"witness.safetensors": b""})):
        folder.mkdir()
        write_stored(folder, {}, tensors, files)
    assert not (alone / INDEX).exists()
    index = json.loads((beside / INDEX).read_text())
    assert index["weight_map"] == {"fc.weight": SINGLE, "d2t": SINGLE}
    assert index["metadata"]["total_size"] == 2 * 3 * 4 + 2 * 8
    assert open_checkpoint(beside).infos.keys() == tensors.keys()
