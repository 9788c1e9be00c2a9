"""A training run on the tiny target that takes a second: what its answers are, and a trainer over them."""

from __future__ import annotations

import math
from functools import cache
from pathlib import Path

import numpy as np
import torch

from eyas.config import SamplingSettings
from eyas.contract import DataSource, Rendering
from eyas.corpus.features import OnlineFeatures, facts_for
from eyas.corpus.samples import LOSS_MASK_RULE, Sample, SampleFacts, split
from eyas.engine.engine import Engine
from eyas.models.config import read_config
from eyas.models.target import Target
from eyas.testing import load_tiny_target, tiny_eos_ids, tiny_pair, tiny_prompts
from eyas.train.batch import Collator
from eyas.train.loop import Trainer
from eyas.train.parallel import Parallel
from eyas.train.settings import DraftOptions, TrainSettings
from eyas.train.start import Start, Weights, draft_config, fresh

HASH = "a" * 64
FACTS = SampleFacts(
    tokenizer_sha256=HASH,
    chat_template_sha256=HASH,
    target_weights_sha256=HASH,
    rendering=Rendering(thinking="none", system_prompt="none", system_prompt_text=None),
    loss_mask_rule=LOSS_MASK_RULE,
    sources=(DataSource(name="tiny prompts", licence="Apache-2.0"),),
)
SMALL = TrainSettings(
    draft=DraftOptions(taps=(2, 4, 5), draft_vocab_size=256),
    ttt_steps=3,
    samples_per_step=4,
    micro_batch_tokens=400,
    max_length=200,
    learning_rate=3e-3,
    epochs=2,
    evaluate_every=3,
    save_every=2,
    held_out_share=0.3,
)


@cache
def tiny_target() -> Target:
    return load_tiny_target("eager")


@cache
def tiny_samples(copies: int = 3) -> tuple[Sample, ...]:
    """Answers of the tiny target: copy 0 greedy, the others drawn at temperature 1."""
    engine = Engine(tiny_target(), eos_ids=tiny_eos_ids())
    asked = []
    for number, prompt in enumerate(tiny_prompts()):
        for copy in range(copies):
            temperature = 1.0 if copy else 0.0
            settings = SamplingSettings(temperature=temperature, seed=copy, max_new_tokens=28)
            asked.append((number, copy, temperature, engine.submit(prompt, settings)))
    engine.run()
    return tuple(
        Sample(
            f"{number}#{copy}",
            f"prompt-{number}",
            "story" if number % 2 else "fact",
            np.array([*request.prompt, *request.answer], dtype=np.int32),
            ((len(request.prompt), len(request.prompt) + len(request.answer)),),
            temperature,
        )
        for number, copy, temperature, request in asked
    )


def source() -> OnlineFeatures:
    target = tiny_target()
    return OnlineFeatures(target, tiny_samples(), facts_for(target, HASH, FACTS, (2, 4, 5)))


def weights() -> Weights:
    target = tiny_target()
    norm = target.final_norm(torch.full((1, target.hidden_size), 1.0))[0]
    return Weights(target.embedding().float(), target.head().float(), norm)


def make_start(settings: TrainSettings, train: list[int]) -> Start:
    config = draft_config(read_config(tiny_pair()[0]), settings.draft)
    return fresh(config, source(), train, weights(), settings.seed)


def make_trainer(
    folder: Path, settings: TrainSettings = SMALL, parallel: Parallel | None = None, watchers=()
) -> Trainer:
    online = source()
    held = {s.id for s in split(online.samples, settings.held_out_share)[1]}
    train_indices = [i for i, s in enumerate(online.samples) if s.id not in held]
    held_indices = [i for i, s in enumerate(online.samples) if s.id in held]
    start = make_start(settings, train_indices)
    collator = Collator(online, weights().head, start.model.d2t + torch.arange(len(start.model.d2t)), start.tap_scales)
    return Trainer(start.model, collator, train_indices, held_indices, settings, folder, parallel, watchers)


def same(a: float, b: float) -> bool:
    return a == b or (math.isnan(a) and math.isnan(b))
