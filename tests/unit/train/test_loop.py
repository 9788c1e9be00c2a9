"""The loop: it learns, it resumes to the bit, and how a batch is cut does not matter."""

from __future__ import annotations

import math

import pytest
import torch
from safetensors.torch import load_file

from eyas.errors import EyasError
from eyas.train.loop import BEST
from eyas.train.optimizer import learning_rate
from eyas.train.state import STATE
from train_rig import SMALL, make_trainer


class Recorder:
    def __init__(self):
        self.lines, self.evaluations = [], []

    def step(self, progress, total, values):
        self.lines.append(values)

    def evaluated(self, progress, result):
        self.evaluations.append((progress.step, result.to_json()))

    def saving(self):
        pass


class KilledError(Exception):
    pass


class KillAt:
    def __init__(self, step):
        self.at = step

    def step(self, progress, total, values):
        if progress.step == self.at:
            raise KilledError

    def evaluated(self, progress, result):
        pass

    def saving(self):
        pass


def run(folder, settings=SMALL, watchers=()):
    recorder = Recorder()
    trainer = make_trainer(folder, settings, watchers=(recorder, *watchers))
    trainer.run()
    return trainer, recorder


def test_it_learns(tmp_path):
    settings = SMALL.model_copy(update={"epochs": 12, "evaluate_every": 40, "save_every": 1000})
    _, recorder = run(tmp_path, settings)
    losses = [line["loss"] for line in recorder.lines]
    assert losses[-1] < 0.6 * losses[0]
    expected = recorder.evaluations[-1][1]["expected"]
    greedy = [r for r in expected if r["prompt_set"] == "all" and r["temperature"] == 0 and r["num_steps"] == 3]
    assert greedy[0]["accept_length"] > 1.2


def test_two_epochs_of_five_batches_by_two_are_six_steps(tmp_path):
    trainer = make_trainer(tmp_path)
    trainer.train = trainer.train[:5]
    trainer.settings = SMALL.model_copy(update={"samples_per_step": 2})
    trainer.steps_per_epoch = math.ceil(5 / 2)
    windows = [trainer._window(step) for step in range(6)]
    assert [len(window) for window in windows] == [2, 2, 1, 2, 2, 1]
    for epoch in (windows[:3], windows[3:]):
        assert sorted(i for window in epoch for i in window) == sorted(trainer.train)
    assert windows[:3] != windows[3:]


def test_a_run_knows_what_it_saw(tmp_path):
    short = make_trainer(tmp_path / "short", SMALL.model_copy(update={"max_steps": 2, "samples_per_step": 2}))
    assert short.seen() == []
    short.run()
    assert len(short.seen()) == 4
    assert set(short.seen()) < set(short.train)
    whole = make_trainer(tmp_path / "whole", SMALL)
    whole.run()
    assert whole.seen() == sorted(whole.train)


@pytest.mark.parametrize("options", [{}, {"ema_decay": 0.9}, {"later_share": 0.5}], ids=str)
def test_killed_after_any_step_it_ends_with_the_same_bits(tmp_path, options):
    settings = SMALL.model_copy(update=options)
    _, whole = run(tmp_path / "whole", settings)
    total = len(whole.lines)
    assert total >= 6
    folder, lines = tmp_path / "killed", {}
    for at in (1, 3, 4, total):
        recorder = Recorder()
        with pytest.raises(KilledError):
            make_trainer(folder, settings, watchers=(recorder, KillAt(at))).run()
        lines |= {line["step"]: line for line in recorder.lines}
    _, last = run(folder, settings)
    lines |= {line["step"]: line for line in last.lines}
    assert [lines[i + 1] for i in range(total)] == whole.lines
    for name in (STATE, BEST):
        mine, theirs = load_file(folder / name), load_file(tmp_path / "whole" / name)
        assert mine.keys() == theirs.keys()
        assert all(torch.equal(mine[key], theirs[key]) for key in mine)


