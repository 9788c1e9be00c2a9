"""An export as the tests ask for it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from eyas.errors import EyasError
from eyas.export import Asked, Export, Goal, export_draft
from eyas.models.llama import LlamaTarget
from support.drafts import small_target

LAYOUTS = ("sglang", "vllm", "speculators")


@pytest.fixture(scope="session")
def target() -> LlamaTarget:
    return small_target()


def send(source: Path, to: str, out: Path, **asked: Any) -> Export:
    return export_draft(source, Goal.parse(to), out, Asked(**asked))


def code_of(source: Path, to: str, out: Path, **asked: Any) -> str:
    with pytest.raises(EyasError) as caught:
        send(source, to, out, **asked)
    assert not out.exists()
    return caught.value.code
