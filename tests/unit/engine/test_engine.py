from itertools import pairwise

import pytest
import torch

from eyas.config import SamplingSettings, SpeculativeSettings
from eyas.engine.engine import Engine
from eyas.engine.request import Request
from eyas.errors import EyasError
from eyas.metrics import completion_tokens
from eyas.models.llama import LlamaTarget
from eyas.speculate.propose import NgramProposer
from rigs import (
    Oracle,
    assert_all_slots_returned,
    chain,
    plain_answers,
    random_draft,
    random_prompt,
    random_target,
    tree,
)

EIGHT = SamplingSettings(max_new_tokens=8)


@pytest.fixture(scope="module")
def target() -> LlamaTarget:
    return random_target(layers=2)


def test_requests_are_answered_and_every_slot_comes_back(target: LlamaTarget) -> None:
    prompts = [random_prompt(i, 3 + i) for i in range(5)]
    engine = Engine(target, random_draft(target), num_slots=200)
    requests = [engine.submit(p, EIGHT, chain(3) if i % 2 else None) for i, p in enumerate(prompts)]
    done: list[Request] = []
    while engine.waiting or engine.running:
        done += engine.step()
    assert sorted(map(id, done)) == sorted(map(id, requests))
    assert [r.answer for r in requests] == plain_answers(target, prompts, [EIGHT] * 5)
    for request in requests:
        assert request.finished == "length"
        assert len(request.answer) == completion_tokens(request.rounds) == len(request.origins)
    assert_all_slots_returned(engine)


def test_steps_admit_as_many_as_may_run_and_prefill_by_budget(target: LlamaTarget) -> None:
    engine = Engine(target, prefill_tokens=4, max_running=2, num_slots=100)
    requests = [engine.submit(random_prompt(i, 5), EIGHT) for i in range(3)]
    engine.step()
    assert [r.state is not None and r.state.cached for r in requests] == [4, 0, False]
    engine.step()
    assert [r.state is not None and r.state.cached for r in requests] == [5, 3, False]
    assert [len(r.answer) for r in requests] == [1, 0, 0]
    engine.step()
    assert [len(r.answer) for r in requests] == [2, 1, 0], "the second prompt's rows ride along with a round"
    engine.run()
    assert [len(r.answer) for r in requests] == [8, 8, 8]


def test_run_reports_each_step(target: LlamaTarget) -> None:
    engine = Engine(target, num_slots=50)
    request, lengths = engine.submit([1, 2], EIGHT), []
    engine.run(lambda: lengths.append(len(request.answer)))
    assert lengths == [1, 2, 3, 4, 5, 6, 7, 8]


def test_requests_wait_for_slots(target: LlamaTarget) -> None:
    prompts = [random_prompt(i, 6) for i in range(4)]
    engine = Engine(target, num_slots=40, prefix_cache=True)
    requests = [engine.submit(p, EIGHT) for p in prompts]
    engine.step()
    assert (len(engine.running), len(engine.waiting)) == (2, 2)
    engine.run()
    assert [r.answer for r in requests] == plain_answers(target, prompts, [EIGHT] * 4)
    assert_all_slots_returned(engine)


def test_end_tokens_stop_and_ignore_eos_does_not(target: LlamaTarget) -> None:
    prompt = random_prompt(0, 5)
    answer = plain_answers(target, [prompt], [EIGHT])[0]
    end = answer[3]
    first = answer.index(end)
    engine = Engine(target, eos_ids=[end])
    stopped = engine.submit(prompt, EIGHT)
    own = engine.submit(prompt, EIGHT.model_copy(update={"ignore_eos": True, "stop_token_ids": (answer[5],)}))
    free = engine.submit(prompt, EIGHT.model_copy(update={"ignore_eos": True}))
    engine.run()
    assert (stopped.answer, stopped.finished) == (answer[: first + 1], "stop")
    assert (own.answer, own.finished) == (answer[: answer.index(answer[5]) + 1], "stop")
    assert (free.answer, free.finished) == (answer, "length")


