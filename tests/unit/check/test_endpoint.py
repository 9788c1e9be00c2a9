"""Naming the hypothesis that a server's accepted counts fit, and staying undecided where they fit several or none."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from eyas.check.catalogue import KINDS
from eyas.check.endpoint import fit, fit_finding, judge, other_text
from eyas.check.endpoint_read import Observation, observe
from eyas.check.kinds_endpoint import ENDPOINT_KINDS
from eyas.dialects.counters import Counts, counts_of, counts_of_rounds, total_of
from eyas.servers.figures import Answered
from support.fake_engines import FakeEngine, histogram_of

K = 3
RIGHT, SHIFTED, RANDOM = (0.75, 0.6, 0.5), (0.7, 0.5, 0.4), (0.02, 0.0, 0.0)


def draw(rates: tuple[float, ...], requests: int = 12, rounds: int = 25, seed: int = 0) -> list[list[int]]:
    """Accepted drafts per round; ``rates``: conditional acceptance by position."""
    dice = np.random.default_rng(seed)
    luck = dice.random((requests, rounds, len(rates))) < np.array(rates)
    return [[int(np.cumprod(row).sum()) for row in request] for request in luck]


def observed(many: list[list[int]]) -> Observation:
    counts = [counts_of_rounds(rounds) for rounds in many]
    return Observation(tuple(Answered(None, None, c) for c in counts), total=total_of(counts))


def histograms(many: list[list[int]]) -> list[list[int]]:
    return [histogram_of(rounds) for rounds in many]


def predictions(seed: int = 0) -> dict[str, list[list[int]]]:
    named = {"declared": RIGHT, "taps shifted": SHIFTED, "head random": RANDOM}
    return {name: histograms(draw(rates, seed=seed + i)) for i, (name, rates) in enumerate(named.items())}


@pytest.mark.parametrize(
    ("name", "rates", "offset"), [("declared", RIGHT, 0), ("taps shifted", SHIFTED, 1), ("head random", RANDOM, 2)]
)
def test_an_exact_prediction_wins(name: str, rates: tuple[float, ...], offset: int) -> None:
    result = fit(observed(draw(rates, seed=offset)), predictions())
    assert (result.best, result.between, result.explained) == (name, (name,), True)
    assert (result.requests, result.rounds, result.ranking[0].exact) == (12, 300, 12)
    assert result.ranking[0].accept_length == pytest.approx(result.accept_length)


def test_near_ties_do_not_hide_it() -> None:
    many = draw(SHIFTED, seed=1)
    for rounds in many[::2]:
        rounds[3] = K - rounds[3]
    result = fit(observed(many), predictions())
    assert (result.best, result.explained) == ("taps shifted", True)


def test_sums_alone_still_tell_far_ones_apart() -> None:
    counts = [counts_of({"spec_verify_ct": len(r), "spec_num_correct_drafts": sum(r)}) for r in draw(RANDOM, seed=2)]
    seen = Observation(tuple(Answered(None, None, c) for c in counts))
    result = fit(seen, predictions())
    assert (result.best, result.explained) == ("head random", True)


def test_equal_predictions_are_undecided() -> None:
    same = histograms(draw(RIGHT))
    result = fit(observed(draw(RIGHT)), {"a": same, "b": same, "c": histograms(draw(RANDOM, seed=2))})
    assert (result.best, result.between) == (None, ("a", "b"))
    assert fit_finding(result, "b") is None
    found = fit_finding(result, "c")
    assert found is not None
    assert "a or b" in found.said


def test_one_request_decides_only_when_it_is_exact() -> None:
    def alone(seed: int) -> str | None:
        seen = observed(draw(RIGHT, requests=1, seed=seed))
        named = {"right": RIGHT, "other": SHIFTED}
        return fit(seen, {n: histograms(draw(r, requests=1, seed=i)) for i, (n, r) in enumerate(named.items())}).best

    assert alone(0) == "right"
    assert alone(7) is None


def test_what_nothing_explains_is_said() -> None:
    result = fit(
        observed(draw((0.95, 0.1, 0.1), seed=9)), {name: h for name, h in predictions().items() if "taps" not in name}
    )
    assert not result.explained
    found = fit_finding(result, "declared")
    assert found is not None
    assert found.kind == "endpoint.unexplained"


def test_the_findings_of_a_fit() -> None:
    right = fit(observed(draw(RIGHT)), predictions())
    assert fit_finding(right, "declared") is None
    wrong = fit(observed(draw(SHIFTED, seed=1)), predictions())
    found = fit_finding(wrong, "declared")
    assert found is not None
    assert (found.kind, found.weight, "taps shifted" in found.said) == ("endpoint.mismatch", "fault", True)


def test_totals_alone_are_compared_as_one() -> None:
    counts = total_of([counts_of_rounds(r) for r in draw(RIGHT)])
    result = fit(Observation((), total=counts), {"a": [], "b": []})
    assert (result.best, result.requests, result.explained) == (None, 1, False)


def test_nothing_seen_decides_nothing() -> None:
    result = fit(Observation((Answered(None, "said", None),)), {"a": [[1]], "b": [[2]]})
    assert (result.best, result.explained, result.rounds) == (None, False, 0)
    assert math.isnan(result.accept_length)
    assert fit_finding(result, "a") is None
    assert fit(Observation(()), {}).best is None


@settings(max_examples=40, deadline=None)
@given(st.lists(st.lists(st.integers(0, K), min_size=1, max_size=20), min_size=1, max_size=6), st.data())
def test_the_truth_is_never_ruled_out(many: list[list[int]], data: st.DataObject) -> None:
    other = [data.draw(st.lists(st.integers(0, K), min_size=1, max_size=20)) for _ in many]
    result = fit(observed(many), {"other": histograms(other), "truth": histograms(many)})
    assert "truth" in result.between
    assert result.explained or result.ranking[0].name == "other"


def judged(counts: Counts | None, **more: int) -> list[str]:
    return [finding.kind for finding in judge(Observation((), total=counts, speculates=None), **more)]


def test_what_figures_show_by_themselves() -> None:
    assert judged(counts_of_rounds([0] * 20)) == ["endpoint.none-accepted"]
    assert judged(counts_of_rounds([0] * 19)) == []
    assert judged(counts_of_rounds([])) == ["endpoint.plain"]
    assert judged(None) == []
    assert [f.kind for f in judge(Observation((), speculates=False))] == ["endpoint.plain"]
    assert judged(counts_of_rounds([1, 3, 0]), ceiling=4) == []
    assert judged(counts_of_rounds([1, 3, 0]), ceiling=3) == ["endpoint.ceiling"]
    assert judged(counts_of_rounds([1] * 30), ceiling=2) == ["endpoint.saturated"]
    proposed = Counts(10, 8, proposed=30)
    assert judged(proposed, num_draft_tokens=4) == []
    assert judged(proposed, num_draft_tokens=2) == ["endpoint.ceiling"]


def test_a_healthy_draft_behind_one_step_is_not_called_broken() -> None:
    """faults.md, input 1: accept length 1.6 with one step is 60 % of one token."""
    assert judged(counts_of_rounds([1, 1, 1, 0, 0] * 20), ceiling=2, num_draft_tokens=2) == []


def test_other_text() -> None:
    def seen(*answers: tuple[int, ...] | None) -> Observation:
        return Observation(tuple(Answered(tokens, None, None) for tokens in answers))

    right = [[1, 2, 3], [4, 5, 6]]
    assert other_text(seen((1, 2, 3), (4, 5)), right) is None
    assert other_text(seen(None, None), right) is None
    later = other_text(seen((1, 2, 3), (4, 5, 7)), right)
    assert later is not None
    assert (later.kind, later.weight, "token 2" in later.said) == ("endpoint.other-text", "warning", True)
    first = other_text(seen((9, 2, 3), (9, 5, 7)), right)
    assert first is not None
    assert first.weight == "fault"


@pytest.mark.parametrize("flavour", ["sglang", "vllm", "eyas"])
def test_a_planted_fault_is_named_over_http(flavour: str) -> None:
    with FakeEngine(flavour, draw(SHIFTED, seed=1)) as server:
        seen = observe(server.url, [[1, 2]] * 12, 200, timeout=60)
    assert fit(seen, predictions()).best == "taps shifted"


def test_every_kind_is_in_the_catalogue() -> None:
    assert {kind for kind in KINDS if kind.startswith("endpoint.")} == set(ENDPOINT_KINDS)
