"""``eyas train`` from end to end: run, choose the best weights, measure them, write the checkpoint."""

from __future__ import annotations

import copy
import shutil
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from eyas.artifacts import hold_lock
from eyas.contract import Contract, ContractFacts, ExpectedAcceptLength, Witness
from eyas.corpus.features import FeatureSource
from eyas.corpus.samples import Sample, SampleSet
from eyas.corpus.witness import answer_greedily, check_sources, make_witness
from eyas.dialects.engines import Engine
from eyas.draft.checkpoint import load_draft, write_draft
from eyas.draft.layout import engines_serving
from eyas.draft.model import DraftModel
from eyas.errors import EyasError
from eyas.models.config import architecture_of
from eyas.models.target import Target
from eyas.train.batch import Collator
from eyas.train.card import CardFacts, card_files, render_card
from eyas.train.evaluate import ALL, Evaluation, evaluate
from eyas.train.finish import best_draft, make_contract
from eyas.train.learning_curve import learning_curves, write_learning_curve
from eyas.train.log import EVALUATIONS, plain, read_lines
from eyas.train.parallel import Parallel
from eyas.train.progress import TrainProgress
from eyas.train.run import Job, Ran, run_training
from eyas.train.start import draft_config

DRAFT = "draft"
WITNESS_CONVERSATIONS = 6
WITNESS_STEPS = 5
WITNESS_TOKENS = 64
STORED = torch.bfloat16


@dataclass(frozen=True)
class Ending:
    """What the checkpoint needs besides the run. ``target``: it is proven on it; None: it gets no witness. ``eos_ids``
    end its answers. ``evaluations``: samples to measure the draft on, by name.
    """

    target: Target | None
    eos_ids: tuple[int, ...]
    known: ContractFacts
    card: CardFacts
    evaluations: Mapping[str, FeatureSource] = field(default_factory=dict)


def train_draft(
    job: Job, ending: Ending, parallel: Parallel, display: TrainProgress, sinks: Sequence[str], command: Sequence[str]
) -> dict[str, Any] | None:
    """Train, or go on, and write ``draft/`` in the run's folder; what came out, as plain values. None on processes that
    do not write. Raises what ``run_training`` and ``write_draft`` raise; ``draft.dialect`` at once for a draft that
    no engine could serve.
    """
    _check_evaluations(job, ending.evaluations)
    _served_by(job)
    with ExitStack() as stack:
        if parallel.is_first:
            stack.enter_context(hold_lock(job.folder, "train", display.phase))
        ran = run_training(job, parallel, display, sinks, command)
        return _finish(job, ending, ran) if parallel.is_first else None


_WENT_ON = (
    "Its training went on from an earlier draft (weights {}…). What that one saw is not counted above, and prompts "
    "held out here may be among it."
)


def _finish(job: Job, ending: Ending, ran: Ran) -> dict[str, Any]:
    model = best_draft(job, ran.start)
    held, expected = _measure(model, ran, ending.evaluations)
    contract = make_contract(job, model, ran.trained, expected)
    told = [(line["answer_tokens"], line) for line in read_lines(job.folder / EVALUATIONS)]
    curve = write_learning_curve(job.folder, learning_curves(told))
    witness, without = _write(job, ending, ran, model, contract)
    result = {
        "draft": str(job.folder / DRAFT),
        "served_by": [str(engine) for engine in _served_by(job)],
        "steps": ran.progress.step,
        "best_step": ran.progress.best_step,
        "answer_tokens_seen": ran.progress.answer_tokens,
        "vocabulary_coverage": ran.start.coverage,
        "witness": None if witness is None else {"conversations": witness.num_conversations, "K": WITNESS_STEPS},
        "witness_refused": without,
        "expected": [record.model_dump(mode="json") for record in expected],
        "curves": held.to_json()["curves"],
        "learning_curve": curve,
        "left_out": dict(ran.left_out),
    }
    return dict(plain(result))


