"""A draft as its folder holds it, in any layout that can be recognised, checked but not yet a model.

Layouts: that of SGLang, vLLM and SpecForge, which Eyas writes (``eyas.draft.layout``), and that of speculators.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from eyas.contract import TargetSizes
from eyas.dialects.speculators import is_speculators, plain_document, read_provenance
from eyas.draft.config import DraftConfig, LayerDialect
from eyas.draft.entries import OWN_KEY, own_entry
from eyas.draft.layout import from_json
from eyas.draft.names import EMBEDDING, HEAD, KEPT, OFFSETS, canonical_names, parameter_pieces
from eyas.draft.vocab import check_kept, check_offsets
from eyas.errors import EyasError
from eyas.models.config import read_config
from eyas.models.strict import check_tensors
from eyas.models.weights.safetensors import (
    INDEX,
    SINGLE,
    Checkpoint,
    TensorInfo,
    open_checkpoint,
    write_safetensors,
)

DTYPES = {torch.float32: ("F32", "float32"), torch.bfloat16: ("BF16", "bfloat16"), torch.float16: ("F16", "float16")}
"""dtype → its name in safetensors and in config.json."""

Layout = Literal["engines", "speculators"]


@dataclass(frozen=True)
class StoredDraft:
    """A draft on disk.

    ``document``: its config in the engines' layout · ``about``: what its own layout says besides · ``tensors``: by
    canonical name, CPU, as stored; a copy of the target's embedding is among them only if it was asked for ·
    ``names``: canonical name → name in the file · ``notes``: what was understood from a default.
    """

    layout: Layout
    document: Mapping[str, Any]
    about: Mapping[str, Any]
    config: DraftConfig
    tensors: dict[str, Tensor]
    names: Mapping[str, str]
    notes: tuple[str, ...]

    @property
    def shared_head(self) -> bool:
        """True if the head is the target's, so that none is stored."""
        return self.document["draft_vocab_size"] is None


def read_document(folder: Path) -> tuple[Layout, dict[str, Any], dict[str, Any]]:
    """(layout, config.json as the engines' layout has it, what its own layout says besides).

    Raises ``artifact.…``, ``draft.dialect``, ``draft.config``.
    """
    document = read_config(folder)
    if is_speculators(document):
        return "speculators", plain_document(document), read_provenance(document)
    return "engines", document, {}


def read_stored(
    folder: Path,
    target: TargetSizes,
    is_targets_embedding: Callable[[Tensor], bool],
    layer_dialect: LayerDialect | None = None,
    taps: Sequence[int] | None = None,
    keep_copy: bool = False,
) -> StoredDraft:
    """The draft in ``folder``, made for ``target``, every tensor accounted for.

    ``is_targets_embedding``: whether a stored embedding [V, H] is only a copy; ``keep_copy`` reads it all the same.
    ``layer_dialect``, ``taps``: where the file leaves them open; it may not contradict them. Raises ``artifact.…``,
    ``draft.…``, ``taps.…``, ``model.tensor-…``, ``model.nonfinite``.
    """
    layout, document, about = read_document(folder)
    if taps is not None:
        document = {**document, OWN_KEY: _with_taps(document, taps)}
    checkpoint = open_checkpoint(folder)
    names = canonical_names(checkpoint.infos)
    copied = EMBEDDING in names and _is_copy(checkpoint, names[EMBEDDING], target, is_targets_embedding)
    if layout == "speculators" and "layer_dialect" not in own_entry(document):
        # Its layers after the first have the norm that vLLM uses.
        layer_dialect = layer_dialect or "vllm"
    config, notes = from_json(document, target, names, EMBEDDING in names and not copied, layer_dialect)
    tensors = _load(checkpoint, names, config, document["draft_vocab_size"] is None)
    if copied and keep_copy:
        tensors[EMBEDDING] = checkpoint.load([names[EMBEDDING]])[names[EMBEDDING]]
    return StoredDraft(layout, document, about, config, tensors, names, notes)


