"""The export itself: read strictly, write for the goal, read back, compare, and only then show the folder."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from eyas.artifacts import MANIFEST, build_folder, read_manifest
from eyas.contract import Contract, ContractFacts, TargetSizes, Witness, enforce
from eyas.dialects.draft_keys import left_out
from eyas.dialects.speculators import CONFIG_KEY, Provenance
from eyas.draft.checkpoint import CONTRACT, WITNESS, check_witness, config_facts
from eyas.draft.config import LayerDialect
from eyas.draft.names import EMBEDDING, KEPT, OFFSETS
from eyas.draft.stored import StoredDraft, read_document, read_stored, write_stored
from eyas.errors import EyasError
from eyas.export.goal import Goal, Written, check_capture, write_for
from eyas.export.target import is_embedding_of, known_sizes
from eyas.models.weights.safetensors import open_checkpoint

DEFAULT_STEPS = 3
_CARRIED_FILES = (CONTRACT, WITNESS, "README.md", "LICENSE", "LICENSE.txt", "*.png")
_OWN_FILES = ("config.json", "manifest.json", "*.safetensors", "model.safetensors.index.json")
_REPORT = "export again; if it stays so, report it with the draft"


@dataclass(frozen=True)
class Asked:
    """What an export may be told. ``target``: the target's folder; config.json is enough, unless an embedding must be
    compared. ``target_name``: written for speculators. ``taps``, ``layer_dialect``: where the draft's files leave them
    open. ``num_steps``: the K that vLLM takes from the speculators layout where it is told none.
    """

    target: Path | None = None
    target_name: str | None = None
    taps: tuple[int, ...] | None = None
    layer_dialect: LayerDialect | None = None
    num_steps: int | None = None


@dataclass(frozen=True)
class Export:
    """What was done. ``tensors``: stored name → new name, or why it is not needed · ``config_left_out``: entries that
    nothing is computed with, kept in manifest.json · ``files_left``: files that are not of the draft.
    """

    folder: Path
    goal: Goal
    layout: str
    served_by: tuple[str, ...]
    taps: tuple[int, ...]
    tensors: Mapping[str, str]
    config_left_out: Mapping[str, Any]
    files: tuple[str, ...]
    files_left: tuple[str, ...]
    notes: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        """For ``--json``."""
        return {
            "folder": str(self.folder),
            "from": self.layout,
            "to": self.goal.name,
            "engine": str(self.goal.engine),
            "served_by": list(self.served_by),
            "taps": list(self.taps),
            "tensors": dict(self.tensors),
            "config_left_out": dict(self.config_left_out),
            "files": list(self.files),
            "files_left": list(self.files_left),
            "notes": list(self.notes),
        }


def export_draft(source: Path, goal: Goal, folder: Path, asked: Asked | None = None) -> Export:
    """Write the draft in ``source`` to ``folder`` in another layout; what is there already is replaced only at the
    end, when the new folder has been read back and found equal, bit by bit.

    Raises ``export.no-place`` for what the other layout cannot hold, ``export.no-target``, ``export.not-equal``,
    ``draft.…``, ``taps.…``, ``model.tensor-…``, ``artifact.…``, ``contract.mismatch``, ``flags.contradiction``.
    A folder that is no draft is never replaced: ``artifact.not-writable``.
    """
    asked = asked or Asked()
    _check_place(source, folder)
    _, document, _ = read_document(source)
    target = known_sizes(source, document, asked.target)
    stored = _read(source, target, asked)
    unused = left_out(stored.document)
    written = _write_for(stored, goal, target, asked, source)
    files, rest = _files(source)
    _check_beside(stored, files)
    with build_folder(folder, "draft", folder.name, f"{goal.name} layout of a draft of {target.architecture}") as made:
        made.provenance.update(exported_from=stored.layout, config_left_out=unused, about=dict(stored.about))
        write_stored(made.path, written.document, written.tensors, files)
        _check(stored, written, made.path, target, asked)
    return Export(
        folder=folder,
        goal=goal,
        layout=stored.layout,
        served_by=tuple(map(str, written.served_by)),
        taps=stored.config.taps,
        tensors={**written.fates, **_derived(source, stored)},
        config_left_out=unused,
        files=tuple(files),
        files_left=rest,
        notes=stored.notes + written.notes,
    )


def _check_place(source: Path, folder: Path) -> None:
    """Only a draft may be replaced, and never the one that is read."""
    if folder.resolve() in (source.resolve(), *source.resolve().parents):
        raise EyasError("flags.contradiction", f"{folder} holds the draft itself", "name another folder with --out")
    if folder.exists() and not (folder.is_dir() and (_is_draft(folder) or not any(folder.iterdir()))):
        cause = f"{folder} is there already, and is no draft that Eyas wrote"
        raise EyasError("artifact.not-writable", cause, "name a new folder with --out")


def _is_draft(folder: Path) -> bool:
    return (folder / MANIFEST).is_file() and read_manifest(folder).kind == "draft"


def _read(source: Path, target: TargetSizes, asked: Asked) -> StoredDraft:
    def is_targets(stored: Tensor) -> bool:
        return asked.target is not None and is_embedding_of(asked.target, stored)

    stored = read_stored(source, target, is_targets, asked.layer_dialect, asked.taps, keep_copy=True)
    verifier = stored.about.get(CONFIG_KEY, {}).get("verifier", {})
    named = verifier.get("architectures") or [target.architecture]
    if named != [target.architecture]:
        cause = f"the draft was made for {', '.join(map(str, named))}, and the target is {target.architecture}"
        raise EyasError("draft.target-mismatch", cause, "name the target that the draft was trained for")
    return stored


def _write_for(stored: StoredDraft, goal: Goal, target: TargetSizes, asked: Asked, source: Path) -> Written:
    try:
        return write_for(stored, goal, target, _provenance(stored, target, asked, source))
    except EyasError as error:
        compared = asked.target is not None or not stored.config.own_embedding
        if error.code != "draft.dialect" or compared or goal.name != "sglang":
            raise
        cause = f"{error.cause}; whether {EMBEDDING} is only a copy of the target's is not known"
        raise EyasError("export.no-target", cause, "name the target's folder with --model") from error


def _provenance(stored: StoredDraft, target: TargetSizes, asked: Asked, source: Path) -> Provenance:
    said = stored.about.get(CONFIG_KEY, {})
    methods = said.get("proposal_methods") or [{}]
    steps = asked.num_steps or methods[0].get("speculative_tokens")
    if steps is None and (source / CONTRACT).is_file():
        steps = max((row.num_steps for row in Contract.read(source / CONTRACT).expected), default=None)
    name = asked.target_name or said.get("verifier", {}).get("name_or_path")
    return Provenance(name, target.architecture, steps or DEFAULT_STEPS)


def _files(source: Path) -> tuple[dict[str, bytes], tuple[str, ...]]:
    """(files that go along, names of files that are not of the draft)."""
    carried = {path.name for pattern in _CARRIED_FILES for path in source.glob(pattern)}
    own = {path.name for pattern in _OWN_FILES for path in source.glob(pattern)}
    rest = {path.name for path in source.iterdir()} - carried - own
    return {name: (source / name).read_bytes() for name in sorted(carried)}, tuple(sorted(rest))


def _check_beside(stored: StoredDraft, files: Mapping[str, bytes]) -> None:
    """Contract and witness go along as they are, so they must be those of this draft."""
    if CONTRACT in files:
        facts = ContractFacts(**config_facts(stored.config, stored.tensors.get(OFFSETS)))
        enforce(Contract.from_json(files[CONTRACT]), facts)
    if WITNESS in files:
        check_witness(Witness.from_bytes(files[WITNESS]), files.get(CONTRACT))


def _derived(source: Path, stored: StoredDraft) -> dict[str, str]:
    """Stored tensors that are in no layout, because they follow from the config."""
    known = set(stored.names.values())
    return {
        name: "not needed: follows from the RoPE settings"
        for name in open_checkpoint(source).infos
        if name not in known
    }


def _check(stored: StoredDraft, written: Written, folder: Path, target: TargetSizes, asked: Asked) -> None:
    """Raise ``export.not-equal`` unless the folder reads back as the draft that was exported."""

    def is_targets(_: Tensor) -> bool:
        return not stored.config.own_embedding

    again = read_stored(folder, target, is_targets, asked.layer_dialect, keep_copy=True)
    compare(stored, again)
    for engine in written.served_by:
        check_capture(again.document, stored.config.taps, target, engine)


def compare(before: StoredDraft, after: StoredDraft) -> None:
    """Raise ``export.not-equal``, naming the first difference in shape, options, taps, RoPE, or the bits of a tensor.

    An identity map and a mask that follows from its map may be absent on either side.
    """
    for name in type(before.config).model_fields:
        sides = getattr(before.config, name), getattr(after.config, name)
        if sides[0] != sides[1]:
            raise _not_equal(f"{name} was {sides[0]!r} and is {sides[1]!r}")
    may_differ = {KEPT} if before.config.has_map else {KEPT, OFFSETS}
    for name in sorted(before.tensors.keys() | after.tensors.keys()):
        old, new = before.tensors.get(name), after.tensors.get(name)
        if old is None or new is None:
            if name not in may_differ:
                raise _not_equal(f"{name} is on one side only")
        elif old.dtype != new.dtype or old.shape != new.shape or not torch.equal(_bits(old), _bits(new)):
            raise _not_equal(f"{name} has other bits than before")


def _bits(tensor: Tensor) -> Tensor:
    return tensor.contiguous().reshape(-1).view(torch.uint8)


def _not_equal(cause: str) -> EyasError:
    return EyasError("export.not-equal", f"read back, the draft differs: {cause}", _REPORT)
