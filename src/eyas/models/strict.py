"""Strict comparison of a checkpoint's tensors with what a model needs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from torch import Tensor

from eyas.errors import EyasError


class HasShape(Protocol):
    """A tensor, or the entry of one in a checkpoint's header."""

    @property
    def shape(self) -> Sequence[int]: ...


class Sliceable(HasShape, Protocol):
    """A tensor, or one in a file, of which only what is asked for is read."""

    def __getitem__(self, index: Any, /) -> Tensor: ...


def check_tensors(tensors: Mapping[str, HasShape], expected: Mapping[str, tuple[int, ...]]) -> None:
    """Raise ``model.tensor-missing``, ``-unknown`` or ``-shape``, naming the tensors."""
    missing = sorted(expected.keys() - tensors.keys())
    if missing:
        raise EyasError(
            "model.tensor-missing",
            f"the checkpoint lacks {some(missing)}",
            "fetch the whole checkpoint again",
        )
    unknown = sorted(tensors.keys() - expected.keys())
    if unknown:
        raise EyasError(
            "model.tensor-unknown",
            f"the checkpoint holds {some(unknown)}, which this architecture does not have",
            "check config.json's architectures and tie_word_embeddings",
        )
    for name, shape in expected.items():
        if tuple(tensors[name].shape) != tuple(shape):
            raise EyasError(
                "model.tensor-shape",
                f"{name} is {list(tensors[name].shape)}, config.json says {list(shape)}",
                "use the config.json that belongs to these weights",
            )


def some(names: list[str], most: int = 3) -> str:
    """The first few of ``names`` as text."""
    shown = ", ".join(names[:most])
    return shown if len(names) <= most else f"{shown} and {len(names) - most} more"
