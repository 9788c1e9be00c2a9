"""What a person sees: a live table on a terminal, lines elsewhere, nothing with --json."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from eyas.train.progress import (
    LiveProgress,
    PlainProgress,
    TrainProgress,
    duration,
    percentages,
    train_progress,
)
from log_rig import evaluation, step_values


class Clock:
    def __init__(self):
        self.now = 100.0

    def __call__(self):
        return self.now


@pytest.fixture
def clock():
    return Clock()


def console(terminal):
    return Console(file=io.StringIO(), force_terminal=terminal, width=120, color_system=None)


def drive(shown, clock, steps=range(1, 41), total=40, seconds=10.0):
    for step in steps:
        clock.now += seconds
        shown.step(step_values(step), total, 1234.5)


def test_the_kind_suits_the_console():
    assert isinstance(train_progress(console(True)), LiveProgress)
    assert isinstance(train_progress(console(False)), PlainProgress)
    assert type(train_progress(console(True), quiet=True)) is TrainProgress


@pytest.mark.parametrize("terminal", [True, False])
def test_quiet_is_silent(terminal, clock):
    out = console(terminal)
    with train_progress(out, quiet=True) as shown:
        shown.phase("capturing", 1, 2)
        drive(shown, clock)
        shown.evaluated(evaluation(40))
    assert out.file.getvalue() == ""


def test_lines_come_every_so_many_seconds_and_at_the_end(clock):
    out = console(False)
    with train_progress(out, clock=clock) as shown:
        drive(shown, clock)
    found = out.file.getvalue().splitlines()
    assert [line.split(" ")[1] for line in found] == [f"{n}/40" for n in [*range(1, 41, 3)]]
    assert "loss 1.3877 · accuracy per unrolled step" in found[-1]
    assert "1,234 answer tokens/s · 0 s left" in found[-1]
    assert "6 min 30 s left" in found[0]


def test_the_last_step_is_told_at_any_time(clock):
    out = console(False)
    with train_progress(out, clock=clock) as shown:
        drive(shown, clock, range(1, 3), total=2, seconds=0.01)
    assert [line.split(" ")[1] for line in out.file.getvalue().splitlines()] == ["1/2", "2/2"]


def test_an_evaluation_is_told_at_once_with_its_ceiling(clock):
    out = console(False)
    with train_progress(out, clock=clock) as shown:
        drive(shown, clock, range(1, 3), seconds=0.01)
        shown.evaluated(evaluation(2, ("my [bold] chats", "code")))
    level = 1 + 5 * evaluation(2)["curves"][0]["survival"][0] / 4
    told = f"step 2 · accept length my [bold] chats {level:.2f}, code {level:.2f} of 6 (K = 5, temperature 0)"
    assert out.file.getvalue().splitlines()[-1] == told


def test_a_phase_is_told_once(clock):
    out = console(False)
    with train_progress(out, clock=clock) as shown:
        for done in range(5):
            shown.phase("capturing features", done, 5)
    assert out.file.getvalue() == "capturing features\n"


def shown_text(shown):
    out = console(False)
    out.print(shown.render())
    return out.file.getvalue()


def test_the_table_shows_where_the_run_is(clock):
    shown = LiveProgress(console(True), clock)
    assert shown_text(shown).strip() == "starting"
    drive(shown, clock, range(11, 21))
    shown.phase("evaluating", 3, 12)
    text = shown_text(shown)
    for part in ("step 20 of 40", "3 min 20 s left", f"{step_values(20)['loss']:.4f}", "1,234", "44 40 36 %",
                 "not evaluated yet", "evaluating 3 of 12", "0.143"):  # fmt: skip
        assert part in text, part
    shown.evaluated(evaluation(20, ("my [bold] chats", "code")))
    shown.phase("evaluating", 12, 12)
    text = shown_text(shown)
    assert "my [bold] chats 1.55, code 1.55 of 6 (K = 5, temperature 0)" in text
    assert "evaluating" not in text


def test_the_live_table_stays_when_it_ends_and_stops_on_an_error(clock):
    out = console(True)
    shown = train_progress(out, clock=clock)

    def interrupted():
        with shown:
            drive(shown, clock, range(1, 4))
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert "step 3 of 40" in out.file.getvalue()
    assert not shown._live.is_started


def test_shares_and_times_in_few_words():
    assert percentages([0.714, 0.5, float("nan")]) == "71 50 – %"
    assert [duration(s) for s in (-1, 12.4, 250, 11100, 93600)] == [
        "0 s", "12 s", "4 min 10 s", "3 h 05 min", "1 d 2 h",
    ]  # fmt: skip
