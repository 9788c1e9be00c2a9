"""Artifacts on disk: atomic files, folders with a manifest, free-disk checks, locks.

A folder artifact appears under its name only when it is whole: it is built in a hidden sibling and renamed at
the end, so an interrupt or a kill leaves at most that sibling, which the next run clears or resumes.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import re
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import platformdirs
import yaml
from filelock import FileLock, Timeout

from eyas.errors import EyasError

SCHEMA = "eyas.folder/1"
MANIFEST = "manifest.json"

Progress = Callable[[str, int, int], None]
"""Called with (what is done, units done, units in all or 0 where unknown). Units are bytes or items."""


def no_progress(what: str, done: int, total: int) -> None:
    """The progress callback of a caller that shows none."""


@dataclass(frozen=True)
class FileRecord:
    """One file of a folder artifact: its size in bytes and its SHA-256 in hex."""

    bytes: int
    sha256: str


@dataclass(frozen=True)
class Manifest:
    """What a folder artifact is: ``created`` in UTC (ISO 8601), ``files`` by posix path."""

    kind: str
    name: str
    source: str
    created: str
    provenance: Mapping[str, Any]
    notes: tuple[str, ...]
    files: Mapping[str, FileRecord]

    @property
    def bytes(self) -> int:
        """The size of all files, in bytes."""
        return sum(record.bytes for record in self.files.values())


@dataclass
class FolderDraft:
    """A folder under construction: write into ``path``; the manifest takes ``provenance`` and ``notes``."""

    path: Path
    provenance: dict[str, Any] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)


def cache_root() -> Path:
    """Where pulled things live: the environment's ``EYAS_CACHE``, else the user's cache folder for eyas."""
    chosen = os.environ.get("EYAS_CACHE")
    return Path(chosen).expanduser() if chosen else Path(platformdirs.user_cache_dir("eyas", appauthor=False))


def sha256_file(path: Path) -> str:
    """The SHA-256 of a file's bytes, in hex."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def require_free(
    path: Path, needed: int, what: str, fix: str = "free some space, or set EYAS_CACHE to a folder on a larger disk"
) -> None:
    """Raise ``pull.disk-full`` unless the disk of ``path`` (it need not exist) has ``needed`` bytes free."""
    place = path.absolute()
    while not place.exists():
        place = place.parent
    free = shutil.disk_usage(place).free
    if free < needed:
        raise EyasError(
            "pull.disk-full",
            f"{what} needs {human_bytes(needed)} but {place} has {human_bytes(free)} free",
            fix,
        )


def file_sizes(folder: Path) -> list[int]:
    """The sizes in bytes of all files below a folder, which another process may be changing."""
    sizes: list[int] = []
    for place, _, files in os.walk(folder):
        for file in files:
            # A file that was moved between the listing and the look is seen at its new place next time.
            with suppress(FileNotFoundError):
                sizes.append((Path(place) / file).stat().st_size)
    return sizes


def human_bytes(size: int) -> str:
    """A size in bytes as text in decimal units, e.g. ``538.1 MB``."""
    value, units = float(size), ["B", "kB", "MB", "GB", "TB"]
    while value >= 1000 and len(units) > 1:
        value /= 1000
        units.pop(0)
    return f"{size} B" if units[0] == "B" else f"{value:.1f} {units[0]}"


@contextmanager
def named_disk_errors(place: Path) -> Iterator[None]:
    """Turn what the disk refuses into ``pull.disk-full`` or ``artifact.not-writable``, naming ``place``."""
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            cause, fix = f"the disk of {place} became full", "free some space, and give the same command again"
            raise EyasError("pull.disk-full", cause, fix) from error
        if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
            cause = f"{error.filename or place} may not be written ({error.strerror})"
            raise EyasError("artifact.not-writable", cause, "set EYAS_CACHE to a folder of your own") from error
        raise


def atomic_write(path: Path, data: bytes | str) -> None:
    """Write a file so that its name holds the old bytes or the new ones, never a part; text is UTF-8."""
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    with named_disk_errors(path.parent):
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            with partial.open("wb") as file:
                file.write(data.encode() if isinstance(data, str) else data)
                file.flush()
                os.fsync(file.fileno())
            partial.replace(path)
        finally:
            partial.unlink(missing_ok=True)
        _sync_folder(path.parent)


def write_json(path: Path, value: Any) -> None:
    """Write a JSON document atomically, indented, in UTF-8."""
    atomic_write(path, json.dumps(value, indent=2, ensure_ascii=False) + "\n")


@contextmanager
def hold_lock(cache: Path, name: str, progress: Progress = no_progress) -> Iterator[None]:
    """Hold the cache's lock ``name``; others wait. The system frees it when its holder dies."""
    lock = _lock(cache, name)
    try:
        lock.acquire(timeout=0)
    except Timeout:
        progress(f"waiting for another process that works on {name}", 0, 0)
        lock.acquire()
    try:
        yield
    finally:
        lock.release()


@contextmanager
def try_lock(cache: Path, name: str) -> Iterator[bool]:
    """Hold the lock ``name`` if it is free. Yields whether it was."""
    lock = _lock(cache, name)
    try:
        lock.acquire(timeout=0)
    except Timeout:
        yield False
        return
    try:
        yield True
    finally:
        lock.release()


