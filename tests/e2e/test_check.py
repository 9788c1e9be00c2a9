"""A check from files to verdict: planted faults of each family are named, and a healthy draft is left alone."""

from __future__ import annotations

from pathlib import Path

import pytest

from eyas.check.findings import Verdict
from eyas.check.run import CheckRequest, run_check
from eyas.contract import Contract
from eyas.engine.session import open_session
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
        "head random",
        "map rebuilt",
        "order first two exchanged",
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
    assert ("last tap", "proven") in {(link.name, link.state) for link in verdict.links}


def test_a_repaired_draft_has_a_contract_and_is_proven(tmp_path: Path) -> None:
    planted, target = BY_NAME["two taps off, map absent"], Path(TINY.target)
    draft, mended = planted.make(TINY, tmp_path / "draft"), tmp_path / "mended"
    verdict = run_check(CheckRequest(draft=draft, target=target, fix=mended, num_prompts=PROMPTS))
    (written,) = [finding for finding in verdict.findings if finding.kind == "repair.written"]
    assert written.data["left"] == []
    contract = Contract.read(mended / "contract.json")
    assert (contract.basis, contract.taps) == ("measurement", TINY.taps)
    again = run_check(CheckRequest(draft=mended, target=target, num_prompts=PROMPTS))
    assert again.answer == "proven"
    assert again.survival is not None
    assert again.survival.measured == again.survival.expected == contract.expected[0].survival
    open_session(target, mended)  # and it is enforced where it is served


def test_nothing_is_promised_of_what_cannot_be_mended(tmp_path: Path) -> None:
    draft, mended = BY_NAME["halves of q, k, v"].make(TINY, tmp_path / "draft"), tmp_path / "mended"
    request = CheckRequest(draft=draft, target=Path(TINY.target), fix=mended, num_prompts=PROMPTS)
    (written,) = [finding for finding in run_check(request).findings if finding.kind == "repair.written"]
    assert written.data["left"] == ["cat(hidden, embedding) in place of cat(embedding, hidden)"]
    assert not (mended / "contract.json").exists()
