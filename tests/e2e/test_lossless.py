"""Speculative text is token for token that of plain decoding, and the walk foretells what is accepted."""

from collections.abc import Sequence

import pytest

from eyas.config import SamplingSettings, SpeculativeSettings
from eyas.draft.model import DraftModel
from eyas.engine.engine import Engine
from eyas.engine.exactness import first_divergence
from eyas.engine.request import Request
from eyas.kernels import Quantization
from eyas.metrics import Round
from eyas.models.target import Target
from eyas.speculate.propose import NgramProposer, Proposer
from eyas.speculate.walk import walk_text
from rigs import Oracle, chain, plain_answers, random_draft, random_prompt, random_target, tree

LENGTH = 16
VOCAB = 16  # small, so that a draft that has learnt nothing is right now and then
BATCH = 8

PROMPTS = [random_prompt(seed, length, VOCAB) for seed, length in enumerate((1, 2, 5, 9, 17, 18, 33, 40))]
SAMPLINGS = [
    SamplingSettings(max_new_tokens=LENGTH),
    SamplingSettings(max_new_tokens=LENGTH, temperature=1.0, seed=1),
    SamplingSettings(max_new_tokens=LENGTH, temperature=0.7, seed=2, top_k=6, top_p=0.9),
    SamplingSettings(max_new_tokens=LENGTH, repetition_penalty=1.3, logit_bias={3: 1.5, 9: -2.0}),
    SamplingSettings(max_new_tokens=LENGTH, temperature=1.2, seed=3, min_p=0.1, presence_penalty=0.6),
    SamplingSettings(max_new_tokens=LENGTH, temperature=0.9, seed=4, frequency_penalty=0.5, repetition_penalty=0.8),
    SamplingSettings(max_new_tokens=LENGTH - 5),
    SamplingSettings(max_new_tokens=LENGTH, temperature=1.0, seed=1 << 62, stop_token_ids=(5,)),
]
TREES = [tree(2, 2, 3), tree(3, 4, 8), tree(5, 2, 11), tree(4, 8, 24), tree(1, 4, 5)]
MIXED = [None, chain(1), chain(5), tree(3, 3, 8), chain(2), None, tree(4, 2, 6), chain(15)]


class Rig:
    """A target, a draft, and what plain decoding answers, each prompt alone."""

    def __init__(self, backend: str, quantization: Quantization = "none") -> None:
        self.target: Target = random_target(5, vocab=VOCAB, layers=2, backend=backend, quantization=quantization)
        self.draft = random_draft(self.target, seed=1)
        self.truth = plain_answers(self.target, PROMPTS, SAMPLINGS)

    def oracle(self, taps: tuple[int, ...] = ()) -> Oracle:
        return Oracle(dict(zip(PROMPTS, self.truth, strict=True)), VOCAB, taps)

    def run(
        self,
        proposer: Proposer | DraftModel,
        settings: Sequence[SpeculativeSettings | None],
        which: Sequence[int] = range(BATCH),
        **engine: int | bool,
    ) -> list[Request]:
        """Answer these prompts in one engine, and check every answer against plain decoding's."""
        runner = Engine(self.target, proposer, **{"num_slots": 1500, **engine})  # type: ignore[arg-type]
        requests = [runner.submit(PROMPTS[i], SAMPLINGS[i], settings[i]) for i in which]
        runner.run()
        for i, request in zip(which, requests, strict=True):
            self.assert_same(request, self.truth[i])
        return requests

    def assert_same(self, request: Request, truth: list[int]) -> None:
        divergence = first_divergence(self.target, request.prompt, truth, request.answer, request.sampling)
        assert divergence is None or (divergence.is_tie and not self.target.row_exact), divergence
        assert len(request.origins) == len(request.answer)


@pytest.fixture(scope="module")
def rig() -> Rig:
    return Rig("onednn")


@pytest.fixture(scope="module")
def eager() -> Rig:
    return Rig("eager")


