"""The tiny trained pair: a draft that has learnt something gains, changes nothing, and is foretold by its walk."""

from collections.abc import Sequence

import pytest

from eyas.config import SamplingSettings, SpeculativeSettings
from eyas.draft.model import DraftModel
from eyas.engine.engine import Engine
from eyas.engine.exactness import first_divergence
from eyas.engine.request import Request
from eyas.metrics import Acceptance
from eyas.models.target import Target
from eyas.speculate.walk import walk_text
from eyas.testing import load_tiny_draft, load_tiny_target, tiny_prompts
from rigs import chain, plain_answers, tree

GREEDY = SamplingSettings(max_new_tokens=32)
SAMPLED = SamplingSettings(max_new_tokens=32, temperature=0.8, top_p=0.95, seed=11)


@pytest.fixture(scope="module")
def target() -> Target:
    return load_tiny_target()


@pytest.fixture(scope="module")
def draft(target: Target) -> DraftModel:
    return load_tiny_draft(target)


def answered(
    engine: Engine, prompts: Sequence[Sequence[int]], sampling: SamplingSettings, settings: SpeculativeSettings
) -> list[Request]:
    requests = [engine.submit(prompt, sampling, settings) for prompt in prompts]
    engine.run()
    return requests


def accept_length(requests: Sequence[Request]) -> float:
    acceptance = Acceptance()
    for i, request in enumerate(requests):
        acceptance.add_answer(i, request.rounds, len(request.answer))
    return acceptance.accept_length


@pytest.mark.parametrize("sampling", [GREEDY, SAMPLED], ids=["greedy", "sampled"])
@pytest.mark.parametrize("settings", [chain(3), tree(4, 4, 12)], ids=["chain", "tree"])
def test_the_same_text_in_fewer_rounds_as_the_walk_foretells(
    target: Target, draft: DraftModel, sampling: SamplingSettings, settings: SpeculativeSettings
) -> None:
    prompts = tiny_prompts()[:4]
    truth = plain_answers(target, prompts, [sampling] * 4)
    requests = answered(Engine(target, draft), prompts, sampling, settings)
    for request, answer in zip(requests, truth, strict=True):
        divergence = first_divergence(target, request.prompt, answer, request.answer, sampling)
        assert divergence is None or divergence.is_tie, divergence
        assert walk_text(target, draft, request.prompt, request.answer, settings) == request.rounds
    assert accept_length(requests) > (2 if sampling.greedy else 1.5)


def test_batch_and_cache_hits_do_not_change_the_accept_length(target: Target, draft: DraftModel) -> None:
    """Fault 16, with a draft that is right often enough for its cache to matter."""
    prompts = tiny_prompts()[:4]
    alone = [answered(Engine(target, draft), [prompt], GREEDY, chain(4))[0] for prompt in prompts]
    engine = Engine(target, draft)
    together = answered(engine, prompts, GREEDY, chain(4))
    again = answered(engine, prompts, GREEDY, chain(4))
    assert min(len(request.shared) for request in again) >= min(map(len, prompts)) - 1
    for requests in (together, again):
        assert [request.answer for request in requests] == [request.answer for request in alone]
        assert [request.rounds for request in requests] == [request.rounds for request in alone]
    assert len({len(request.prompt) for request in together}) > 1
