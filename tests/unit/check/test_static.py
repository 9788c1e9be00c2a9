"""The static level: a healthy draft has no fault, and every planted one is named as exactly what it is."""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file

from eyas.artifacts import sha256_file
from eyas.check.catalogue import KINDS
from eyas.check.repair import repair
from eyas.check.static import StaticResult, TargetTensors, check_static
from eyas.contract import TargetSizes
from eyas.dialects.engines import Engine
from eyas.errors import EyasError
from eyas.testing import tiny_pair
from support.drafts import edit_config, edit_tensors
from support.planted import TINY, as_foreign, noise, tiny_copy
from support.static_faults import ALLOWED_TOO, LAYER, PLANTED, ids, ids_of, put, rename

SHIPPED = Path(__file__).parents[3] / "src/eyas/assets/drafts/smollm2-135m"
SGLANG, VLLM = Engine.parse("sglang"), Engine.parse("vllm")


def kinds(result: StaticResult, *weights: str) -> set[str]:
    found = {finding.kind for finding in result.findings if finding.weight in (weights or ("fault",))}
    assert {finding.kind for finding in result.findings} <= KINDS.keys()
    assert {finding.level for finding in result.findings} <= {"static"}
    assert json.dumps([finding.to_json() for finding in result.findings])
    return found


@pytest.mark.parametrize("name", PLANTED)
def test_a_planted_fault_is_named(name: str, tmp_path: Path) -> None:
    folder = tiny_copy(tmp_path / "draft", witness=True)
    edit, kind = PLANTED[name]
    edit(folder)
    result = check_static(folder, TINY)
    found = kinds(result)
    assert kind in found, [finding.said for finding in result.findings]
    assert found - {kind} <= ALLOWED_TOO.get(name, set()), [(f.kind, f.said) for f in result.faults]
    assert all(finding.said for finding in result.findings)


@pytest.mark.parametrize("target", [TINY, None])
def test_a_healthy_draft_has_no_fault(target: TargetSizes | None, tmp_path: Path) -> None:
    result = check_static(tiny_copy(tmp_path / "draft", witness=True), target)
    assert kinds(result, "fault", "warning") == set()
    assert (result.taps, result.strict) == ((2, 4, 5), None)
    assert result.config is not None
    assert result.config.taps == (2, 4, 5)
    assert result.contract is not None
    assert result.witness is not None
    assert [capture.taps for capture in result.captures] == [(2, 4, 5)] * 2
    assert result.tensors.keys() == load_file(tiny_pair()[1] / "model.safetensors").keys()


def test_the_packaged_drafts_have_no_fault() -> None:
    assert kinds(check_static(tiny_pair()[1]), "fault", "warning") == set()
    result = check_static(SHIPPED)
    assert kinds(result) == set()
    assert "weights.random" not in kinds(result, "note")


@pytest.mark.parametrize("part", ["q_proj", "k_proj", "up_proj", "lm_head", "fc.weight"])
def test_noise_in_a_draft_of_usual_size_is_found(part: str, tmp_path: Path) -> None:
    from eyas.check.tensors import is_noise, noise_figures

    stored = next(value for name, value in load_file(SHIPPED / "model.safetensors").items() if part in name)
    before, after = noise_figures(stored), noise_figures(noise(tuple(stored.shape)))
    assert before is not None
    assert not is_noise(before)
    assert before[0] > 50
    assert after is not None
    assert is_noise(after)


def test_a_draft_without_a_contract_is_judged_by_its_ids(tmp_path: Path) -> None:
    folder = as_foreign(tiny_copy(tmp_path / "draft"))
    assert kinds(check_static(folder, TINY)) == set()
    assert "engine.unknown" in kinds(check_static(folder), "note")
    ids([1, 3, 4], [1, 3, 4])(folder)
    result = check_static(folder, TINY)
    assert kinds(result) == {"config.dialect"}
    assert result.taps is None
    assert result.config is not None
    ids([1, 3, 4], None)(folder)
    assert "taps.default" in kinds(check_static(folder, TINY), "note")
    ids([0, 2, 5], None)(folder)
    result = check_static(folder, TINY)
    assert kinds(result) == {"taps.default"}
    assert result.taps == (1, 3, 6)
    ids(None, None)(folder)
    result = check_static(folder, TINY)
    assert kinds(result) == set()
    assert result.taps == (2, 4, 5)
    assert kinds(result, "warning") == {"taps.default"}
    edit_config(folder, aux_hidden_state_layer_ids=[1, 3, 6])
    assert kinds(check_static(folder, TINY)) == {"taps.default"}


