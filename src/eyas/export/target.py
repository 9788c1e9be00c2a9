"""The target of a draft, as far as an export needs it: its sizes, and its embedding to compare with."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from pydantic import ValidationError
from torch import Tensor

from eyas.contract import Contract, TargetSizes
from eyas.draft.checkpoint import CONTRACT
from eyas.draft.entries import own_entry
from eyas.errors import EyasError
from eyas.models.config import architecture_of, read_config
from eyas.models.weights.safetensors import open_checkpoint

_EMBEDDING = "embed_tokens.weight"
_NAME_IT = "name the target with --model"


def sizes_from_folder(folder: Path) -> TargetSizes:
    """Sizes of the target whose config.json is in ``folder``; no weights are read. Raises ``model.config``."""
    document = read_config(folder)
    inner = document.get("text_config") or document
    named = {"num_layers": "num_hidden_layers", "hidden_size": "hidden_size", "vocab_size": "vocab_size"}
    sizes = {name: inner.get(key) for name, key in named.items()}
    for name, size in sizes.items():
        if type(size) is not int or size < 1:
            cause = f"{folder}/config.json: {named[name]} is {size!r}, not a positive integer"
            raise EyasError("model.config", cause, "use the config.json of the target")
    return TargetSizes.model_validate({"architecture": architecture_of(document), **sizes})


def known_sizes(draft: Path, document: Mapping[str, Any], target: Path | None) -> TargetSizes:
    """Sizes of the draft's target: from its folder, else from the draft's contract or our entry in its config.

    ``document``: the draft's config in the engines' layout. Raises ``export.no-target`` where nothing tells them,
    ``draft.target-mismatch`` where folder and contract differ.
    """
    contract = None
    if (draft / CONTRACT).is_file():
        promised = Contract.read(draft / CONTRACT).target
        contract = TargetSizes(**{name: getattr(promised, name) for name in TargetSizes.model_fields})
    given = None if target is None else sizes_from_folder(target)
    if given is not None and contract is not None and given != contract:
        cause = f"the draft's contract is for a target with {contract!r}, and {target} has {given!r}"
        raise EyasError("draft.target-mismatch", cause, "name the target that the draft was trained for")
    return given or contract or _from_entry(draft, document)


def _from_entry(draft: Path, document: Mapping[str, Any]) -> TargetSizes:
    own = own_entry(document)
    sizes = {
        "architecture": own.get("target_architecture"),
        "num_layers": own.get("target_num_layers"),
        "hidden_size": document.get("target_hidden_size"),
        "vocab_size": document.get("vocab_size"),
    }
    try:
        return TargetSizes.model_validate(sizes)
    except ValidationError as error:
        cause = f"{draft} does not say how deep its target is, nor of which architecture, so layer ids mean nothing"
        raise EyasError("export.no-target", cause, _NAME_IT) from error


def is_embedding_of(target: Path, stored: Tensor) -> bool:
    """Whether ``stored`` [V, H] holds the same numbers as the embedding in the target's folder.

    Raises ``export.no-target`` if that folder has no weights, or not one embedding of this shape.
    """
    if not any(target.glob("*.safetensors")):
        cause = f"the draft holds an embedding, and {target} has no weights to compare it with"
        raise EyasError("export.no-target", cause, "name a folder that holds the target's weights with --model")
    checkpoint = open_checkpoint(target)
    found = [
        name
        for name, info in checkpoint.infos.items()
        if name.endswith(_EMBEDDING) and info.shape == tuple(stored.shape)
    ]
    if len(found) != 1:
        cause = f"{target} has {len(found)} embeddings of shape {list(stored.shape)}"
        raise EyasError("export.no-target", cause, "name the folder of the draft's own target with --model")
    embedding = checkpoint.load(found)[found[0]]
    wider = torch.promote_types(stored.dtype, embedding.dtype)
    return torch.equal(stored.to(wider), embedding.to(wider))
