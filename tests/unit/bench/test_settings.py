"""What may be asked for."""

from __future__ import annotations

from typing import Any

import pytest

from eyas.bench.settings import BenchSettings, Load
from eyas.errors import EyasError


@pytest.mark.parametrize(
    ("given", "loads"),
    [
        ({}, ["1 at once"]),
        ({"concurrency": (1, 8)}, ["1 at once", "8 at once"]),
        ({"rates": (0.5, 2.0)}, ["0.5/s", "2/s"]),
    ],
)
def test_levels(given: dict[str, Any], loads: list[str]):
    assert [str(load) for load in BenchSettings(**given).loads] == loads
    assert BenchSettings().loads == (Load("closed", 1),)


@pytest.mark.parametrize(
    ("given", "code"),
    [
        ({"concurrency": (1,), "rates": (1.0,)}, "flags.contradiction"),
        ({"concurrency": (0,)}, "flags.range"),
        ({"rates": (0.0,)}, "flags.range"),
        ({"timeout": 0.0}, "flags.range"),
        ({"temperature": 1e-6}, "flags.range"),
        ({"tries": 0}, "flags.range"),
        ({"max_token": 4}, "flags.unknown"),
    ],
)
def test_wrong_settings(given: dict[str, Any], code: str):
    with pytest.raises(EyasError) as error:
        BenchSettings(**given)
    assert error.value.code == code