def test_ids_fewer_than_fc_reads(tmp_path: Path) -> None:
    folder = as_foreign(tiny_copy(tmp_path / "draft"))
    ids([1, 3], [2, 4])(folder)
    assert kinds(check_static(folder, TINY)) == {"config.dialect"}


def test_the_targets_head_and_embedding(tmp_path: Path) -> None:
    folder = tiny_copy(tmp_path / "draft")
    embedding = load_file(tiny_pair()[0] / "model.safetensors")["model.embed_tokens.weight"]
    own = TargetTensors(embedding.float(), embedding.float())
    assert kinds(check_static(folder, TINY, own=own), "fault", "warning") == set()
    edit_tensors(folder, lambda t: t.update({"embed_tokens.weight": embedding.clone()}))
    result = check_static(folder, TINY, own=own)
    assert kinds(result) == set()
    assert not result.own_embedding
    edit_tensors(folder, lambda t: t.update({"embed_tokens.weight": embedding * 1.5}))
    assert kinds(check_static(folder, TINY, [VLLM], own)) == set()
    result = check_static(folder, TINY, own=own)
    assert kinds(result) == {"engine.limit"}
    assert result.own_embedding
    edit_tensors(folder, lambda t: t.update({"embed_tokens.weight": noise((512, 64))}))
    assert kinds(check_static(folder, TINY, [VLLM], own)) == {"weights.random"}
    edit_tensors(folder, lambda t: t.pop("embed_tokens.weight"))
    edit_tensors(folder, lambda t: t.update({"lm_head.weight": embedding[ids_of(t["d2t"])].clone()}))
    assert kinds(check_static(folder, TINY, own=own), "fault", "warning") == {"weights.replaced"}


def test_a_full_vocabulary_needs_no_map(tmp_path: Path) -> None:
    folder = tiny_copy(tmp_path / "draft", contract=False)
    head = load_file(tiny_pair()[0] / "model.safetensors")["model.embed_tokens.weight"]
    edit_config(folder, draft_vocab_size=512)
    edit_tensors(
        folder, lambda t: [t.pop("t2d"), t.update({"lm_head.weight": head * 1.5, "d2t": torch.zeros(512).long()})]
    )
    assert kinds(check_static(folder, TINY)) == {"engine.limit"}
    edit_tensors(folder, lambda t: t["d2t"].add_(1))
    assert kinds(check_static(folder, TINY)) == {"engine.limit", "map.wrong"}
    edit_tensors(folder, lambda t: t.pop("d2t"))
    assert kinds(check_static(folder, TINY)) == set()
    edit_tensors(folder, lambda t: t.pop("lm_head.weight"))
    edit_config(folder, draft_vocab_size=None)
    assert kinds(check_static(folder, TINY)) == set()


def test_old_engines_have_limits_of_their_own(tmp_path: Path) -> None:
    folder = tiny_copy(tmp_path / "draft")
    rename(LAYER, "layers.0.")(folder)
    assert kinds(check_static(folder, TINY, [SGLANG, VLLM])) == set()
    result = check_static(folder, TINY, [Engine.parse("sglang==0.5.6")])
    assert kinds(result) == {"engine.limit"}
    assert result.faults[0].data["limit"] == "layer-name"


def test_large_values_are_a_warning_where_nothing_asks_for_fp16(tmp_path: Path) -> None:
    folder = tiny_copy(tmp_path / "draft")
    put("lm_head.weight", lambda t: t * 1e6)(folder)
    result = check_static(folder, TINY)
    assert kinds(result) == set()
    assert kinds(result, "warning") == {"weights.nonfinite"}


