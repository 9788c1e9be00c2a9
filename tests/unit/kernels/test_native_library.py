"""The native library as a file: built where there is a compiler, loaded only if it is whole and of these sources."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from eyas.errors import EyasError
from eyas.kernels import get_backend, native
from eyas.kernels.cpu import build
from eyas.kernels.cpu.build import compile_library, sources_digest

COMPILER = shutil.which("g++") or shutil.which("c++")


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path | None:
    """A library fresh from the sources, or None where there is no compiler."""
    return compile_library(tmp_path_factory.mktemp("library"), COMPILER and f"{COMPILER} -Wall -Werror=return-type")


def test_the_library_is_built_and_in_place_wherever_there_is_a_compiler(
    built: Path | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    possible = COMPILER is not None and sys.platform == "linux"
    assert (built is not None) == possible
    assert (native.load_library() is not None) == possible, "build it: python src/eyas/kernels/cpu/build.py"
    if built is not None:
        monkeypatch.setattr(native, "LIBRARY", built)
        assert native.load_library() is not None
        assert "base" in native.instruction_sets()
        assert get_backend("auto").name == "native"


def assert_runs_without(library: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native, "LIBRARY", library)
    assert native.load_library() is None
    assert native.instruction_sets() == {}
    assert get_backend("auto").name == "onednn"
    with pytest.raises(EyasError, match="compiler") as caught:
        get_backend("native")
    assert caught.value.code == "flags.range"
    monkeypatch.setattr(torch.backends.mkldnn, "is_available", lambda: False)
    assert get_backend("auto").name == "eager"
    with pytest.raises(EyasError, match="oneDNN"):
        get_backend("onednn")


def test_without_the_library_the_other_backends_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert_runs_without(tmp_path / "absent.so", monkeypatch)


@pytest.mark.parametrize("content", [b"", b"\x7fELF", b"no library at all\n" * 400])
def test_a_file_that_is_no_library_is_not_loaded(
    content: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    library = tmp_path / "damaged.so"
    library.write_bytes(content)
    assert_runs_without(library, monkeypatch)


def test_a_library_that_was_cut_off_is_not_loaded(built: Path | None, tmp_path: Path) -> None:
    """In a process of its own: loading one ends it."""
    if built is not None:
        content, cut = built.read_bytes(), tmp_path / "cut.so"
        code = (
            "import sys; from pathlib import Path; from eyas.kernels import native; native.LIBRARY = Path(sys.argv[1])"
        )
        command = [sys.executable, "-c", f"{code}; sys.exit(native.load_library() is not None)", str(cut)]
        cut.write_bytes(content[: len(content) // 2])
        assert subprocess.run(command, check=False).returncode == 0
        for kept in range(0, len(content), 997):
            cut.write_bytes(content[:kept])
            assert not native._is_whole(cut)
        cut.write_bytes(content[:-1])
        assert not native._is_whole(cut)
        assert native._is_whole(built)


def test_a_library_of_other_sources_or_another_kind_is_not_loaded(
    built: Path | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its functions might take other arguments, which would corrupt memory."""
    other = next((Path(torch.__file__).parent / "lib").glob("libc10.*"))
    assert_runs_without(other, monkeypatch)
    if built is not None:
        content, digest = built.read_bytes(), sources_digest().encode()
        assert content.count(digest) == 1
        stale = tmp_path / "stale.so"
        stale.write_bytes(content.replace(digest, b"0" * len(digest)))
        monkeypatch.setattr(native, "LIBRARY", stale)
        assert native.load_library() is None


def test_a_change_of_any_source_changes_the_digest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    copy = tmp_path / "cpu"
    shutil.copytree(build.HERE, copy, ignore=shutil.ignore_patterns("*.so", "__pycache__"))
    monkeypatch.setattr(build, "HERE", copy)
    before = sources_digest()
    for name in ("linear.h", "api.cpp"):
        with (copy / name).open("a") as source:
            source.write("\n")
        assert sources_digest() != before
        before = sources_digest()


def test_no_compiler_no_library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert compile_library(tmp_path) is None
    assert list(tmp_path.iterdir()) == []


def test_another_system_has_no_library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    assert compile_library(tmp_path, "c++") is None


def test_a_compiler_that_fails_or_is_not_there_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(subprocess.CalledProcessError):
        compile_library(tmp_path, f"{sys.executable} -c raise(SystemExit(1))")
    monkeypatch.setenv("CXX", str(tmp_path / "absent-compiler"))
    with pytest.raises(FileNotFoundError):
        compile_library(tmp_path)
    assert list(tmp_path.iterdir()) == []
