"""Slots that run short, prompts that are alike, and what neither may change: text, accepted counts, the books."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from eyas.config import SamplingSettings, SpeculativeSettings
from eyas.engine.engine import Engine
from eyas.engine.request import Extras, Request
from eyas.models.llama import LlamaTarget
from rigs import assert_all_slots_returned, chain, plain_answers, random_draft, random_prompt, random_target, tree

LONG = SamplingSettings(max_new_tokens=90)
VOCAB = 16


@pytest.fixture(scope="module")
def target() -> LlamaTarget:
    return random_target(5, vocab=VOCAB, layers=2)


def run(engine: Engine, requests: list[Request]) -> list[list[int]]:
    while engine.waiting or engine.running:
        engine.step()
        engine.check_integrity()
    return [request.answer for request in requests]


@pytest.mark.parametrize("how", [None, chain(3), tree(3, 2, 6)], ids=str)
@pytest.mark.parametrize("kept", [True, False])
def test_preempted_requests_go_on_to_the_same_text_and_counts(
    target: LlamaTarget, how: SpeculativeSettings | None, kept: bool
) -> None:
    prompts = [random_prompt(i, 5 + i, VOCAB) for i in range(5)]
    truth = plain_answers(target, prompts, [LONG] * 5)
    draft = random_draft(target, seed=1)
    roomy = Engine(target, draft, num_slots=2000)
    rounds = [roomy.submit(p, LONG, how) for p in prompts]
    roomy.run()
    assert roomy.scheduler.preemptions == 0
    engine = Engine(target, draft, num_slots=260, prefix_cache=kept)
    requests = [engine.submit(p, LONG, how) for p in prompts]
    assert run(engine, requests) == truth
    assert engine.scheduler.preemptions > 0
    assert [r.rounds for r in requests] == [r.rounds for r in rounds]
    assert all(len(r.origins) == 90 for r in requests)
    assert_all_slots_returned(engine)


def test_the_lowest_priority_gives_way_and_the_first_come_never_does(target: LlamaTarget) -> None:
    engine = Engine(target, num_slots=230)
    requests = [
        engine.submit(random_prompt(i, 6, VOCAB), LONG, extras=Extras(priority=priority))
        for i, priority in enumerate((0, 1, 0, 1))
    ]
    run(engine, requests)
    assert engine.scheduler.preemptions > 0
    given_way = [r.preemptions for r in requests]
    assert given_way[1] == 0
    assert max(given_way[0], given_way[2]) >= max(given_way[1], given_way[3])
    assert [r.answer for r in requests] == plain_answers(target, [r.prompt for r in requests], [LONG] * 4)


def test_an_answer_may_ask_for_more_than_is_there_for_all(target: LlamaTarget) -> None:
    """Slots are taken as texts grow: requests that could use the whole cache run together."""
    engine = Engine(target, num_slots=240)
    requests = [engine.submit(random_prompt(i, 6, VOCAB), SamplingSettings(max_new_tokens=200)) for i in range(3)]
    engine.step()
    engine.step()
    assert len(engine.running) == 3
    for request in requests:
        engine.abort(request)
    assert_all_slots_returned(engine)


def test_a_prompt_waits_for_one_that_is_being_read_and_shares_it(target: LlamaTarget) -> None:
    common = random_prompt(1, 100, VOCAB)
    other_than = (plain_answers(target, [common], [SamplingSettings(max_new_tokens=1)])[0][0] + 1) % VOCAB
    for draft, how in ((None, None), (random_draft(target, seed=1), chain(2))):
        engine = Engine(target, draft, num_slots=900, prefill_tokens=40)
        same = [engine.submit(common, SamplingSettings(max_new_tokens=5), how) for _ in range(2)]
        longer = engine.submit((*common, other_than, 4), SamplingSettings(max_new_tokens=5), how)
        other = engine.submit(random_prompt(2, 100, VOCAB), SamplingSettings(max_new_tokens=5), how)
        requests = [*same, longer, other]
        truth = plain_answers(target, [r.prompt for r in requests], [r.sampling for r in requests])
        assert run(engine, requests) == truth
        assert [r.cached_prompt for r in requests] == [0, 99, 99, 0]
        assert engine.counters.rows_read == 100 + 1 + (102 - 99) + 100
        assert engine.counters.cached_tokens == 2 * 99
        assert_all_slots_returned(engine)


def test_a_request_that_speculates_does_not_wait_for_one_that_does_not(target: LlamaTarget) -> None:
    prompt = random_prompt(1, 100, VOCAB)
    engine = Engine(target, random_draft(target), num_slots=900, prefill_tokens=40)
    plain, drafted = engine.submit(prompt, LONG), engine.submit(prompt, LONG, chain(2))
    engine.step()
    assert engine.running == [plain, drafted], "its rows would not have the draft's"
    run(engine, [plain, drafted])
    assert plain.answer == drafted.answer


def test_rows_that_no_draft_has_read_are_never_given_to_one_that_speculates(target: LlamaTarget) -> None:
    prompt, few = random_prompt(1, 40, VOCAB), SamplingSettings(max_new_tokens=8)
    draft = random_draft(target, seed=1)
    engine = Engine(target, draft, num_slots=900)
    # The second one shares the first one's rows, and keeps them anew.
    plain = [engine.submit(prompt, few) for _ in range(2)]
    run(engine, plain)
    assert plain[1].cached_prompt == 39
    drafted = engine.submit(prompt, few, chain(3))
    run(engine, [drafted])
    assert drafted.cached_prompt == 0
    alone = Engine(target, draft, num_slots=900)
    first = alone.submit(prompt, few, chain(3))
    run(alone, [first])
    assert drafted.rounds == first.rounds


def test_flushing_forgets_all_prefixes(target: LlamaTarget) -> None:
    engine = Engine(target, num_slots=300)
    prompt = random_prompt(1, 30, VOCAB)
    first = engine.submit(prompt, SamplingSettings(max_new_tokens=4))
    run(engine, [first])
    engine.flush()
    again = engine.submit(prompt, SamplingSettings(max_new_tokens=4))
    assert run(engine, [again]) == [first.answer]
    assert again.cached_prompt == 0


def test_books_that_do_not_agree_are_noticed(target: LlamaTarget) -> None:
    engine = Engine(target, num_slots=50)
    engine.submit(random_prompt(1, 6, VOCAB), LONG.model_copy(update={"max_new_tokens": 20}))
    engine.step()
    engine.check_integrity()
    engine.pool.references[40] += 1
    with pytest.raises(AssertionError, match="40"):
        engine.check_integrity()


ASKED = st.tuples(
    st.integers(0, 3),  # which prompt
    st.integers(1, 40),  # how much of it
    st.integers(1, 60),  # tokens of the answer
    st.sampled_from([None, chain(1), chain(4), tree(2, 2, 4)]),
    st.integers(0, 2),  # priority
    st.integers(0, 30),  # the step at which it comes
    st.sampled_from([None, None, None, 3, 15]),  # steps until it is given up
)


@settings(max_examples=15, deadline=None)
@given(st.lists(ASKED, min_size=1, max_size=8), st.integers(0, 2), st.sampled_from([5, 64]))
def test_whatever_comes_every_text_is_plain_decodings(asked: list[tuple], size: int, budget: int) -> None:
    target = random_target(5, vocab=VOCAB, layers=2)
    slots = (120, 200, 2000)[size]
    engine = Engine(target, random_draft(target, seed=1), num_slots=slots, prefill_tokens=budget, max_running=5)
    requests: dict[int, Request] = {}
    step = 0
    while step <= 50 or engine.running or engine.waiting:
        assert step < 1000, "it comes to an end"
        for i, (which, length, limit, how, priority, at, gone) in enumerate(asked):
            if at == step:
                sampling = SamplingSettings(max_new_tokens=limit)
                extras = Extras(priority=priority, client=str(which))
                requests[i] = engine.submit(random_prompt(which, 40, VOCAB)[:length], sampling, how, extras)
            if gone is not None and step == at + gone:
                engine.abort(requests[i])
        engine.step()
        engine.check_integrity()
        step += 1
    for request in requests.values():
        truth = plain_answers(target, [request.prompt], [request.sampling])[0]
        assert request.answer == (truth[: len(request.answer)] if request.finished == "abort" else truth)
    assert_all_slots_returned(engine)
