"""Whether a draft is of the built-in target, as far as its own files say."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from eyas.contract import Contract
from eyas.contract.schema import TargetIdentity
from eyas.draft.checkpoint import CONTRACT
from eyas.draft.entries import own_entry
from eyas.draft.stored import read_document
from eyas.errors import EyasError


def is_of(target: TargetIdentity, draft: Path) -> bool:
    """True if the contract of the draft in ``draft`` names ``target``, or, without a readable one, if its
    config.json has that target's sizes and says nothing else.

    What cannot be read is no answer here: the check itself says what is wrong with it.
    """
    promised = _promised(draft)
    if promised is not None:
        return promised == target
    try:
        _, document, _ = read_document(draft)
        return _fits(target, document)
    except EyasError:
        return False


def _promised(draft: Path) -> TargetIdentity | None:
    try:
        return Contract.read(draft / CONTRACT).target if (draft / CONTRACT).is_file() else None
    except EyasError:
        return None  # the config may still tell


def _fits(target: TargetIdentity, document: Mapping[str, Any]) -> bool:
    own = own_entry(document)
    hidden_size = document.get("target_hidden_size")
    said = {
        "vocab_size": document.get("vocab_size"),
        "hidden_size": document.get("hidden_size") if hidden_size is None else hidden_size,
        "num_layers": own.get("target_num_layers", target.num_layers),
        "architecture": own.get("target_architecture", target.architecture),
    }
    return all(value == getattr(target, name) for name, value in said.items())
