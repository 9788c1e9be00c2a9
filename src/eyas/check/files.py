"""A draft's folder opened without trusting it: every file that is missing, cut off or hostile is a finding.

Nothing is run, no link out of the folder is followed, and a broken file does not keep the others from being read.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from torch import Tensor

from eyas.check.findings import Finding
from eyas.errors import EyasError
from eyas.models.config import read_config
from eyas.models.weights.safetensors import (
    INDEX,
    MAX_HEADER,
    PICKLES,
    SINGLE,
    Checkpoint,
    TensorInfo,
    leaves_folder,
    open_checkpoint,
    read_header,
)

MAX_CONFIG = 1 << 24
"""Bytes. Configs have kilobytes; a larger file is something else and is not parsed."""

_POINTER = b"version https://git-lfs"
_AGAIN = "take this file from the draft's source again"


@dataclass(frozen=True)
class Opened:
    """What could be opened: config.json as it stands, the stored tensors' headers by their names in the file, and
    files that must not be read because they are links out of the folder. ``whole``: every file of the weights could be
    opened, so that what is not among them is missing.
    """

    document: dict[str, Any] | None
    checkpoint: Checkpoint
    findings: tuple[Finding, ...]
    outside: frozenset[str] = frozenset()
    whole: bool = False


def open_folder(folder: Path) -> Opened:
    """Open the draft in ``folder``; nothing is raised for what its files hold."""
    if not folder.is_dir():
        missing = Finding("file.missing", "static", "fault", f"{folder} is no folder", fix="name a draft's folder")
        return Opened(None, Checkpoint(folder, {}), (missing,))
    findings, outside = _links(folder)
    findings += _pickles(folder)
    document = None
    if "config.json" not in outside:
        document, found = _document(folder)
        findings += found
    infos: Mapping[str, TensorInfo] = {}
    whole = False
    if not outside & {path.name for path in (*folder.glob("*.safetensors"), folder / INDEX)}:
        infos, found = _headers(folder)
        findings += found
        whole = not found
    return Opened(document, Checkpoint(folder, infos), tuple(findings), outside, whole)


def from_error(kind: str, error: EyasError, data: Mapping[str, Any] | None = None) -> Finding:
    """An error that strict reading raises, as a finding of the static level; its code goes into ``data``."""
    return Finding(kind, "static", "fault", error.cause, fix=error.fix, data={"code": error.code, **(data or {})})


def load_tensors(checkpoint: Checkpoint) -> tuple[dict[str, Tensor], list[Finding]]:
    """All tensors by their names in the file, CPU, as stored; those that cannot be read are findings."""
    tensors: dict[str, Tensor] = {}
    findings = []
    for name in checkpoint.infos:
        try:
            tensors |= checkpoint.load([name])
        except (SafetensorError, OSError) as error:
            findings.append(Finding("file.cut", "static", "fault", f"{name} cannot be read: {error}", fix=_AGAIN))
    return tensors, findings


def _links(folder: Path) -> tuple[list[Finding], frozenset[str]]:
    """Links that leave the folder. A hub cache keeps its files in ``blobs`` beside its snapshots: those are right."""
    home = folder.resolve()
    allowed = {home, home.parent.parent / "blobs"} if home.parent.name == "snapshots" else {home}
    outside = {
        path.name for path in folder.iterdir() if path.is_symlink() and path.resolve(strict=False).parent not in allowed
    }
    findings = [
        Finding(
            "file.hostile",
            "static",
            "fault",
            f"{name} is a link to {(folder / name).resolve(strict=False)}, outside the draft's folder",
            fix=f"if you trust it, put a copy of the file in place of the link {name}",
            data={"file": name},
        )
        for name in sorted(outside)
    ]
    return findings, frozenset(outside)


def _pickles(folder: Path) -> list[Finding]:
    """Pickles beside safetensors: never read here, but an engine may be told to."""
    pickles = sorted(path.name for pattern in PICKLES for path in folder.glob(pattern))
    if not pickles or not any((folder / name).exists() for name in (SINGLE, INDEX)):
        return []
    said = f"{', '.join(pickles)}: pickles can run code when they are read; the weights here are in safetensors"
    return [Finding("file.hostile", "static", "note", said, fix="remove them", data={"files": pickles})]


def _document(folder: Path) -> tuple[dict[str, Any] | None, list[Finding]]:
    path = folder / "config.json"
    if path.is_file() and path.stat().st_size > MAX_CONFIG:
        said = f"config.json has {path.stat().st_size} bytes"
        return None, [Finding("file.hostile", "static", "fault", said, fix=_AGAIN)]
    try:
        return read_config(folder), []
    except EyasError as error:
        return None, [from_error("file.missing" if error.code == "artifact.missing" else "file.cut", error)]
    except OSError as error:
        return None, [_unreadable("config.json", error)]


def _headers(folder: Path) -> tuple[Mapping[str, TensorInfo], list[Finding]]:
    """Headers of the whole checkpoint, else of every file of it that is sound."""
    try:
        return open_checkpoint(folder).infos, []
    except EyasError as error:
        findings = [from_error(_kind(folder, error), error)]
    except OSError as error:
        return {}, [_unreadable("the weights", error)]
    infos: dict[str, TensorInfo] = {}
    for file in sorted(folder.glob("model*.safetensors")) if findings[0].kind != "file.hostile" else ():
        try:
            infos |= read_header(file)
        except EyasError as error:
            if error.cause != findings[0].said:
                findings.append(from_error(_kind(folder, error), error))
    return infos, findings


def _kind(folder: Path, error: EyasError) -> str:
    if error.code == "artifact.pickle" or _names_outside(folder / INDEX):
        return "file.hostile"
    if error.code in ("artifact.missing", "model.tensor-missing"):
        return "file.missing"
    if error.code == "model.tensor-unknown":
        return "weights.unknown"
    return "file.hostile" if any(map(_claims_too_much, folder.glob("model*.safetensors"))) else "file.cut"


def _names_outside(index: Path) -> bool:
    try:
        shards = json.loads(index.read_text(encoding="utf-8"))["weight_map"].values()
        return any(leaves_folder(str(shard)) for shard in shards)
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return False  # no such index: its own error has said so


def _claims_too_much(file: Path) -> bool:
    """Whether a header's claimed length is beyond the format's limit; the pointer that a hub leaves is only text."""
    with file.open("rb") as handle:
        start = handle.read(len(_POINTER))
    return start != _POINTER and len(start) >= 8 and int.from_bytes(start[:8], "little") > MAX_HEADER


def _unreadable(what: str, error: OSError) -> Finding:
    return Finding("file.missing", "static", "fault", f"{what} cannot be read: {error.strerror}", fix=_AGAIN)
