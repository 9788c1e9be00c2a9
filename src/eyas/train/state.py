"""What a killed run goes on from: one file with weights, moments and progress, replaced as a whole."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from eyas.artifacts import named_disk_errors
from eyas.errors import EyasError

STATE = "state.safetensors"


def save_state(path: Path, tensors: dict[str, Tensor], progress: dict[str, Any]) -> None:
    """Write beside, sync, then rename: a kill leaves the old state or the new one. Raises ``pull.disk-full``, …."""
    partial = path.with_name(f".{path.name}.partial")
    with named_disk_errors(path.parent):
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            save_file(tensors, partial, metadata={"progress": json.dumps(progress)})
            with partial.open("rb") as file:
                os.fsync(file.fileno())
            partial.replace(path)
        finally:
            partial.unlink(missing_ok=True)


def load_state(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """(tensors, progress) of :func:`save_state`. Raises ``artifact.corrupt``."""
    try:
        with safe_open(path, "pt") as file:
            progress = json.loads((file.metadata() or {})["progress"])
            # Copies, because a mapped file may be replaced by the next state.
            return {name: file.get_tensor(name).clone() for name in file.keys()}, progress  # noqa: SIM118
    except (SafetensorError, KeyError, ValueError) as error:
        fix = "remove it to begin anew, or put back a copy of it"
        raise EyasError("artifact.corrupt", f"{path} is no training state: {error}", fix) from error
