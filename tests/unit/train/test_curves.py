"""The picture of a run: drawn from whatever the log holds, whole or not at all, and true to its numbers."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from matplotlib import image

from eyas import plotting
from eyas.train import curves
from eyas.train.curves import bin_means, draw_curves, smooth
from eyas.train.log import METRICS, RunLog
from eyas.train.series import Setting, by_domain, usual_setting
from log_rig import evaluation, record, step_values


@pytest.fixture
def drawn(monkeypatch):
    """The figures that were saved, to be looked into."""
    figures, save = [], plotting.save
    monkeypatch.setattr(plotting, "save", lambda figure, path: figures.append(figure) or save(figure, path))
    return figures


def write_run(folder, steps=30, every=10):
    with RunLog(folder) as log:
        for step in range(1, steps + 1):
            log.step(step_values(step), 0.1)
            if step % every == 0:
                log.evaluated(evaluation(step))


def labels(axes):
    return axes.get_legend_handles_labels()[1]


def test_the_four_panels_show_what_was_logged(tmp_path, drawn):
    write_run(tmp_path)
    path = draw_curves(tmp_path)
    pixels = image.imread(path)
    assert min(pixels.shape[:2]) > 600
    assert pixels.std() > 0.02, "an empty page"
    loss, accuracy, length, rate = drawn[0].axes
    assert loss.lines[0].get_ydata().tolist() == [step_values(s)["loss"] for s in range(1, 31)]
    assert [text.partition(":")[0] for text in labels(accuracy)] == ["step 1", "step 2", "step 3"]
    assert [text.partition(":")[0] for text in labels(length)] == ["chat", "code", "all"]
    last = evaluation(30)["expected"][1]
    assert f"{last['accept_length']:.2f}  [{last['low']:.2f}, {last['high']:.2f}]" in labels(length)[0]
    assert len(length.collections) == 3, "a band per domain"
    band = length.collections[0].get_paths()[0].vertices
    assert band[:, 1].max() == pytest.approx(last["high"])
    assert {line.get_ydata()[0] for line in length.lines if line.get_label()[0] == "_"} == {6}, "the ceiling of K = 5"
    assert length.get_ylim()[1] > 6
    assert rate.lines[0].get_ydata()[0] == step_values(1)["learning_rate"]


def test_another_setting_can_be_followed(tmp_path, drawn):
    write_run(tmp_path)
    draw_curves(tmp_path, Setting(3))
    assert "K = 3" in drawn[0].axes[2].get_title(loc="left")
    assert drawn[0].axes[2].get_ylim()[1] < 5


def test_the_same_log_gives_the_same_bytes(tmp_path):
    write_run(tmp_path)
    first = draw_curves(tmp_path).read_bytes()
    assert draw_curves(tmp_path).read_bytes() == first


def test_it_is_drawn_before_there_is_anything_to_draw(tmp_path, drawn):
    RunLog(tmp_path).close()
    draw_curves(tmp_path)
    assert [axes.texts[0].get_text() for axes in drawn[0].axes] == [
        "no step yet", "no step yet", "no evaluation yet", "no step yet",
    ]  # fmt: skip


def test_an_evaluation_before_the_first_step(tmp_path, drawn):
    with RunLog(tmp_path) as log:
        log.evaluated(evaluation(0))
    draw_curves(tmp_path)
    assert len(labels(drawn[0].axes[2])) == 3


def test_many_domains_odd_names_and_steps_without_slots(tmp_path, drawn):
    names = tuple(f"set_{i} $x^2$" for i in range(9))
    with RunLog(tmp_path) as log:
        log.step({**step_values(1), "marginal_accuracies": [0.5, float("nan"), float("nan")]}, 1.0)
        log.step({**step_values(2), "marginal_accuracies": [0.5, 0.25, float("nan")]}, 1.0)
        log.evaluated(evaluation(2, names))
    draw_curves(tmp_path)
    assert len(labels(drawn[0].axes[2])) == 9
    assert labels(drawn[0].axes[1]) == ["step 1: 50.0%", "step 2: 25.0%"]


def test_a_kill_while_drawing_leaves_the_old_picture(tmp_path, monkeypatch):
    write_run(tmp_path)
    before = draw_curves(tmp_path).read_bytes()

    def die(path, data):
        raise KeyboardInterrupt

    monkeypatch.setattr(plotting, "atomic_write", die)
    with pytest.raises(KeyboardInterrupt):
        draw_curves(tmp_path)
    assert (tmp_path / curves.FILE).read_bytes() == before


def test_a_log_that_is_being_written_is_drawn_without_its_cut_line(tmp_path, drawn):
    write_run(tmp_path)
    with (tmp_path / METRICS).open("ab") as file:
        file.write(b'{"step": 31, "lo')
    draw_curves(tmp_path)
    assert len(drawn[0].axes[0].lines[0].get_ydata()) == 30


@given(st.lists(st.floats(-5, 5), min_size=1, max_size=50), st.integers(1, 20))
def test_bins_keep_the_mean_and_their_number(values, most):
    steps = np.arange(len(values), dtype=float)
    x, y = bin_means(steps, np.array(values), most)
    assert len(x) == len(y) <= most
    size = -(-len(values) // most)
    weights = [len(values[i : i + size]) for i in range(0, len(values), size)]
    assert np.average(y, weights=weights) == pytest.approx(np.mean(values), abs=1e-9)
    assert np.average(x, weights=weights) == pytest.approx(np.mean(steps))


@given(st.lists(st.floats(-5, 5), min_size=1, max_size=50), st.integers(1, 20))
def test_smoothing_is_the_mean_around(values, width):
    half = width // 2
    expected = [np.mean(values[max(i - half, 0) : i + half + 1]) for i in range(len(values))]
    assert smooth(np.array(values), width).tolist() == pytest.approx(expected, abs=1e-9)


def test_the_usual_setting():
    assert usual_setting([]) == Setting(5)
    assert usual_setting([evaluation(1)]) == Setting(5)
    deep = {**evaluation(1), "expected": [record("chat", k, 1.5, 0.7) for k in (1, 3)]}
    assert usual_setting([deep]) == Setting(3, 0.7)
    drawn = {**evaluation(1), "expected": [*deep["expected"], record("chat", 5, 1.5, 0.0, "probabilistic")]}
    assert usual_setting([drawn]) == Setting(3, 0.7), "one-hot first"


def test_all_domains_together_come_last_and_only_beside_several():
    several = evaluation(1, ("all", "chat", "code"))
    assert list(by_domain([several], Setting(5))) == ["chat", "code", "all"]
    assert list(by_domain([evaluation(1, ("all", "chat"))], Setting(5))) == ["chat"]
    assert list(by_domain([evaluation(1, ("all",))], Setting(5))) == ["all"]
    assert by_domain([several], Setting(5, 1.0)) == {}


@pytest.mark.parametrize(("value", "text"), [(0, "0"), (950, "950"), (1500, "1.5k"), (2e7, "20M"), (3e9, "3G")])
def test_counts_in_few_characters(value, text):
    assert plotting.short(value) == text