def _with_taps(document: Mapping[str, Any], taps: Sequence[int]) -> dict[str, Any]:
    own = dict(own_entry(document))
    if own.get("taps", list(taps)) != list(taps):
        cause = f"the draft's config names taps {own['taps']}, and {list(taps)} are asked for"
        raise EyasError("draft.dialect", cause, "leave the taps out: the file names them")
    return own | {"taps": list(taps)}


def _is_copy(
    checkpoint: Checkpoint, name: str, target: TargetSizes, is_targets_embedding: Callable[[Tensor], bool]
) -> bool:
    if checkpoint.infos[name].shape != (target.vocab_size, target.hidden_size):
        return False
    return is_targets_embedding(checkpoint.load([name])[name])


def _load(
    checkpoint: Checkpoint, names: Mapping[str, str], config: DraftConfig, shared_head: bool
) -> dict[str, Tensor]:
    """Exactly the tensors that the config asks for, by canonical name, checked before any is read."""
    infos: dict[str, TensorInfo] = {name: checkpoint.infos[stored] for name, stored in names.items()}
    floats = {piece: shape for pieces in parameter_pieces(config).values() for piece, shape in pieces}
    if shared_head:
        del floats[HEAD]
    if not config.own_embedding:
        infos.pop(EMBEDDING, None)
    if config.has_map and OFFSETS not in infos:
        raise EyasError(
            "draft.vocab-map",
            f"{OFFSETS} is missing, and the head has {config.draft_vocab_size} rows for {config.vocab_size} tokens",
            "take the whole checkpoint from its source again: engines would take draft ids for target ids",
        )
    maps = {OFFSETS: (config.draft_vocab_size,), KEPT: (config.vocab_size,)}
    expected = floats | {name: shape for name, shape in maps.items() if name in infos}
    check_tensors(infos, expected)
    for name in floats:
        if infos[name].dtype not in {stored for stored, _ in DTYPES.values()}:
            raise EyasError(
                "draft.config", f"{name} is stored as {infos[name].dtype}", "use weights that are not quantised"
            )
    loaded = checkpoint.load([names[name] for name in expected])
    tensors = {name: loaded[names[name]] for name in expected}
    for name in floats:
        check_finite(name, tensors[name])
    if OFFSETS in tensors:
        check_offsets(tensors[OFFSETS], config.vocab_size)
    if KEPT in tensors:
        check_kept(tensors[KEPT], tensors.get(OFFSETS), config.vocab_size)
    return tensors


def check_finite(name: str, value: Tensor) -> None:
    """Raise ``model.nonfinite`` for NaN and infinity."""
    if not bool(value.isfinite().all()):
        cause = f"the draft's {name} holds NaN or infinity as {str(value.dtype).removeprefix('torch.')}"
        raise EyasError("model.nonfinite", cause, "use bf16 or fp32 instead of fp16, or an earlier checkpoint")


def write_stored(
    folder: Path, document: Mapping[str, Any], tensors: Mapping[str, Tensor], files: Mapping[str, bytes]
) -> None:
    """Write config.json, the tensors by the names given (CPU), and further files by name, into an empty folder.

    Beside another .safetensors (the witness) an index names the weights' file: engines load every one that they find.
    """
    kinds = {torch.int64: "I64", torch.bool: "BOOL", **{dtype: name for dtype, (name, _) in DTYPES.items()}}
    specs = {name: (kinds[tensor.dtype], tuple(tensor.shape)) for name, tensor in tensors.items()}
    write_safetensors(folder / SINGLE, specs, tensors.items())
    if any(name.endswith(".safetensors") for name in files):
        size = sum(tensor.numel() * tensor.element_size() for tensor in tensors.values())
        index = {"metadata": {"total_size": size}, "weight_map": dict.fromkeys(sorted(tensors), SINGLE)}
        (folder / INDEX).write_text(json.dumps(index, indent=2) + "\n", encoding="utf-8")
    text = json.dumps(document, indent=2, ensure_ascii=False) + "\n"
    for name, data in {**files, "config.json": text.encode()}.items():
        assert name == Path(name).name, name
        (folder / name).write_bytes(data)
