"""The learning curve: the right line with an honest interval, or words that say why there is none."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from eyas.train.learning_curve import (
    FILE,
    PICTURE,
    doublings,
    fit_doublings,
    learning_curves,
    words,
    write_learning_curve,
)
from log_rig import evaluation, record

TOKENS = [1000 * 2**i for i in range(6)]


def line(intercept, per_doubling, noise=0.0, tokens=TOKENS, seed=0):
    draw = np.random.default_rng(seed)
    return [(t, intercept + per_doubling * math.log2(t) + noise * draw.normal()) for t in tokens]


@given(st.floats(-3, 3), st.floats(0.01, 1) | st.floats(-1, -0.01), st.integers(4, 8))
def test_an_exact_line_is_found_and_prolonged(intercept, per_doubling, number):
    fit = fit_doublings(line(intercept, per_doubling, tokens=[100 * 3**i for i in range(number)]))
    assert fit.refusal is None
    assert fit.intercept == pytest.approx(intercept, abs=1e-6)
    assert fit.per_doubling == pytest.approx(per_doubling, abs=1e-6)
    assert fit.explained == pytest.approx(1)
    last = 100 * 3 ** (number - 1)
    assert [(e.factor, e.tokens) for e in fit.extrapolations] == [
        (2, pytest.approx(2 * last)),
        (4, pytest.approx(4 * last)),
    ]
    now = intercept + per_doubling * math.log2(last)
    assert [e.value - now for e in fit.extrapolations] == pytest.approx([per_doubling, 2 * per_doubling], abs=1e-6)


def test_intervals_hold_the_truth_as_often_as_they_say():
    inside = ahead = 0
    for seed in range(400):
        fit = fit_doublings(line(0.5, 0.2, noise=0.1, seed=seed))
        inside += fit.per_doubling_low <= 0.2 <= fit.per_doubling_high
        if fit.extrapolations:
            new = 0.5 + 0.2 * math.log2(4 * TOKENS[-1]) + 0.1 * np.random.default_rng(9000 + seed).normal()
            ahead += fit.extrapolations[1].low <= new <= fit.extrapolations[1].high
        else:
            ahead += 1
    for hits in (inside, ahead):
        assert stats.binomtest(hits, 400, 0.95).pvalue > 1e-3, hits


@pytest.mark.parametrize("number", range(4))
def test_too_few_points_give_no_line(number):
    points = line(1, 0.2)[:number] * 3
    fit = fit_doublings(points)
    assert fit.per_doubling is None
    assert fit.extrapolations == ()
    assert fit.refusal == f"{number} token counts measured; a fit needs at least 4"


@pytest.mark.parametrize(
    ("points", "said"),
    [
        ([(t, 2 + 0.3 * (-1) ** i) for i, t in enumerate(TOKENS)], "explains"),
        ([(t, 2.0) for t in TOKENS], "explains 0%"),
        (list(zip(TOKENS[:4], [2.0, 1.9, 2.3, 2.2], strict=True)), "may be zero"),
        (line(-5, 0.7, tokens=[2**i for i in range(9, 16)]), "would pass 6"),
        (line(5, -0.25, tokens=[2**i for i in range(9, 16)]), "would pass 1"),
    ],
    ids=["zigzag", "flat", "perhaps nothing", "above the ceiling", "below one"],
)
def test_it_refuses_to_extrapolate_in_words(points, said):
    fit = fit_doublings(points, 1.0, 6.0)
    assert said in (fit.refusal or "")
    assert fit.extrapolations == ()
    assert fit.per_doubling is not None
    assert "not extrapolated" in words(fit)


def test_an_interval_does_not_leave_what_is_possible():
    points = line(-4.4, 0.6, noise=0.2, tokens=[2**i for i in range(10, 16)])
    free, held = fit_doublings(points), fit_doublings(points, 1.0, 6.0)
    assert free.extrapolations[1].high > 6
    assert held.extrapolations[1].high == 6
    assert held.extrapolations[1].value == free.extrapolations[1].value


def test_both_measures_of_all_domains_are_followed(tmp_path):
    steps = [2**i for i in range(7)]
    measured = [(0, evaluation(1))] + [(100 * step, evaluation(step)) for step in steps]
    curves = learning_curves(measured)
    assert [(c.domain, c.measure) for c in curves] == [
        (domain, measure)
        for domain in ("chat", "code", "all")
        for measure in ("accept length", "first-position acceptance")
    ]
    assert curves[0].points == tuple((100 * s, evaluation(s)["expected"][1]["accept_length"]) for s in steps)
    assert curves[1].points == tuple((100 * s, evaluation(s)["curves"][0]["survival"][0]) for s in steps)
    assert (curves[0].highest, curves[1].highest) == (6, 1)
    document = write_learning_curve(tmp_path, curves, "answer tokens of the data")
    assert json.loads((tmp_path / FILE).read_text()) == json.loads(json.dumps(document))
    assert document["x"] == "answer tokens of the data"
    assert (tmp_path / PICTURE).read_bytes()[:4] == b"\x89PNG"


def test_a_domain_that_was_counted_only_once_does_not_disturb(tmp_path):
    late = evaluation(8)
    late["expected"].append(record("new $et", 5, 2.0))
    curves = learning_curves([(100, evaluation(1)), (800, late)])
    (new,) = [c for c in curves if c.domain == "new $et"]
    assert new.measure == "accept length"
    assert "at least 4" in new.fit.refusal
    write_learning_curve(tmp_path, curves)


def test_a_run_without_evaluations_has_an_empty_picture(tmp_path):
    assert write_learning_curve(tmp_path, learning_curves([]))["curves"] == []
    assert (tmp_path / PICTURE).is_file()


@given(st.floats(1, 1e6), st.floats(1, 1e6))
def test_ticks_are_doublings_of_the_last_point(a, b):
    ticks = doublings(min(a, b), max(a, b))
    assert ticks[:3] == [max(a, b) * 4, max(a, b) * 2, max(a, b)]
    assert len(ticks) <= 12
    assert ticks[-1] >= min(a, b) * (1 - 1e-9)
