"""Two processes are one: the same losses and weights, with DDP and with FSDP2, on gloo."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from eyas.train.loop import BEST
from eyas.train.state import STATE

WORKER = Path(__file__).parents[1] / "train_worker.py"


def run(folder: Path, processes: int, **asked) -> list[dict]:
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={processes}"]
    command = [*(launch if processes > 1 else [sys.executable]), str(WORKER), str(folder), json.dumps(asked)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=280, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads((folder / "lines.json").read_text()) if "ends_before" not in asked else []


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    folder = tmp_path_factory.mktemp("alone")
    return folder, run(folder, 1, strategy="ddp", ema_decay=0.5, samples_per_step=5)


@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
def test_two_processes_are_one(tmp_path, alone, strategy):
    """19 conversations by 5: the last step of an epoch has an odd share for each process."""
    folder, expected = alone
    lines = run(tmp_path, 2, strategy=strategy, ema_decay=0.5, samples_per_step=5)
    assert len(lines) == len(expected)
    for mine, theirs in zip(lines, expected, strict=True):
        assert mine.keys() == theirs.keys()
        if "loss" in mine:
            assert mine["loss"] == pytest.approx(theirs["loss"], rel=1e-5)
            assert mine["gradient_norm"] == pytest.approx(theirs["gradient_norm"], rel=1e-4)
    for name in (STATE, BEST):
        mine, theirs = load_file(tmp_path / name), load_file(folder / name)
        assert mine.keys() == theirs.keys()
        for key, value in theirs.items():
            if "exp_avg" not in key:
                torch.testing.assert_close(mine[key], value, rtol=1e-3, atol=2e-4)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("before", "after"), [((1, "ddp"), (2, "ddp")), ((2, "ddp"), (2, "fsdp")), ((2, "fsdp"), (1, "ddp"))]
)
def test_a_run_goes_on_with_another_number_of_processes(tmp_path, alone, before, after):
    _, expected = alone
    asked = {"ema_decay": 0.5, "samples_per_step": 5, "save_every": 2}
    run(tmp_path, before[0], strategy=before[1], ends_before=3, **asked)
    state = load_file(tmp_path / STATE)
    assert {name.split(".")[0] for name in state} == {"model", "optimizer", "mean"}
    assert all(value.device.type == "cpu" for value in state.values())
    lines = run(tmp_path, after[0], strategy=after[1], **asked)
    assert lines[0]["step"] == 3
    assert [line["loss"] for line in lines if "loss" in line] == pytest.approx(
        [line["loss"] for line in expected if line.get("step", 0) > 2], rel=1e-5
    )