def test_small_matrices_that_move_little_are_only_noted(tmp_path: Path) -> None:
    folder = tiny_copy(tmp_path / "draft")
    put(LAYER + "mlp.up_proj.weight", lambda t: noise(t.shape))(folder)
    result = check_static(folder, TINY)
    assert kinds(result) == set()
    assert "weights.random" in kinds(result, "note")


def test_what_is_absent_or_changed_is_only_noted(tmp_path: Path) -> None:
    folder = tiny_copy(tmp_path / "draft", contract=False)
    (folder / "training_args.bin").write_bytes(b"\x80\x04N.")
    edit_config(folder, extra=1)
    notes = kinds(check_static(folder, TINY), "note")
    assert {"contract.absent", "witness.absent", "file.changed", "file.hostile"} <= notes
    (folder / "manifest.json").write_text("{")
    assert "file.changed" in kinds(check_static(folder, TINY), "note")


def test_links_within_a_hub_cache_are_followed(tmp_path: Path) -> None:
    snapshot, blobs = tmp_path / "snapshots" / "abc", tmp_path / "blobs"
    tiny_copy(snapshot)
    blobs.mkdir()
    for path in list(snapshot.iterdir()):
        target = blobs / sha256_file(path)
        path.rename(target)
        path.symlink_to(target)
    assert kinds(check_static(snapshot, TINY)) == set()


def test_no_folder(tmp_path: Path) -> None:
    result = check_static(tmp_path / "nowhere", TINY)
    assert kinds(result) == {"file.missing"}
    assert result.strict is not None


def test_a_draft_that_eyas_cannot_compute_is_said_to_be_one(tmp_path: Path) -> None:
    folder = tiny_copy(tmp_path / "draft")
    edit_config(folder, architectures=["Eagle3DeepseekV2ForCausalLM"])
    result = check_static(folder, TINY)
    assert "engine.unknown" in kinds(result, "warning")
    assert result.config is None


def test_an_unknown_target_leaves_layer_ids_open(tmp_path: Path) -> None:
    folder = as_foreign(tiny_copy(tmp_path / "draft"))
    result = check_static(folder, TINY.model_copy(update={"architecture": "NewForCausalLM"}))
    assert kinds(result) == set()
    assert "engine.unknown" in kinds(result, "note")
    assert result.taps == (2, 4, 5)


ANY = st.none() | st.booleans() | st.integers(-9, 9) | st.text(max_size=3) | st.lists(st.integers(-3, 3), max_size=3)
VALUES = ANY | st.dictionaries(st.sampled_from(["rope_theta", "taps", "layer_ids", "rope_type"]), ANY, max_size=2)
KEYS = [*json.loads((tiny_pair()[1] / "config.json").read_text()), "aux_hidden_state_layer_ids", "use_aux_norm"]
SHAPES = st.lists(st.integers(0, 65), max_size=3)
DTYPES = st.sampled_from([torch.float32, torch.bfloat16, torch.int64, torch.bool, torch.uint8, torch.float64])


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    keys=st.dictionaries(st.sampled_from(KEYS), VALUES, max_size=2),
    name=st.sampled_from(sorted(load_file(tiny_pair()[1] / "model.safetensors"))),
    shape=SHAPES,
    dtype=DTYPES,
)
def test_nothing_is_raised_for_what_the_files_hold(
    keys: dict[str, object], name: str, shape: list[int], dtype: torch.dtype
) -> None:
    with TemporaryDirectory() as place:
        folder = tiny_copy(Path(place) / "draft")
        edit_config(folder, **keys)
        edit_tensors(folder, lambda t: t.update({name: torch.ones(shape, dtype=dtype)}))
        result = check_static(folder, TINY)
        kinds(result)
        assert (result.strict is None) <= (result.config is not None)
        with suppress(EyasError):
            repair(result)
