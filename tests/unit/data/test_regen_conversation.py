"""Which turns are asked for, in which context, and what remains of the data."""

from __future__ import annotations

from typing import Any

import pytest

from eyas.corpus.chats import Chat
from eyas.corpus.prompts import Prompt
from eyas.data.regen.conversation import Conversation
from eyas.data.regen.settings import RegenSettings
from eyas.data.regen.source import Message
from eyas.errors import EyasError
from regen_rigs import SYSTEM, call, calling, prompt, reply, result, said, user


def played(
    given: Prompt, *turns: Message | str, finish: str = "stop", **settings: Any
) -> tuple[list[list[Message]], Chat | None]:
    """(the context of each ask, the chat) when the target says ``turns``; fewer asks than turns are a failure."""
    conversation, contexts = Conversation(given, 0, RegenSettings(**settings)), []
    left = list(turns)
    while ask := conversation.next_ask():
        contexts.append(list(ask.messages))
        conversation.take(reply(ask, left.pop(0), finish))
    assert not left, "the target was not asked often enough"
    return contexts, conversation.chat() if conversation.answers else None


def contents(chat: Chat | None) -> list[tuple[str, str]]:
    assert chat is not None
    return [(m["role"], m["content"]) for m in chat.messages]


def test_a_question_is_answered() -> None:
    contexts, chat = played(prompt(SYSTEM, user()), "Hello.")
    assert contexts == [[SYSTEM, user()]]
    assert chat is not None
    assert chat.messages == (SYSTEM, user(), said("Hello."))
    assert (chat.id, chat.prompt_id, chat.answers[0].message) == ("p#0", "p", 2)
    assert (chat.source, chat.licence, chat.domain) == ("tests", "CC0-1.0", "tiny")


def test_given_answers_are_replaced_turn_by_turn() -> None:
    contexts, chat = played(prompt(user("a"), said(), user("b"), said()), "x", "y")
    assert contexts == [[user("a")], [user("a"), said("x"), user("b")]]
    assert contents(chat) == [("user", "a"), ("assistant", "x"), ("user", "b"), ("assistant", "y")]
    assert [a.message for a in chat.answers] == [1, 3]  # type: ignore[union-attr]


def test_an_answer_belongs_between_two_user_messages() -> None:
    _, chat = played(prompt(user("a"), user("b")), "x", "y")
    assert contents(chat) == [("user", "a"), ("assistant", "x"), ("user", "b"), ("assistant", "y")]


def test_given_answers_can_stay_as_context() -> None:
    shots = prompt(user("a"), said("A"), user("b"), user("c"))
    contexts, chat = played(shots, "x", "y", keep_given=True)
    assert contexts[0] == [user("a"), said("A"), user("b")]
    assert [a.message for a in chat.answers] == [3, 5]  # type: ignore[union-attr]
    assert played(prompt(user("a"), said("A")), keep_given=True) == ([], None)


def test_a_system_prompt_is_added_only_where_there_is_none() -> None:
    assert played(prompt(user()), "x", system="Be long.")[0][0][0] == {"role": "system", "content": "Be long."}
    assert played(prompt(SYSTEM, user()), "x", system="Be long.")[0][0][0] == SYSTEM


TOOLS = prompt(
    user("a"),
    calling(call("look", "1"), call("add", "2")),
    result("2", "two"),
    result("1", "one"),
    said("Old."),
    user("b"),
    tools=({"type": "function", "function": {"name": "look"}},),
)


def test_results_follow_the_calls_that_the_target_made() -> None:
    own = calling(call("look", "x"), call("add", "y"))
    contexts, chat = played(TOOLS, own, "x", "y")
    assert contexts[1] == [user("a"), own, result("y", "two"), result("x", "one")]
    assert contexts[2] == [*contexts[1], said("x"), user("b")]
    assert chat is not None
    assert chat.tools == TOOLS.tools
    assert len(chat.answers) == 3


@pytest.mark.parametrize("own", [calling(call("look", "x")), calling(call("add", "x"), call("look", "y"))])
def test_other_calls_have_no_results_and_end_the_conversation(own: Message) -> None:
    contexts, chat = played(TOOLS, own)
    assert len(contexts) == 1
    assert chat is not None
    assert chat.messages == (user("a"), own)


def test_a_call_where_the_data_has_none_ends_the_conversation() -> None:
    assert len(played(prompt(user("a"), said(), user("b")), calling(call("look", "x")))[0]) == 1
    assert len(played(prompt(user("a"), user("b")), calling(call("look", "x")))[0]) == 1


