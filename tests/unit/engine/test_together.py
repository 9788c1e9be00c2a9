"""Everything at once: prompts that are alike, slots that run short, grammars, stops, log-probabilities, chains, trees,
drawn drafts, a K that changes every round, drafts that stop, requests that are given up. The text is plain decoding's.
"""

from __future__ import annotations

import random
from collections.abc import Hashable, Iterable, Sequence
from functools import cache

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import eyas.engine.engine
from eyas.config import SamplingSettings, SpeculativeSettings
from eyas.draft.model import DraftModel
from eyas.engine.engine import Engine
from eyas.engine.request import Extras, Request
from eyas.metrics import Round
from eyas.models.llama import LlamaTarget
from eyas.speculate.confidence import EDGES, SureChain, sure_chain
from eyas.speculate.costs import CostTable, Curve, StepShape
from eyas.speculate.policy import Controller, Prospect
from rigs import assert_all_slots_returned, chain, random_draft, random_prompt, random_target, tree
from support.constraints import VOCAB, Steps, UntilPair

FREE = Curve((1,), (1.0,))
END = 3


class Whims(Controller):
    """Any K for anyone in any round, and no draft for some."""

    def __init__(self, seed: int) -> None:
        super().__init__(CostTable(FREE, FREE, FREE), max_steps=5)
        self.drawn, self.keys = random.Random(seed), set[Hashable]()

    def choose(self, prospects: Sequence[Prospect], other_rows: int = 0, plain: int = 0) -> list[int]:
        self.keys |= {p.key for p in prospects}
        most = [p.asked.num_steps for p in prospects]
        return [
            self.drawn.choice([0, n]) if p.asked.is_tree else self.drawn.choice([0, 0, *range(1, n + 1)])
            for p, n in zip(prospects, most, strict=True)
        ]

    def reads_along(self, asked: SpeculativeSettings, sampled: bool, context: int, running: int) -> bool:
        return self.drawn.random() < 0.7

    def note(self, key: Hashable, rounds: Iterable[Round]) -> None:
        assert key in self.keys

    def sure_chain(self, prospect: Prospect) -> SureChain:
        keep, extend = (self.drawn.randrange(len(EDGES) + 1) for _ in range(2))
        return sure_chain(prospect.asked.num_steps, keep, extend)

    def note_sure(self, key: Hashable, sampled: bool, finished: Round, paths: Sequence[float]) -> None:
        assert key in self.keys
        assert finished.proposed <= len(paths) <= finished.proposed + 1

    def forget(self, key: Hashable) -> None:
        self.keys.discard(key)

    def observe(self, shape: StepShape, seconds: float) -> None:
        pass


@cache
def models() -> tuple[LlamaTarget, DraftModel]:
    target = random_target(5, vocab=VOCAB, layers=2)
    return target, random_draft(target, seed=1)


SAMPLING = st.builds(
    SamplingSettings,
    max_new_tokens=st.integers(1, 50),
    temperature=st.sampled_from([0.0, 0.0, 0.7, 1.0]),
    seed=st.integers(0, 3),
    top_k=st.sampled_from([0, 3]),
    top_p=st.sampled_from([1.0, 0.9]),
    repetition_penalty=st.sampled_from([1.0, 1.2]),
    ignore_eos=st.booleans(),
)
HOW = st.sampled_from(
    [None, chain(1), chain(5), tree(2, 2, 4), tree(3, 3, 8), chain(3, draft_sampling="probabilistic")]
)
EXTRAS = st.tuples(
    st.sampled_from([None, None, 5, 20, 99]),  # the grammar's length
    st.sampled_from([None, (1, 2), (4, 7), (10, 13)]),  # the stop string
    st.sampled_from([None, 0, 2]),  # log-probabilities
    st.integers(0, 1),  # priority
)
JOB = st.tuples(
    st.integers(0, 2),  # which prompt
    st.integers(1, 40),  # how much of it
    SAMPLING,
    HOW,
    EXTRAS,
    st.integers(0, 25),  # the step at which it comes
    st.sampled_from([None, None, None, 3, 15]),  # steps until it is given up
)


def extras(length: int | None, stop: tuple[int, int] | None, top: int | None, priority: int) -> Extras:
    grammar = Steps(length) if length is not None else None
    return Extras(UntilPair(stop) if stop is not None else None, grammar, top, priority)


@settings(max_examples=12, deadline=None)
@given(
    st.lists(JOB, min_size=2, max_size=8),
    st.sampled_from([115, 150, 400]),
    st.sampled_from([5, 17, 64]),
    st.integers(0, 99),
)
def test_all_that_an_engine_can_do_at_once_leaves_the_text_alone(
    jobs: list[tuple], slots: int, budget: int, whim: int
) -> None:
    target, draft = models()
    controller = Whims(whim)
    engine = Engine(
        target, draft, eos_ids=[END], num_slots=slots, prefill_tokens=budget, max_running=5, controller=controller
    )
    requests: dict[int, Request] = {}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(eyas.engine.engine, "MOST_PENDING", 10)
        for step in range(900):
            for i, (which, length, sampling, how, more, at, gone) in enumerate(jobs):
                if at == step:
                    prompt = random_prompt(which, 40, VOCAB)[:length]
                    requests[i] = engine.submit(prompt, sampling, how, extras(*more))
                if gone is not None and step == at + gone:
                    engine.abort(requests[i])
            engine.step()
            engine.check_integrity()
            if len(requests) == len(jobs) and not engine.running and not engine.waiting:
                break
    assert not controller.keys
    for i, request in requests.items():
        _assert_as_plain(target, request, jobs[i][4])
    assert_all_slots_returned(engine)


def _assert_as_plain(target: LlamaTarget, request: Request, more: tuple) -> None:
    assert request.finished
    assert len(request.origins) == len(request.answer)
    if request.extras.top_logprobs is not None:
        assert len(request.logprobs) == len(request.answer)
    if request.speculation is not None and request.speculation.draft_sampling == "probabilistic":
        return  # exact in distribution only
    engine = Engine(target, eos_ids=[END], num_slots=200, prefix_cache=False)
    plain = engine.submit(request.prompt, request.sampling, None, extras(*more))
    engine.run()
    gone = request.finished == "abort"
    assert request.answer == (plain.answer[: len(request.answer)] if gone else plain.answer)
    assert gone or request.finished == plain.finished
    for ours, theirs in zip(request.logprobs, plain.logprobs, strict=not gone):
        assert ours.own == pytest.approx(theirs.own, abs=1e-4)
