"""docs/contract.md is the specification: every field of contract and witness stands in it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel

from eyas.contract import Contract, Witness, WitnessInfo

PAGE = (Path(__file__).parent.parent / "docs" / "contract.md").read_text(encoding="utf-8")


def fields(model: type[BaseModel], prefix: str = "") -> list[str]:
    found: list[str] = []
    for name, field in model.model_fields.items():
        kind: Any = field.annotation
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            found += fields(kind, f"{prefix}{name}.")
        else:
            found.append(f"{prefix}{name}")
    return found


@pytest.mark.parametrize("name", fields(Contract))
def test_every_field_of_the_contract_is_specified(name: str) -> None:
    assert f"`{name}`" in PAGE


@pytest.mark.parametrize("name", [*WitnessInfo.model_fields, *Witness.__dataclass_fields__])
def test_every_part_of_the_witness_is_specified(name: str) -> None:
    assert name == "info" or f"`{name}`" in PAGE
