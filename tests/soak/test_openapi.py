"""Requests made up from the server's own description: what comes back is what the description says."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import hypothesis
import pytest
import schemathesis
from schemathesis.checks import CHECKS, load_all_checks

from eyas.errors import CODES
from eyas.serve.api.failures import ErrorBody, status_of
from soak.pairs import tiny
from soak.server import HEADERS, serving
from soak.told import Told

SHORT = ("--context-length", "128", "--max-total-tokens", "2000")
"""So that even an answer without a limit is over soon."""
SEED = 20261130
LEFT_OUT = {
    "positive_data_acceptance": "a text may fit its schema and still be too long, or name a model that is not served",
}
"""Checks that say nothing here, and why."""


def test_what_the_description_says_is_so(
    told: Told, pytestconfig: pytest.Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The package keeps notes in the folder where it runs.
    monkeypatch.chdir(tmp_path)
    load_all_checks()
    checks = [check for check in CHECKS.get_all() if check.__name__ not in LEFT_OUT]
    counted: dict[str, int] = {}
    with serving(tiny(), tmp_path, *SHORT) as server:
        schema = schemathesis.openapi.from_dict(server.get("/openapi.json").json())
        schema.config.update(base_url=server.url)
        for result in schema.get_all_operations():
            operation = result.ok()
            counted[operation.label] = _tried(operation, checks, pytestconfig.getoption("--examples"))
        figures = server.metrics()
    told.add("schemathesis", {"version": schemathesis.__version__, "requests": counted, "left_out": LEFT_OUT})
    assert figures["eyas_engine_restarts_total"] == 0
    assert len(counted) >= 10
    assert min(counted.values()) >= 1


def _tried(operation: Any, checks: list[Any], examples: int) -> int:
    """Both kinds of requests, such as fit the description and such as do not; how many were sent."""
    sent = 0
    for mode in schemathesis.GenerationMode.POSITIVE, schemathesis.GenerationMode.NEGATIVE:

        @hypothesis.seed(SEED)
        @hypothesis.settings(
            max_examples=examples, database=None, deadline=None, suppress_health_check=list(hypothesis.HealthCheck)
        )
        @hypothesis.given(case=operation.as_strategy(generation_mode=mode))
        def attempt(case: Any) -> None:
            nonlocal sent
            sent += 1
            response = case.call_and_validate(headers=HEADERS, checks=checks, timeout=300)
            if response.status_code >= 400 and response.content:
                error = ErrorBody.model_validate_json(response.content).error
                assert error.code in CODES
                assert status_of(error.code) == response.status_code

        try:
            attempt()
        except hypothesis.errors.Unsatisfiable:
            # An operation without parameters has no wrong ones.
            assert mode == schemathesis.GenerationMode.NEGATIVE
    return sent
