import json
import os
import shutil
import subprocess
import sys
from collections import namedtuple
from pathlib import Path

import pytest

from eyas import artifacts
from eyas.artifacts import (
    atomic_write,
    build_folder,
    hold_lock,
    is_whole,
    read_manifest,
    require_free,
    verify_folder,
)
from eyas.errors import EyasError

Usage = namedtuple("Usage", "total used free")


def build(target, text="hello"):
    with build_folder(target, "model", "name", "source") as draft:
        (draft.path / "sub").mkdir()
        (draft.path / "sub" / "a.txt").write_text(text)
        draft.provenance["commit"] = "abc"
        draft.notes.append("a note")


def test_a_folder_appears_whole_with_its_manifest(tmp_path):
    build(tmp_path / "x")
    manifest = verify_folder(tmp_path / "x")
    assert (manifest.kind, manifest.name, manifest.source) == ("model", "name", "source")
    assert (manifest.provenance, manifest.notes, manifest.bytes) == ({"commit": "abc"}, ("a note",), 5)
    assert list(manifest.files) == ["sub/a.txt"]
    assert [path.name for path in tmp_path.iterdir()] == ["x"]


@pytest.mark.parametrize("error", [KeyboardInterrupt, RuntimeError])
def test_an_interrupted_build_leaves_nothing_and_keeps_the_old_folder(tmp_path, error):
    build(tmp_path / "x", "old")

    def interrupted():
        with build_folder(tmp_path / "x", "model", "name", "source") as draft:
            (draft.path / "half").write_text("half")
            raise error

    with pytest.raises(error):
        interrupted()
    assert [path.name for path in tmp_path.iterdir()] == ["x"]
    assert (tmp_path / "x" / "sub" / "a.txt").read_text() == "old"
    build(tmp_path / "x", "new")
    assert (tmp_path / "x" / "sub" / "a.txt").read_text() == "new"


def test_what_a_killed_run_left_is_cleared_or_resumed(tmp_path):
    left = tmp_path / ".x.partial"
    left.mkdir()
    (left / "from-before").write_text("1")
    with build_folder(tmp_path / "x", "model", "n", "s", resume=True) as draft:
        assert (draft.path / "from-before").exists()
    assert list(read_manifest(tmp_path / "x").files) == ["from-before"]
    left.mkdir()
    (left / "from-before").write_text("1")
    build(tmp_path / "x")
    assert list(read_manifest(tmp_path / "x").files) == ["sub/a.txt"]


def test_verification_tells_missing_cut_and_changed_files_apart(tmp_path):
    build(tmp_path / "x")
    file = tmp_path / "x" / "sub" / "a.txt"
    for change, code, whole in [
        (lambda: file.write_text("jello"), "pull.hash-mismatch", True),
        (lambda: file.write_text("hell"), "artifact.corrupt", False),
        (file.unlink, "artifact.missing", False),
    ]:
        change()
        with pytest.raises(EyasError) as caught:
            verify_folder(tmp_path / "x")
        assert (caught.value.code, is_whole(tmp_path / "x")) == (code, whole)


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"schema": "other/1"}', '{"schema": "eyas.folder/1", "files": 3}'])
def test_a_broken_manifest_is_named(tmp_path, text):
    (tmp_path / "manifest.json").write_text(text)
    with pytest.raises(EyasError) as caught:
        read_manifest(tmp_path)
    assert caught.value.code == "artifact.corrupt"


def test_an_atomic_write_that_fails_keeps_the_old_bytes(tmp_path, monkeypatch):
    path = tmp_path / "deep" / "a.json"
    atomic_write(path, "old")

    def full(descriptor):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(EyasError, match=r"pull\.disk-full"):
        atomic_write(path, "new")
    assert path.read_text() == "old"
    assert [file.name for file in path.parent.iterdir()] == ["a.json"]


def test_a_full_disk_is_named_before_anything_is_written(tmp_path, monkeypatch):
    asked = []
    monkeypatch.setattr(shutil, "disk_usage", lambda place: asked.append(place) or Usage(10, 9, 1_000_000))
    require_free(tmp_path / "not" / "yet", 1_000_000, "this")
    with pytest.raises(EyasError, match=r"pull.disk-full\] this needs 1.0 MB .* 1.0 MB free"):
        require_free(tmp_path / "not" / "yet", 1_000_001, "this")
    assert asked == [tmp_path, tmp_path]


def test_the_lock_is_held_and_is_freed_when_its_holder_is_killed(tmp_path):
    code = (
        "import sys, time; from pathlib import Path; from eyas.artifacts import hold_lock\n"
        "with hold_lock(Path(sys.argv[1]), 'n'):\n    print('held', flush=True); time.sleep(60)"
    )
    holder = subprocess.Popen([sys.executable, "-c", code, str(tmp_path)], stdout=subprocess.PIPE)
    assert holder.stdout is not None
    assert holder.stdout.readline() == b"held\n"
    told = []

    def progress(what, done, total):
        told.append(what)
        holder.kill()

    with hold_lock(tmp_path, "n", progress):
        holder.wait()
    assert told == ["waiting for another process that works on n"]
    holder.stdout.close()


def test_the_cache_root_follows_the_environment(tmp_path, monkeypatch):
    monkeypatch.setenv("EYAS_CACHE", str(tmp_path))
    assert artifacts.cache_root() == tmp_path
    monkeypatch.delenv("EYAS_CACHE")
    assert artifacts.cache_root().name == "eyas"


@pytest.mark.parametrize(("size", "text"), [(0, "0 B"), (999, "999 B"), (1500, "1.5 kB"), (538_090_408, "538.1 MB")])
def test_sizes_for_people(size, text):
    assert artifacts.human_bytes(size) == text


def test_json_is_written_in_utf8(tmp_path):
    artifacts.write_json(tmp_path / "a.json", {"K": "Σ"})
    assert json.loads((tmp_path / "a.json").read_text(encoding="utf-8")) == {"K": "Σ"}


def test_a_disk_that_fills_while_a_folder_is_built_leaves_the_old_one(tmp_path: Path) -> None:
    target = tmp_path / "thing"
    with build_folder(target, "model", "thing", "test") as draft:
        (draft.path / "old").write_text("whole")

    def fill() -> None:
        with build_folder(target, "model", "thing", "test") as draft:
            (draft.path / "half").write_text("half")
            with open("/dev/full", "wb", buffering=0) as full:
                full.write(b"x")

    with pytest.raises(EyasError, match=r"pull\.disk-full"):
        fill()
    assert sorted(path.name for path in target.iterdir()) == ["manifest.json", "old"]
    assert [path.name for path in tmp_path.iterdir()] == ["thing"]


def test_a_place_that_may_not_be_written_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(self: Path, *_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied", str(self))

    monkeypatch.setattr(Path, "mkdir", refuse)
    with pytest.raises(EyasError, match=r"artifact\.not-writable") as caught:
        atomic_write(tmp_path / "deep" / "file", b"x")
    assert caught.value.code == "artifact.not-writable"
    assert "deep" in caught.value.cause
