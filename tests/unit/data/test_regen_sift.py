"""What of the finished chats is kept, and what the report says about the rest."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from eyas.corpus.chats import Answer, Chat, read_chats
from eyas.data.overlap import Evaluation
from eyas.data.regen.conversation import Conversation
from eyas.data.regen.finish import CHATS, REPORT, finish
from eyas.data.regen.journal import Journal
from eyas.data.regen.run import answer_all, plan
from eyas.data.regen.settings import Identity, RegenSettings
from eyas.data.regen.sift import Sieve
from eyas.data.regen.source import Ask, Failure, Message, Reply
from regen_rigs import SYSTEM, Scripted, prompt, reply, said, user

STORY = "Once upon a time there lived a fox in a green forest who liked to count all of the berries it could find."
OTHER = "A recipe for soup begins with onions, which are cut and fried in butter until they are brown and soft."


def chat(*messages: Message, id: str = "p#0", finishes: str = "", temperature: float = 0.0) -> Chat:
    at = [i for i, m in enumerate(messages) if m["role"] == "assistant"]
    names = {"s": "stop", "l": "length", "r": "repetition"}
    finish = [names[letter] for letter in finishes or "s" * len(at)]
    answers = tuple(
        Answer(message=i, token_ids=tuple(range(9)), finish=f, temperature=temperature, seed=None)  # type: ignore[arg-type]
        for i, f in zip(at, finish, strict=True)
    )
    prompt_id = id.split("#")[0]
    return Chat(id=id, prompt_id=prompt_id, messages=messages, answers=answers, source="s", licence="l", domain="d")


def reasons(*chats: Chat, near: float | None = 0.8, keep_cut: bool = False, texts: Any = None) -> list[str | None]:
    sieve = Sieve(Evaluation(texts) if texts else None, near, keep_cut)
    return [sieve.sift(one).reason for one in chats]


def test_a_whole_chat_is_kept_as_it_is() -> None:
    one = chat(SYSTEM, user(), said(STORY), user("And?"), said(OTHER))
    assert Sieve(None, 0.8, False).sift(one).chat == one


@pytest.mark.parametrize(("finish", "reason"), [("l", "length"), ("r", "repetition")])
def test_a_cut_answer_is_dropped_unless_it_is_to_stay(finish: str, reason: str) -> None:
    one = chat(user(), said(STORY), finishes=finish)
    assert reasons(one) == [reason]
    assert Sieve(None, 0.8, keep_cut=True).sift(one).chat == one


def test_a_later_cut_answer_costs_no_earlier_one() -> None:
    one = chat(user("a"), said(STORY), user("b"), said(OTHER), finishes="sl")
    sifted = Sieve(None, 0.8, False).sift(one)
    assert sifted.reason == "length"
    assert sifted.chat is not None
    assert sifted.chat.messages == one.messages[:2]
    assert sifted.chat.answers == one.answers[:1]


def test_empty_answers_are_dropped_even_where_cut_ones_stay() -> None:
    one = chat(user(), said(" \n"))
    assert reasons(one) == ["empty"]
    assert reasons(one, keep_cut=True) == ["empty"]
    thought = {"role": "assistant", "content": "", "reasoning_content": "Hm."}
    assert reasons(chat(user(), thought)) == ["empty"]
    assert reasons(chat(user(), {"role": "assistant", "content": "", "tool_calls": [{"id": "1"}]})) == [None]


def test_evaluation_sets_are_found_in_questions_and_in_answers() -> None:
    held_out = {"set/1": f"Please continue this: {STORY}"}
    asked, quoted, free = chat(user(STORY), said("x")), chat(user("y"), said(f"So: {STORY}")), chat(user(), said(OTHER))
    assert reasons(asked, quoted, free, texts=held_out) == ["evaluation-overlap", "evaluation-overlap", None]
    assert reasons(asked) == [None]


def test_a_chat_that_is_there_already_is_dropped() -> None:
    again = chat(SYSTEM, user("HI. "), said(STORY), id="q#0")
    assert reasons(chat(user("hi."), said(STORY)), again) == [None, "duplicate"]
    assert reasons(chat(user("hi."), said(STORY)), again, near=None) == [None, "duplicate"]


def test_nearly_the_same_chat_of_another_prompt_is_dropped() -> None:
    first = chat(user("Tell me a story."), said(STORY + OTHER))
    near = chat(user("Tell me a story!"), said(STORY + OTHER + " The end."), id="q#0")
    assert reasons(first, near) == [None, "near-duplicate"]
    assert reasons(first, near, near=None) == [None, None]
    assert reasons(near, first) == [None, "near-duplicate"]


def test_samples_of_one_prompt_are_compared_by_their_answers_alone() -> None:
    long = user(f"{STORY} {OTHER} Summarise.")
    first, second = chat(long, said("It is about a fox.")), chat(long, said("Soup and berries."), id="p#1")
    assert reasons(first, second) == [None, None], "though most of their text is the same"
    alike = chat(long, said("It is, about a fox!"), id="p#2")
    assert reasons(first, second, alike) == [None, None, "near-duplicate"]


def test_a_prompt_whose_first_sample_was_cut_is_known_by_its_second() -> None:
    cut = chat(user(STORY), said("x x"), finishes="r")
    second, other = chat(user(STORY), said(OTHER), id="p#1"), chat(user(STORY), said(OTHER + " So."), id="q#0")
    assert reasons(cut, second, other) == ["repetition", None, "near-duplicate"]


PROMPTS = [prompt(user(f"{i} {'abc'[i % 3] * 5}"), user("and then?"), id=f"p{i}") for i in range(9)]
SETTINGS = RegenSettings(temperatures=(0.0, 0.5))


def says(ask: Ask) -> Reply | Failure:
    number, turn = int(ask.chat_id[1]), len(ask.messages) // 2
    if number == 8:
        return Failure(ask, "refused", "no")
    text = {3: "", 4: STORY}.get(number, f"{OTHER if turn else STORY} {ask.seed}")
    finish = "length" if (number, turn) == (1, 1) else "repetition" if number == 2 else "stop"
    message = {"role": "assistant", "content": text}
    return Reply(ask, message, (1, 2, 3), finish)  # type: ignore[arg-type]


def finished(folder: Path, seed: int) -> dict[str, Any]:
    source = Scripted(says, seed=seed)
    source.unfit_ids = {"p7#0"}
    identity = Identity.of(SETTINGS, source.identity())
    with Journal(folder, identity) as journal:
        work = plan(PROMPTS, source, SETTINGS, journal)
        left_out = answer_all(work, source, journal, lambda _: None)
        return finish(folder, journal, work, left_out, Sieve(None, None, False), identity)


def test_the_report_counts_everything_once(tmp_path: Path) -> None:
    report = finished(tmp_path, 0)
    assert report["wanted"] == 18
    assert {why: group["chats"] for why, group in report["left_out"].items()} == {"too-long": 1, "refused": 2}
    assert report["left_out"]["too-long"]["first"] == [{"chat_id": "p7#0", "why": "too-long", "detail": "much"}]
    assert report["chats"] == 18 - 3
    assert {k: v for k, v in report["dropped"].items() if v} == {"repetition": 2, "empty": 2, "duplicate": 1}
    assert report["kept"] == 10
    assert report["shortened"] == 2
    assert report["answers"] == 10 * 2 - 2
    assert report["answer_tokens"] == 3 * report["answers"]
    assert report["share_dropped"] == pytest.approx(5 / 15, abs=1e-4)
    assert sum(part["chats"] for part in report["temperatures"].values()) == 15
    assert set(report["temperatures"]) == {"0", "0.5"}
    assert report["domains"]["tiny"]["kept"] == 10
    assert report["lengths"]["answer_tokens"]["median"] == 3
    assert report["identity"]["source"] == {"kind": "scripted"}
    assert json.loads((tmp_path / REPORT).read_text()) == report


def test_the_file_holds_what_is_kept_in_prompt_order(tmp_path: Path) -> None:
    finished(tmp_path, 0)
    chats = list(read_chats(tmp_path / CHATS))
    assert [c.id for c in chats] == [f"p{i}#{k}" for i in (0, 1, 4, 5, 6) for k in (0, 1) if (i, k) != (4, 1)] + [
        "p7#1"
    ]
    assert len(chats[2].answers) == 1


def test_the_order_in_which_chats_end_changes_no_byte(tmp_path: Path) -> None:
    files = []
    for seed in range(3):
        folder = tmp_path / str(seed)
        finished(folder, seed)
        files.append([(folder / name).read_bytes() for name in (CHATS, REPORT)])
    assert files[0] == files[1] == files[2]


def test_what_is_to_come_is_counted() -> None:
    def expected(*messages: Message, **settings: Any) -> int:
        return Conversation(prompt(*messages), 0, RegenSettings(**settings)).expected_answers

    assert expected(user()) == 1
    assert expected(SYSTEM, user(), said(), user(), user(), said()) == 3
    assert expected(user(), said(), user(), user(), said(), keep_given=True) == 1
    started = Conversation(PROMPTS[0], 0, SETTINGS)
    ask = started.next_ask()
    assert ask is not None
    assert started.expected_answers == 2
    started.take(reply(ask, "x"))
    started.next_ask()
    assert started.expected_answers == 1
