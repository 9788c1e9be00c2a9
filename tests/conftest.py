"""Fixtures that more than one kind of test uses."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def builtin_target_folder() -> Path:
    """The built-in target's folder, fetched into the user's cache the first time."""
    from eyas.artifacts import cache_root
    from eyas.pull import resolve_model

    return resolve_model("builtin:smollm2-135m", cache_root())
