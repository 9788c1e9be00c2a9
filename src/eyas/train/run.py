"""A training run as a folder: what it was asked, where it began, how it goes, and the draft that came out.

settings.yaml, origin.json      what was asked, of which data; another wish is refused, not mixed in
environment.json                on what it ran
start.safetensors               the draft before the first step, its vocabulary map and the taps' scales
state.safetensors               what a killed run goes on from
best.safetensors                the weights of the best accept length
metrics.jsonl, evaluations.jsonl, timing.jsonl, curves.png, tensorboard/
draft/                          the checkpoint, with contract, witness and card
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from eyas.artifacts import atomic_write, file_sizes, require_free
from eyas.corpus.feature_store import samples_sha256
from eyas.corpus.features import Features, FeatureSource, TopTokens
from eyas.corpus.samples import Sample, SampleSet, is_held_out
from eyas.draft.model import DraftModel
from eyas.environment import write_environment
from eyas.errors import EyasError
from eyas.train.batch import Collator
from eyas.train.costs import checkpoint_bytes
from eyas.train.log import RunLog
from eyas.train.loop import Progress, Trainer
from eyas.train.parallel import Parallel
from eyas.train.progress import TrainProgress
from eyas.train.settings import MAX_TTT_STEPS, TrainSettings
from eyas.train.sinks import RunFacts, open_sinks
from eyas.train.start import Start, Weights, draft_config, fresh, warm
from eyas.train.state import load_state, save_state
from eyas.train.watch import Recorder

SETTINGS, ORIGIN, START = "settings.yaml", "origin.json", "start.safetensors"


@dataclass(frozen=True)
class Job:
    """What to train: ``document`` is the target's config.json; ``warm_start`` an earlier draft, unpacked, in fp32, and
    ``warm_sha256`` its weights' fingerprint.
    """

    source: FeatureSource
    own: Weights
    document: Mapping[str, Any]
    settings: TrainSettings
    folder: Path
    warm_start: DraftModel | None = None
    warm_sha256: str | None = None


@dataclass(frozen=True)
class Ran:
    """What a run leaves in memory. ``trained``: the samples that it saw, cut as they were; ``held``: the indices in the
    collator's source of all that it did not see. ``left_out``: conversations that were ``cut`` at max_length, and those
    ``without_slots`` to train.
    """

    progress: Progress
    start: Start
    collator: Collator
    trained: Sequence[Sample]
    held: Sequence[int]
    left_out: Mapping[str, int]


class Shortened(FeatureSource):
    """A source with every sample cut at ``max_length`` tokens; an answer that is cut loses its end."""

    def __init__(self, source: FeatureSource, max_length: int) -> None:
        self.source, self.facts, self.max_length = source, source.facts, max_length
        self.samples = [sample.shortened(max_length) for sample in source.samples]

    def read(self, index: int) -> Features:
        return self._cut(self.source.read(index))

    def read_batch(self, indices: Sequence[int]) -> list[Features]:
        return [self._cut(features) for features in self.source.read_batch(indices)]

    def _cut(self, features: Features) -> Features:
        n, top, hidden = self.max_length, features.top, features.hidden
        top = None if top is None else TopTokens(top.ids[:n], top.logprobs[:n])
        return Features(features.taps[:n], None if hidden is None else hidden[:n], top)


def run_training(
    job: Job, parallel: Parallel, display: TrainProgress, sinks: Sequence[str], command: Sequence[str]
) -> Ran:
    """Train, or go on where the folder's run was killed; the folder holds the best weights afterwards.

    ``sinks``: names of ``eyas.train.sinks``; ``command``: the command line, to be written down. Raises ``train.…``,
    ``features.…``, ``draft.…``, ``taps.…``, ``artifact.…``, ``pull.disk-full``.
    """
    settings, folder = job.settings, job.folder
    source = Shortened(job.source, settings.max_length)
    usable = [i for i, sample in enumerate(source.samples) if sample.is_trainable]
    held = [i for i in usable if is_held_out(source.samples[i].prompt_id, settings.held_out_share)]
    train = sorted(set(usable) - set(held))
    _require_disk(job)
    _claim(job, train, held, parallel, command)
    start = _start(job, source, train, parallel)
    kept = start.model.to_target_ids(torch.arange(len(start.model.d2t)))
    collator = Collator(source, job.own.head, kept, start.tap_scales)
    chosen = _evaluated(source, held, settings.evaluate_samples)
    if all(math.isnan(source.samples[i].temperature) for i in chosen):
        raise EyasError(
            "train.no-data",
            "of no held-out conversation it is known at which temperature it was answered, so none can be measured",
            "answer the prompts with `eyas regen`, which notes it",
        )
    trainer = Trainer(start.model, collator, train, chosen, settings, folder, parallel)
    with ExitStack() as stack:
        if parallel.is_first:
            facts = RunFacts(folder, trainer.progress.step, settings.model_dump(mode="json"))
            log = RunLog(folder, trainer.progress.step, open_sinks(sinks, facts))
            trainer.watchers = (stack.enter_context(Recorder(log, display)),)
        progress = trainer.run()
    cut = sum(len(sample.tokens) > settings.max_length for sample in job.source.samples)
    left = {"cut": cut, "without_slots": len(source.samples) - len(usable)}
    return Ran(progress, start, collator, [source.samples[i] for i in trainer.seen()], held, left)


def _evaluated(source: FeatureSource, held: Sequence[int], most: int) -> list[int]:
    """The first ``most`` held-out samples of each domain and temperature."""
    counts: dict[tuple[str, str], int] = {}
    chosen = []
    for index in held:
        sample = source.samples[index]
        key = (sample.domain, str(sample.temperature))
        counts[key] = counts.get(key, 0) + 1
        if counts[key] <= most:
            chosen.append(index)
    return chosen


def _require_disk(job: Job) -> None:
    """Room for all that the run will keep, less what is there already. Raises ``pull.disk-full``."""
    config = job.warm_start.config if job.warm_start else draft_config(job.document, job.settings.draft)
    missing = checkpoint_bytes(config, job.settings) - sum(file_sizes(job.folder))
    require_free(job.folder, missing, "this training", "free some space, or name --out on a larger disk")


def _claim(job: Job, train: Sequence[int], held: Sequence[int], parallel: Parallel, command: Sequence[str]) -> None:
    """Write down what is asked, or compare with what the folder's run was asked. Raises ``train.resume-mismatch``."""
    if not train or not held:
        raise EyasError(
            "train.no-data",
            f"{len(train)} conversations to train on and {len(held)} held out, after the split by prompt",
            "give more conversations, or another held_out_share",
        )
    whole = SampleSet(job.source.facts.samples, tuple(job.source.samples))
    origin = {
        "features": job.source.facts.model_dump(mode="json", exclude={"identity_error"}),
        "conversations": {"trained": len(train), "held_out": len(held)},
        "samples_sha256": samples_sha256(whole),
        "warm_start_sha256": job.warm_sha256,
    }
    wanted = {SETTINGS: job.settings.to_yaml(), ORIGIN: json.dumps(origin, indent=2, ensure_ascii=False) + "\n"}
    for name, text in wanted.items():
        path = job.folder / name
        if path.is_file() and path.read_text(encoding="utf-8") != text:
            raise EyasError(
                "train.resume-mismatch",
                f"{job.folder} holds a run with another {name}: {_first_difference(path.read_text(), text)}",
                "give the same settings and data to go on, or another --out to begin anew",
            )
    if parallel.is_first:
        for name, text in wanted.items():
            atomic_write(job.folder / name, text)
        write_environment(job.folder, command)
    parallel.wait()