def test_a_stop_inside_accepted_drafts_ends_the_text_there(target: LlamaTarget) -> None:
    prompt = random_prompt(0, 5)
    answer = plain_answers(target, [prompt], [SamplingSettings(max_new_tokens=30)])[0]

    class All(Oracle):
        def wanted_count(self, position: int, num_steps: int) -> int:
            return num_steps

    for at in range(1, 12):
        end = answer[at]
        engine = Engine(target, All({prompt: answer}, 128), eos_ids=[end], num_slots=100)
        request = engine.submit(prompt, SamplingSettings(max_new_tokens=30), chain(4))
        engine.run()
        stop = answer.index(end)
        assert request.answer == answer[: stop + 1]
        assert request.finished == "stop"
        # Whole rounds commit five tokens after the first one; a stop as the last of five is the target's own.
        assert [r.cut for r in request.rounds] == [False] * (stop // 5) + [True] * (stop % 5 != 0)
        assert request.origins == [0, *([1, 2, 3, 4, 0] * 6)][: stop + 1]
        assert_all_slots_returned(engine)


@pytest.mark.parametrize("settings", [None, chain(1), chain(6), tree(4, 3, 9)], ids=str)
def test_the_context_ends_the_answer(settings: SpeculativeSettings | None) -> None:
    small = random_target(layers=2, context=32)
    prompt = random_prompt(4, 14)
    answer = plain_answers(small, [prompt], [SamplingSettings(max_new_tokens=18)])[0]
    engine = Engine(small, Oracle({prompt: answer}, 128) if settings else None)
    request = engine.submit(prompt, SamplingSettings(max_new_tokens=500), settings)
    engine.run()
    assert request.answer == answer
    assert request.finished == "length"
    assert len(prompt) + len(request.answer) == 32


def test_near_the_contexts_end_rounds_have_no_drafts_and_others_go_on() -> None:
    small = random_target(layers=2, context=32)
    prompts = [random_prompt(4, 20), random_prompt(5, 2)]
    samplings = [SamplingSettings(max_new_tokens=n) for n in (12, 30)]
    answers = plain_answers(small, prompts, samplings)

    class Never(Oracle):
        def wanted_count(self, position: int, num_steps: int) -> int:
            return 0

    oracle = Never(dict(zip(prompts, answers, strict=True)), 128)
    engine = Engine(small, oracle)
    requests = [engine.submit(p, s, chain(5)) for p, s in zip(prompts, samplings, strict=True)]
    engine.run()
    assert [r.answer for r in requests] == answers
    assert [r.proposed for r in requests[0].rounds] == [5] * 7 + [0] * 4
    assert [5, 5] in oracle.asked
    assert [0, 5] in oracle.asked


def test_a_prompt_that_was_answered_before_is_not_read_again(target: LlamaTarget) -> None:
    prompt = random_prompt(6, 20)
    engine = Engine(target, random_draft(target), num_slots=400)
    first = engine.submit(prompt, EIGHT, chain(2))
    engine.run()
    follow_up = (*prompt, *first.answer[:3], 1, 2)
    same, longer, fork = (engine.submit(p, EIGHT, chain(2)) for p in (prompt, follow_up, (*prompt[:9], 3)))
    engine.step()
    assert [len(r.shared) for r in (same, longer, fork)] == [19, 22, 8]
    engine.run()
    assert [r.answer for r in (same, longer, fork)] == plain_answers(
        target, [prompt, follow_up, (*prompt[:9], 3)], [EIGHT] * 3
    )
    assert_all_slots_returned(engine)


def test_rows_that_the_draft_has_not_absorbed_are_not_shared(target: LlamaTarget) -> None:
    prompt = random_prompt(6, 20)
    engine = Engine(target, random_draft(target), num_slots=400)
    engine.submit(prompt, EIGHT, None)
    engine.run()
    again = engine.submit(prompt, EIGHT, chain(2))
    engine.run()
    assert again.shared == []
    assert again.answer == plain_answers(target, [prompt], [EIGHT])[0]
    assert_all_slots_returned(engine)


def test_without_a_draft_all_rows_are_shared(target: LlamaTarget) -> None:
    prompt = random_prompt(6, 20)
    engine = Engine(target, num_slots=400)
    answer = engine.submit(prompt, EIGHT)
    engine.run()
    again = engine.submit((*prompt, *answer.answer, 5), EIGHT)
    engine.run()
    assert len(again.shared) == 20 + 8 - 1


def test_several_answers_to_one_prompt_read_it_once(target: LlamaTarget) -> None:
    prompt, other = random_prompt(6, 20), random_prompt(7, 9)
    engine = Engine(target, num_slots=400, prefill_tokens=12)
    drawn = [SamplingSettings(max_new_tokens=8, temperature=1.0, seed=seed) for seed in range(3)]
    requests = [engine.submit(prompt, how) for how in drawn] + [engine.submit(other, EIGHT)]
    engine.run()
    assert [len(r.shared) for r in requests] == [0, 19, 19, 0]
    assert [r.answer for r in requests] == plain_answers(target, [prompt] * 3 + [other], [*drawn, EIGHT])
    assert_all_slots_returned(engine)


def test_tables_never_share_a_slot_that_is_written(target: LlamaTarget) -> None:
    engine = Engine(target, random_draft(target), num_slots=300)
    engine.submit(random_prompt(6, 20), EIGHT, chain(2))
    engine.run()
    for i in range(4):
        engine.submit((*random_prompt(6, 20)[: 8 + 4 * i], i), EIGHT, tree(3, 2, 5))
    while engine.waiting or engine.running:
        engine.step()
        held = [set(r.state.table[len(r.shared) :].tolist()) | set(r.state.spare) for r in engine.running if r.state]
        for r, own in zip(engine.running, held, strict=True):
            assert not own & set(r.shared)
        assert all(not a & b for a, b in pairwise(held))
        assert len(set().union(*held)) == sum(map(len, held))


def refused(engine: Engine, prompt: list[int], *settings: object) -> EyasError:
    with pytest.raises(EyasError) as error:
        engine.submit(prompt, *settings)  # type: ignore[arg-type]
    assert not engine.waiting
    assert error.value.fix
    return error.value


def test_bad_requests(target: LlamaTarget) -> None:
    engine = Engine(target, num_slots=64)
    assert refused(engine, []).code == "request.empty"
    too_long = refused(engine, [1] * 256)
    assert too_long.code == "request.too-long"
    assert "256" in str(too_long)
    for token in (-1, 128):
        outside = refused(engine, [1, token, 2])
        assert outside.code == "request.sampling"
        assert str(token) in outside.cause
    assert refused(engine, [1], SamplingSettings(logit_bias={128: 1.0})).code == "request.sampling"
    assert refused(engine, [1], EIGHT, chain(2)).code == "flags.contradiction"
    full = refused(engine, [1] * 60, EIGHT)
    assert full.code == "engine.cache-full"
    assert "69" in full.cause
    assert engine.submit([1] * 55, EIGHT).max_tokens == 8


def test_speculation_that_the_proposer_cannot_do(target: LlamaTarget) -> None:
    engine = Engine(target, NgramProposer())
    assert refused(engine, [1], EIGHT, chain(2, draft_sampling="probabilistic")).code == "flags.contradiction"
    assert refused(engine, [1], EIGHT, tree(2, 2, 4)).code == "flags.contradiction"


@pytest.mark.parametrize("name", ["num_slots", "prefill_tokens", "max_running"])
def test_an_engine_without_room_is_refused(target: LlamaTarget, name: str) -> None:
    with pytest.raises(EyasError, match=name) as error:
        Engine(target, **{name: 0})
    assert error.value.code == "flags.range"


def test_no_drafts_is_no_speculation() -> None:
    with pytest.raises(EyasError) as error:
        SpeculativeSettings(num_steps=0, num_draft_tokens=1)
    assert error.value.code == "flags.range"


@pytest.mark.parametrize("backend", ["eager", "onednn"])
def test_nan_weights_are_reported_not_decoded(backend: str) -> None:
    broken = random_target(layers=2, backend=backend)
    broken.layers[1].input_norm.data[5] = torch.nan
    engine = Engine(broken)
    engine.submit([1, 2, 3], EIGHT)
    with pytest.raises(EyasError) as error:
        engine.run()
    assert error.value.code == "model.nonfinite"
