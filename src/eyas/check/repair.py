"""Repair without training: the draft that was meant, from the one that is stored and what is known of it.

Nothing is guessed: what is not told, and does not follow from the files, stays as it is, and is listed as left.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from eyas.artifacts import MANIFEST, build_folder, read_manifest
from eyas.check.mend import Known, Parts, completed, is_map, with_map, with_norms, with_rope, with_rotation, with_taps
from eyas.check.static import StaticResult
from eyas.check.tensors import expected_shapes
from eyas.contract import Contract, ContractFacts, TargetSizes, Witness, enforce
from eyas.dialects.draft_keys import CARRIED
from eyas.dialects.engines import Engine
from eyas.dialects.limits import limits
from eyas.dialects.taps import ids_for_taps
from eyas.draft.checkpoint import CONTRACT, WITNESS, check_witness, config_facts
from eyas.draft.config import DraftConfig
from eyas.draft.layout import layout_of, to_json
from eyas.draft.names import HEAD, KEPT, OFFSETS
from eyas.draft.stored import DTYPES, write_stored
from eyas.errors import EyasError
from eyas.models.strict import some

_BESIDE = ("README.md", "LICENSE", "LICENSE.txt", "*.png")


@dataclass(frozen=True)
class Servable:
    """Whether an engine version serves the draft as trained; ``why`` not, and the ``fix``."""

    engine: Engine
    serves: bool
    why: str = ""
    fix: str = ""


@dataclass(frozen=True)
class Corrected:
    """``left``: faults that stay, in words. ``document`` names the taps for every engine that can serve the draft."""

    config: DraftConfig
    document: Mapping[str, Any]
    tensors: Mapping[str, Tensor]
    servable: tuple[Servable, ...]
    notes: tuple[str, ...]
    left: tuple[str, ...]


def repair(result: StaticResult, known: Known | None = None, engines: Sequence[Engine] | None = None) -> Corrected:
    """The draft that was meant. ``engines``: those that should serve it, by default the newest SGLang and vLLM known.

    Raises ``draft.config`` where its files leave too much open, ``draft.dialect`` where none of ``engines`` can serve
    it (retrain), ``draft.vocab-map``, ``taps.…``.
    """
    known = known or Known()
    if result.config is None or result.sizes is None:
        cause = "too little of the draft is known to write it again: its config, or its target"
        raise EyasError("draft.config", cause, "name the target, and mend the faults that the check lists")
    taps = known.taps or result.taps
    if taps is None:
        cause = "which taps the draft was trained on is not known"
        raise EyasError("draft.config", cause, "find them with `eyas check DRAFT --target T`")
    parts = Parts(result.config, dict(result.tensors), _notes(result))
    parts = completed(parts, known)
    parts = with_map(parts, result.offsets if known.offsets is None else known.offsets)
    parts = parts if known.rotation is None else with_rotation(parts, known.rotation)
    parts = with_norms(parts, known.flags)
    parts = parts if known.rope is None else with_rope(parts, known.rope)
    parts = with_taps(parts, taps)
    config, tensors = _plain(parts)
    shared = not config.has_map and HEAD not in tensors and result.document.get("draft_vocab_size", 0) is None
    can = servable(config, result.sizes, engines, own_head=not shared)
    served = [one.engine for one in can if one.serves]
    if not served:
        cause = "; ".join(f"{one.engine}: {one.why}" for one in can)
        raise EyasError("draft.dialect", f"no engine asked for can serve this draft as trained: {cause}", can[0].fix)
    kinds = [value.dtype for name, value in tensors.items() if name not in (OFFSETS, KEPT) and value.dtype in DTYPES]
    dtype = max(set(kinds), key=kinds.count)
    document = to_json(config, result.sizes.architecture, served, DTYPES[dtype][1])
    if shared:
        document["draft_vocab_size"] = None
    kept = {key: value for key, value in result.document.items() if key not in CARRIED}
    return Corrected(config, kept | document, tensors, can, parts.notes, _left(result, parts, known))


def servable(
    config: DraftConfig,
    target: TargetSizes,
    engines: Sequence[Engine] | None = None,
    has_map: bool | None = None,
    own_head: bool = True,
) -> tuple[Servable, ...]:
    """For each engine version whether it serves this draft, in the layout that Eyas writes, as it was trained."""
    layout = layout_of(config, has_map=has_map, own_head=own_head)
    answers = []
    for engine in engines or (Engine.parse("sglang"), Engine.parse("vllm")):
        met = limits(layout, engine)
        if met:
            why = "; ".join(f"{row.condition}: {row.consequence}" for row in met)
            answers.append(Servable(engine, False, why, met[0].fix))
            continue
        try:
            ids_for_taps(config.taps, target.num_layers, engine, target.architecture)
            to_json(config, target.architecture, (engine,), "bfloat16")
        except EyasError as error:
            answers.append(Servable(engine, False, error.cause, error.fix))
        else:
            answers.append(Servable(engine, True))
    return tuple(answers)


def write_repaired(
    source: Path, out: Path, corrected: Corrected, contract: Contract | None = None, witness: Witness | None = None
) -> Path:
    """Write the corrected draft to ``out``, at once or not at all; a draft that is there is replaced.

    ``contract``: of the corrected draft, enforced against it; ``witness``: of this contract, or else the source's where
    it is. Raises ``contract.mismatch``, ``model.tensor-missing``, ``draft.vocab-map``,
    ``flags.contradiction``, ``artifact.not-writable``.
    """
    _check_place(source, out)
    missing = sorted(expected_shapes(corrected.config, _shared(corrected)).keys() - corrected.tensors.keys())
    if missing:
        fix = "take the whole checkpoint from its source again"
        raise EyasError("model.tensor-missing", f"{some(missing)}: still missing after the repair", fix)
    if corrected.config.has_map and OFFSETS not in corrected.tensors:
        raise EyasError("draft.vocab-map", f"{OFFSETS} is still missing after the repair", "give the map")
    config, files = corrected.config, _beside(source)
    if contract is not None:
        enforce(contract, ContractFacts(**config_facts(config, corrected.tensors.get(OFFSETS))))
        files[CONTRACT] = contract.to_json().encode()
        if witness is not None:
            check_witness(witness, files[CONTRACT])
            files[WITNESS] = witness.to_bytes()
        elif (source / WITNESS).is_file() and _is_file(source / CONTRACT, files[CONTRACT]):
            files[WITNESS] = (source / WITNESS).read_bytes()
    with build_folder(out, "draft", out.name, "a repaired draft") as made:
        made.provenance.update(repaired=list(corrected.notes), left=list(corrected.left))
        write_stored(made.path, corrected.document, corrected.tensors, files)
    return out


def _shared(corrected: Corrected) -> bool:
    return corrected.document["draft_vocab_size"] is None


def _plain(parts: Parts) -> tuple[DraftConfig, dict[str, Tensor]]:
    """Config and exactly the tensors that it asks for, so far as they are there."""
    wanted = {*expected_shapes(parts.config, False), *((OFFSETS, KEPT) if parts.config.has_map else ())}
    tensors = {name: value.contiguous() for name, value in sorted(parts.tensors.items()) if name in wanted}
    return parts.config, tensors


def _notes(result: StaticResult) -> tuple[str, ...]:
    """What was understood when the files were read, and will be written as it was understood."""
    understood = ("config.dialect", "config.missing-key", "config.rope", "config.tied", "config.norms", "taps.default")
    renamed = [finding for finding in result.faults if "renamed" in finding.data]
    mended = [finding for finding in result.faults if finding.kind in understood]
    return tuple(f"{finding.kind}: {finding.said}" for finding in (*renamed, *mended))


def _left(result: StaticResult, parts: Parts, known: Known) -> tuple[str, ...]:
    """What no repair has settled: missing and broken tensors, a map that nothing tells, an unknown RoPE base."""
    config, tensors = parts.config, parts.tensors
    shared = result.document.get("draft_vocab_size", 0) is None and not config.has_map
    left = [f"{name} is missing" for name in expected_shapes(config, shared) if name not in tensors]
    if config.has_map and not is_map(tensors.get(OFFSETS), config.draft_vocab_size, config.vocab_size):
        left.append(f"{OFFSETS} is not known")
    lasting = ("weights.shape", "weights.dtype", "weights.nonfinite", "weights.random", "file.cut", "target.other")
    left += [f"{finding.kind}: {finding.said}" for finding in result.faults if finding.kind in lasting]
    if result.contract is None and known.rope is None:
        left += [f"config.rope: {finding.said}" for finding in result.faults if finding.kind == "config.rope"]
    return tuple(left)


def _beside(source: Path) -> dict[str, bytes]:
    paths = [path for pattern in _BESIDE for path in source.glob(pattern)]
    return {path.name: path.read_bytes() for path in paths if path.is_file() and not path.is_symlink()}


def _is_file(path: Path, data: bytes) -> bool:
    return path.is_file() and path.read_bytes() == data


def _check_place(source: Path, out: Path) -> None:
    """Only a draft may be replaced, and never the one that is repaired."""
    if out.resolve() in (source.resolve(), *source.resolve().parents):
        raise EyasError("flags.contradiction", f"{out} holds the draft itself", "name another folder with --fix")
    empty_or_draft = out.is_dir() and (
        not any(out.iterdir()) or ((out / MANIFEST).is_file() and read_manifest(out).kind == "draft")
    )
    if out.exists() and not empty_or_draft:
        cause = f"{out} is there already, and is no draft that Eyas wrote"
        raise EyasError("artifact.not-writable", cause, "name a new folder with --fix")
