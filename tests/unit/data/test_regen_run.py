"""The run: full, in any order, each chat once, and the same after an interruption."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from eyas.data.regen.journal import Journal
from eyas.data.regen.run import LeftOut, Progress, answer_all, plan
from eyas.data.regen.settings import Identity, RegenSettings
from eyas.data.regen.source import Ask, Failure, Reply
from eyas.errors import EyasError
from regen_rigs import SYSTEM, Scripted, counting, prompt, regenerated, reply, said, user

PROMPTS = [
    prompt(*[turn for k in range(1 + i % 3) for turn in (user(f"{i}.{k}"), said())], id=f"p{i}") for i in range(7)
]
SETTINGS = RegenSettings(temperatures=(0.0, 0.7, 1.0), num_samples=3)


def test_every_sample_of_every_prompt_is_answered_in_prompt_order(tmp_path: Path) -> None:
    chats, left_out = regenerated(tmp_path, PROMPTS, Scripted(), SETTINGS)
    assert [chat.id for chat in chats] == [f"p{i}#{k}" for i in range(7) for k in range(3)]
    assert left_out == []
    for i, chat in enumerate(chats):
        assert len(chat.answers) == 1 + (i // 3) % 3
        assert {a.temperature for a in chat.answers} == {(0.0, 0.7, 1.0)[i % 3]}


def test_the_source_is_kept_full_until_the_end(tmp_path: Path) -> None:
    open_at_once = []

    class Watched(Scripted):
        def wait(self) -> list[Reply | Failure]:
            open_at_once.append(len(self.open))
            return super().wait()

    regenerated(tmp_path, PROMPTS, Watched(capacity=5), SETTINGS)
    first_gap = next(i for i, count in enumerate(open_at_once) if count < 5)
    assert first_gap >= 5
    assert open_at_once[first_gap:] == sorted(open_at_once[first_gap:], reverse=True), "only the end runs dry"


class Stops(Scripted):
    """Goes away after some replies, or at the end, as a kill would."""

    def __init__(self, after: int, seed: int) -> None:
        super().__init__(seed=seed)
        self.after = after

    def wait(self) -> list[Reply | Failure]:
        if len(self.asked) > self.after:
            raise EyasError("server.unreachable", "gone", "start it")
        return super().wait()


@settings(max_examples=20, deadline=None)
@given(st.lists(st.integers(0, 25), max_size=4), st.integers(0, 1000))
def test_an_interrupted_run_ends_with_the_same_chats(
    tmp_path_factory: pytest.TempPathFactory, stops: list[int], seed: int
) -> None:
    whole, _ = regenerated(tmp_path_factory.mktemp("whole"), PROMPTS, Scripted(), SETTINGS)
    folder = tmp_path_factory.mktemp("parts")
    for number, after in enumerate(stops):
        with suppress(EyasError):
            regenerated(folder, PROMPTS, Stops(after, seed + number), SETTINGS)
    last = Scripted(seed=seed)
    chats, left_out = regenerated(folder, PROMPTS, last, SETTINGS)
    assert chats == whole
    assert left_out == []
    again = Scripted()
    assert regenerated(folder, PROMPTS, again, SETTINGS)[0] == whole
    assert again.asked == [], "what is there is not asked for again"


def test_a_source_that_ends_says_what_is_kept(tmp_path: Path) -> None:
    with pytest.raises(EyasError, match=r"gone; \d+ finished chats are kept") as error:
        regenerated(tmp_path, PROMPTS, Stops(20, 0), SETTINGS)
    assert error.value.code == "server.unreachable"
    assert "goes on" in error.value.fix


def test_more_samples_and_more_prompts_can_follow(tmp_path: Path) -> None:
    few = RegenSettings(temperatures=(0.5,), num_samples=1)
    more = RegenSettings(temperatures=(0.5,), num_samples=3)
    first, _ = regenerated(tmp_path, PROMPTS[:2], Scripted(), few)
    source = Scripted()
    chats, _ = regenerated(tmp_path, PROMPTS, source, more)
    assert [chat for chat in chats if chat.id in {c.id for c in first}] == first
    assert len(chats) == 21
    assert not {ask.chat_id for ask in source.asked} & {c.id for c in first}


def test_what_does_not_fit_is_left_out_and_the_rest_is_not(tmp_path: Path) -> None:
    source = Scripted()
    source.unfit_ids = {"p1#0", "p4#2"}
    chats, left_out = regenerated(tmp_path, PROMPTS, source, SETTINGS)
    assert len(chats) == 19
    assert left_out == [LeftOut("p1#0", "too-long", "much"), LeftOut("p4#2", "too-long", "much")]


def test_a_turn_that_fails_ends_its_conversation_alone(tmp_path: Path) -> None:
    def says(ask: Ask) -> Reply | Failure:
        last = ask.messages[-1]["content"]
        return Failure(ask, "refused", "no") if last in ("2.1", "3.0") else counting(ask)

    chats, left_out = regenerated(tmp_path, PROMPTS, Scripted(says), RegenSettings())
    assert left_out == [LeftOut("p3#0", "refused", "no")]
    assert len(next(chat for chat in chats if chat.prompt_id == "p2").answers) == 1
    assert len(next(chat for chat in chats if chat.prompt_id == "p5").answers) == 3
    # What was left out is no chat, so it is asked for again.
    assert len(regenerated(tmp_path, PROMPTS, Scripted(), RegenSettings())[0]) == 7


def test_what_a_server_owes_is_asked_for_again(tmp_path: Path) -> None:
    def says(ask: Ask) -> Reply | Failure:
        return Failure(ask, "server-error", "500") if ask.messages[-1]["content"] == "2.1" else counting(ask)

    chats, left_out = regenerated(tmp_path, PROMPTS[:3], Scripted(says), RegenSettings())
    assert [chat.prompt_id for chat in chats] == ["p0", "p1"]
    assert left_out == [LeftOut("p2#0", "server-error", "500")]
    chats, _ = regenerated(tmp_path, PROMPTS[:3], Scripted(), RegenSettings())
    assert len(chats[2].answers) == 3


def test_a_second_greedy_sample_would_be_the_first(tmp_path: Path) -> None:
    chats, left_out = regenerated(tmp_path, PROMPTS[:1], Scripted(), RegenSettings(temperatures=(0.0, 0.0, 1.0)))
    assert [chat.id for chat in chats] == ["p0#0", "p0#2"]
    assert left_out == [LeftOut("p0#1", "same-greedy")]


def test_a_prompt_without_an_open_turn_has_nothing_to_answer(tmp_path: Path) -> None:
    given = [prompt(SYSTEM, user(), said())]
    chats, left_out = regenerated(tmp_path, given, Scripted(), RegenSettings(keep_given=True))
    assert (chats, left_out) == ([], [LeftOut("p#0", "nothing-to-answer")])


def test_progress_counts_what_was_there_before(tmp_path: Path) -> None:
    regenerated(tmp_path, PROMPTS[:3], Scripted(), RegenSettings())
    source, seen = Scripted(lambda ask: reply(ask, "x")), list[Progress]()
    with Journal(tmp_path, Identity.of(RegenSettings(), source.identity())) as journal:
        answer_all(plan(PROMPTS, source, RegenSettings(), journal), source, journal, seen.append)
    assert [p.total for p in seen] == [7] * len(seen)
    assert seen[0] == Progress(3, 7, 0, 0)
    assert seen[-1] == Progress(7, 7, 0, len(source.asked))
    assert [p.done for p in seen] == sorted(p.done for p in seen)