def test_results_of_calls_that_were_not_made_are_dropped() -> None:
    contexts, _ = played(TOOLS, "I know it.", "y")
    assert contexts[1] == [user("a"), said("I know it."), user("b")]


def test_given_calls_and_results_can_stay() -> None:
    contexts, chat = played(TOOLS, "y", keep_given=True)
    assert contexts == [list(TOOLS.messages)]
    assert len(chat.answers) == 1  # type: ignore[union-attr]


@pytest.mark.parametrize("finish", ["length", "repetition"])
def test_a_cut_answer_ends_the_conversation(finish: str) -> None:
    contexts, chat = played(prompt(user("a"), user("b")), "x and x and", finish=finish)
    assert len(contexts) == 1
    assert contents(chat) == [("user", "a"), ("assistant", "x and x and")]


@pytest.mark.parametrize("own", ["", " \n", {"role": "assistant", "content": "", "reasoning_content": "Hm."}])
def test_an_empty_answer_ends_the_conversation(own: Message | str) -> None:
    assert len(played(prompt(user("a"), user("b")), own)[0]) == 1


def test_a_conversation_that_stops_early_ends_with_its_last_answer() -> None:
    conversation = Conversation(prompt(user("a"), user("b")), 0, RegenSettings())
    ask = conversation.next_ask()
    assert ask is not None
    conversation.take(reply(ask, "x"))
    assert conversation.next_ask() is not None
    assert contents(conversation.chat()) == [("user", "a"), ("assistant", "x")]


def test_samples_take_the_temperatures_in_turn_and_seeds_of_their_own() -> None:
    settings = RegenSettings(temperatures=(0.0, 0.8, 1.0), num_samples=5, seed=3)
    asks = [Conversation(prompt(user(), id=id), i, settings).next_ask() for id in "pq" for i in range(settings.samples)]
    again = [Conversation(prompt(user(), id=id), i, settings).next_ask() for id in "pq" for i in range(5)]
    assert asks == again
    assert [ask.temperature for ask in asks if ask] == [0.0, 0.8, 1.0, 0.0, 0.8] * 2
    seeds = {ask.seed for ask in asks if ask}
    assert len(seeds) == 10
    assert all(0 <= seed < 2**31 for seed in seeds)
    other = Conversation(prompt(user()), 1, settings.model_copy(update={"seed": 4})).next_ask()
    assert other is not None
    assert other.seed not in seeds


def test_turns_have_seeds_of_their_own_and_greedy_ones_none() -> None:
    conversation, seeds = Conversation(prompt(user("a"), user("b")), 1, RegenSettings(temperatures=(0.0, 1.0))), []
    while ask := conversation.next_ask():
        seeds.append(ask.seed)
        conversation.take(reply(ask, "x"))
    assert len(set(seeds)) == 2
    assert [a.seed for a in conversation.chat().answers] == seeds
    _, greedy = played(prompt(user()), "x")
    assert greedy is not None
    assert greedy.answers[0].seed is None


def test_thinking_is_on_off_or_decided_by_the_chat() -> None:
    def modes(thinking: str) -> set[bool | None]:
        settings = RegenSettings(thinking=thinking)
        return {Conversation(prompt(user(), id=str(i)), 0, settings).thinking for i in range(40)}

    assert (modes("none"), modes("off"), modes("on"), modes("mixed")) == ({None}, {False}, {True}, {True, False})


@pytest.mark.parametrize(
    ("settings", "code"),
    [
        ({"temperatures": ()}, "flags.range"),
        ({"num_samples": 0}, "flags.range"),
        ({"seed": -1}, "flags.range"),
        ({"thinking": "maybe"}, "flags.range"),
        ({"system": ""}, "flags.range"),
        ({"temperatures": (0.0, 1.0), "num_samples": 1}, "flags.contradiction"),
        ({"temperatures": (-1.0,)}, "request.sampling"),
        ({"top_p": 0.0, "temperatures": (1.0,)}, "request.sampling"),
        ({"max_new_tokens": 0}, "request.sampling"),
        ({"samples": 3}, "flags.unknown"),
    ],
)
def test_settings_that_mean_nothing_are_refused(settings: dict[str, Any], code: str) -> None:
    with pytest.raises(EyasError) as error:
        RegenSettings(**settings)
    assert error.value.code == code
