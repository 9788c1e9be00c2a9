import json

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file

from eyas.errors import EyasError
from eyas.models.weights.safetensors import (
    BITS,
    INDEX,
    SINGLE,
    open_checkpoint,
    read_header,
    weight_fingerprint,
    write_safetensors,
)

TENSORS = {
    "b.weight": torch.arange(12, dtype=torch.float32).reshape(3, 4),
    "a.bias": torch.tensor([1.0, -2.0], dtype=torch.bfloat16),
    "c.ids": torch.tensor([[5]], dtype=torch.int64),
    "empty": torch.zeros(0, 4),
}


def save_sharded(folder, placement):
    """Write TENSORS with ``placement`` name -> shard file, and the index."""
    folder.mkdir(exist_ok=True)
    for shard in set(placement.values()):
        save_file({name: TENSORS[name] for name in TENSORS if placement[name] == shard}, folder / shard)
    (folder / INDEX).write_text(json.dumps({"metadata": {}, "weight_map": placement}))


def code_of(path):
    with pytest.raises(EyasError) as caught:
        open_checkpoint(path)
    return caught.value.code


def raw_file(header, data=b""):
    raw = header if isinstance(header, bytes) else json.dumps(header).encode()
    return len(raw).to_bytes(8, "little") + raw + data


def test_names_shapes_and_dtypes_come_without_loading_and_tensors_as_saved(tmp_path):
    save_file(TENSORS, tmp_path / SINGLE)
    checkpoint = open_checkpoint(tmp_path)
    assert {name: (info.dtype, info.shape) for name, info in checkpoint.infos.items()} == {
        "a.bias": ("BF16", (2,)),
        "b.weight": ("F32", (3, 4)),
        "c.ids": ("I64", (1, 1)),
        "empty": ("F32", (0, 4)),
    }
    loaded = checkpoint.load(["b.weight", "a.bias"])
    assert list(loaded) == ["b.weight", "a.bias"]
    assert all(torch.equal(loaded[name], TENSORS[name]) for name in loaded)
    assert set(checkpoint.load()) == set(TENSORS)
    with pytest.raises(EyasError, match=r"model.tensor-missing.*nope"):
        checkpoint.load(["nope"])


@settings(max_examples=20, deadline=None)
@given(st.lists(st.integers(1, 3), min_size=4, max_size=4))
def test_the_fingerprint_does_not_depend_on_the_sharding(tmp_path_factory, shards):
    folder = tmp_path_factory.mktemp("sharded")
    save_sharded(folder, {name: f"model-{i}.safetensors" for name, i in zip(TENSORS, shards, strict=True)})
    single = tmp_path_factory.mktemp("single")
    save_file(dict(reversed(TENSORS.items())), single / SINGLE)
    checkpoint = open_checkpoint(folder)
    assert weight_fingerprint(checkpoint) == weight_fingerprint(open_checkpoint(single))
    assert all(torch.equal(tensor, TENSORS[name]) for name, tensor in checkpoint.load().items())


def test_the_fingerprint_sees_names_dtypes_shapes_and_bytes(tmp_path):
    def fingerprint(tensors, canonical=None):
        save_file(tensors, tmp_path / SINGLE)
        return weight_fingerprint(open_checkpoint(tmp_path), canonical)

    w = TENSORS["b.weight"]
    changed = w.clone()
    changed[2, 3] += 1
    variants = [{"w": w}, {"v": w}, {"w": w.reshape(4, 3)}, {"w": w.view(torch.int32)}, {"w": changed}]
    assert len({fingerprint(variant) for variant in variants}) == len(variants)
    named = fingerprint(
        {"model.w": w, "head": w + 1}, lambda name: None if name == "head" else name.removeprefix("model.")
    )
    assert named == fingerprint({"w": w})
    with pytest.raises(EyasError, match="are both x"):
        fingerprint({"a": w, "b": w + 1}, lambda name: "x")


def test_the_fingerprint_is_the_documented_hash(tmp_path):
    import hashlib

    save_file({"w": torch.tensor([1.0, 2.0])}, tmp_path / SINGLE)
    expected = hashlib.sha256(b"w\0F32\x002\x00" + (8).to_bytes(8, "little") + b"\0\0\x80\x3f\0\0\0\x40").hexdigest()
    assert weight_fingerprint(open_checkpoint(tmp_path)) == expected


