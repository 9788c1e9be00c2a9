"""Eyas' training step for benchmarks/bench_train.py: collate, forward, backward, clip, AdamW.

``step`` is that of the first epoch, which also computes the target's log-partition; ``later epochs`` has it already.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import torch
from protocol import Data, serve

import eyas
from eyas.corpus.features import Features, FeatureSource
from eyas.corpus.samples import Sample
from eyas.draft.config import DraftConfig
from eyas.draft.model import DraftModel
from eyas.draft.vocab import offsets_from_ids
from eyas.train.batch import Collator
from eyas.train.objective import Objective, chosen_slots, count_slots, flat_slots
from eyas.train.optimizer import apply_gradients, make_optimizer
from eyas.train.settings import TrainSettings
from eyas.train.ttt import Unrolling


class InMemory(FeatureSource):
    """The benchmark's features."""

    def __init__(self, data: Data) -> None:
        taps = len(data.shape["taps"])
        self.samples, self.features = [], []
        for number, rows in enumerate(data.samples()):
            segments = data.segments[rows]
            answers = []
            for answer in np.unique(segments[segments > 0]):
                inside = np.flatnonzero(segments == answer)
                answers.append((int(inside[0]), int(inside[-1]) + 1))
            name = str(number)
            self.samples.append(Sample(name, name, "", data.tokens[rows], tuple(answers), 0.0))
            tapped = torch.from_numpy(data.taps[rows]).unflatten(1, (taps, -1))
            self.features.append(Features(tapped, torch.from_numpy(data.hidden[rows])))

    def read(self, index: int) -> Features:
        return self.features[index]


def build(data: Data) -> Mapping[str, Callable[[], float]]:
    names = ("vocab_size", "draft_vocab_size", "hidden_size", "intermediate_size", "num_heads", "num_kv_heads")
    shape, hidden = {name: data.shape[name] for name in names}, data.shape["hidden_size"]
    config = DraftConfig(
        **shape,
        taps=tuple(data.shape["taps"]),
        target_num_layers=data.shape["target_layers"],
        target_hidden_size=hidden,
        head_dim=hidden // shape["num_heads"],
        max_position_embeddings=data.shape["max_positions"],
    )
    kept, head = torch.from_numpy(data.kept), torch.from_numpy(data.head)
    model = DraftModel(config)
    with torch.no_grad():
        model.d2t.copy_(offsets_from_ids(kept, config.vocab_size))
        for weight in (p for p in model.parameters() if p.dim() > 1):
            weight.normal_(0, weight.shape[1] ** -0.5)
        model.embed_tokens.copy_(torch.from_numpy(data.embedding))
        model.head.weight.copy_(head[kept])
    return _steps(InMemory(data), model, head, kept, data.shape["ttt_steps"])


def _steps(
    source: InMemory, model: DraftModel, head: torch.Tensor, kept: torch.Tensor, ttt_steps: int
) -> Mapping[str, Callable[[], float]]:
    settings, everyone = TrainSettings(ttt_steps=ttt_steps), range(len(source.samples))
    scales = torch.ones(len(model.config.taps))
    objective = Objective(model, settings, Unrolling())
    optimizer = make_optimizer(objective, settings)
    known = Collator(source, head, kept, scales)
    known.batch(everyone)

    def step(collator: Collator) -> float:
        batch = collator.batch(everyone)
        chosen = [chosen_slots(sample, settings, 0, i) for i, sample in enumerate(source.samples)]
        counts, slots = count_slots(chosen, ttt_steps).tolist(), flat_slots(chosen, batch.documents, ttt_steps)
        loss, _ = objective(batch, slots, counts)
        loss.backward()
        apply_gradients(optimizer, objective.parameters(), settings, 1e-4)
        return loss.item()

    return {"step": lambda: step(Collator(source, head, kept, scales)), "later epochs": lambda: step(known)}


if __name__ == "__main__":
    serve(build, {"trainer": "eyas", "version": eyas.__version__, "torch": torch.__version__})
