"""The lane of long runs against a real server: ``make soak``. `make test` does not collect it."""

from __future__ import annotations

from pathlib import Path

import pytest

from soak.pairs import PAIRS, Pair
from soak.told import Told


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("soak")
    group.addoption("--minutes", type=float, default=30.0, help="of mixed load")
    group.addoption("--pair", choices=sorted(PAIRS), default="builtin", help="what is served")
    group.addoption("--clients", type=int, default=12, help="at one time, in the mixed load")
    group.addoption("--connections", type=int, default=1000, help="held at one time")
    group.addoption("--examples", type=int, default=40, help="of requests made up for each operation")
    group.addoption("--soak-seed", type=int, default=5, help="of the choice of requests")
    group.addoption("--out", type=Path, default=None, help="a JSON file for the figures seen")


@pytest.fixture(scope="session")
def pair(pytestconfig: pytest.Config) -> Pair:
    return PAIRS[pytestconfig.getoption("--pair")]()


@pytest.fixture(scope="session")
def told(pytestconfig: pytest.Config) -> Told:
    """What every test adds its figures to."""
    path = pytestconfig.getoption("--out")
    return Told(None if path is None else Path(path).absolute())
