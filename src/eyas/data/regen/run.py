"""The run: keep the source busy, journal what ends, leave out what cannot be had."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal

from eyas.corpus.chats import Chat
from eyas.corpus.prompts import Prompt
from eyas.data.regen.conversation import Conversation
from eyas.data.regen.journal import Journal
from eyas.data.regen.settings import RegenSettings
from eyas.data.regen.source import AnswerSource, Failure, Reply, Why
from eyas.errors import EyasError


@dataclass(frozen=True)
class LeftOut:
    """A chat that was not made. ``nothing-to-answer``: all its turns were given; ``same-greedy``: an earlier sample of
    its prompt is greedy too, and would be the same text.
    """

    chat_id: str
    why: Why | Literal["nothing-to-answer", "same-greedy"]
    detail: str = ""


@dataclass(frozen=True)
class Progress:
    """``done`` of ``total`` chats, those that an earlier run made included; ``tokens`` of answers in this run."""

    done: int
    total: int
    left_out: int
    tokens: int


OnProgress = Callable[[Progress], None]


@dataclass
class Work:
    """What a run has to do: ``wanted`` chats in prompt order, of which ``missing`` are not in the journal yet."""

    wanted: list[Conversation] = field(default_factory=list)
    missing: list[Conversation] = field(default_factory=list)
    left_out: list[LeftOut] = field(default_factory=list)


def plan(prompts: Sequence[Prompt], source: AnswerSource, settings: RegenSettings, journal: Journal | None) -> Work:
    """Which chats are wanted, which are missing, and which are left out from the start: those whose first prompt does
    not fit, as far as the source knows. Raises ``regen.settings`` for a prompt that has changed.
    """
    work = Work()
    for prompt in prompts:
        greedy: set[bool | None] = set()
        for sample in range(settings.samples):
            chat = Conversation(prompt, sample, settings)
            if settings.temperature(sample) == 0:
                if chat.thinking in greedy:
                    work.left_out.append(LeftOut(chat.id, "same-greedy"))
                    continue
                greedy.add(chat.thinking)
            _sort_in(work, chat, source, journal)
    return work


def _sort_in(work: Work, chat: Conversation, source: AnswerSource, journal: Journal | None) -> None:
    if journal is not None and journal.has(chat.id, chat.prompt):
        work.wanted.append(chat)
        return
    ask = chat.next_ask()
    failure = source.unfit(ask) if ask else None
    if ask is None:
        work.left_out.append(LeftOut(chat.id, "nothing-to-answer"))
    elif failure is not None:
        work.left_out.append(LeftOut(chat.id, failure.why, failure.detail))
    else:
        work.wanted.append(chat)
        work.missing.append(chat)


def answer_all(work: Work, source: AnswerSource, journal: Journal, on_progress: OnProgress) -> list[LeftOut]:
    """Make the missing chats, each in the journal as soon as it ends; returns what was left out, in prompt order.

    A turn that cannot be had ends its conversation with the answers before it, or leaves it out if there are none; one
    that a server owes leaves it out, so that a later run tries again. Raises what the source raises, after all that had
    ended is in the journal.
    """
    waiting, running, left_out = iter(work.missing), dict[str, Conversation](), list[LeftOut]()
    done = len(work.wanted) - len(work.missing)
    on_progress(Progress(done, len(work.wanted), 0, source.tokens))
    try:
        while True:
            _fill(waiting, running, source)
            if not running:
                order = {chat.id: place for place, chat in enumerate(work.missing)}
                return sorted(left_out, key=lambda one: order[one.chat_id])
            finished: list[tuple[Prompt, Chat]] = []
            for event in source.wait():
                chat = running[event.ask.chat_id]
                if _goes_on(chat, event, source):
                    continue
                del running[chat.id]
                if chat.answers and not _may_pass(event):
                    finished.append((chat.prompt, chat.chat()))
                else:
                    assert isinstance(event, Failure)
                    left_out.append(LeftOut(chat.id, event.why, event.detail))
            journal.append(finished)
            done += len(finished)
            on_progress(Progress(done, len(work.wanted), len(left_out), source.tokens))
    except EyasError as error:
        cause = f"{error.cause}; {len(journal.places)} finished chats are kept in {journal.path}"
        raise EyasError(error.code, cause, f"{error.fix}; then the same command goes on") from error


def _fill(waiting: Iterator[Conversation], running: dict[str, Conversation], source: AnswerSource) -> None:
    while len(running) < source.capacity and (chat := next(waiting, None)) is not None:
        ask = chat.next_ask()
        assert ask is not None, "plan() leaves out what has nothing to answer"
        running[chat.id] = chat
        source.submit(ask)


def _may_pass(event: Reply | Failure) -> bool:
    return isinstance(event, Failure) and event.why == "server-error"


def _goes_on(chat: Conversation, event: Reply | Failure, source: AnswerSource) -> bool:
    """Takes what came; asks for the next turn at once, while the engine still holds this one's rows."""
    if isinstance(event, Failure):
        return False
    chat.take(event)
    ask = chat.next_ask()
    if ask is not None:
        source.submit(ask)
    return ask is not None
