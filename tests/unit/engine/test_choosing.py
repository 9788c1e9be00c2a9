"""What each round proposes: as asked, or as much of it as pays. The text is the same."""

from collections.abc import Sequence

import pytest
import torch
from torch import Tensor

from eyas.config import SamplingSettings, SpeculativeSettings
from eyas.engine.engine import MOST_PENDING, Engine
from eyas.engine.request import Extras, Request
from eyas.models.llama import LlamaTarget
from eyas.speculate.costs import StepShape
from eyas.speculate.policy import Controller
from eyas.speculate.propose import NgramProposer
from rigs import assert_all_slots_returned, chain, plain_answers, random_draft, random_prompt, random_target, tree
from support.simulated import TABLE, USELESS

VOCAB = 97
LONG = SamplingSettings(max_new_tokens=150)


@pytest.fixture(scope="module")
def target() -> LlamaTarget:
    return random_target(5, vocab=VOCAB, layers=2, context=400)


def useless(target: LlamaTarget, **engine: object) -> Engine:
    """With a draft that is hardly ever right, and a contract that knows."""
    controller = Controller(TABLE, 4, {False: list(USELESS)})
    # What steps take here is no matter of the table.
    controller.observe = lambda shape, seconds: None  # type: ignore[method-assign]
    return Engine(target, random_draft(target, seed=1), num_slots=3000, controller=controller, **engine)  # type: ignore[arg-type]


def proposed(request: Request) -> list[int]:
    return [r.proposed for r in request.rounds]


@pytest.mark.parametrize("how", [chain(4), tree(3, 2, 6)], ids=str)
def test_a_useless_draft_is_hardly_ever_asked_and_changes_nothing(
    target: LlamaTarget, how: SpeculativeSettings
) -> None:
    prompts = [random_prompt(i, 9 + i, VOCAB) for i in range(4)]
    engine = useless(target)
    requests = [engine.submit(p, LONG, how) for p in prompts]
    engine.run()
    assert [r.answer for r in requests] == plain_answers(target, prompts, [LONG] * 4)
    rounds = [n for r in requests for n in proposed(r)]
    assert sum(n > 0 for n in rounds) < 0.25 * len(rounds)
    assert_all_slots_returned(engine)


def test_who_wants_exactly_what_was_asked_gets_it(target: LlamaTarget) -> None:
    prompts = [random_prompt(i, 9 + i, VOCAB) for i in range(3)]
    engine = useless(target)
    paying, exact = (engine.submit(p, LONG, chain(4), Extras(adaptive=i == 0)) for i, p in enumerate(prompts[:2]))
    plain = engine.submit(prompts[2], LONG)
    engine.run()
    assert set(proposed(exact)) == {4}
    assert set(proposed(plain)) == {0}
    assert 0 in proposed(paying)
    assert [r.answer for r in (paying, exact, plain)] == plain_answers(target, prompts, [LONG] * 3)
    assert_all_slots_returned(engine)


def test_where_drafts_do_not_pay_most_prompts_are_not_read_by_the_draft_and_share_their_rows(
    target: LlamaTarget,
) -> None:
    engine = useless(target)
    for i in range(8):
        engine.submit(random_prompt(i, 12, VOCAB), LONG, chain(4))
        engine.run()
    prompt = random_prompt(20, 60, VOCAB)
    requests = []
    for _ in range(4):
        requests.append(engine.submit(prompt, SamplingSettings(max_new_tokens=8), chain(4)))
        engine.run()
    assert [r.drafted for r in requests].count(False) >= 3
    assert max(r.cached_prompt or 0 for r in requests) == 59
    assert len({tuple(r.answer) for r in requests}) == 1
    assert_all_slots_returned(engine)


def test_features_that_nobody_takes_are_dropped_in_the_end(
    target: LlamaTarget, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert MOST_PENDING > 512
    monkeypatch.setattr("eyas.engine.engine.MOST_PENDING", 40)
    choose = Controller.choose
    monkeypatch.setattr(Controller, "choose", lambda self, *given: [0 for _ in choose(self, *given)])
    engine = useless(target)
    request = engine.submit(random_prompt(1, 9, VOCAB), LONG, chain(4))
    engine.step()
    most = 0
    while engine.running:
        engine.step()
        if request.state is not None:
            most = max(most, sum(len(part) for part in request.state.pending))
    assert 30 < most <= 41
    assert request.state is not None
    assert not request.state.drafted
    assert request.answer == plain_answers(target, [request.prompt], [LONG])[0]
    assert_all_slots_returned(engine)


class Nothing:
    """A grammar of tokens that the draft cannot say."""

    finished = False

    def mask(self, path: Sequence[int]) -> Tensor:
        mask = torch.zeros(VOCAB, dtype=torch.bool)
        mask[1::2] = True
        return mask

    def commit(self, tokens: Sequence[int]) -> None:
        assert all(token % 2 for token in tokens)


def test_a_draft_that_the_grammar_leaves_nothing_is_not_asked_again_and_again(target: LlamaTarget) -> None:
    draft = random_draft(target, seed=1, kept=[0, *range(4, VOCAB, 2)])
    controller = Controller(TABLE, 3, {False: [0.8, 0.6, 0.4]})
    controller.observe = lambda shape, seconds: None  # type: ignore[method-assign]
    engine = Engine(target, draft, num_slots=1000, controller=controller)
    asked = []
    choose = engine.chooser.choose
    engine.chooser.choose = lambda *given: asked.append(choose(*given)) or asked[-1]  # type: ignore[method-assign]
    request = engine.submit(random_prompt(1, 9, VOCAB), LONG, chain(3), Extras(constraint=Nothing()))
    engine.run()
    assert set(proposed(request)) == {0}
    late = [chosen[request] for chosen in asked[50:] if request in chosen]
    assert sum(how is not None for how in late) < 0.2 * len(late)


def test_a_draft_whose_positions_end_before_the_answer_does_leaves_the_rest_to_the_target(target: LlamaTarget) -> None:
    controller = Controller(TABLE, 3, {False: [0.9, 0.9, 0.9]})
    controller.observe = lambda shape, seconds: None  # type: ignore[method-assign]
    engine = Engine(target, random_draft(target, seed=1, length=40), num_slots=1000, controller=controller)
    prompt = random_prompt(1, 9, VOCAB)
    request = engine.submit(prompt, LONG, chain(3))
    engine.run()
    assert request.answer == plain_answers(target, [prompt], [LONG])[0]
    assert set(proposed(request)[-50:]) == {0}
    assert_all_slots_returned(engine)


def test_n_grams_that_find_nothing_are_told_as_plain_steps(target: LlamaTarget) -> None:
    engine = Engine(target, NgramProposer(4, 4), num_slots=1000, controller=Controller(TABLE, 3, {False: [0.9] * 3}))
    seen: list[StepShape] = []
    assert engine.chooser.controller is not None
    engine.chooser.controller.observe = lambda shape, seconds: seen.append(shape)  # type: ignore[method-assign]
    request = engine.submit(random_prompt(1, 9, VOCAB), SamplingSettings(max_new_tokens=40), chain(3))
    engine.run()
    assert [shape.rows for shape in seen] == [1 + r.proposed for r in request.rounds]
    assert min(shape.rows for shape in seen) == 1