def _check_evaluations(job: Job, evaluations: Mapping[str, FeatureSource]) -> None:
    """Refuse sets to measure on that share a prompt with the data, or a name with a part of it."""
    prompts = {_prompt(sample) for sample in job.source.samples}
    domains = {sample.domain for sample in job.source.samples} | {ALL}
    for name, source in evaluations.items():
        shared = [sample.id for sample in source.samples if _prompt(sample) in prompts]
        if shared:
            raise EyasError(
                "train.leak",
                f"{len(shared)} conversations of {name}, first {shared[0]}, begin with a prompt of the training data",
                "leave these prompts out of one of the two",
            )
        if name in domains:
            raise EyasError("flags.contradiction", f"{name} is also a domain of the data", "rename the file")


def _served_by(job: Job) -> tuple[Engine, ...]:
    """The engines that the checkpoint is written for. Raises ``draft.dialect`` where no engine could serve it."""
    config = job.warm_start.config if job.warm_start else draft_config(job.document, job.settings.draft)
    return engines_serving(config, architecture_of(job.document))


def _prompt(sample: Sample) -> bytes:
    return bytes(sample.tokens[: sample.answers[0][0]].tobytes() if sample.answers else sample.tokens.tobytes())


def _measure(
    model: DraftModel, ran: Ran, evaluations: Mapping[str, FeatureSource]
) -> tuple[Evaluation, list[ExpectedAcceptLength]]:
    """The weights as they will be stored, on all that was held out and on the named sets."""
    stored = copy.deepcopy(model)
    with torch.no_grad():
        for parameter in stored.parameters():
            parameter.copy_(parameter.to(STORED))
    ones, head, kept = torch.ones_like(ran.collator.scales), ran.collator.head, ran.collator.kept
    held = evaluate(stored, Collator(ran.collator.source, head, kept, ones), ran.held)
    expected = held.records()
    for name, source in evaluations.items():
        source.samples = [replace(sample, domain=name) for sample in source.samples]
        records = evaluate(stored, Collator(source, head, kept, ones), range(len(source.samples))).records()
        expected += [record for record in records if record.prompt_set != ALL]
    return held, expected


def _write(
    job: Job, ending: Ending, ran: Ran, model: DraftModel, contract: Contract
) -> tuple[Witness | None, str | None]:
    """Write the checkpoint; its witness, or why it has none."""
    witness, without = None, "the target was not loaded"
    if ending.target is not None:
        witness, without = _witness(job, ending.target, ending, ran, model, contract)
    facts = ending.card
    if job.warm_sha256 is not None:
        facts = replace(facts, limits=(*facts.limits, _WENT_ON.format(job.warm_sha256[:12])))
    card = render_card(facts, contract, model.config, has_witness=witness is not None)
    files = card_files(card, _picture(job.folder))
    architecture, served = architecture_of(job.document), _served_by(job)
    write_draft(job.folder / DRAFT, model, architecture, contract, engines=served, witness=witness, files=files)
    return witness, None if witness is not None else without


def _picture(folder: Path) -> Path | None:
    path = folder / "learning_curve.png"
    return path if path.is_file() else None


def _witness(
    job: Job, target: Target, ending: Ending, ran: Ran, model: DraftModel, contract: Contract
) -> tuple[Witness | None, str]:
    """A witness of the weights as they are stored: they are written once without it and read back."""
    facts = ran.collator.source.facts.samples
    try:
        check_sources(facts.sources)
    except EyasError as error:
        return None, error.cause
    unproven = job.folder / f".{DRAFT}.unproven"
    write_draft(unproven, model, architecture_of(job.document), contract, engines=_served_by(job))
    served = load_draft(unproven, target, known=ending.known)
    answered = answer_greedily(target, _distinct(ran, target), ending.eos_ids, WITNESS_TOKENS)
    if not answered:
        shutil.rmtree(unproven)
        return None, "the target answers the held-out prompts with one token each"
    witness = make_witness(target, served, SampleSet(facts, tuple(answered)), contract, WITNESS_STEPS)
    shutil.rmtree(unproven)
    return witness, ""


def _distinct(ran: Ran, target: Target) -> list[Sample]:
    """Held-out samples of different prompts that leave room for an answer."""
    found: dict[str, Sample] = {}
    for index in ran.held:
        sample = ran.collator.source.samples[index]
        if sample.answers[0][0] + WITNESS_TOKENS < target.max_positions:
            found.setdefault(sample.prompt_id, sample)
    return list(found.values())[:WITNESS_CONVERSATIONS]
