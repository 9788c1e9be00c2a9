"""A check from files to verdict: planted faults of each family are named, and a healthy draft is left alone."""

from __future__ import annotations

from pathlib import Path

import pytest

from eyas.check.findings import Verdict
from eyas.check.run import CheckRequest, run_check
from eyas.testing.planted import doubles, healthy, singles
from eyas.testing.planting import Planted, outcome, tiny

TINY = tiny()
BY_NAME = {one.name: one for one in (*singles(TINY), *doubles(TINY), *healthy(TINY))}
PROMPTS = 8
"""Far fewer than a check uses: these faults are plain."""


def checked(planted: Planted, folder: Path) -> Verdict:
    draft = planted.make(TINY, folder)
    target = None if planted.flags else Path(TINY.target)
    return run_check(
        CheckRequest(
            draft=draft, target=target, flags=planted.flags, engines=planted.parsed_engines, num_prompts=PROMPTS
        )
    )


@pytest.mark.parametrize(
    "name",
    [
        "taps of another trainer",
        "halves of q, k, v",
        "two taps off, map absent",
        "embedding of another",
        "NaN",
        "weights cut",
        "flags SGLang (4, 1, 24)",
    ],
)
def test_a_planted_fault_is_named(name: str, tmp_path: Path) -> None:
    verdict = checked(BY_NAME[name], tmp_path / "draft")
    assert outcome(BY_NAME[name], verdict) == "exact", [(f.kind, f.said) for f in verdict.findings]
    assert (verdict.answer, verdict.exit_code) == ("fault", 1)


@pytest.mark.parametrize("name", ["as published", "noise 15%"])
def test_a_healthy_draft_is_left_alone(name: str, tmp_path: Path) -> None:
    verdict = checked(BY_NAME[name], tmp_path / "draft")
    assert outcome(BY_NAME[name], verdict) == "clear", [(f.kind, f.said) for f in verdict.findings]
    assert verdict.exit_code == 0
    assert verdict.survival is not None
    assert verdict.survival.accept_length > 1.5