@pytest.fixture(scope="module", params=["none", "int8"])
def native(request: pytest.FixtureRequest) -> Rig:
    """Whose rows are exact, where the library was built: every bit is that of plain decoding."""
    return Rig("auto", request.param)


def counts(requests: Sequence[Request]) -> list[list[Round]]:
    return [request.rounds for request in requests]


def accepted(requests: Sequence[Request]) -> set[int]:
    return {r.accepted for request in requests for r in request.rounds}


@pytest.mark.parametrize("K", range(1, 16))
def test_every_k(rig: Rig, K: int) -> None:
    """Requests of all kinds of sampling in one batch; planted proposals, so that many accepted counts come up."""
    seen = accepted(rig.run(rig.oracle(), [chain(K)] * BATCH))
    assert seen <= set(range(K + 1))
    assert len(seen) > min(K, 6)


@pytest.mark.parametrize("K", [1, 6])
def test_every_k_with_a_draft(rig: Rig, K: int) -> None:
    assert accepted(rig.run(rig.draft, [chain(K)] * BATCH)) >= {0, 1}


@pytest.mark.parametrize("shape", TREES, ids=lambda s: f"{s.num_steps}-{s.eagle_topk}-{s.num_draft_tokens}")
def test_trees(rig: Rig, shape: SpeculativeSettings) -> None:
    assert max(accepted(rig.run(rig.draft, [shape] * BATCH))) >= 1
    planted = rig.run(rig.oracle(), [shape] * BATCH)
    assert max(accepted(planted)) == shape.ceiling - 1
    assert {r.longest for request in planted for r in request.rounds} <= set(range(shape.ceiling))


def test_the_eager_backend(eager: Rig) -> None:
    eager.run(eager.oracle(), [chain(7)] * BATCH)
    eager.run(eager.draft, MIXED)


def test_the_own_kernels(native: Rig) -> None:
    for K in (1, 4, 9):
        native.run(native.oracle(), [chain(K)] * BATCH)
    for shape in TREES[:3]:
        native.run(native.oracle(), [shape] * BATCH)
    native.run(native.draft, MIXED)
    native.run(native.draft, MIXED, prefill_tokens=7, max_running=3)


@pytest.mark.parametrize(
    ("settings", "sizes"), [(chain(2), range(2, BATCH + 1)), (tree(2, 3, 6), [4])], ids=["chain", "tree"]
)
def test_the_batch_changes_neither_text_nor_accepted_counts(
    rig: Rig, settings: SpeculativeSettings, sizes: Sequence[int]
) -> None:
    """Fault 16: unequal lengths in one batch, and the same requests alone."""
    alone = [rig.run(rig.draft, [settings] * BATCH, [i])[0].rounds for i in range(BATCH)]
    for size in sizes:
        which = list(range(BATCH))[-size:]
        assert counts(rig.run(rig.draft, [settings] * BATCH, which)) == [alone[i] for i in which]
    assert counts(rig.run(rig.draft, [settings] * BATCH, max_running=3)) == alone


@pytest.mark.parametrize("budget", [1, 7, 30])
def test_chunked_prefill(rig: Rig, budget: int) -> None:
    which = [2, 4, 5, 6]
    whole = counts(rig.run(rig.draft, [chain(2)] * BATCH, which))
    assert counts(rig.run(rig.draft, [chain(2)] * BATCH, which, prefill_tokens=budget)) == whole


def test_requests_with_and_without_speculation_share_a_batch(rig: Rig) -> None:
    requests = rig.run(rig.draft, MIXED)
    for request, wanted in zip(requests, MIXED, strict=True):
        assert {r.proposed for r in request.rounds} == {wanted.num_draft_tokens - 1 if wanted else 0}
    rig.run(rig.oracle((0, 2)), MIXED, max_running=3, prefill_tokens=5)


def test_a_small_cache_that_makes_requests_wait(rig: Rig) -> None:
    rig.run(rig.draft, MIXED, range(5), num_slots=80)


