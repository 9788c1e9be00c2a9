"""From what a search found to one answer: decided, decided but for the value, or open."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from eyas.check.conclude import conclude
from eyas.check.findings import Finding, Ranked, Verdict
from eyas.check.hypotheses import DECLARED, Hypothesis, other_taps
from eyas.check.mending import known
from eyas.check.readings import Reading, Rope
from eyas.check.run import CheckRequest, Progress
from eyas.check.search import SearchResult
from eyas.testing import tiny_pair

BASE = Reading((3, 15, 27), Rope(10_000.0))


def taps(*named: int) -> Hypothesis:
    return other_taps(BASE, named)


NORM = Hypothesis("norm_output on", ("norm.output",), replace(BASE, norm_output=True))


def verdict_of(search: SearchResult, *findings: Finding) -> Verdict:
    state = Progress(CheckRequest(tiny_pair()[1], None), lambda _: None)
    state.search = search
    state.findings += findings
    return conclude(state)


def searched(found: Hypothesis, rivals: Sequence[Hypothesis] = ()) -> SearchResult:
    doubted = found if rivals else None
    return SearchResult(found.reading, [found], [(0.1, 9.0)], doubted, list(rivals))


def test_one_hypothesis_is_the_fault() -> None:
    verdict = verdict_of(searched(taps(0, 3, 15)))
    assert (verdict.answer, verdict.headline) == ("fault", "the fault is: trained on taps (0, 3, 15)")
    assert not verdict.between


def test_taps_that_do_as_well_leave_the_fault_certain() -> None:
    search = searched(taps(0, 3, 15), [taps(0, 3, 18), taps(0, 2, 18)])
    verdict = verdict_of(search)
    assert verdict.answer == "fault"
    assert "trained on taps (0, 3, 15), as far as can be told" in verdict.headline
    assert "2 or 3 in slot 2, 15 or 18 in slot 3 explain it as well" in verdict.headline
    (finding,) = verdict.findings
    assert (finding.weight, finding.data["as_good"]) == ("fault", [[0, 3, 18], [0, 2, 18]])
    assert verdict.deciding
    assert known(search, None).taps == (0, 3, 15)


def test_what_is_better_but_not_surely_leaves_the_verdict_open() -> None:
    declared = Hypothesis(DECLARED, (), BASE)
    search = SearchResult(BASE, doubted=taps(2, 15, 27), rivals=[declared])
    search.ranking = [Ranked("trained on taps (2, 15, 27)", ("taps.wrong",), 0.02, 2.8, 1.4)]
    verdict = verdict_of(search)
    assert (verdict.answer, verdict.exit_code) == ("undecided", 3)
    assert verdict.headline == "either trained on taps (2, 15, 27), or as the files declare"
    assert [(f.kind, f.weight) for f in verdict.findings] == [("taps.wrong", "warning")]
    assert known(search, None).taps is None


def test_a_fault_elsewhere_is_not_hidden_by_what_is_open() -> None:
    search = searched(taps(0, 3, 15), [NORM])
    other = Finding("map.absent", "static", "fault", "there is no map")
    verdict = verdict_of(search, other)
    assert (verdict.answer, verdict.exit_code) == ("fault", 1)
    assert verdict.headline.startswith("the fault is: there is no map; besides, either trained on taps (0, 3, 15), or")


def test_faults_of_two_kinds_are_undecided() -> None:
    search = searched(taps(0, 3, 15), [NORM])
    verdict = verdict_of(search)
    assert (verdict.answer, verdict.exit_code) == ("undecided", 3)
    assert verdict.between == ("trained on taps (0, 3, 15)", "norm_output on")
    assert verdict.findings[0].weight == "warning"
    assert known(search, None).taps is None
