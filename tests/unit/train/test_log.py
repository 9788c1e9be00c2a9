"""The log: whatever a kill leaves, the finished files are those of a run that nobody killed."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from eyas.errors import EyasError
from eyas.train.log import EVALUATIONS, METRICS, TIMING, RunLog, read_lines
from eyas.train.sinks import Sink
from log_rig import evaluation, step_values

FILES = (METRICS, EVALUATIONS, TIMING)


def short(step: int) -> dict:
    return {**evaluation(step, ("all",)), "expected": evaluation(step)["expected"][:1]}


class Schedule:
    """A trainer's order of work: steps, evaluations, and after them or before, states."""

    def __init__(self, steps: int, every: int, save: int, evaluates_first: bool = True) -> None:
        self.steps, self.every, self.save, self.evaluates_first = steps, every, save, evaluates_first

    def run(self, log: RunLog, resumed: int, after=lambda state: None) -> None:
        """Work from step ``resumed`` on; ``after`` is called after each write with the step whose state is safe."""
        state = resumed
        if resumed % self.every == 0 and not log.has_evaluation(resumed):
            log.evaluated(short(resumed))
            after(state)
        for step in range(resumed + 1, self.steps + 1):
            log.step(step_values(step), 0.5)
            after(state)
            if step % self.save == 0 and not self.evaluates_first:
                state = step
                after(state)
            if step % self.every == 0:
                log.evaluated(short(step))
                after(state)
            if step % self.save == 0:
                state = step
                after(state)


def contents(folder: Path) -> dict[str, bytes]:
    return {name: (folder / name).read_bytes() for name in FILES}


def written(schedule: Schedule, folder: Path) -> tuple[dict[str, bytes], list[tuple[str, bytes, int]]]:
    """The whole run's files, and its writes in order: (file, bytes, the step whose state is safe before them)."""
    writes, before = [], dict.fromkeys(FILES, b"")
    with RunLog(folder) as log:
        safe = 0

        def after(state: int) -> None:
            nonlocal safe
            now = contents(folder)
            writes.extend((name, now[name][len(before[name]) :], safe) for name in FILES if now[name] != before[name])
            before.update(now)
            safe = state

        schedule.run(log, 0, after)
    return contents(folder), writes


def killed_after(writes: list[tuple[str, bytes, int]], num_bytes: int, folder: Path) -> int:
    """Leave in ``folder`` what a run had written that was killed after ``num_bytes``; returns its last state."""
    folder.mkdir(exist_ok=True)
    left, state, files = num_bytes, 0, dict.fromkeys(FILES, b"")
    for name, data, safe in writes:
        state = safe if left > 0 else state
        files[name] += data[:left]
        left = max(left - len(data), 0)
    for name, data in files.items():
        (folder / name).write_bytes(data)
    return state


@pytest.mark.parametrize(("evaluates_first", "stride"), [(True, 1), (False, 7)])
def test_killed_at_any_byte_it_ends_with_the_same_files(tmp_path, evaluates_first, stride):
    schedule = Schedule(steps=3, every=2, save=2, evaluates_first=evaluates_first)
    whole, writes = written(schedule, tmp_path / "whole")
    total = sum(len(data) for _, data, _ in writes)
    assert total == sum(map(len, whole.values())) > 1500
    folder, states = tmp_path / "killed", set()
    for num_bytes in range(0, total + 1, stride):
        state = killed_after(writes, num_bytes, folder)
        states.add(state)
        with RunLog(folder, state) as log:
            assert log.last_step == state
            schedule.run(log, state)
        assert contents(folder) == whole, num_bytes
    assert states == {0, 2}


@settings(deadline=None, max_examples=30)
@given(
    steps=st.integers(1, 12),
    every=st.integers(1, 5),
    save=st.integers(1, 5),
    evaluates_first=st.booleans(),
    kills=st.lists(st.floats(0, 1), max_size=3),
)
def test_killed_again_and_again_it_ends_with_the_same_files(
    tmp_path_factory, steps, every, save, evaluates_first, kills
):
    base = tmp_path_factory.mktemp("runs")
    schedule = Schedule(steps, every, save, evaluates_first)
    whole, writes = written(schedule, base / "whole")
    total = sum(len(data) for _, data, _ in writes)
    for number, share in enumerate(kills):
        folder = base / str(number)
        state = killed_after(writes, int(share * total), folder)
        with RunLog(folder, state) as log:
            schedule.run(log, state)
        assert contents(folder) == whole


