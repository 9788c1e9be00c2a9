"""Features on disk: the casts, the plan, and reading a folder that is whole or is not."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file

from eyas.corpus import feature_store
from eyas.corpus.feature_store import FeatureFolder, FeatureManifest, plan_shards, samples_sha256
from eyas.corpus.features import Features, OnlineFeatures
from eyas.corpus.storage import FP8_MAX, Layout, from_fp8, to_fp8
from eyas.errors import EyasError
from support.feature_rig import (
    SHARD_TOKENS,
    bytes_of,
    capture_tiny,
    shared_target,
    tiny_samples,
    wanted,
    with_sample,
)

MADE = tiny_samples()
SHARD = "shard-00002.safetensors"


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("features") / "whole"
    capture_tiny(folder)
    return folder


@pytest.fixture
def folder(whole: Path, tmp_path: Path) -> Path:
    """A copy to damage."""
    return Path(shutil.copytree(whole, tmp_path / "copy"))


@given(st.integers(0, 2**31), st.floats(-30, 30), st.integers(1, 40))
def test_fp8_keeps_each_value_to_a_sixteenth_of_itself(seed: int, power: float, width: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(3, 2, width, generator=generator) * 10.0**power
    stored, scale = to_fp8(x)
    assert stored.shape == x.shape
    assert scale.shape == (3, 2)
    back, greatest = from_fp8(stored, scale), x.abs().amax(-1, keepdim=True)
    normal = x.abs() >= greatest * 2**-14
    assert ((back - x).abs()[normal] <= x.abs()[normal] * 2**-4).all()
    assert ((back - x).abs() <= greatest / FP8_MAX * 2**-9 + x.abs() * 2**-4).all()


@pytest.mark.parametrize("value", [0.0, 1e-44, 3e38])
def test_fp8_of_nothing_and_of_the_extremes_is_finite(value: float) -> None:
    back = from_fp8(*to_fp8(torch.full((1, 4), value)))
    assert back.isfinite().all()
    assert (back - value).abs().max() <= value * 2**-4 + 1e-38


@given(st.lists(st.integers(1, 90), max_size=20), st.integers(1, 100))
def test_shards_hold_all_samples_in_order_within_their_size(lengths: list[int], size: int) -> None:
    plan = plan_shards(lengths, size)
    assert [index for part in plan for index in part.samples] == list(range(len(lengths)))
    assert all(part.tokens == sum(lengths[i] for i in part.samples) for part in plan)
    assert all(part.tokens <= size or len(part.samples) == 1 for part in plan)
    assert len({part.file for part in plan}) == len(plan)


@pytest.mark.parametrize(("storage", "bound"), [("fp32", 0.0), ("bf16", 2**-8), ("fp8", 2**-4)])
@pytest.mark.parametrize("top_k", [None, 8])
def test_what_is_read_is_what_the_target_gives_but_for_the_cast(
    tmp_path: Path, storage: str, bound: float, top_k: int | None
) -> None:
    capture_tiny(tmp_path / "f", storage=storage, top_k=top_k)
    stored = FeatureFolder(tmp_path / "f", expected=wanted(MADE, storage=storage, top_k=top_k))
    online = OnlineFeatures(shared_target(), MADE.samples, wanted(MADE, storage="none", top_k=top_k))
    assert samples_sha256(tiny_samples()) == stored.manifest.samples_sha256
    for index, sample in enumerate(MADE.samples):
        here, there = stored.read(index), online.read(index)
        assert stored.samples[index].tokens.tolist() == sample.tokens.tolist()
        off = (here.taps.float() - there.taps).abs()
        assert (off <= bound * there.taps.abs() + (1e-3 if storage == "fp8" else 0)).all()
        if top_k is None:
            assert here.hidden is not None
            assert there.hidden is not None
            assert ((here.hidden.float() - there.hidden).abs() <= min(bound, 2**-8) * there.hidden.abs()).all()
        else:
            assert here.top is not None
            assert there.top is not None
            assert torch.equal(here.top.ids, there.top.ids)
            assert torch.equal(here.top.logprobs, there.top.logprobs)
    again = stored.read_batch([3, 3])
    assert torch.equal(again[0].taps, again[1].taps)


@pytest.mark.parametrize("storage", ["fp32", "bf16", "fp8"])
@pytest.mark.parametrize("top_k", [None, 8])
def test_bytes_a_token_are_those_of_the_shards(tmp_path: Path, storage: str, top_k: int | None) -> None:
    capture_tiny(tmp_path, storage=storage, top_k=top_k)
    manifest = FeatureManifest.read(tmp_path)
    layout = Layout.of(manifest.facts)
    for record in manifest.shards:
        tensors = load_file(tmp_path / record.file)
        assert sum(t.numel() * t.element_size() for t in tensors.values()) == record.tokens * layout.bytes_per_token
        assert 0 < record.bytes - record.tokens * layout.bytes_per_token < 1024
    if top_k is None and storage != "fp8":
        assert layout.bytes_per_token == (3 + 1) * 64 * (4 if storage == "fp32" else 2)


def test_a_sample_is_read_without_its_shard(whole: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Through a map: what is asked of the file is the sample's own rows."""
    asked: list[tuple[str, slice]] = []
    real = feature_store.safe_open

    class Spied:
        def __init__(self, shard: object) -> None:
            self.shard = shard

        def __enter__(self) -> Spied:
            self.inner = self.shard.__enter__()  # type: ignore[attr-defined]
            return self

        def __exit__(self, *error: object) -> None:
            self.shard.__exit__(*error)  # type: ignore[attr-defined]

        def get_slice(self, name: str) -> Spied:
            self.name, self.part = name, self.inner.get_slice(name)
            return self

        def __getitem__(self, rows: slice) -> torch.Tensor:
            asked.append((self.name, rows))
            return self.part[rows]

    monkeypatch.setattr(feature_store, "safe_open", lambda *a, framework: Spied(real(*a, framework=framework)))
    folder = FeatureFolder(whole)
    features = folder.read(len(MADE.samples) - 1)
    assert {name for name, _ in asked} == {"taps", "hidden"}
    assert {rows.stop - rows.start for _, rows in asked} == {len(features.taps)} == {len(MADE.samples[-1].tokens)}


