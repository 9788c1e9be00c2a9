"""A draft beside the target that it was trained for, where the served one was made from it."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from eyas.check.meant import meant_parts, model_of
from eyas.check.measure import Rig
from eyas.check.mend import Parts, with_rotation
from eyas.check.original import against_original, refuse_other_shape, rotation_between
from eyas.check.run import CheckRequest, run_check
from eyas.check.static import check_static
from eyas.check.tensors import expected_shapes
from eyas.contract import Contract
from eyas.draft.checkpoint import target_shape
from eyas.errors import EyasError
from eyas.models.reading import read_text
from eyas.models.registry import load_target
from eyas.testing import load_tiny_target, tiny_pair, tiny_prompts
from eyas.testing.planting import Planted, tiny
from eyas.testing.rotated import rotated_target, rotation_of

PAIR = tiny()
PROMPTS = 8
NOISE = 1.0


@pytest.fixture(scope="module")
def rotated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return rotated_target(tiny_pair()[0], tmp_path_factory.mktemp("rotated") / "target")


def checked(draft: Path, target: Path, fix: Path | None = None):
    original = Path(PAIR.target)
    return run_check(CheckRequest(draft=draft, target=target, original=original, fix=fix, num_prompts=PROMPTS))


def test_a_rotated_target_says_the_same_by_other_states(rotated: Path) -> None:
    ours, theirs = load_tiny_target(), load_target(rotated, torch.float32, "auto")
    one, two = (read_text(t, tiny_prompts()[0], range(9)) for t in (ours, theirs))
    torch.testing.assert_close(theirs.logits(two.hidden), ours.logits(one.hidden), atol=2e-3, rtol=1e-3)
    torch.testing.assert_close(two.taps, one.taps @ rotation_of(64), atol=2e-3, rtol=1e-2)


def test_a_rotation_is_told_from_the_embeddings() -> None:
    table, turn = torch.randn(300, 24), rotation_of(24, 3)
    found = rotation_between(table, table @ turn + 0.005 * torch.randn(300, 24))
    assert found is not None
    torch.testing.assert_close(found, turn, atol=0.01, rtol=0)
    assert rotation_between(table, table) is None
    assert rotation_between(table, torch.randn(300, 24)) is None


def test_a_rotated_target_is_named_and_the_draft_turned_along(rotated: Path, tmp_path: Path) -> None:
    draft = Planted("x").make(PAIR, tmp_path / "draft")
    verdict = checked(draft, rotated, tmp_path / "mended")
    assert [f.kind for f in verdict.findings if f.weight == "fault"] == ["features.rotated"]
    (written,) = [finding for finding in verdict.findings if finding.kind == "repair.written"]
    assert written.data["again"]["answer"] == "proven"
    assert Contract.read(tmp_path / "mended" / "contract.json").taps == PAIR.taps
    healthy = run_check(CheckRequest(draft=draft, target=Path(PAIR.target), num_prompts=PROMPTS))
    assert verdict.survival is not None
    assert healthy.survival is not None
    assert verdict.survival.accept_length < 1.2
    measured = written.data["again"]["survival"]["accept_length"]
    assert measured == pytest.approx(healthy.survival.accept_length, abs=0.02)


@pytest.mark.parametrize("norms", [{"fc_norm": True}, {"norm_before_fc": True}, {}], ids=str)
def test_every_norm_is_turned_along(norms: dict[str, bool]) -> None:
    """Norm weights cannot be turned: they go into the matrix behind them."""
    target, turn = load_tiny_target(), rotation_of(64)
    parts = meant_parts(check_static(PAIR.draft, target_shape(target)), target)
    assert parts is not None
    generator = torch.Generator().manual_seed(0)
    config = parts.config.model_copy(update=norms)
    shapes = expected_shapes(config, shared=False)
    tensors = {name: parts.tensors.get(name, torch.rand(shape, generator=generator)) for name, shape in shapes.items()}
    tensors["midlayer.input_layernorm.weight"] = torch.rand(64, generator=generator)
    tensors["d2t"] = parts.tensors["d2t"]
    before = model_of(Parts(config, tensors), target)
    after = model_of(with_rotation(Parts(config, tensors), turn), target)
    features = torch.randn(5, 3, 64, generator=generator)
    one, two = before.combine(features.flatten(1)), after.combine((features @ turn).flatten(1))
    torch.testing.assert_close(two, one, atol=1e-4, rtol=1e-3)
    embedded = torch.randn(5, 64, generator=generator)
    (left, _), (right, _) = (
        m.decoder_layers[0].reads(e, one) for m, e in ((before, embedded), (after, embedded @ turn))
    )
    q = [layer.qkv(y) for layer, y in ((before.decoder_layers[0], left), (after.decoder_layers[0], right))]
    torch.testing.assert_close(q[1], q[0], atol=1e-4, rtol=1e-3)


def test_a_rotated_target_is_not_that_of_the_contract(rotated: Path, tmp_path: Path) -> None:
    """A contract and a witness of the original do not go along with a draft that was turned."""
    promised = tmp_path / "promised"
    plain = Planted("x").make(PAIR, tmp_path / "draft")
    run_check(CheckRequest(plain, Path(PAIR.target), fix=promised, num_prompts=PROMPTS))
    verdict = checked(promised, rotated, tmp_path / "mended")
    (written,) = [finding for finding in verdict.findings if finding.kind == "repair.written"]
    assert written.data["again"]["answer"] == "proven", written.evidence
    ours, theirs = (Contract.read(folder / "contract.json") for folder in (tmp_path / "mended", promised))
    assert ours.target.weights_sha256 != theirs.target.weights_sha256


def test_a_draft_that_cannot_be_turned_is_named_all_the_same(rotated: Path) -> None:
    original, served = load_tiny_target(), load_target(rotated, torch.float32, "auto")
    parts = meant_parts(check_static(PAIR.draft, target_shape(served)), served)
    assert parts is not None
    rig = Rig(model_of(parts, served), served, [])
    found = against_original(parts, False, rig, original, [], 3)
    assert [finding.kind for finding in found.findings] == ["features.rotated"]
    assert found.rotation is None
    assert found.left == (found.findings[0].said,)


def test_a_changed_target_is_told_from_an_undertrained_draft(tmp_path: Path) -> None:
    """Fine-tuned, or quantised coarsely: the basis is the same, and the states are others."""
    changed, source = tmp_path / "changed", tiny_pair()[0]
    shutil.copytree(source, changed)
    tensors, generator = load_file(source / "model.safetensors"), torch.Generator().manual_seed(0)
    for name, value in tensors.items():
        if value.dim() == 2 and "layers" in name:
            noise = torch.randn(value.shape, generator=generator)
            tensors[name] = (value.float() + NOISE * value.float().std() * noise).to(value.dtype)
    save_file(tensors, changed / "model.safetensors")
    verdict = checked(Planted("x").make(PAIR, tmp_path / "draft"), changed)
    (found,) = [finding for finding in verdict.findings if finding.kind == "target.changed"]
    assert found.data["original"] > found.data["served"] + 0.2
    assert verdict.answer == "fault"


def test_the_same_target_is_no_fault(tmp_path: Path) -> None:
    draft = Planted("x").make(PAIR, tmp_path / "draft")
    verdict = checked(draft, Path(PAIR.target))
    assert not [f.kind for f in verdict.findings if f.weight == "fault"]
    assert ("original target", "sound") in {(link.name, link.state) for link in verdict.links}


def test_another_shape_is_refused(tmp_path: Path) -> None:
    shorter = tmp_path / "shorter"
    shutil.copytree(tiny_pair()[0], shorter)
    tensors = load_file(shorter / "model.safetensors")
    save_file({k: v for k, v in tensors.items() if ".layers.7." not in k}, shorter / "model.safetensors")
    document = json.loads((shorter / "config.json").read_text())
    (shorter / "config.json").write_text(json.dumps(document | {"num_hidden_layers": 7}))
    with pytest.raises(EyasError) as caught:
        refuse_other_shape(load_target(shorter, torch.float32, "auto"), load_tiny_target())
    assert caught.value.code == "contract.mismatch"
    assert "7 layers" in caught.value.cause
