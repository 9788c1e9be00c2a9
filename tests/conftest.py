"""Fixtures that more than one kind of test uses."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from scipy.stats import chisquare

Fit = Callable[[Sequence[int], Sequence[float]], float]


@pytest.fixture(scope="session")
def builtin_target_folder() -> Path:
    """The built-in target's folder, fetched into the user's cache the first time."""
    from eyas.artifacts import cache_root
    from eyas.pull import resolve_model

    return resolve_model("builtin:smollm2-135m", cache_root())


@pytest.fixture(scope="session")
def goodness_of_fit() -> Fit:
    """p-value of the chi-square test of counts against probabilities; 0 if the impossible was seen."""

    def p_value(counts: Sequence[int], probabilities: Sequence[float]) -> float:
        assert len(counts) == len(probabilities)
        if any(c and not p for c, p in zip(counts, probabilities, strict=True)):
            return 0.0
        assert sum(probabilities) == pytest.approx(1.0, abs=1e-5)
        n = sum(counts) / sum(probabilities)
        seen = [(c, n * p) for c, p in zip(counts, probabilities, strict=True) if p]
        assert min(e for _, e in seen) >= 5, "too few draws for the chi-square test"
        return float(chisquare([c for c, _ in seen], [e for _, e in seen]).pvalue)

    return p_value
