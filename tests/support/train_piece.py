"""One optimizer step over one piece of the tiny pair's shape, on random features, in a process of its own.

python tests/support/train_piece.py CONVERSATIONS SETTINGS.yaml  prints the bytes of peak memory before it and after
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import numpy as np
import torch

from eyas.contract.schema import FeatureFormat
from eyas.corpus.features import FeatureFacts, Features, FeatureSource
from eyas.corpus.samples import Sample
from eyas.draft.config import DraftConfig
from eyas.draft.model import DraftModel
from eyas.testing import tiny_pair
from eyas.train.batch import Batch, Collator
from eyas.train.objective import Objective, chosen_slots, count_slots, flat_slots
from eyas.train.optimizer import apply_gradients, make_optimizer
from eyas.train.settings import TrainSettings
from eyas.train.start import draft_config
from eyas.train.ttt import Unrolling

LENGTH, ANSWER = 256, 192


class RandomFeatures(FeatureSource):
    """Features that nobody computed."""

    facts = FeatureFacts.model_construct(format=FeatureFormat(dtype="float32", quantisation=None))

    def __init__(self, count: int, config: DraftConfig) -> None:
        tokens, span = np.arange(LENGTH, dtype=np.int32) % config.vocab_size, ((LENGTH - ANSWER, LENGTH),)
        self.samples = [Sample(str(i), str(i), "", tokens, span, 0.0) for i in range(count)]
        self.taps = torch.randn(LENGTH, len(config.taps), config.target_hidden_size)

    def read(self, index: int) -> Features:
        return Features(self.taps.clone(), self.taps[:, 0].clone())


def random_objective(config: DraftConfig, settings: TrainSettings) -> Objective:
    model = DraftModel(config)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(0, 0.1)
    return Objective(model, settings, Unrolling(recompute=settings.recompute))


def random_piece(count: int, config: DraftConfig, settings: TrainSettings) -> tuple[Batch, list, list]:
    """(batch, slots of each step, their numbers) of so many conversations."""
    source, head = RandomFeatures(count, config), torch.randn(config.vocab_size, config.target_hidden_size)
    collator = Collator(source, head, torch.arange(config.draft_vocab_size), torch.ones(len(config.taps)))
    chosen = [chosen_slots(sample, settings, 0, i) for i, sample in enumerate(source.samples)]
    batch = collator.batch(range(count))
    return (
        batch,
        flat_slots(chosen, batch.documents, settings.ttt_steps),
        count_slots(chosen, settings.ttt_steps).tolist(),
    )


def tiny_document() -> dict:
    return json.loads((tiny_pair()[0] / "config.json").read_text(encoding="utf-8"))


def peak_memory() -> int:
    """Bytes that this process held at most. The usual ru_maxrss also counts what its parent held before the fork."""
    status = Path("/proc/self/status").read_text(encoding="ascii")
    return int(re.search(r"VmHWM:\s+(\d+) kB", status)[1]) * 1024


def main(count: int, settings: TrainSettings) -> None:
    config = draft_config(tiny_document(), settings.draft)
    model = random_objective(config, settings)
    optimizer = make_optimizer(model, settings)
    peaks = []
    # The first, small one loads what PyTorch loads when it is needed.
    for size in (1, count):
        loss, _ = model(*random_piece(size, config, settings))
        loss.backward()
        apply_gradients(optimizer, model.parameters(), settings, 1e-3)
        peaks.append(peak_memory())
    print(json.dumps(peaks))


if __name__ == "__main__":
    torch.set_num_threads(1)
    main(int(sys.argv[1]), TrainSettings.from_yaml(Path(sys.argv[2])))
