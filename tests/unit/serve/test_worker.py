"""What the engine's process makes of messages, without the process: one worker over the tiny pair."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterable

import pytest
import torch

from eyas.config import SamplingSettings
from eyas.engine.engine import Engine
from eyas.engine.session import Session
from eyas.metrics import Round, completion_tokens
from eyas.serve.inbox import OwnInbox
from eyas.serve.loading import open_engine_session, ready_of
from eyas.serve.wire import Ask, Drop, Failure, Flush, Grammar, Piece, Status, Stop
from eyas.serve.worker import Worker
from eyas.testing import tiny_prompts
from support.engine_processes import ask, text_of, tiny_settings

SETTINGS = tiny_settings()


@pytest.fixture(scope="module")
def session() -> Session:
    torch.set_num_threads(1)
    return open_engine_session(SETTINGS)


class Rig:
    """A worker, what it was sent, and what it sent."""

    def __init__(self, session: Session, **changes: object) -> None:
        self.inbox = OwnInbox()
        self.sent: list = []
        self.worker = Worker(session, SETTINGS.model_copy(update=changes), self.inbox, self.take)

    def take(self, messages: Iterable) -> None:
        self.sent += messages

    def run(self, *messages: object, now: bool = False) -> None:
        for message in messages:
            self.inbox.put(message)
        self.inbox.put(Stop(now))
        self.worker.run()
        self.worker.engine.check_integrity()
        assert not self.worker.answering

    def pieces(self, id_: str) -> list[Piece]:
        return [m for m in self.sent if isinstance(m, Piece) and m.id == id_]

    def failure(self, id_: str) -> Failure:
        (found,) = [m for m in self.sent if isinstance(m, Failure) and m.id == id_]
        return found

    @property
    def status(self) -> Status:
        return next(m for m in reversed(self.sent) if isinstance(m, Status))


def plain_answer(session: Session, number: int, tokens: int) -> list[int]:
    engine = Engine(session.target, None, eos_ids=session.eos_ids)
    request = engine.submit(tiny_prompts()[number], SamplingSettings(max_new_tokens=tokens))
    engine.run()
    return request.answer


def test_answers_are_the_targets_own_and_pieces_add_up(session: Session) -> None:
    rig = Rig(session)
    rig.run(*(ask(str(i), i, 30) for i in range(8)))
    for i in range(8):
        pieces = rig.pieces(str(i))
        tokens = [token for piece in pieces for token in piece.tokens]
        assert tokens == plain_answer(session, i, 30)
        assert text_of(pieces) == session.tokenizer.decode(tokens, skip_special_tokens=True)
        rounds = [Round(r.accepted, r.proposed, r.cut, r.depth) for piece in pieces for r in piece.rounds]
        assert completion_tokens(rounds) == len(tokens) == sum(len(piece.origins) for piece in pieces)
        assert [piece.finish is not None for piece in pieces] == [False] * (len(pieces) - 1) + [True]
        assert [piece.cached is not None for piece in pieces] == [True] + [False] * (len(pieces) - 1)


def test_figures_count_what_was_answered(session: Session) -> None:
    rig = Rig(session)
    rig.run(*(ask(str(i), i, 20) for i in range(4)), ask("again", 0, 20))
    status, pieces = rig.status, [m for m in rig.sent if isinstance(m, Piece)]
    assert status.answer_tokens == sum(len(piece.tokens) for piece in pieces)
    rounds = [r for piece in pieces for r in piece.rounds]
    whole = [r for r in rounds if r.proposed and not r.cut]
    assert (status.rounds, status.cut_rounds) == (len(whole), sum(r.cut for r in rounds))
    assert sum(i * n for i, n in enumerate(status.accepted_histogram)) == sum(r.accepted for r in whole)
    assert status.proposed_at_least == [sum(r.proposed > i for r in whole) for i in range(3)]
    assert status.cached_tokens > 0
    assert status.slots_used == 0 < status.slots_kept <= status.slots_total
    assert status.steps > 0 < status.busy_seconds


def test_stop_strings_and_stop_tokens_end_an_answer_and_are_named(session: Session) -> None:
    rig = Rig(session)
    whole = plain_answer(session, 0, 30)
    sampling = SamplingSettings(max_new_tokens=30, stop_token_ids=(whole[5],))
    rig.run(
        ask("text", 0, 30, stop=["zebra", "lives in"]),
        ask("kept", 0, 30, stop=["lives in"], include_stop=True),
        ask("token", 0, sampling=sampling),
        ask("end", 3, 60),
    )
    assert (rig.pieces("text")[-1].finish, rig.pieces("text")[-1].stop_reason) == ("stop", "lives in")
    assert text_of(rig.pieces("text")) + "lives in" == text_of(rig.pieces("kept"))
    assert rig.pieces("token")[-1].stop_reason == whole[5]
    assert sum(len(p.tokens) for p in rig.pieces("token")) == whole.index(whole[5]) + 1
    assert (rig.pieces("end")[-1].finish, rig.pieces("end")[-1].stop_reason) == ("stop", None)


def test_logprobs_come_with_their_tokens(session: Session) -> None:
    rig = Rig(session)
    rig.run(ask("1", 1, 12, top_logprobs=3), ask("0", 1, 12, top_logprobs=0))
    for piece in rig.pieces("1"):
        assert piece.logprobs is not None
        assert [entry.chosen.token for entry in piece.logprobs] == piece.tokens
        for entry in piece.logprobs:
            assert len(entry.top) == 3
            assert entry.top[0].logprob == entry.chosen.logprob, "greedy"
    assert all(entry.top == [] for piece in rig.pieces("0") for entry in piece.logprobs or [])


def test_a_grammar_is_held_and_a_bad_one_concerns_its_request_alone(session: Session) -> None:
    rig = Rig(session)
    rig.run(
        ask("held", 0, 40, grammar=Grammar("regex", "(yes|no), sir")),
        ask("bad", 0, 40, grammar=Grammar("regex", "(")),
        ask("plain", 0, 10),
    )
    assert text_of(rig.pieces("held")) in ("yes, sir", "no, sir")
    assert rig.pieces("held")[-1].finish == "stop"
    assert rig.failure("bad").code == "request.grammar"
    assert rig.pieces("plain")[-1].finish == "length"


def test_one_requests_fault_is_no_others(session: Session) -> None:
    rig = Rig(session, by_priority=False)
    long = Ask("long", [5] * 2000, SamplingSettings().model_dump_json())
    bad = Ask("bad", [5], json.dumps({"temperature": -1}))
    rig.run(long, bad, ask("first please", 0, 10, priority=3), ask("good", 0, 10))
    assert rig.failure("long").code == "request.too-long"
    assert rig.failure("bad").code == "request.sampling"
    assert rig.failure("first please").code == "request.unsupported"
    assert rig.pieces("good")[-1].finish == "length"


@pytest.mark.parametrize(("by_priority", "order"), [(False, "a1 a2 b1"), (True, "a1 b1 a2")])
def test_clients_take_turns_unless_the_order_of_arrival_is_asked_for(
    session: Session, by_priority: bool, order: str
) -> None:
    rig = Rig(session, by_priority=by_priority, max_running=1)
    rig.run(*(ask(name, int(name[1]), 5, client=name[0]) for name in ("a1", "a2", "b1")))
    assert " ".join(m.id for m in rig.sent if isinstance(m, Piece) and m.finish) == order


def test_biases_and_stop_tokens_come_over_as_they_were(session: Session) -> None:
    rig = Rig(session)
    sampling = SamplingSettings(max_new_tokens=5, logit_bias={7: 100.0}, stop_token_ids=(9,))
    rig.run(ask("biased", 0, sampling=sampling))
    assert [token for piece in rig.pieces("biased") for token in piece.tokens] == [7] * 5


def test_speculation_can_be_asked_for_otherwise(session: Session) -> None:
    rig = Rig(session)
    rig.run(
        ask("plain", 0, 10, speculation="null"), ask("one", 0, 10, speculation='{"num_steps":1,"num_draft_tokens":2}')
    )
    assert {r.proposed for piece in rig.pieces("plain") for r in piece.rounds} == {0}
    assert {r.proposed for piece in rig.pieces("one") for r in piece.rounds} == {1}


def test_more_steps_than_the_server_runs_are_refused(session: Session) -> None:
    rig = Rig(session)
    rig.run(ask("deep", 0, 10, speculation='{"num_steps":9,"num_draft_tokens":10}'))
    assert rig.failure("deep").code == "request.limit"


def test_where_steps_are_chosen_the_text_is_the_same(session: Session) -> None:
    rig = Rig(session, adaptive=True)
    rig.run(*(ask(str(i), i, 30) for i in range(4)))
    for i in range(4):
        assert [t for p in rig.pieces(str(i)) for t in p.tokens] == plain_answer(session, i, 30)
    assert ready_of(session, rig.worker.engine, SETTINGS).facts["controller"]["costs"]
    controller = rig.worker.engine.chooser.controller
    assert controller is not None
    assert controller.forecast is not None
    assert controller.forecast.plain_tokens_per_second > 0


def test_given_up_it_gives_no_more_and_holds_nothing(session: Session) -> None:
    rig = Rig(session)
    rig.worker._take(ask("gone", 0, 60))
    rig.worker._take(ask("stays", 1, 20))
    rig.worker._step()
    rig.worker._step()
    before = len(rig.pieces("gone"))
    rig.run(Drop("gone"), Drop("never known"))
    assert len(rig.pieces("gone")) == before > 0
    assert rig.pieces("stays")[-1].finish == "length"
    assert rig.status.aborted == 1


def test_a_request_can_be_given_up_while_its_grammar_is_compiled(session: Session) -> None:
    rig = Rig(session)
    rig.run(ask("gone", 0, 20, grammar=Grammar("json_object", "")), Drop("gone"))
    assert rig.pieces("gone") == []


def test_what_a_forward_came_to_concerns_those_that_were_in_it(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig = Rig(session, max_running=1)
    logits, broken = session.target.logits, [True]

    def once(hidden):
        return logits(hidden) * float("nan") if broken and broken.pop() else logits(hidden)

    monkeypatch.setattr(session.target, "logits", once)
    rig.run(ask("in it", 0, 20), ask("waits", 1, 20))
    assert rig.failure("in it").code == "model.nonfinite"
    assert [t for p in rig.pieces("waits") for t in p.tokens] == plain_answer(session, 1, 20)


def test_told_to_end_at_once_it_ends_all(session: Session) -> None:
    rig = Rig(session)
    grammar = Grammar("json_object", "")
    rig.run(ask("runs", 0, 60), ask("compiles", 0, 60, grammar=grammar), now=True)
    assert rig.pieces("runs")[-1].finish == "abort"
    assert rig.pieces("compiles")[-1].finish == "abort"


def test_forgetting_prefixes_frees_their_slots(session: Session) -> None:
    rig = Rig(session)
    rig.run(ask("1", 0, 10))
    assert rig.worker.figures.status().slots_kept > 0
    rig.worker._take(Flush())
    assert rig.worker.figures.status().slots_kept == 0


def test_idle_it_waits_and_does_nothing(session: Session) -> None:
    rig = Rig(session)
    thread = threading.Thread(target=rig.worker.run, daemon=True)
    thread.start()
    rig.inbox.put(ask("1", 0, 10))
    while not any(piece.finish for piece in rig.pieces("1")):
        thread.join(0.01)
    thread.join(0.2)
    sent, steps = len(rig.sent), rig.worker.figures.steps
    thread.join(0.3)
    assert (len(rig.sent), rig.worker.figures.steps) == (sent, steps)
    rig.inbox.put(Stop())
    thread.join(10)
    assert not thread.is_alive()


def test_what_it_says_when_it_is_loaded_names_no_place(session: Session) -> None:
    ready = ready_of(session, Rig(session).worker.engine, SETTINGS)
    assert (ready.model, ready.vocab_size, ready.num_slots) == ("tiny-target", 512, SETTINGS.num_slots)
    assert ready.facts["draft"]["taps"] == [2, 4, 5]
    assert str(SETTINGS.target.parent) not in json.dumps(ready.facts)
