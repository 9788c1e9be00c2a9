"""Whose draft a folder holds, by its contract or its config."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from eyas.check.belongs import is_of
from eyas.contract import Contract
from eyas.engine.session import builtin_draft_folder
from eyas.testing import tiny_pair

PACKAGED = builtin_draft_folder("builtin:smollm2-135m")
assert PACKAGED is not None
TARGET = Contract.read(PACKAGED / "contract.json").target


@pytest.fixture
def draft(tmp_path: Path) -> Path:
    """The packaged draft's config and contract; its weights are not looked at."""
    for name in ("config.json", "contract.json"):
        shutil.copy(PACKAGED / name, tmp_path / name)
    return tmp_path


def edit(path: Path, change: Callable[[dict[str, Any]], object]) -> None:
    document = json.loads(path.read_text())
    change(document)
    path.write_text(json.dumps(document))


def test_by_its_contract(draft: Path) -> None:
    assert is_of(TARGET, draft)
    edit(draft / "contract.json", lambda d: d["target"].update(weights_sha256="0" * 64))
    assert not is_of(TARGET, draft), "a fine-tune of the same shape is another target"


@pytest.mark.parametrize(
    ("change", "fits"),
    [
        (lambda d: None, True),
        (lambda d: d.pop("eyas"), True),
        (lambda d: d.pop("target_hidden_size"), True),
        (lambda d: d.update(target_hidden_size=None), True),
        (lambda d: d.update(vocab_size=32000), False),
        (lambda d: d.update(target_hidden_size=512), False),
        (lambda d: d["eyas"].update(target_num_layers=31), False),
        (lambda d: d["eyas"].update(target_architecture="Qwen3ForCausalLM"), False),
        (lambda d: d.pop("vocab_size"), False),
        (lambda d: d.update(eyas=7), False),
    ],
)
def test_by_its_config_where_there_is_no_contract(
    draft: Path, change: Callable[[dict[str, Any]], object], fits: bool
) -> None:
    (draft / "contract.json").unlink()
    edit(draft / "config.json", change)
    assert is_of(TARGET, draft) is fits


def test_a_broken_contract_leaves_it_to_the_config(draft: Path) -> None:
    (draft / "contract.json").write_text("{")
    assert is_of(TARGET, draft)
    (draft / "config.json").write_text("{")
    assert not is_of(TARGET, draft)


def test_nothing_readable_is_no_answer(tmp_path: Path) -> None:
    assert not is_of(TARGET, tmp_path)
    assert not is_of(TARGET, tiny_pair()[1])