def test_cache_hits_change_neither_text_nor_accepted_counts(rig: Rig) -> None:
    """The conversation goes on: the second turn's prompt is the first turn and its answer."""
    warm = Engine(rig.target, rig.draft)
    first = [warm.submit(p, s, tree(3, 4, 8)) for p, s in zip(PROMPTS, SAMPLINGS, strict=True)]
    warm.run()
    turns = [(*r.prompt, *r.answer, *random_prompt(i, 4, VOCAB)) for i, r in enumerate(first)]
    turns += [(*r.prompt, *r.answer[:9], 0, 1) for r in first[:3]]
    samplings = [*SAMPLINGS, *SAMPLINGS[:3]]
    truth = plain_answers(rig.target, turns, samplings)
    both = []
    for engine in (warm, Engine(rig.target, rig.draft, prefix_cache=False)):
        requests = [engine.submit(p, s, tree(3, 4, 8)) for p, s in zip(turns, samplings, strict=True)]
        engine.run()
        for request, answer in zip(requests, truth, strict=True):
            rig.assert_same(request, answer)
        both.append(requests)
    assert counts(both[0]) == counts(both[1])
    assert sum(len(request.shared) for request in both[0]) > 200
    assert not any(request.shared for request in both[1])


def test_ngram_proposals(rig: Rig) -> None:
    requests = rig.run(NgramProposer(max_ngram=3, min_ngram=1), [chain(4)] * BATCH)
    assert max(accepted(requests)) >= 2


def test_seeds_make_different_texts(rig: Rig) -> None:
    prompts = [PROMPTS[4]] * 4
    samplings = [SamplingSettings(temperature=1.0, seed=seed, max_new_tokens=LENGTH) for seed in (0, 1, 2, 1)]
    truth = plain_answers(rig.target, prompts, samplings)
    engine = Engine(rig.target, rig.draft)
    requests = [engine.submit(p, s, chain(3)) for p, s in zip(prompts, samplings, strict=True)]
    engine.run()
    for request, answer in zip(requests, truth, strict=True):
        rig.assert_same(request, answer)
    assert len({tuple(request.answer) for request in requests}) == 3
    assert requests[1].answer == requests[3].answer


def test_probabilistic_drafts_at_temperature_0_are_lossless_too(rig: Rig) -> None:
    greedy = [0, 3, 6]
    requests = rig.run(rig.draft, [chain(4, draft_sampling="probabilistic")] * BATCH, greedy)
    assert max(accepted(requests)) >= 1


@pytest.mark.parametrize("settings", [chain(1), chain(5), tree(3, 4, 8)], ids=str)
def test_the_walk_foretells_the_accepted_counts(rig: Rig, settings: SpeculativeSettings) -> None:
    proposers: list[Proposer | DraftModel] = [rig.draft, rig.oracle()]
    if not settings.is_tree:
        proposers.append(NgramProposer(3, 1))
    for proposer in proposers:
        for request in rig.run(proposer, [settings] * BATCH, [1, 3, 4, 7]):
            assert walk_text(rig.target, proposer, request.prompt, request.answer, settings) == request.rounds


def test_the_walk_reaches_the_contexts_end() -> None:
    target = random_target(5, vocab=VOCAB, layers=2, context=40)
    draft = random_draft(target, seed=1)
    engine = Engine(target, draft)
    request = engine.submit(PROMPTS[3], SamplingSettings(max_new_tokens=99), chain(4))
    engine.run()
    assert len(request.answer) == 40 - len(PROMPTS[3])
    assert walk_text(target, draft, request.prompt, request.answer, chain(4)) == request.rounds
    assert {r.proposed for r in request.rounds} == {4, 0}


def test_a_wrong_target_is_caught(rig: Rig) -> None:
    """What the tests above would do if verification were broken: here, if another model verified."""
    other = random_target(6, vocab=VOCAB, layers=2)
    engine = Engine(other, random_draft(other))
    request = engine.submit(PROMPTS[2], SAMPLINGS[0], chain(3))
    engine.run()
    with pytest.raises(AssertionError, match="is_tie"):
        rig.assert_same(request, rig.truth[2])
