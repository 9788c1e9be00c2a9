"""A request that is given up leaves nothing behind, whatever its stage."""

from __future__ import annotations

from collections.abc import Hashable, Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from eyas.config import SamplingSettings
from eyas.engine.engine import Engine
from eyas.models.llama import LlamaTarget
from eyas.speculate.costs import CostTable, Curve
from eyas.speculate.policy import Controller, Prospect
from rigs import assert_all_slots_returned, chain, plain_answers, random_draft, random_prompt, random_target

TWELVE = SamplingSettings(max_new_tokens=12)


@pytest.fixture(scope="module")
def target() -> LlamaTarget:
    return random_target(layers=2)


def test_a_waiting_request_never_runs(target: LlamaTarget) -> None:
    engine = Engine(target, max_running=1, num_slots=100)
    first, second, third = (engine.submit(random_prompt(i, 5), TWELVE) for i in range(3))
    engine.step()
    engine.abort(second)
    assert (second.finished, second.answer) == ("abort", [])
    engine.run()
    assert (first.finished, third.finished) == ("length", "length")
    assert second.state is None
    assert_all_slots_returned(engine)


def test_a_running_request_keeps_its_answer_and_gives_its_slots_back(target: LlamaTarget) -> None:
    prompts = [random_prompt(i, 5) for i in range(3)]
    plain = plain_answers(target, prompts, [TWELVE] * 3)
    engine = Engine(target, num_slots=100, prefix_cache=False)
    requests = [engine.submit(p, TWELVE) for p in prompts]
    for _ in range(5):
        engine.step()
    before = engine.pool.num_free
    engine.abort(requests[1])
    assert engine.pool.num_free > before + 5 + 4
    engine.check_integrity()
    assert requests[1].answer == plain[1][:5]
    done = []
    while engine.running:
        done += engine.step()
    assert done == [requests[0], requests[2]], "no step returns it"
    assert [r.answer for r in (requests[0], requests[2])] == [plain[0], plain[2]]
    assert_all_slots_returned(engine)


def test_a_request_can_be_given_up_in_the_middle_of_its_prompt(target: LlamaTarget) -> None:
    engine = Engine(target, random_draft(target), num_slots=100, prefill_tokens=4)
    request = engine.submit(random_prompt(0, 10), TWELVE, chain(2))
    engine.step()
    assert request.state is not None
    assert request.state.cached == 4
    engine.abort(request)
    assert request.answer == []
    assert engine.step() == []
    assert_all_slots_returned(engine)


def test_what_was_computed_may_still_be_shared(target: LlamaTarget) -> None:
    prompt = random_prompt(6, 20)
    engine = Engine(target, num_slots=200)
    request = engine.submit(prompt, TWELVE)
    for _ in range(4):
        engine.step()
    engine.abort(request)
    again = engine.submit((*prompt, *request.answer, 1), TWELVE)
    engine.run()
    assert len(again.shared) == 20 + 4 - 1
    assert again.answer == plain_answers(target, [again.prompt], [TWELVE])[0]


def test_a_finished_request_stays_as_it_is(target: LlamaTarget) -> None:
    engine = Engine(target, num_slots=100)
    request = engine.submit(random_prompt(0, 5), TWELVE)
    engine.run()
    free = engine.pool.num_free
    engine.abort(request)
    engine.abort(request)
    assert request.finished == "length"
    assert engine.pool.num_free == free


def test_a_request_of_another_engine_is_our_own_mistake(target: LlamaTarget) -> None:
    other = Engine(target, num_slots=100).submit(random_prompt(0, 5), TWELVE)
    with pytest.raises(AssertionError, match="another engine"):
        Engine(target, num_slots=100).abort(other)


@settings(max_examples=25, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 20), st.integers(0, 5)), max_size=6), st.booleans(), st.booleans())
def test_whenever_some_are_given_up_the_others_answer_as_alone(
    aborts: list[tuple[int, int]], drafting: bool, kept: bool
) -> None:
    target = random_target(layers=2)
    prompts = [random_prompt(i, 3 + 2 * i) for i in range(6)]
    draft = random_draft(target) if drafting else None
    engine = Engine(target, draft, num_slots=90, prefill_tokens=7, prefix_cache=kept)
    requests = [engine.submit(p, TWELVE, chain(2) if drafting else None) for p in prompts]
    for step in range(200):
        for at, index in aborts:
            if at == step:
                engine.abort(requests[index])
        engine.step()
    given_up = {r for r in requests if r.finished == "abort"}
    plain = plain_answers(target, prompts, [TWELVE] * 6)
    for request, truth in zip(requests, plain, strict=True):
        assert request.answer == (truth[: len(request.answer)] if request in given_up else truth)
    assert not engine.waiting
    assert not engine.running
    assert_all_slots_returned(engine)


class Remembering(Controller):
    """Notes whom it has an estimate of."""

    def choose(self, prospects: Sequence[Prospect], other_rows: int = 0, plain: int = 0) -> list[int]:
        self.keys = {*getattr(self, "keys", ()), *(p.key for p in prospects)}
        return super().choose(prospects, other_rows, plain)

    def forget(self, key: Hashable) -> None:
        self.keys -= {key}
        super().forget(key)


def test_the_controller_forgets_a_request_that_is_given_up_while_it_waits_to_go_on(target: LlamaTarget) -> None:
    flat = Curve((1, 64), (1.0, 1.2))
    controller = Remembering(CostTable(flat, flat, flat), max_steps=2)
    engine = Engine(target, random_draft(target), num_slots=100, controller=controller)
    requests = [engine.submit(random_prompt(i, 5), TWELVE, chain(2)) for i in range(2)]
    for _ in range(3):
        engine.step()
    assert requests[1] in controller.keys
    engine.scheduler.preempt(requests[1])
    engine.abort(requests[1])
    assert requests[1] not in controller.keys
    engine.run()
    assert not controller.keys
    assert_all_slots_returned(engine)
