"""Samples of the tiny target and what features of them are to be."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from transformers import AutoTokenizer

from eyas.capture import CaptureReport, plan_capture, run_capture
from eyas.contract import ContractFacts
from eyas.contract.schema import DataSource, Rendering
from eyas.corpus.features import FeatureFacts, facts_for
from eyas.corpus.samples import LOSS_MASK_RULE, Sample, SampleFacts, SampleSet
from eyas.engine.session import facts_of
from eyas.models.target import Target
from eyas.testing import load_tiny_target, tiny_pair, tiny_prompts

TAPS = (2, 4, 5)
SHARD_TOKENS = 60


@cache
def shared_target() -> Target:
    """The tiny target, for tests that do not change it."""
    return load_tiny_target()


@cache
def tiny_facts() -> ContractFacts:
    folder = tiny_pair()[0]
    return facts_of(folder, AutoTokenizer.from_pretrained(folder, trust_remote_code=False))


def tiny_samples(count: int = 6) -> SampleSet:
    """Prompts of several lengths, the second half of each taken for an answer."""
    known, samples = tiny_facts(), []
    for number, text in enumerate(tiny_prompts()[:count]):
        tokens = np.array(text * (1 + number % 3), dtype=np.int32)
        answer = ((len(tokens) // 2, len(tokens)),)
        samples.append(Sample(f"s{number}", f"p{number}", "tiny", tokens, answer, 0.0))
    assert known.tokenizer_sha256 is not None
    facts = SampleFacts(
        tokenizer_sha256=known.tokenizer_sha256,
        chat_template_sha256=known.chat_template_sha256,
        target_weights_sha256=known.weights_sha256,
        rendering=Rendering(thinking="none", system_prompt="none", system_prompt_text=None),
        loss_mask_rule=LOSS_MASK_RULE,
        sources=(DataSource(name="tiny", licence="CC0-1.0"),),
    )
    return SampleSet(facts, tuple(samples))


def with_sample(made: SampleSet, **changes: Any) -> SampleSet:
    """The samples with the second one changed."""
    return replace(made, samples=(made.samples[0], replace(made.samples[1], **changes), *made.samples[2:]))


def wanted(made: SampleSet, target: Target | None = None, taps: tuple[int, ...] = TAPS, **how: Any) -> FeatureFacts:
    weights = tiny_facts().weights_sha256
    assert weights is not None
    return facts_for(target or shared_target(), weights, made.facts, taps, **{"storage": "bf16", **how})


def capture_tiny(out: Path, made: SampleSet | None = None, **how: Any) -> CaptureReport:
    """Capture the tiny samples into small shards."""
    made = made or tiny_samples()
    return run_capture(plan_capture(shared_target(), made, wanted(made, **how), out, SHARD_TOKENS))


def bytes_of(folder: Path) -> dict[str, bytes]:
    """Name → bytes of all that a folder shows."""
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir()) if path.name[0] != "."}
