"""One process of a training run on the tiny target: python -m torch.distributed.run … train_worker.py OUT JSON."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parent))

from eyas.train.parallel import Parallel
from eyas.train.settings import TrainSettings
from train_rig import SMALL, make_trainer


class Lines:
    def __init__(self) -> None:
        self.lines: list[dict] = []

    def step(self, progress, total, values):
        self.lines.append(values)

    def evaluated(self, progress, result):
        self.lines.append(result.to_json())

    def saving(self):
        pass


def main() -> None:
    folder, asked = Path(sys.argv[1]), json.loads(sys.argv[2])
    torch.set_num_threads(1)
    ends_before = asked.pop("ends_before", None)
    parallel = Parallel.from_environment(asked.pop("strategy"), torch.device("cpu"))
    lines = Lines()
    settings: TrainSettings = SMALL.model_copy(update=asked)
    trainer = make_trainer(folder, settings, parallel, watchers=(lines,) if parallel.is_first else ())
    step = trainer._step

    def until() -> None:
        if trainer.progress.step == ends_before:
            os._exit(0)
        step()

    trainer._step = until
    trainer.run()
    if parallel.is_first:
        (folder / "lines.json").write_text(json.dumps(lines.lines))


if __name__ == "__main__":
    main()