def test_maps_are_let_go_when_many_shards_are_read(whole: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(feature_store, "OPEN_SHARDS", 2)
    folder = FeatureFolder(whole)
    first = folder.read(0)
    for index in range(len(folder.samples)):
        folder.read(index)
    assert len(folder._open) == 2
    assert torch.equal(folder.read(0).taps, first.taps)
    folder.close()
    assert torch.equal(folder.read(0).taps, first.taps)


Damage = Callable[[Path], None]


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


def empty(path: Path) -> None:
    path.write_bytes(b"")


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def grow(path: Path) -> None:
    path.write_bytes(path.read_bytes() + b"\0")


def lose_header(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[8:24] = b"\xff" * 16
    path.write_bytes(data)


def other_shape(path: Path) -> None:
    tensors = load_file(path)
    save_file({name: tensor[:, :1].contiguous() for name, tensor in tensors.items()}, path)


def read_all(folder: Path) -> list[Features]:
    source = FeatureFolder(folder)
    return source.read_batch(range(len(source.samples)))


@pytest.mark.parametrize("damage", [cut, empty, flip, grow, lose_header, other_shape, Path.unlink])
def test_a_damaged_shard_is_named_with_the_fix(folder: Path, damage: Damage) -> None:
    damage(folder / SHARD)
    with pytest.raises(EyasError) as refused:
        read_all(folder)
    assert refused.value.code == "features.damaged"
    assert SHARD in refused.value.cause
    assert "eyas capture" in refused.value.fix


@pytest.mark.parametrize("damage", [cut, flip, lose_header])
def test_capture_makes_just_the_damaged_shard_again(folder: Path, whole: Path, damage: Damage) -> None:
    damage(folder / SHARD)
    report = capture_tiny(folder)
    assert (report.shards, report.kept) == (1, FeatureManifest.read(whole).num_shards - 1)
    assert bytes_of(folder) == bytes_of(whole)


def rewritten(folder: Path, value: float) -> None:
    """A shard with ``value`` in it, recorded as if it had been captured so."""
    path = folder / SHARD
    tensors = load_file(path)
    tensors["taps"][1, 0, 0] = value
    save_file(tensors, path)
    manifest = FeatureManifest.read(folder)
    shards = [
        r.model_copy(
            update={"bytes": path.stat().st_size, "sha256": feature_store.sha256_file(path)} if r.file == SHARD else {}
        )
        for r in manifest.shards
    ]
    manifest.model_copy(update={"shards": tuple(shards)}).write(folder)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_stored_features_that_are_not_finite_are_refused(folder: Path, value: float) -> None:
    rewritten(folder, value)
    source = FeatureFolder(folder)
    with pytest.raises(EyasError, match="NaN") as refused:
        source.read_batch(range(len(source.samples)))
    assert refused.value.code == "features.damaged"
    assert SHARD in refused.value.cause


def test_hashing_can_be_left_to_verify(folder: Path) -> None:
    flip(folder / SHARD)
    source = FeatureFolder(folder, hashes=False)
    source.read_batch(range(len(source.samples)))
    with pytest.raises(EyasError, match=SHARD) as refused:
        source.verify()
    assert refused.value.code == "features.damaged"


def test_a_capture_that_is_not_through_is_refused(folder: Path) -> None:
    manifest = FeatureManifest.read(folder)
    manifest.model_copy(update={"shards": manifest.shards[:-1]}).write(folder)
    with pytest.raises(EyasError, match="only") as refused:
        FeatureFolder(folder)
    assert refused.value.code == "features.damaged"


@pytest.mark.parametrize("damage", [cut, flip, Path.unlink])
def test_damaged_samples_are_refused(folder: Path, damage: Damage) -> None:
    damage(folder / "samples.npz")
    with pytest.raises(EyasError, match=r"samples\.npz") as refused:
        FeatureFolder(folder)
    assert refused.value.code == "features.damaged"


def test_samples_exchanged_for_others_are_refused(folder: Path, tmp_path: Path) -> None:
    other = with_sample(MADE, answers=((1, 3),))
    capture_tiny(tmp_path / "other", other)
    shutil.copy(tmp_path / "other" / "samples.npz", folder / "samples.npz")
    with pytest.raises(EyasError) as refused:
        FeatureFolder(folder)
    assert refused.value.code == "features.damaged"


def test_a_manifest_whose_shards_are_not_those_of_its_samples_is_refused(folder: Path) -> None:
    manifest = FeatureManifest.read(folder)
    swapped = (manifest.shards[1], manifest.shards[0], *manifest.shards[2:])
    manifest.model_copy(update={"shards": swapped}).write(folder)
    with pytest.raises(EyasError) as refused:
        FeatureFolder(folder)
    assert refused.value.code == "features.damaged"


@pytest.mark.parametrize("text", ["", "{", "[]", '{"facts": 1}'])
def test_a_manifest_that_is_none_is_refused(folder: Path, text: str) -> None:
    (folder / "features.json").write_text(text)
    with pytest.raises(EyasError, match=r"features\.json") as refused:
        FeatureFolder(folder)
    assert refused.value.code == "features.damaged"


def test_another_version_or_an_unknown_field_is_refused(folder: Path) -> None:
    path = folder / "features.json"
    document = json.loads(path.read_text())
    for change in ({"schema_version": 2}, {"colour": "red"}):
        path.write_text(json.dumps({**document, "facts": {**document["facts"], **change}}))
        with pytest.raises(EyasError, match=next(iter(change))) as refused:
            FeatureFolder(folder)
        assert refused.value.code == "features.damaged"


def test_no_folder_is_said_to_be_missing(tmp_path: Path) -> None:
    with pytest.raises(EyasError) as refused:
        FeatureFolder(tmp_path)
    assert refused.value.code == "artifact.missing"


def test_features_made_otherwise_are_refused_on_opening(whole: Path) -> None:
    with pytest.raises(EyasError, match="taps is") as refused:
        FeatureFolder(whole, expected=wanted(MADE, taps=(1, 4, 5)))
    assert refused.value.code == "features.stale"


def test_features_hold_either_states_or_tokens() -> None:
    with pytest.raises(AssertionError):
        Features(torch.zeros(1, 3, 4), None)


def test_the_rig_makes_several_shards(whole: Path) -> None:
    assert FeatureManifest.read(whole).num_shards >= 4
    assert FeatureManifest.read(whole).shard_tokens == SHARD_TOKENS
