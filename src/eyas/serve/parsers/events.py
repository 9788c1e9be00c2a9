"""What an answer's text turns out to be, piece by piece."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from uuid import uuid4


@dataclass(frozen=True)
class Content:
    """Of the answer itself."""

    text: str


@dataclass(frozen=True)
class Reasoning:
    """Of what the target thinks before it answers."""

    text: str


@dataclass(frozen=True)
class ToolStart:
    """A call of a tool begins; ``index`` counts the answer's calls from 0."""

    index: int
    id: str
    name: str


@dataclass(frozen=True)
class ToolArguments:
    """More of a call's arguments, a JSON object. It stays open where the answer was cut in it."""

    index: int
    text: str


Event = Content | Reasoning | ToolStart | ToolArguments
Piece = tuple[str, Event | None]
"""Text of the answer and what it says; None: it only belongs to the form. The texts together are the answer."""
NewId = Callable[[], str]


def call_id() -> str:
    """A name for one call, as OpenAI's look."""
    return f"call_{uuid4().hex[:24]}"