def test_every_truncation_is_found_by_the_header(tmp_path):
    path = tmp_path / SINGLE
    save_file(TENSORS, path)
    whole = path.read_bytes()
    for size in (0, 4, 8, 40, len(whole) - 1):
        path.write_bytes(whole[:size])
        assert code_of(tmp_path) == "artifact.corrupt"
    path.write_bytes(whole + b"\0")
    assert code_of(tmp_path) == "artifact.corrupt"


@pytest.mark.parametrize(
    "content",
    [
        (1 << 60).to_bytes(8, "little") + b"{}",
        raw_file(b"{" * 5000),
        raw_file(b"\xff\xfe"),
        raw_file([]),
        raw_file(b'{"a": {}, "a": {}}'),
        raw_file({"a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 4]}}, b"\0" * 4),
        raw_file({"a": {"dtype": "F32", "shape": [-1], "data_offsets": [0, -4]}}),
        raw_file({"a": {"dtype": "F32", "shape": [True], "data_offsets": [0, 4]}}, b"\0" * 4),
        raw_file({"a": {"dtype": "Q4", "shape": [1], "data_offsets": [0, 4]}}, b"\0" * 4),
        raw_file({"a": {"dtype": "F32", "shape": [1], "data_offsets": [4, 8]}}, b"\0" * 8),
        raw_file({n: {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]} for n in "ab"}, b"\0" * 4),
        raw_file({"a": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4], "code": 1}}, b"\0" * 4),
        raw_file({"a": 3}),
    ],
    ids=lambda content: repr(content[8:40]),
)
def test_a_header_that_does_not_add_up_is_refused(tmp_path, content):
    (tmp_path / SINGLE).write_bytes(content)
    assert code_of(tmp_path) == "artifact.corrupt"


@pytest.mark.parametrize("shard", ["../out.safetensors", "/etc/x", "sub/x.safetensors", "..\\x", "", "..", "C:x"])
def test_an_index_cannot_name_a_file_outside_its_folder(tmp_path, shard):
    save_file(TENSORS, tmp_path / "out.safetensors")
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / INDEX).write_text(json.dumps({"weight_map": dict.fromkeys(TENSORS, shard)}))
    assert code_of(folder) == "artifact.corrupt"


def test_shards_and_index_must_agree(tmp_path):
    placement = {name: f"{i % 2}.safetensors" for i, name in enumerate(TENSORS)}
    save_sharded(tmp_path, placement)
    first = placement["b.weight"]
    (tmp_path / INDEX).write_text(json.dumps({"weight_map": placement | {"ghost": first}}))
    assert code_of(tmp_path) == "model.tensor-missing"
    fewer = {name: shard for name, shard in placement.items() if name != "b.weight"}
    (tmp_path / INDEX).write_text(json.dumps({"weight_map": fewer}))
    assert code_of(tmp_path) == "model.tensor-unknown"
    (tmp_path / INDEX).write_text(json.dumps({"weight_map": placement}))
    (tmp_path / first).unlink()
    assert code_of(tmp_path) == "artifact.missing"
    (tmp_path / INDEX).write_text("[1]")
    assert code_of(tmp_path) == "artifact.corrupt"


def test_pickles_are_refused_by_name(tmp_path):
    (tmp_path / "pytorch_model.bin").write_bytes(b"\x80\x04.")
    assert code_of(tmp_path) == "artifact.pickle"
    (tmp_path / "pytorch_model.bin").unlink()
    assert code_of(tmp_path) == "artifact.missing"
    assert code_of(tmp_path / "nowhere") == "artifact.missing"


def test_our_writer_writes_what_the_library_reads(tmp_path):
    specs = {
        name: (read, tuple(TENSORS[name].shape))
        for name, read in zip(TENSORS, ["F32", "BF16", "I64", "F32"], strict=True)
    }
    write_safetensors(tmp_path / "a.safetensors", specs, iter(TENSORS.items()))
    loaded = load_file(tmp_path / "a.safetensors")
    assert all(torch.equal(loaded[name], tensor) for name, tensor in TENSORS.items())
    assert {info.dtype for info in read_header(tmp_path / "a.safetensors").values()} <= set(BITS)
