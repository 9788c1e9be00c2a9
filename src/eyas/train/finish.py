"""From a finished run to a checkpoint: the best weights on taps as they are, and the contract they were made by."""

from __future__ import annotations

from collections.abc import Sequence

from eyas.contract import Contract, DataFacts, ExpectedAcceptLength
from eyas.corpus.samples import Sample
from eyas.draft.checkpoint import draft_facts
from eyas.draft.model import DraftModel
from eyas.train.loop import BEST
from eyas.train.run import Job, assemble
from eyas.train.start import Start, scale_feature_columns
from eyas.train.state import load_state


def best_draft(job: Job, start: Start) -> DraftModel:
    """The weights of the best accept length, ready to be written: fc reads the taps as they are, in fp32."""
    weights, _ = load_state(job.folder / BEST)
    model = assemble(job, dict(weights, d2t=start.model.d2t))
    scale_feature_columns(model, start.tap_scales)
    return model


def make_contract(
    job: Job, model: DraftModel, trained: Sequence[Sample], expected: Sequence[ExpectedAcceptLength]
) -> Contract:
    """What the draft was trained for. ``trained``: the samples that it saw, cut as they were."""
    features = job.source.facts
    samples, draft = features.samples, draft_facts(model)
    longest = max(end for sample in trained for begin, end in sample.answers if end - begin >= 2)
    facts = DataFacts(
        conversations=len(trained),
        answer_tokens=sum(sample.answer_tokens for sample in trained),
        sources=samples.sources,
    )
    return Contract.model_validate(
        {
            "schema_version": 2,
            "basis": "training",
            "target": features.target,
            "tokenizer_sha256": samples.tokenizer_sha256,
            "chat_template_sha256": samples.chat_template_sha256,
            "rendering": samples.rendering,
            "taps": draft.taps,
            "norms": draft.norms,
            "rope": draft.rope,
            "vocab_map_sha256": draft.vocab_map_sha256,
            # The last step of a slot stands three before the end of its answer: it answers for the last token.
            "longest_trained_position": max(longest - 3, 0),
            "features": features.format,
            "loss_mask_rule": samples.loss_mask_rule,
            "data": facts,
            "expected": tuple(expected),
        }
    )
