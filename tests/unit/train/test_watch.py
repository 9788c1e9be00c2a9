"""A recorder beside a real run: killed and gone on, its folder is that of a run that nobody killed."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from eyas.train.curves import FILE
from eyas.train.log import EVALUATIONS, METRICS, TIMING, RunLog, read_lines
from eyas.train.loop import Watcher
from eyas.train.progress import train_progress
from eyas.train.state import STATE, load_state
from eyas.train.watch import Recorder
from train_rig import SMALL, make_trainer


class KilledError(Exception):
    pass


class KillAt(Watcher):
    def __init__(self, step):
        self.at = step

    def step(self, progress, total, values):
        if progress.step == self.at:
            raise KilledError


def go(folder, killer=None):
    """Train until the end or the kill; returns what the progress printed."""
    folder.mkdir(exist_ok=True)
    state = folder / STATE
    resumed = load_state(state)[1]["step"] if state.is_file() else 0
    out = Console(file=io.StringIO(), width=200)
    with Recorder(RunLog(folder, resumed), train_progress(out)) as recorder:
        trainer = make_trainer(folder, SMALL, watchers=[recorder, *([killer] if killer else [])])
        assert trainer.progress.step == resumed
        trainer.run()
    return out.file.getvalue()


def test_killed_after_steps_the_log_is_that_of_a_whole_run(tmp_path):
    text = go(tmp_path / "whole")
    assert "accept length all" in text
    total = read_lines(tmp_path / "whole" / METRICS)[-1]["step"]
    assert total >= 6
    killed = tmp_path / "killed"
    for at in (1, 3, 4, total):
        with pytest.raises(KilledError):
            go(killed, KillAt(at))
    go(killed)
    for name in (METRICS, EVALUATIONS):
        assert (killed / name).read_bytes() == (tmp_path / "whole" / name).read_bytes(), name
    assert (killed / FILE).is_file()
    assert [line["step"] for line in read_lines(killed / TIMING)] == list(range(1, total + 1))
    steps = [e["step"] for e in read_lines(killed / EVALUATIONS)]
    assert steps == sorted({*range(3, total + 1, 3), total})
