"""Sinks: TensorBoard for real, trackers as stand-ins that remember what they were given."""

from __future__ import annotations

import sys
from types import ModuleType

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from eyas.errors import EyasError
from eyas.train.sinks import RUN_ID, RunFacts, open_sinks


def read_events(folder):
    events = EventAccumulator(str(folder / "tensorboard"))
    events.Reload()
    return {tag: [(e.step, e.value) for e in events.Scalars(tag)] for tag in events.Tags()["scalars"]}


def test_tensorboard_forgets_the_steps_that_are_computed_again(tmp_path):
    (first,) = open_sinks(["tensorboard"], RunFacts(tmp_path, 0, {}))
    for step in range(1, 6):
        first.scalars(step, {"train/loss": 8.0 + step})
    first.flush()
    assert len(read_events(tmp_path)["train/loss"]) == 5
    (second,) = open_sinks(["tensorboard"], RunFacts(tmp_path, 3, {}))
    for step in (4, 5, 6):
        second.scalars(step, {"train/loss": 16.0 + step})
    second.close()
    first.close()
    assert read_events(tmp_path)["train/loss"] == [(1, 9.0), (2, 10.0), (3, 11.0), (4, 20.0), (5, 21.0), (6, 22.0)]


class FakeRun:
    def __init__(self, facts):
        self.facts, self.logged, self.finished = facts, [], False

    def log(self, values, step):
        self.logged.append((step, values))

    def finish(self):
        self.finished = True


@pytest.fixture
def tracker(monkeypatch):
    """Puts a stand-in for a tracker's package in place; returns the runs that were begun with it."""

    def place(name):
        module, runs = ModuleType(name), []
        module.init = lambda **facts: runs.append(FakeRun(facts)) or runs[-1]
        monkeypatch.setitem(sys.modules, name, module)
        return runs

    return place


@pytest.mark.parametrize("name", ["trackio", "wandb"])
def test_a_tracker_goes_on_with_the_same_run(tmp_path, tracker, name):
    runs = tracker(name)
    for resumed in (0, 2):
        (sink,) = open_sinks([name], RunFacts(tmp_path, resumed, {"seed": 7}))
        sink.scalars(resumed + 1, {"train/loss": 1.5})
        sink.flush()
        sink.close()
    first, second = runs
    assert first.facts == second.facts
    assert first.facts["config"] == {"seed": 7}
    assert first.facts["resume"] == "allow"
    run_id = (tmp_path / RUN_ID).read_text()
    assert first.facts["name"] == f"{tmp_path.name}-{run_id}"
    assert first.facts.get("id") == (run_id if name == "wandb" else None)
    assert first.logged == [(1, {"train/loss": 1.5})]
    assert first.finished
    open_sinks([name], RunFacts(tmp_path, 0, {}))
    assert runs[2].facts["name"] != first.facts["name"], "a run from the start is another run"


@pytest.mark.parametrize("name", ["tensorboard", "trackio", "wandb"])
def test_a_package_that_is_not_there_is_named(tmp_path, monkeypatch, name):
    monkeypatch.setitem(sys.modules, {"tensorboard": "torch.utils.tensorboard"}.get(name, name), None)
    with pytest.raises(EyasError) as caught:
        open_sinks([name], RunFacts(tmp_path, 0, {}))
    assert caught.value.code == "package.missing"
    assert f"pip install {name}" in caught.value.fix


def test_when_one_sink_cannot_be_opened_none_stays_open(tmp_path, monkeypatch, tracker):
    runs = tracker("trackio")
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(EyasError):
        open_sinks(["trackio", "wandb"], RunFacts(tmp_path, 0, {}))
    assert runs[0].finished


def test_an_unknown_sink_is_refused(tmp_path):
    with pytest.raises(EyasError) as caught:
        open_sinks(["tensorbord"], RunFacts(tmp_path, 0, {}))
    assert caught.value.code == "flags.unknown"
    assert "tensorboard" in caught.value.fix


def test_nothing_is_imported_for_sinks_that_nobody_asked_for(tmp_path, monkeypatch):
    for name in ("torch.utils.tensorboard", "trackio", "wandb"):
        monkeypatch.setitem(sys.modules, name, None)
    assert open_sinks([], RunFacts(tmp_path, 0, {})) == []