def test_a_line_holds_what_was_measured_and_the_clock_is_kept_apart(tmp_path):
    values = {**step_values(1), "conditional_accuracies": [0.5, math.nan, 0.25]}
    with RunLog(tmp_path) as log:
        assert log.step(values, 0.5) == pytest.approx(values["answer_tokens"] / 0.5)
        log.step(step_values(2), 2.0)
    (first, second), timing = read_lines(tmp_path / METRICS), read_lines(tmp_path / TIMING)
    assert first == {**values, "conditional_accuracies": [0.5, None, 0.25]}
    assert second == step_values(2)
    between = step_values(2)["answer_tokens"] - values["answer_tokens"]
    assert timing[1] == {"step": 2, "seconds": 2.0, "answer_tokens_per_second": between / 2}


def test_the_speed_after_a_resume_counts_new_tokens_only(tmp_path):
    with RunLog(tmp_path) as log:
        log.step(step_values(1), 1.0)
    with RunLog(tmp_path, 1) as log:
        assert log.step(step_values(2), 1.0) == step_values(2)["answer_tokens"] - step_values(1)["answer_tokens"]


def test_evaluations_before_a_resume_are_known(tmp_path):
    with RunLog(tmp_path) as log:
        log.evaluated(evaluation(0))
        log.step(step_values(1), 1.0)
        log.evaluated(evaluation(1))
    with RunLog(tmp_path, 1) as log:
        assert log.evaluations == [evaluation(0), evaluation(1)]
        assert log.has_evaluation(1)
    with RunLog(tmp_path, 0) as log:
        assert log.evaluations == [evaluation(0)]
        assert not log.has_evaluation(1)


def test_infinity_is_refused(tmp_path):
    with RunLog(tmp_path) as log, pytest.raises(ValueError, match="not JSON compliant"):
        log.step({**step_values(1), "loss": math.inf}, 1.0)


def lines(*steps: int) -> bytes:
    return b"".join(json.dumps(step_values(step)).encode() + b"\n" for step in steps)


@pytest.mark.parametrize(
    "left",
    [None, b"", lines(1), lines(1, 2, 3)[:-1], lines(1, 3, 2), lines(1, 2) + b"{}\n", lines(1) + b"nonsense\n" * 2],
    ids=["gone", "empty", "one", "cut", "swapped", "foreign", "nonsense"],
)
def test_a_log_that_lost_lines_before_the_state_is_refused(tmp_path, left):
    if left is not None:
        (tmp_path / METRICS).write_bytes(left)
    with pytest.raises(EyasError) as caught:
        RunLog(tmp_path, 3)
    assert caught.value.code == "artifact.corrupt"
    assert "warm start" in caught.value.fix


def test_what_no_log_wrote_is_not_read_as_one(tmp_path):
    (tmp_path / METRICS).write_bytes(b"<html>\n")
    with pytest.raises(EyasError) as caught:
        read_lines(tmp_path / METRICS)
    assert caught.value.code == "artifact.corrupt"
    assert read_lines(tmp_path / "absent.jsonl") == []


class Kept(Sink):
    def __init__(self):
        self.taken, self.said = {}, []

    def scalars(self, step, values):
        self.taken.setdefault(step, {}).update(values)

    def flush(self):
        self.said.append("flush")

    def close(self):
        self.said.append("close")


def test_sinks_get_every_figure_by_a_name_that_says_what_it_is(tmp_path):
    sink = Kept()
    with RunLog(tmp_path, sinks=[sink]) as log:
        log.step({**step_values(1), "conditional_accuracies": [0.5, math.nan, 0.25]}, 0.5)
        log.evaluated(evaluation(1))
        log.sync()
    taken = sink.taken[1]
    assert taken["train/loss"] == step_values(1)["loss"]
    assert taken["train/marginal_accuracies/step_2"] == step_values(1)["marginal_accuracies"][1]
    assert taken["train/conditional_accuracies/step_3"] == 0.25
    assert "train/conditional_accuracies/step_2" not in taken, "nothing was counted there"
    assert taken["held_out/accept_length/code/T_0_one-hot/K_5"] == evaluation(1)["expected"][4]["accept_length"]
    assert taken["held_out/survival/code/T_0_one-hot/1"] == evaluation(1)["curves"][1]["survival"][0]
    assert "speed/answer_tokens_per_second" in taken
    assert sink.said == ["flush", "close"]