def _lock(cache: Path, name: str) -> FileLock:
    folder = cache / ".locks"
    with named_disk_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
    return FileLock(folder / f"{name}.lock")


@contextmanager
def build_folder(target: Path, kind: str, name: str, source: str, resume: bool = False) -> Iterator[FolderDraft]:
    """Build a folder artifact: yields the draft, and on a clean exit commits it as ``target``.

    The caller holds the lock of this target. Without ``resume`` the body starts empty and an exception
    removes what it wrote; with it, the body finds what an earlier run left. An older ``target`` is replaced.
    """
    partial = target.with_name(f".{target.name}.partial")
    if not resume:
        shutil.rmtree(partial, ignore_errors=True)
    with named_disk_errors(target.parent):
        partial.mkdir(parents=True, exist_ok=True)
        draft = FolderDraft(partial)
        try:
            yield draft
        except BaseException:
            if not resume:
                shutil.rmtree(partial, ignore_errors=True)
            raise
        _write_manifest(draft, kind, name, source)
        _replace_folder(partial, target)


def read_manifest(folder: Path) -> Manifest:
    """The manifest of a folder artifact; raises ``artifact.missing`` or ``artifact.corrupt``."""
    path = folder / MANIFEST
    if not path.is_file():
        raise EyasError("artifact.missing", f"{folder} has no {MANIFEST}", "pull it again")
    try:
        raw = json.loads(path.read_text(encoding="utf-8"))
        if raw.pop("schema") != SCHEMA:
            raise ValueError(f"its schema is not {SCHEMA}")
        files = {file: FileRecord(**record) for file, record in raw.pop("files").items()}
        return Manifest(files=files, notes=tuple(raw.pop("notes")), **raw)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise EyasError("artifact.corrupt", f"{path} is no manifest: {error}", "pull it again") from error


def verify_folder(folder: Path, hashes: bool = True) -> Manifest:
    """Compare a folder with its manifest: sizes always, SHA-256 with ``hashes``.

    Raises ``artifact.missing``, ``artifact.corrupt``, ``pull.hash-mismatch``.
    """
    manifest = read_manifest(folder)
    for file, record in manifest.files.items():
        path = folder / file
        if not path.is_file():
            raise EyasError("artifact.missing", f"{path} is gone", "pull it again")
        if path.stat().st_size != record.bytes:
            size = path.stat().st_size
            raise EyasError("artifact.corrupt", f"{path} has {size} bytes, not {record.bytes}", "pull it again")
        if hashes and sha256_file(path) != record.sha256:
            raise EyasError("pull.hash-mismatch", f"{path} was changed after it was written", "pull it again")
    return manifest


def is_whole(folder: Path) -> bool:
    """True if a folder artifact is there with every file at its full size (bytes are not hashed)."""
    try:
        verify_folder(folder, hashes=False)
    except EyasError:
        return False
    return True


def _write_manifest(draft: FolderDraft, kind: str, name: str, source: str) -> None:
    paths = sorted(path for path in draft.path.rglob("*") if path.is_file() and path.name != MANIFEST)
    files = {
        path.relative_to(draft.path).as_posix(): FileRecord(path.stat().st_size, sha256_file(path)) for path in paths
    }
    for path in paths:
        with path.open("rb") as file:
            os.fsync(file.fileno())
    created = datetime.now(UTC).isoformat(timespec="seconds")
    manifest = Manifest(kind, name, source, created, draft.provenance, tuple(draft.notes), files)
    write_json(draft.path / MANIFEST, {"schema": SCHEMA, **asdict(manifest)})


def _replace_folder(partial: Path, target: Path) -> None:
    old = target.with_name(f".{target.name}.old")
    shutil.rmtree(old, ignore_errors=True)
    if target.exists():
        target.replace(old)
    partial.replace(target)
    _sync_folder(target.parent)
    shutil.rmtree(old, ignore_errors=True)


def _sync_folder(folder: Path) -> None:
    # Windows cannot open a folder; its rename is durable enough for a cache.
    if os.name == "nt":
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


class _Loader(yaml.SafeLoader):
    """YAML 1.2's floats: in YAML 1.1, and so in PyYAML, 1e-4 is a text."""


_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(r"[-+]?(\d+\.?\d*|\.\d+)[eE][-+]?\d+$"), list("-+.0123456789")
)


def load_yaml(text: str) -> Any:
    """A YAML document. Raises ``yaml.YAMLError``."""
    return yaml.load(text, _Loader)


def read_yaml(path: Path) -> dict[str, Any]:
    """A YAML mapping. Raises ``artifact.missing``, ``artifact.corrupt``."""
    if not path.is_file():
        raise EyasError("artifact.missing", f"there is no file {path}", "check the path")
    try:
        document = load_yaml(path.read_text(encoding="utf-8"))
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise EyasError("artifact.corrupt", f"{path} is no YAML: {error}", "mend the file") from error
    if not isinstance(document, dict):
        raise EyasError("artifact.corrupt", f"{path} holds no settings", "write `name: value` lines")
    return document