def _first_difference(there: str, here: str) -> str:
    pairs = zip([*there.splitlines(), ""], [*here.splitlines(), ""], strict=False)
    a, b = next((pair for pair in pairs if pair[0] != pair[1]), ("", ""))
    return f"{a.strip()!r} there, {b.strip()!r} asked for"


def _start(job: Job, source: FeatureSource, train: Sequence[int], parallel: Parallel) -> Start:
    """The folder's own start, made on the first call."""
    path = job.folder / START
    if not path.is_file() and parallel.is_first:
        if job.warm_start is not None:
            made = warm(job.warm_start, source, train)
        else:
            made = fresh(draft_config(job.document, job.settings.draft), source, train, job.own, job.settings.seed)
        tensors = dict(trained_tensors(made.model), tap_scales=made.tap_scales)
        save_state(path, tensors, {"coverage": made.coverage})
    parallel.wait()
    tensors, notes = load_state(path)
    scales = tensors.pop("tap_scales")
    model = assemble(job, tensors)
    return Start(model, scales, notes["coverage"])


def trained_tensors(model: DraftModel) -> dict[str, Tensor]:
    """The model's tensors but the target's embedding, contiguous and by name."""
    state = model.state_dict()
    if not model.config.own_embedding:
        del state["embed_tokens"]
    return {name: value.detach().contiguous() for name, value in state.items()}


def assemble(job: Job, tensors: Mapping[str, Tensor]) -> DraftModel:
    """A draft of the job's shape with ``tensors``, the embedding the target's unless it is among them."""
    config = job.warm_start.config if job.warm_start else draft_config(job.document, job.settings.draft)
    # A foreign draft may name fewer positions than it is trained on here.
    length = max(config.max_position_embeddings, job.settings.max_length + MAX_TTT_STEPS)
    model = DraftModel(config, num_positions=length)
    model.load_state_dict({"embed_tokens": job.own.embedding, **tensors}, assign=True)
    model.embed_tokens.requires_grad_(config.own_embedding)
    device = job.own.embedding.device
    model.to(device).rotary.to(device, torch.float32)
    return model
