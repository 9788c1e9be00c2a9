"""A source without a model, and small prompts, for the tests of regeneration."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from pydantic import JsonValue

from eyas.corpus.chats import Chat
from eyas.corpus.prompts import Prompt
from eyas.data.regen.journal import Journal
from eyas.data.regen.run import LeftOut, answer_all, plan
from eyas.data.regen.settings import Identity, RegenSettings
from eyas.data.regen.source import AnswerSource, Ask, Failure, Message, Reply

SYSTEM = {"role": "system", "content": "Be short."}


def user(text: str = "Hi.") -> Message:
    return {"role": "user", "content": text}


def said(text: str = "Old.") -> Message:
    return {"role": "assistant", "content": text}


def call(name: str, number: str) -> Message:
    return {"id": number, "type": "function", "function": {"name": name, "arguments": "{}"}}


def calling(*calls: Message) -> Message:
    return {"role": "assistant", "content": "", "tool_calls": list(calls)}


def result(number: str, text: str = "42") -> Message:
    return {"role": "tool", "tool_call_id": number, "content": text}


def prompt(*messages: Message, id: str = "p", **more: Any) -> Prompt:
    return Prompt(id=id, messages=messages, source="tests", licence="CC0-1.0", domain="tiny", **more)


def reply(ask: Ask, message: Message | str, finish: str = "stop") -> Reply:
    message = {"role": "assistant", "content": message} if isinstance(message, str) else message
    return Reply(ask, message, None, finish)  # type: ignore[arg-type]


Says = Callable[[Ask], Reply | Failure]


def counting(ask: Ask) -> Reply:
    """Says what it was asked, so that a wrong context shows."""
    return reply(ask, f"{ask.seed}: {[m['content'] for m in ask.messages]}")


class Scripted(AnswerSource):
    """Replies by a function, in an order drawn at random, some at a time."""

    def __init__(self, says: Says = counting, capacity: int = 4, seed: int = 0) -> None:
        self.says, self.capacity = says, capacity
        self.draw = random.Random(seed)
        self.open: list[Ask] = []
        self.asked: list[Ask] = []
        self.unfit_ids: set[str] = set()

    @property
    def tokens(self) -> int:
        return len(self.asked)

    def identity(self) -> dict[str, JsonValue]:
        return {"kind": "scripted"}

    def unfit(self, ask: Ask) -> Failure | None:
        return Failure(ask, "too-long", "much") if ask.chat_id in self.unfit_ids else None

    def submit(self, ask: Ask) -> None:
        self.open.append(ask)
        self.asked.append(ask)
        assert len(self.open) <= self.capacity

    def wait(self) -> list[Reply | Failure]:
        count = self.draw.randint(0, len(self.open))
        self.draw.shuffle(self.open)
        now, self.open = self.open[:count], self.open[count:]
        return [self.says(ask) for ask in now]

    def close(self) -> None:
        self.open.clear()


def regenerated(
    folder: Path, prompts: Sequence[Prompt], source: AnswerSource, settings: RegenSettings | None = None
) -> tuple[list[Chat], list[LeftOut]]:
    """A whole run: the chats that are wanted, in order, and what was left out."""
    settings = settings or RegenSettings()
    with Journal(folder, Identity.of(settings, source.identity())) as journal:
        work = plan(prompts, source, settings, journal)
        left_out = [*work.left_out, *answer_all(work, source, journal, lambda _: None)]
        return [journal.read(chat.id) for chat in work.wanted if chat.id in journal.places], left_out
