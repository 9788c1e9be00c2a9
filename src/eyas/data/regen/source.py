"""Where answers come from, as one small interface: the own engine, or any OpenAI-compatible server."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, Literal

from pydantic import JsonValue

from eyas.corpus.chats import Finish

Message = dict[str, Any]
Why = Literal["too-long", "refused", "server-error"]


@dataclass(frozen=True)
class Ask:
    """One assistant turn that is wanted. ``thinking``: the template's ``enable_thinking``; None: not given to it.
    ``seed``: below 2**31, a function of the run's seed, the prompt, the sample and the turn.
    """

    chat_id: str
    messages: tuple[Message, ...]
    tools: tuple[dict[str, Any], ...]
    temperature: float
    seed: int
    thinking: bool | None


@dataclass(frozen=True)
class Reply:
    """The target's turn. ``token_ids``: exactly as sampled, or None where a server does not tell."""

    ask: Ask
    message: Message
    token_ids: tuple[int, ...] | None
    finish: Finish


@dataclass(frozen=True)
class Failure:
    """A turn that could not be had, which is no reason to stop the others."""

    ask: Ask
    why: Why
    detail: str


class AnswerSource(ABC):
    """Takes asks and gives replies, in any order. Not thread-safe."""

    capacity: int
    """How many open asks keep it busy."""

    @property
    @abstractmethod
    def tokens(self) -> int:
        """Answer tokens so far, those of unfinished answers included where they can be seen."""

    @abstractmethod
    def identity(self) -> dict[str, JsonValue]:
        """What must be the same when a run goes on: the model, and what decides its answers."""

    @abstractmethod
    def unfit(self, ask: Ask) -> Failure | None:
        """Why an ask cannot be answered, as far as that is known without asking."""

    @abstractmethod
    def submit(self, ask: Ask) -> None:
        """Begin an ask; what comes of it is among what a later :meth:`wait` gives."""

    @abstractmethod
    def wait(self) -> list[Reply | Failure]:
        """Work on the open asks for a moment; what ended since the last call, which may be nothing.

        Raises an :class:`~eyas.errors.EyasError` where no further answer is to be had, after it has given all that
        there were.
        """

    @abstractmethod
    def close(self) -> None:
        """Give up open asks and whatever is held."""