def test_micro_batches_and_recomputation_change_nothing(tmp_path):
    _, whole = run(tmp_path / "a", SMALL.model_copy(update={"micro_batch_tokens": 100_000}))
    for name, options in (("b", {"micro_batch_tokens": 200}), ("c", {"recompute": True})):
        _, other = run(tmp_path / name, SMALL.model_copy(update=options))
        for mine, theirs in zip(other.lines, whole.lines, strict=True):
            assert mine["loss"] == pytest.approx(theirs["loss"], rel=1e-5)
            assert mine["marginal_accuracies"] == pytest.approx(theirs["marginal_accuracies"], abs=0.03)


def test_bf16_autocast_stays_near(tmp_path):
    _, whole = run(tmp_path / "a")
    _, half = run(tmp_path / "b", SMALL.model_copy(update={"precision": "bf16"}))
    assert half.lines[0]["loss"] == pytest.approx(whole.lines[0]["loss"], rel=0.02)
    assert half.lines[-1]["loss"] == pytest.approx(whole.lines[-1]["loss"], rel=0.1)
    state = load_file(tmp_path / "b" / STATE)
    assert {value.dtype for name, value in state.items() if "exp_avg" in name or "weight" in name} == {torch.float32}


def test_patience_ends_a_run(tmp_path):
    settings = SMALL.model_copy(update={"epochs": 50, "evaluate_every": 1, "patience": 2, "learning_rate": 1e-12})
    trainer, recorder = run(tmp_path, settings)
    assert len(recorder.lines) == 3
    assert trainer.progress.best_step == 1


def test_a_finished_run_stays_finished(tmp_path):
    run(tmp_path)
    before = (tmp_path / STATE).read_bytes()
    _, recorder = run(tmp_path)
    assert recorder.lines == []
    assert (tmp_path / STATE).read_bytes() == before


def test_without_conversations_there_is_nothing_to_train(tmp_path):
    with pytest.raises(EyasError) as caught:
        make_trainer(tmp_path, SMALL.model_copy(update={"held_out_share": 1e-9}))
    assert caught.value.code == "train.no-data"


def test_flex_attention_is_for_gpus(tmp_path):
    with pytest.raises(EyasError) as caught:
        make_trainer(tmp_path, SMALL.model_copy(update={"attention": "flex"}))
    assert caught.value.code == "flags.contradiction"


def test_a_nan_changes_no_weight(tmp_path):
    trainer = make_trainer(tmp_path)
    with torch.no_grad():
        trainer.model.fc.weight[0, 0] = math.nan
    before = {name: p.clone() for name, p in trainer.model.named_parameters()}
    with pytest.raises(EyasError) as caught:
        trainer.run()
    assert caught.value.code == "train.diverged"
    after = dict(trainer.model.named_parameters())
    assert all(torch.equal(before[name].nan_to_num(), after[name].nan_to_num()) for name in before)
    assert not (tmp_path / STATE).exists()


def test_a_cut_state_is_refused(tmp_path):
    run(tmp_path)
    data = (tmp_path / STATE).read_bytes()
    (tmp_path / STATE).write_bytes(data[: len(data) // 2])
    with pytest.raises(EyasError) as caught:
        make_trainer(tmp_path)
    assert caught.value.code == "artifact.corrupt"


def test_the_schedule_warms_up_and_ends_where_it_should():
    settings = SMALL.model_copy(update={"warmup_share": 0.1, "final_share": 0.1, "learning_rate": 1.0})
    rates = [learning_rate(settings, step, 100) for step in range(101)]
    assert rates[:10] == pytest.approx([0.1 * (i + 1) for i in range(10)])
    assert rates[10] == 1.0
    assert rates[55] == pytest.approx(0.55)
    assert rates[100] == pytest.approx(0.1)
    assert learning_rate(settings.model_copy(update={"schedule": "linear"}), 55, 100) == pytest.approx(0.55)
    assert learning_rate(settings.model_copy(update={"schedule": "constant"}), 99, 100) == 1.0
