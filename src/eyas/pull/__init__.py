"""Getting models and prompt sets: built in, from the hub, from a folder or a GGUF file, into one cache."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path

from eyas.artifacts import (
    Progress,
    build_folder,
    hold_lock,
    is_whole,
    no_progress,
    read_manifest,
    sha256_file,
)
from eyas.corpus.prompts import Prompt
from eyas.errors import EyasError
from eyas.models.weights.gguf import convert_gguf
from eyas.models.weights.safetensors import open_checkpoint
from eyas.pull import builtin, hub, prompts
from eyas.pull.prompts import load_prompts

__all__ = ["Entry", "Prompt", "list_cache", "load_prompts", "pull", "resolve_model"]

TOKENIZERS = ("tokenizer.json", "tokenizer.model")


@dataclass(frozen=True)
class Entry:
    """One thing in the cache: ``size`` in bytes, ``created`` in UTC (ISO 8601), ``fault`` if damaged."""

    name: str
    kind: str
    source: str
    path: Path
    size: int
    created: str
    notes: tuple[str, ...]
    fault: str | None = None


def pull(source: str, cache: Path, progress: Progress = no_progress) -> Path:
    """Make a model or prompt set available and return its folder; what the cache holds is not fetched again.

    ``source`` is ``builtin:…``, ``prompts:…``, a hub id ``org/name[@revision]``, a model folder (returned as
    it is, after a check of its files) or a .gguf file (converted into the cache). Raises ``pull.*``,
    ``artifact.*``, ``gguf.unsupported``, ``model.tensor-*``.
    """
    if source.startswith(prompts.SCHEME):
        return prompts.pull_prompts(source, cache, progress)
    return resolve_model(source, cache, progress)


def resolve_model(source: str, cache: Path, progress: Progress = no_progress) -> Path:
    """The Hugging Face folder of a model, pulled first if need be; as :func:`pull`, without prompt sets."""
    if source.startswith(builtin.SCHEME):
        return builtin.pull_builtin(source, cache, progress)
    path = Path(source).expanduser()
    if path.is_dir():
        return _check_folder(path)
    if path.suffix.lower() == ".gguf":
        return _pull_gguf(path, cache, progress)
    if hub.HUB_ID.fullmatch(source):
        return hub.pull_hub(source, cache, progress)
    known = ", ".join(builtin.SCHEME + name for name in builtin.BUILTINS)
    raise EyasError(
        "pull.unknown-source",
        f"{source!r} is no built-in model, hub id (org/name), folder or GGUF file",
        f"check the spelling, or use {known}",
    )


def list_cache(cache: Path) -> list[Entry]:
    """What the cache holds, by kind and name; a damaged entry is listed with its fault."""
    folders = [path for kind in ("models", "prompts") for path in (cache / kind).glob("*") if path.is_dir()]
    entries = [_entry(folder) for folder in folders if not folder.name.startswith(".")]
    return sorted(entries, key=lambda entry: (entry.kind, entry.name))


def _entry(folder: Path) -> Entry:
    try:
        manifest = read_manifest(folder)
    except EyasError as error:
        kind = "prompts" if folder.parent.name == "prompts" else "model"
        return Entry(folder.name, kind, "", folder, 0, "", (), fault=error.cause)
    fault = None if is_whole(folder) else "files are missing or cut off: pull it again"
    return Entry(
        manifest.name,
        manifest.kind,
        manifest.source,
        folder,
        manifest.bytes,
        manifest.created,
        manifest.notes,
        fault,
    )


def _check_folder(folder: Path) -> Path:
    """The folder, if it is a model folder: config, tokenizer, and weights whose headers add up."""
    if not (folder / "config.json").is_file():
        raise EyasError("artifact.missing", f"{folder} has no config.json", "give a Hugging Face model folder")
    if not any((folder / name).is_file() for name in TOKENIZERS):
        raise EyasError("artifact.missing", f"{folder} has no tokenizer.json", "add the model's tokenizer files")
    open_checkpoint(folder)
    return folder


def _pull_gguf(path: Path, cache: Path, progress: Progress) -> Path:
    if not path.is_file():
        raise EyasError("artifact.missing", f"there is no file {path}", "check the path")
    # Named by place, size and time, so that the second call need not hash gigabytes.
    status = path.stat()
    key = hashlib.sha256(f"{path.resolve()}\0{status.st_size}\0{status.st_mtime_ns}".encode()).hexdigest()[:12]
    target = cache / "models" / f"gguf--{path.stem}--{key}"
    with hold_lock(cache, target.name, progress):
        if is_whole(target):
            return target
        with build_folder(target, "model", str(path), f"GGUF file {path.name}") as draft:
            draft.provenance.update(convert_gguf(path, draft.path, progress=progress), sha256=sha256_file(path))
    return target
