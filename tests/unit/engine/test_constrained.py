"""Grammars, log-probabilities and stops beyond tokens, with every kind of proposal: the answer is plain decoding's."""

import pytest

from eyas.config import SamplingSettings, SpeculativeSettings
from eyas.draft.model import DraftModel
from eyas.engine.engine import Engine
from eyas.engine.request import Extras, Request
from eyas.models.llama import LlamaTarget
from eyas.speculate.propose import NgramProposer, Proposer
from rigs import Oracle, chain, random_draft, random_prompt, random_target, tree
from support.constraints import VOCAB, Steps, UntilPair

PROMPT = random_prompt(3, 9, VOCAB)


@pytest.fixture(scope="module")
def target() -> LlamaTarget:
    return random_target(5, vocab=VOCAB, layers=2)


def answer(
    target: LlamaTarget,
    proposer: Proposer | DraftModel | None,
    how: SpeculativeSettings | None,
    sampling: SamplingSettings,
    extras: Extras,
) -> Request:
    engine = Engine(target, proposer, num_slots=400)
    others = [engine.submit(random_prompt(i, 5, VOCAB), sampling, how) for i in range(2)]
    request = engine.submit(PROMPT, sampling, how, extras)
    engine.run()
    assert all(other.finished for other in others)
    return request


SAMPLINGS = [
    SamplingSettings(max_new_tokens=40),
    SamplingSettings(max_new_tokens=40, temperature=1.0, seed=4),
    SamplingSettings(max_new_tokens=40, temperature=0.8, seed=5, top_k=3, top_p=0.9, repetition_penalty=1.2),
]


@pytest.mark.parametrize("sampling", SAMPLINGS, ids=["greedy", "drawn", "cut"])
def test_speculation_under_a_grammar_gives_plain_decodings_answer(
    target: LlamaTarget, sampling: SamplingSettings
) -> None:
    plain = answer(target, None, None, sampling, Extras(constraint=Steps()))
    assert len(plain.answer) == 40
    kept = list(range(0, VOCAB, 3))
    proposers: list[tuple[Proposer | DraftModel, SpeculativeSettings]] = [
        (random_draft(target, seed=1), chain(4)),
        (random_draft(target, seed=1), tree(3, 3, 8)),
        (random_draft(target, seed=1, kept=kept), chain(3)),
        (NgramProposer(3, 1), chain(4)),
    ]
    for proposer, how in proposers:
        request = answer(target, proposer, how, sampling, Extras(constraint=Steps()))
        assert request.answer == plain.answer
        assert any(r.accepted for r in request.rounds)


def test_drafts_are_masked_too(target: LlamaTarget) -> None:
    """With three tokens to choose from, a draft that has learnt nothing is right more often than one in sixteen."""
    sampling = SamplingSettings(max_new_tokens=200)
    free = answer(target, random_draft(target, seed=1), chain(1), sampling, Extras())
    bound = answer(target, random_draft(target, seed=1), chain(1), sampling, Extras(constraint=Steps(999)))
    rate = [sum(r.accepted for r in x.rounds) / sum(r.proposed for r in x.rounds) for x in (free, bound)]
    assert rate[1] > rate[0]


def test_probabilistic_drafts_under_a_grammar(target: LlamaTarget) -> None:
    how = chain(3, draft_sampling="probabilistic")
    sampling = SamplingSettings(max_new_tokens=40, temperature=1.0, seed=1)
    request = answer(target, random_draft(target, seed=1), how, sampling, Extras(constraint=Steps()))
    assert len(request.answer) == 40
    narrow = random_draft(target, seed=1, kept=[0])
    # Token 0 is seldom allowed: such rounds propose nothing.
    request = answer(target, narrow, how, sampling, Extras(constraint=Steps()))
    assert 0 in {r.proposed for r in request.rounds}


def test_a_grammar_that_has_come_to_its_end_ends_the_answer_there(target: LlamaTarget) -> None:
    """Inside a round too: what was drafted behind the end does not count."""
    whole = answer(target, None, None, SAMPLINGS[0], Extras(constraint=Steps())).answer
    oracle = Oracle({PROMPT: whole, **others(target, SAMPLINGS[0])}, VOCAB)
    for proposer, how in ((None, None), (random_draft(target, seed=1), chain(4)), (oracle, chain(5))):
        for length in (1, 2, 4, 7):
            request = answer(target, proposer, how, SAMPLINGS[0], Extras(constraint=Steps(length)))
            assert request.finished == "stop"
            assert request.answer == whole[:length]
            assert len(request.origins) == length


@pytest.mark.parametrize("sampling", SAMPLINGS[:2], ids=["greedy", "drawn"])
def test_a_watch_ends_the_answer_inside_a_round(target: LlamaTarget, sampling: SamplingSettings) -> None:
    whole = answer(target, None, None, sampling, Extras()).answer
    for at in range(1, 12):
        pair = (whole[at - 1], whole[at])
        first = next(i for i in range(1, 40) if (whole[i - 1], whole[i]) == pair)
        oracle = Oracle({PROMPT: whole, **others(target, sampling)}, VOCAB)
        for proposer, how in ((None, None), (oracle, chain(5))):
            request = answer(target, proposer, how, sampling, Extras(watch=UntilPair(pair)))
            assert request.answer == whole[: first + 1]
            assert request.finished == "stop"
            assert len(request.origins) == len(request.answer)


def others(target: LlamaTarget, sampling: SamplingSettings) -> dict[tuple[int, ...], list[int]]:
    engine = Engine(target, num_slots=400)
    requests = [engine.submit(random_prompt(i, 5, VOCAB), sampling) for i in range(2)]
    engine.run()
    return {r.prompt: r.answer for r in requests}


@pytest.mark.parametrize("sampling", SAMPLINGS, ids=["greedy", "drawn", "cut"])
def test_log_probabilities_are_the_targets_own_whoever_proposed(
    target: LlamaTarget, sampling: SamplingSettings
) -> None:
    plain = answer(target, None, None, sampling, Extras(top_logprobs=3))
    assert len(plain.logprobs) == len(plain.answer)
    for told in plain.logprobs:
        assert len(told.top) == 3
        assert list(told.top) == sorted(told.top, reverse=True)
        assert told.own <= told.top[0] <= 0
    if sampling.greedy:
        assert [told.top_ids[0] for told in plain.logprobs] == plain.answer
    oracle = Oracle({PROMPT: plain.answer, **others(target, sampling)}, VOCAB)
    for proposer, how in ((oracle, chain(4)), (oracle, tree(3, 2, 6)), (random_draft(target), chain(3))):
        request = answer(target, proposer, how, sampling, Extras(top_logprobs=3))
        for ours, theirs in zip(request.logprobs, plain.logprobs, strict=True):
            assert ours.top_ids == theirs.top_ids
            assert ours.own == pytest.approx(theirs.own, abs=1e-4)


def test_no_log_probabilities_unless_asked_for_and_none_beside_the_own(target: LlamaTarget) -> None:
    assert answer(target, None, None, SAMPLINGS[0], Extras()).logprobs == []
    told = answer(target, None, None, SAMPLINGS[0], Extras(top_logprobs=0)).logprobs
    assert [t.top for t in told] == [()] * 40
