"""A draft goes from one layout to another and back, with the same bits, taps, norms and RoPE."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from eyas.dialects.checkpoint import captured_by
from eyas.dialects.engines import Engine
from eyas.draft.checkpoint import read_draft
from eyas.errors import EyasError
from eyas.export import Asked, Goal, export_draft
from eyas.models.llama import LlamaTarget
from support.drafts import (
    LLAMA,
    SGLANG,
    VLLM,
    VOCABULARY,
    edit_config,
    edit_tensors,
    random_weights,
    write,
    write_target,
)

from .conftest import LAYOUTS, code_of, send

OPTIONS: dict[str, tuple[dict[str, Any], tuple[str, ...]]] = {
    "reduced vocabulary": ({}, LAYOUTS),
    "full vocabulary": ({"draft_vocab_size": VOCABULARY}, LAYOUTS),
    "own embedding": ({"own_embedding": True}, ("vllm", "speculators")),
    "fc_norm": ({"fc_norm": True}, LAYOUTS),
    "norm_before_fc": ({"norm_before_fc": True}, LAYOUTS),
    "norm_before_residual": ({"norm_before_residual": True}, ("vllm", "speculators")),
    "EAGLE-3.1": ({"norm_output": True, "fc_norm": True}, LAYOUTS),
    "several layers": ({"num_layers": 3, "layer_dialect": "vllm"}, ("vllm", "speculators")),
    "several layers of SGLang": ({"num_layers": 3, "layer_dialect": "sglang"}, ("sglang",)),
    "attention bias": ({"attention_bias": True}, ("vllm", "speculators")),
    "fc bias": ({"fc_bias": True}, ("sglang",)),
    "linear RoPE": ({"rope_theta": 500.0, "rope_scaling": {"rope_type": "linear", "factor": 2.0}}, LAYOUTS),
    "Llama-3 RoPE": (
        {
            "rope_scaling": {
                "rope_type": "llama3",
                "factor": 8.0,
                "low_freq_factor": 1.0,
                "high_freq_factor": 4.0,
                "original_max_position_embeddings": 32,
            }
        },
        LAYOUTS,
    ),
    "two taps": ({"taps": (3, 8)}, ("vllm", "speculators")),
    "other width": ({"own_embedding": True, "hidden_size": 12, "head_dim": 6, "num_heads": 2, "num_kv_heads": 1},
                    ("sglang", "vllm")),
}  # fmt: skip


def bits(folder: Path) -> dict[str, tuple[torch.dtype, bytes]]:
    tensors = load_file(folder / "model.safetensors")
    return {
        name: (t.dtype, t.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()) for name, t in tensors.items()
    }


ROUTES = [(option, there) for option, (_, layouts) in OPTIONS.items() for there in layouts]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
@pytest.mark.parametrize(("option", "there"), ROUTES)
def test_there_and_back_are_the_same_bits(
    target: LlamaTarget, tmp_path: Path, option: str, there: str, dtype: torch.dtype
) -> None:
    options, layouts = OPTIONS[option]
    model = random_weights(target, **options)
    engine = SGLANG if layouts[0] == "sglang" else VLLM
    first = write(tmp_path / "first", model, engine, dtype=dtype)
    went = send(first, there, tmp_path / "there")
    back = send(tmp_path / "there", layouts[0], tmp_path / "back")
    assert bits(tmp_path / "back") == bits(first)
    assert went.taps == back.taps == model.config.taps
    for folder in ("there", "back"):
        again = read_draft(tmp_path / folder, target)
        assert again.config == model.config
        for name, value in model.state_dict().items():
            same = (
                value
                if name in ("d2t",) or (name == "embed_tokens" and not model.config.own_embedding)
                else value.to(dtype)
            )
            assert torch.equal(again.state_dict()[name].to(same.dtype), same), name


@pytest.mark.parametrize(
    ("option", "there"),
    [(option, there) for option, (_, layouts) in OPTIONS.items() for there in LAYOUTS if there not in layouts],
)
def test_what_a_layout_cannot_hold_is_refused(target: LlamaTarget, tmp_path: Path, option: str, there: str) -> None:
    options, layouts = OPTIONS[option]
    source = write(tmp_path / "d", random_weights(target, **options), SGLANG if layouts[0] == "sglang" else VLLM)
    folder = write_target(tmp_path / "target", target)
    assert code_of(source, there, tmp_path / "out", target=folder) == "draft.dialect"


def test_the_speculators_layout_is_written_as_its_package_names_things(target: LlamaTarget, tmp_path: Path) -> None:
    source = write(tmp_path / "d", random_weights(target, fc_norm=True))
    done = send(source, "speculators", tmp_path / "s", target_name="some/target", num_steps=5)
    document = json.loads((tmp_path / "s" / "config.json").read_text())
    layer = document["transformer_layer_config"]
    assert document["speculators_model_type"] == "eagle3"
    assert document["speculators_config"] == {
        "algorithm": "eagle3",
        "proposal_methods": [{"proposal_type": "greedy", "speculative_tokens": 5}],
        "default_proposal_method": "greedy",
        "verifier": {"name_or_path": "some/target", "architectures": [LLAMA]},
    }
    assert document["eagle_aux_hidden_state_layer_ids"] == [2, 4, 5]
    assert (document["fc_norm"], document["norm_before_residual"], document["draft_vocab_size"]) == (True, False, 10)
    assert (layer["model_type"], layer["hidden_size"], layer["num_hidden_layers"]) == ("llama", 16, 1)
    assert (layer["vocab_size"], layer["head_dim"], layer["rope_theta"]) == (VOCABULARY, 4, 10000.0)
    assert not {"hidden_size", "model_type", "num_aux_hidden_states"} & document.keys()
    names = load_file(tmp_path / "s" / "model.safetensors").keys()
    assert {"layers.0.self_attn.q_proj.weight", "layers.0.hidden_norm.weight", "fc_norm.2.weight", "t2d"} <= names
    assert not any(name.startswith("midlayer.") for name in names)
    assert done.tensors["midlayer.mlp.up_proj.weight"] == "layers.0.mlp.up_proj.weight"
    assert done.served_by == ("vllm 0.32.0",)


def test_a_file_is_written_for_both_engines_where_both_can_serve_it(target: LlamaTarget, tmp_path: Path) -> None:
    source = write(tmp_path / "d", random_weights(target))
    done = send(source, "speculators", tmp_path / "s")
    for to in ("sglang", "vllm"):
        done = send(tmp_path / "s", to, tmp_path / to)
        assert {text.split()[0] for text in done.served_by} == {"sglang", "vllm"}
        document = json.loads((tmp_path / to / "config.json").read_text())
        assert document["eagle_config"]["eagle_aux_hidden_state_layer_ids"] == [1, 3, 4]
        assert document["eagle_aux_hidden_state_layer_ids"] == [2, 4, 5]


@pytest.mark.parametrize(
    ("version", "taps", "ids"),
    [("0.5.12", [3, 30, 58], [2, 29, 57]), ("0.5.13", [3, 30, 58], [3, 30, 58]), ("0.5.13", [2, 30, 58], [1, 29, 57])],
)
def test_layer_ids_follow_the_engines_version(
    target: LlamaTarget, tmp_path: Path, version: str, taps: list[int], ids: list[int]
) -> None:
    source = write(tmp_path / "d", random_weights(target))
    edit_config(source, remove=("eyas", "eagle_config"), eagle_aux_hidden_state_layer_ids=taps)
    kimi = write_target(tmp_path / "kimi", target, weights=False)
    text = {"num_hidden_layers": 61, "hidden_size": 16, "vocab_size": VOCABULARY}
    (kimi / "config.json").write_text(
        json.dumps({"architectures": ["KimiK25ForConditionalGeneration"], "text_config": text})
    )
    export_draft(source, Goal.parse("sglang", version), tmp_path / "out", Asked(target=kimi))
    document = json.loads((tmp_path / "out" / "config.json").read_text())
    assert document["eagle_config"]["eagle_aux_hidden_state_layer_ids"] == ids
    engine = Engine.parse(f"sglang=={version}")
    assert captured_by(document, 61, engine, "KimiK25ForConditionalGeneration") == tuple(taps)


def test_an_engine_that_is_too_old_is_refused(target: LlamaTarget, tmp_path: Path) -> None:
    source = write(tmp_path / "d", random_weights(target, fc_norm=True))
    with pytest.raises(EyasError) as caught:
        export_draft(source, Goal.parse("vllm", "0.18.0"), tmp_path / "out")
    assert caught.value.code == "draft.dialect"


def test_a_head_of_the_targets_stays_the_targets(target: LlamaTarget, tmp_path: Path) -> None:
    source = write(tmp_path / "d", random_weights(target, draft_vocab_size=VOCABULARY))
    edit_tensors(source, lambda t: t.pop("lm_head.weight"))
    edit_config(source, draft_vocab_size=None)
    send(source, "vllm", tmp_path / "out")
    document = json.loads((tmp_path / "out" / "config.json").read_text())
    assert document["draft_vocab_size"] is None
    assert torch.equal(read_draft(tmp_path / "out", target).head.weight, target.head())
    assert code_of(source, "speculators", tmp_path / "x") == "draft.dialect"


def test_another_target_than_the_contracts_is_refused(target: LlamaTarget, tmp_path: Path) -> None:
    source = write(tmp_path / "d", random_weights(target))
    folder = write_target(tmp_path / "t", target)
    edit_config(folder, num_hidden_layers=9)
    assert code_of(source, "vllm", tmp_path / "x", target=folder) == "draft.target-mismatch"
    edit_config(folder, num_hidden_layers=None)
    assert code_of(source, "vllm", tmp_path / "x", target=folder) == "model.config"


def test_a_folder_is_not_its_own_goal(target: LlamaTarget, tmp_path: Path) -> None:
    source = write(tmp_path / "d", random_weights(target))
    with pytest.raises(EyasError) as caught:
        send(source, "vllm", tmp_path / "d" / ".." / "d")
    assert caught.value.code == "flags.contradiction"
    with pytest.raises(EyasError) as caught:
        send(source, "vllm", tmp_path)
    assert caught.value.code == "flags.contradiction"
    with pytest.raises(EyasError) as caught:
        Goal.parse("tensorrt")
    assert caught.value.code == "flags.range"


def test_only_a_draft_is_replaced(target: LlamaTarget, tmp_path: Path) -> None:
    source = write(tmp_path / "d", random_weights(target))
    for name in ("empty", "draft"):
        (tmp_path / name).mkdir()
    write(tmp_path / "draft", random_weights(target, norm_output=True))
    for name in ("new", "empty", "draft"):
        send(source, "vllm", tmp_path / name)
        assert not read_draft(tmp_path / name, target).config.norm_output
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "diary.txt").write_text("mine")
    for place in (tmp_path / "home", tmp_path / "home" / "diary.txt"):
        with pytest.raises(EyasError) as caught:
            send(source, "vllm", place)
        assert caught.value.code == "artifact.not-writable"
    assert (tmp_path / "home" / "diary.txt").read_text() == "mine"


def test_what_does_not_read_back_is_not_shown(
    target: LlamaTarget, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A writer that loses a bit, a writer that loses a flag: planted, found, and no folder is left."""
    from eyas.export import convert

    source, right = write(tmp_path / "d", random_weights(target)), convert.write_stored

    def lossy(folder: Path, document: dict[str, Any], tensors: dict[str, Tensor], files: dict[str, bytes]) -> None:
        fc = tensors["fc.weight"].clone()
        fc[0, 0] *= -1
        right(folder, document, {**tensors, "fc.weight": fc}, files)

    def forgetful(folder: Path, document: dict[str, Any], tensors: dict[str, Tensor], files: dict[str, bytes]) -> None:
        right(folder, {**document, "norm_output": True}, tensors, files)

    def shifted(folder: Path, document: dict[str, Any], tensors: dict[str, Tensor], files: dict[str, bytes]) -> None:
        ids = {"eagle_aux_hidden_state_layer_ids": [1, 3, 4], "eagle_config": {}, "eyas": {"taps": [1, 3, 4]}}
        right(folder, {**document, **ids}, tensors, files)

    for writer in (lossy, forgetful, shifted):
        monkeypatch.setattr(convert, "write_stored", writer)
        assert code_of(source, "vllm", tmp_path / "out") == "export.not-equal"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["d"]
