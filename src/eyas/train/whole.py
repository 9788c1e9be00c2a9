"""``eyas train`` from end to end: run, choose the best weights, write the checkpoint with all that it promises."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from eyas.draft.checkpoint import write_draft
from eyas.models.config import architecture_of
from eyas.train.evaluate import Evaluation, evaluate
from eyas.train.finish import best_draft, make_contract
from eyas.train.loop import BEST
from eyas.train.parallel import Parallel
from eyas.train.progress import TrainProgress
from eyas.train.run import Job, Ran, assemble, run_training
from eyas.train.state import load_state

DRAFT = "draft"


def train_draft(
    job: Job, parallel: Parallel, display: TrainProgress, sinks: Sequence[str], command: Sequence[str]
) -> dict[str, Any] | None:
    """Train, or go on, and write ``draft/`` in the run's folder; what came out, as plain values; None on processes that
    do not write.
    """
    ran = run_training(job, parallel, display, sinks, command)
    if not parallel.is_first:
        return None
    model, result = best_draft(job, ran.start), _final_evaluation(job, ran)
    expected = result.records()
    contract = make_contract(job, model, ran.trained, expected)
    write_draft(job.folder / DRAFT, model, architecture_of(job.document), contract)
    return {
        "draft": str(job.folder / DRAFT),
        "steps": ran.progress.step,
        "best_step": ran.progress.best_step,
        "answer_tokens_seen": ran.progress.answer_tokens,
        "vocabulary_coverage": ran.start.coverage,
        **result.to_json(),
    }


def _final_evaluation(job: Job, ran: Ran) -> Evaluation:
    """The best weights on all that was held out, on scaled taps as they were trained."""
    weights, _ = load_state(job.folder / BEST)
    model = assemble(job, dict(weights, d2t=ran.start.model.d2t))
    return evaluate(model, ran.collator, ran.held)
