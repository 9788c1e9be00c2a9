"""Repair: the fault is planted, found and mended, and the healthy draft is there again, bit by bit."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from eyas.artifacts import read_manifest
from eyas.check.mend import Known
from eyas.check.readings import Rope
from eyas.check.repair import Corrected, repair, servable, write_repaired
from eyas.check.static import StaticResult, TargetTensors, check_static
from eyas.contract import TargetSizes
from eyas.dialects.engines import Engine
from eyas.errors import EyasError
from eyas.testing import tiny_pair
from support.drafts import edit_config, edit_tensors
from support.planted import TINY, as_foreign, noise, tiny_contract, tiny_copy

SGLANG, VLLM = Engine.parse("sglang"), Engine.parse("vllm")
HEALTHY = load_file(tiny_pair()[1] / "model.safetensors")
EMBEDDING = load_file(tiny_pair()[0] / "model.safetensors")["model.embed_tokens.weight"]


def code_of(action: Any) -> str:
    with pytest.raises(EyasError) as caught:
        action()
    return caught.value.code


def mended(folder: Path, known: Known | None = None, own: TargetTensors | None = None) -> StaticResult:
    """Repaired, written, and checked again without a fault."""
    corrected = repair(check_static(folder, TINY, own=own), known)
    assert corrected.left == ()
    out = write_repaired(folder, folder.parent / "out", corrected)
    result = check_static(out, TINY, own=own)
    assert result.strict is None
    assert [finding.said for finding in result.findings if finding.weight != "note"] == []
    return result


def equal(tensors: Any) -> bool:
    same = {name: name in tensors and torch.equal(tensors[name], value) for name, value in HEALTHY.items()}
    return all(same.values()) and tensors.keys() == same.keys()


def same_config(document: Any) -> bool:
    before = json.loads((tiny_pair()[1] / "config.json").read_text())
    return {**document, "eyas": None} == {**before, "eyas": None}


def rename(tensors: dict[str, Tensor], old: str, new: str) -> None:
    for name in [name for name in tensors if name.startswith(old)]:
        tensors[new + name.removeprefix(old)] = tensors.pop(name)


def absolute(tensors: dict[str, Tensor]) -> None:
    tensors["d2t"] = tensors["d2t"] + torch.arange(len(tensors["d2t"]))


TENSORS = {
    "healthy": lambda t: None,
    "layers.0": lambda t: rename(t, "midlayer.", "layers.0."),
    "prefix": lambda t: rename(t, "midlayer.", "model.layers.0."),
    "unknown names": lambda t: rename(t, "midlayer.", "decoder.block."),
    "head by another name": lambda t: rename(t, "lm_head", "output"),
    "absolute map": absolute,
    "absolute map alone": lambda t: (absolute(t), t.pop("t2d")),
    "no map": lambda t: t.pop("d2t"),
    "map of zeros": lambda t: t["d2t"].zero_(),
    "no mask": lambda t: t.pop("t2d"),
    "a copy of the embedding": lambda t: t.update({"embed_tokens.weight": EMBEDDING.clone()}),
}
CONFIG: dict[str, dict[str, Any]] = {
    "tied": {"tie_word_embeddings": True},
    "no head size": {"draft_vocab_size": None},
    "null width": {"target_hidden_size": None},
    "RoPE contradicts": {"rope_theta": 50000.0},
    "RoPE other": {"rope_theta": 5e5, "rope_parameters": {"rope_theta": 5e5, "rope_type": "default"}},
    "ids of the other engine": {"eagle_aux_hidden_state_layer_ids": [1, 3, 4]},
    "no ids": {"eagle_aux_hidden_state_layer_ids": None, "eagle_config": {"use_aux_hidden_state": True}},
    "aux off": {"eagle_config": {"use_aux_hidden_state": False, "eagle_aux_hidden_state_layer_ids": [1, 3, 4]}},
    "norm flag": {"norm_output": True},
    "architecture": {"architectures": ["Eagle3LlamaForCausalLM"]},
    "type": {"model_type": "deepseek_v3"},
}


@pytest.mark.parametrize("name", TENSORS)
def test_tensors_come_back_bit_by_bit(name: str, tmp_path: Path) -> None:
    folder = tiny_copy(tmp_path / "draft")
    edit_tensors(folder, TENSORS[name])
    result = mended(folder)
    assert equal(result.tensors)
    assert same_config(result.document)


@pytest.mark.parametrize("name", CONFIG)
def test_the_config_comes_back_key_by_key(name: str, tmp_path: Path) -> None:
    folder = tiny_copy(tmp_path / "draft")
    edit_config(folder, **CONFIG[name])
    result = mended(folder)
    assert equal(result.tensors)
    assert same_config(result.document)


def test_a_foreign_draft_gets_the_taps_that_were_found(tmp_path: Path) -> None:
    folder = as_foreign(tiny_copy(tmp_path / "draft"))
    edit_config(folder, eagle_aux_hidden_state_layer_ids=[3, 5, 6], eagle_config={"layer_ids": [1, 1]}, comment="kept")
    assert code_of(lambda: repair(check_static(folder, TINY, [SGLANG]), Known(taps=(2, 4)))) == "draft.config"
    edit_config(folder, eagle_config=None)
    result = mended(folder, Known(taps=(2, 4, 5)))
    assert result.taps == (2, 4, 5)
    assert equal(result.tensors)
    assert result.document["comment"] == "kept"


def test_unordered_taps_become_rising_with_their_columns(tmp_path: Path) -> None:
    folder = tiny_copy(tmp_path / "draft")
    order = (5, 2, 4)
    (folder / "contract.json").write_text(tiny_contract(taps=order).to_json())
    own = json.loads((folder / "config.json").read_text())["eyas"]
    edit_config(folder, eyas=own | {"taps": list(order)})
    blocks = dict(zip((2, 4, 5), HEALTHY["fc.weight"].split(64, 1), strict=True))
    edit_tensors(folder, lambda t: t.update({"fc.weight": torch.cat([blocks[tap] for tap in order], 1)}))
    assert equal(mended(folder).tensors)


def test_norms_per_tap_go_along_with_their_tap(tmp_path: Path) -> None:
    folder = as_foreign(tiny_copy(tmp_path / "draft"))
    edit_config(folder, fc_norm=True)
    edit_tensors(folder, lambda t: t.update({f"fc_norm.{i}.weight": torch.full((64,), i + 1.5) for i in range(3)}))
    corrected = repair(check_static(folder, TINY), Known(taps=(5, 2, 4)))
    assert [float(corrected.tensors[f"fc_norm.{i}.weight"][0]) for i in range(3)] == [2.5, 3.5, 1.5]
    assert corrected.config.taps == (2, 4, 5)


def test_the_base_that_is_given_is_written(tmp_path: Path) -> None:
    folder = as_foreign(tiny_copy(tmp_path / "draft"))
    edit_config(folder, rope_theta=50000.0)
    assert "config.rope" in repair(check_static(folder, TINY)).left[0]
    assert same_config(mended(folder, Known(rope=Rope(10000.0))).document)


def test_flags_that_are_given_are_set(tmp_path: Path) -> None:
    folder = as_foreign(tiny_copy(tmp_path / "draft"))
    assert mended(folder, Known(flags={"norm_output": True})).document["norm_output"] is True
    for flags in ({"fc_norm": True}, {"other": True}):
        assert code_of(lambda flags=flags: repair(check_static(folder, TINY), Known(flags=flags))) == "draft.config"


def test_a_map_that_is_given_is_written(tmp_path: Path) -> None:
    folder = tiny_copy(tmp_path / "draft")
    edit_tensors(folder, lambda t: [t.pop("d2t"), t.pop("t2d")])
    left = repair(check_static(folder, TINY))
    assert left.left == ("d2t is not known",)
    assert code_of(lambda: write_repaired(folder, tmp_path / "o", left)) == "draft.vocab-map"
    assert equal(mended(folder, Known(offsets=HEALTHY["d2t"])).tensors)


def test_a_reduced_head_is_completed_only_if_that_is_said(tmp_path: Path) -> None:
    folder = tiny_copy(tmp_path / "draft")
    edit_tensors(folder, lambda t: t.pop("lm_head.weight"))
    left = repair(check_static(folder, TINY), Known(head=EMBEDDING))
    assert left.left == ("lm_head.weight is missing",)
    assert code_of(lambda: write_repaired(folder, tmp_path / "o", left)) == "model.tensor-missing"
    corrected = repair(check_static(folder, TINY), Known(head=EMBEDDING, head_is_targets=True))
    ids = HEALTHY["d2t"] + torch.arange(192)
    assert torch.equal(corrected.tensors["lm_head.weight"], EMBEDDING[ids])
    edit_tensors(folder, lambda t: [t.pop("d2t"), t.pop("t2d")])
    blind = Known(head=EMBEDDING, head_is_targets=True)
    assert code_of(lambda: repair(check_static(folder, TINY), blind)) == "draft.vocab-map"


def test_a_full_head_is_completed_from_the_target(tmp_path: Path) -> None:
    folder = tiny_copy(tmp_path / "draft", contract=False)
    edit_config(folder, draft_vocab_size=512)
    edit_tensors(folder, lambda t: [t.pop(name) for name in ("lm_head.weight", "t2d")])
    corrected = repair(check_static(folder, TINY), Known(head=EMBEDDING))
    assert torch.equal(corrected.tensors["lm_head.weight"], EMBEDDING)
    assert "d2t" not in corrected.tensors
    assert corrected.left == ()


def test_what_cannot_be_mended_is_left_and_said(tmp_path: Path) -> None:
    folder = tiny_copy(tmp_path / "draft")
    edit_tensors(folder, lambda t: t.update({"fc.weight": noise((64, 192))}))
    assert repair(check_static(folder, TINY)).left[0].startswith("weights.random")
    (folder / "config.json").unlink()
    assert code_of(lambda: repair(check_static(folder, TINY))) == "draft.config"


def test_taps_that_nothing_names_are_not_guessed(tmp_path: Path) -> None:
    folder = as_foreign(tiny_copy(tmp_path / "draft"))
    edit_config(folder, eagle_aux_hidden_state_layer_ids=[3, 5, 6])
    assert code_of(lambda: repair(check_static(folder, TINY))) == "draft.config"


def test_tap_0_is_served_by_the_engine_that_can(tmp_path: Path) -> None:
    folder = as_foreign(tiny_copy(tmp_path / "draft"))
    result = check_static(folder, TINY)
    corrected = repair(result, Known(taps=(0, 3, 5)))
    assert [(str(one.engine), one.serves) for one in corrected.servable] == [
        ("sglang 0.5.23", False),
        ("vllm 0.32.0", True),
    ]
    assert "1 … 7" in corrected.servable[0].why
    assert corrected.document["eagle_aux_hidden_state_layer_ids"] == [0, 3, 5]
    assert "eagle_config" not in corrected.document
    assert code_of(lambda: repair(result, Known(taps=(0, 3, 5)), [SGLANG])) == "draft.dialect"


def test_servable_by_engine_target_and_option(tmp_path: Path) -> None:
    config = check_static(tiny_copy(tmp_path / "draft"), TINY).config
    assert config is not None
    assert [one.serves for one in servable(config, TINY)] == [True, True]
    residual = config.model_copy(update={"norm_before_residual": True})
    assert [one.serves for one in servable(residual, TINY)] == [False, True]
    deepseek = TargetSizes(**{**TINY.model_dump(), "architecture": "DeepseekV3ForCausalLM"})
    first = config.model_copy(update={"taps": (0, 4, 5)})
    assert [one.serves for one in servable(first, deepseek)] == [False, False]
    assert [one.serves for one in servable(config, deepseek, [Engine.parse("sglang==0.5.2")])] == [False]


def repaired(folder: Path) -> Corrected:
    return repair(check_static(folder, TINY))


def test_contract_and_witness_go_along_where_they_belong(tmp_path: Path) -> None:
    folder = tiny_copy(tmp_path / "draft", witness=True)
    (folder / "README.md").write_text("card")
    edit_config(folder, tie_word_embeddings=True)
    out = write_repaired(folder, tmp_path / "out", repaired(folder), tiny_contract())
    result = check_static(out, TINY)
    assert result.contract == tiny_contract()
    assert result.witness is not None
    assert (out / "README.md").read_text() == "card"
    assert "config.tied" in read_manifest(out).provenance["repaired"][0]
    other = tiny_contract(longest_trained_position=7)
    write_repaired(folder, out, repaired(folder), other)
    assert not (out / "witness.safetensors").exists()
    wrong = tiny_contract(taps=[1, 4, 5])
    assert code_of(lambda: write_repaired(folder, out, repaired(folder), wrong)) == "contract.mismatch"
    assert check_static(out, TINY).contract == other


def test_only_a_draft_is_replaced(tmp_path: Path) -> None:
    folder = tiny_copy(tmp_path / "draft")
    corrected = repaired(folder)
    assert code_of(lambda: write_repaired(folder, folder, corrected)) == "flags.contradiction"
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("x")
    assert code_of(lambda: write_repaired(folder, tmp_path / "mine", corrected)) == "artifact.not-writable"


def test_nothing_is_changed_in_place(tmp_path: Path) -> None:
    folder = tiny_copy(tmp_path / "draft")
    edit_tensors(folder, absolute)
    result = check_static(folder, TINY)
    before = {name: value.clone() for name, value in result.tensors.items()}
    repair(result)
    assert all(torch.equal(value, before[name]) for name, value in result.tensors.items())
