"""The tiny pair does what it is for: it speaks, its draft is accepted, and its faults would show."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from transformers import AutoTokenizer

from eyas.config import SamplingSettings, SpeculativeSettings
from eyas.draft.model import DraftModel
from eyas.engine.engine import Engine
from eyas.engine.request import Request
from eyas.metrics import Acceptance
from eyas.models.target import Target
from eyas.testing import (
    END_OF_TURN,
    TINY_PROMPTS,
    load_tiny_draft,
    load_tiny_target,
    tiny_eos_ids,
    tiny_pair,
    tiny_prompts,
    tiny_tokenizer,
)

MAX_BYTES = 1_500_000


@pytest.fixture(scope="module")
def target() -> Target:
    return load_tiny_target()


def answers(
    target: Target, draft: DraftModel | None, speculation: SpeculativeSettings | None, temperature: float = 0.0
) -> list[Request]:
    engine = Engine(target, draft, eos_ids=tiny_eos_ids(), num_slots=4096)
    sampling = SamplingSettings(max_new_tokens=80, temperature=temperature, seed=3)
    requests = [engine.submit(prompt, sampling, speculation) for prompt in tiny_prompts()]
    engine.run()
    return requests


def accept_length(requests: Sequence[Request]) -> float:
    acceptance = Acceptance()
    for i, request in enumerate(requests):
        acceptance.add_answer(i, request.rounds, len(request.answer))
    return acceptance.accept_length


def test_the_draft_is_accepted_and_the_text_is_the_targets(target: Target) -> None:
    plain = answers(target, None, None)
    speculative = answers(target, load_tiny_draft(target), SpeculativeSettings.resolve(num_steps=3))
    assert [r.answer for r in speculative] == [r.answer for r in plain]
    assert accept_length(speculative) > 2
    assert accept_length(plain) == 1


def test_sampled_text_is_the_targets_too(target: Target) -> None:
    plain = answers(target, None, None, temperature=1.0)
    speculative = answers(target, load_tiny_draft(target), SpeculativeSettings.resolve(num_steps=4), 1.0)
    assert [r.answer for r in speculative] == [r.answer for r in plain]
    assert plain[0].answer != answers(target, None, None)[0].answer


@pytest.mark.parametrize("fault", ["taps", "map", "fc"])
def test_a_planted_fault_costs_accept_length(target: Target, fault: str) -> None:
    """Without this, the pair could not show that a check finds anything."""
    speculation = SpeculativeSettings.resolve(num_steps=3)
    draft = load_tiny_draft(target, "eager")
    healthy = accept_length(answers(target, draft, speculation))
    if fault == "taps":
        draft.config = draft.config.model_copy(update={"taps": (1, 3, 4)})
    elif fault == "map":
        draft.d2t.zero_()
    else:
        draft = load_tiny_draft(target, "eager")
        draft.fc.weight.copy_(draft.fc.weight.roll(64, 1))
    assert accept_length(answers(target, draft, speculation)) < healthy - 0.1


def test_the_answers_are_english_and_end_by_themselves(target: Target) -> None:
    requests = answers(target, None, None)
    text = tiny_tokenizer().decode(requests[0].answer)
    assert text.startswith("The fox is an animal that lives in the forest.")
    assert sum(r.finished == "stop" for r in requests) >= 6


def test_prompts_are_rendered_as_the_chat_template_does() -> None:
    tokenizer = AutoTokenizer.from_pretrained(tiny_pair()[0])
    for text, ids in zip(TINY_PROMPTS, tiny_prompts(), strict=True):
        message = [{"role": "user", "content": text}]
        rendered = tokenizer.apply_chat_template(message, tokenize=False, add_generation_prompt=True)
        assert tokenizer.encode(rendered, add_special_tokens=False) == ids
    assert tokenizer.eos_token == END_OF_TURN
    assert [tokenizer.eos_token_id] == tiny_eos_ids()


def test_the_pair_is_small_and_of_the_shape_it_says() -> None:
    files = [file for folder in tiny_pair() for file in folder.iterdir()]
    assert sum(file.stat().st_size for file in files) < MAX_BYTES
    target = load_tiny_target("eager", torch.bfloat16)
    assert (target.num_layers, target.hidden_size, target.vocab_size) == (8, 64, 512)
    draft = load_tiny_draft(target, "eager")
    assert draft.config.taps == (2, 4, 5)
    assert draft.config.has_map
    assert draft.fc.weight.dtype == torch.bfloat16
