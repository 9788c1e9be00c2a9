"""A random target of the tests' shape, and drafts for it."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from eyas.draft.checkpoint import read_draft
from eyas.draft.model import DraftModel
from eyas.errors import EyasError
from eyas.models.llama import LlamaTarget
from support.drafts import (
    KEPT,
    LLAMA,
    SGLANG,
    VLLM,
    VOCABULARY,
    edit_config,
    edit_tensors,
    make_config,
    random_weights,
    small_target,
    write,
)

__all__ = ["KEPT", "LLAMA", "SGLANG", "VLLM", "VOCABULARY", "edit_config", "edit_tensors", "make_config", "write"]

MakeDraft = Callable[..., DraftModel]


@pytest.fixture(scope="session")
def target() -> LlamaTarget:
    return small_target()


@pytest.fixture
def make_draft(target: LlamaTarget) -> MakeDraft:
    return partial(random_weights, target)


def code_of(folder: Path, target: LlamaTarget) -> str:
    with pytest.raises(EyasError) as caught:
        read_draft(folder, target)
    return caught.value.code
