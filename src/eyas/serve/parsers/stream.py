"""An answer's text, as it comes, as events: reasoning, content, calls of tools."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeVar

from eyas.errors import EyasError
from eyas.serve.parsers.events import Content, Event, NewId, Piece, call_id
from eyas.serve.parsers.reasoning import REASONING, ReasoningSplitter
from eyas.serve.parsers.styles import STYLES
from eyas.serve.parsers.tools import ToolSplitter

T = TypeVar("T")


class StreamParser:
    """One answer. How its text is cut into feeds changes nothing but how the events are cut."""

    def __init__(self, reasoning: ReasoningSplitter | None, tools: ToolSplitter | None) -> None:
        self._reasoning, self._tools = reasoning, tools

    def feed(self, text: str) -> list[Event]:
        """The events that this text settles."""
        return [event for _, event in self.pieces(text) if event is not None]

    def end(self) -> list[Event]:
        """The events of what was held back; the answer has ended."""
        return [event for _, event in self.last_pieces() if event is not None]

    def pieces(self, text: str) -> Iterator[Piece]:
        """As :meth:`feed`, each event with its text; all texts in order are the answer, letter by letter."""
        yield from self._split([text] if self._reasoning is None else self._reasoning.feed(text))

    def last_pieces(self) -> Iterator[Piece]:
        """As :meth:`end`."""
        if self._reasoning is not None:
            yield from self._split(self._reasoning.end())
        if self._tools is not None:
            yield from self._tools.end()

    def _split(self, parts: Iterator[Piece | str] | Sequence[str]) -> Iterator[Piece]:
        for part in parts:
            if not isinstance(part, str):
                yield part
            elif self._tools is not None:
                yield from self._tools.feed(part)
            elif part:
                yield part, Content(part)


def stream_parser(
    tool_format: str | None,
    reasoning_format: str | None,
    tools: Sequence[Mapping[str, Any]] = (),
    opened: bool | None = None,
    new_id: NewId = call_id,
) -> StreamParser:
    """A parser for one answer. A format that is None (or "none") leaves its marks in the content.

    ``tools``: as OpenAI's clients send them; calls of others are content. ``opened``: whether the prompt ends within
    the reasoning (:func:`opens_reasoning` tells); None: as this format's templates do. Raises ``flags.unknown``.
    """
    style = None if tool_format in (None, "none") else _named(STYLES, tool_format, "tool call")
    marks = None if reasoning_format in (None, "none") else _named(REASONING, reasoning_format, "reasoning")
    return StreamParser(
        None if marks is None else ReasoningSplitter(marks, opened),
        None if style is None else ToolSplitter(style, tool_schemas(tools), new_id),
    )


def tool_schemas(tools: Sequence[Mapping[str, Any]]) -> dict[str, Mapping[str, Any]]:
    """Name → schema of the parameters; a tool without one takes none."""
    functions = [tool["function"] for tool in tools]
    nothing = {"type": "object", "properties": {}, "additionalProperties": False}
    return {function["name"]: function.get("parameters") or nothing for function in functions}


def opens_reasoning(reasoning_format: str | None, prompt: str) -> bool | None:
    """Whether a rendered prompt leaves the reasoning open (True) or has closed it (False); None: it says nothing."""
    if reasoning_format in (None, "none"):
        return None
    marks = _named(REASONING, reasoning_format, "reasoning")
    end = prompt.rstrip()
    return True if end.endswith(marks.open) else False if end.endswith(marks.close) else None


def needs_special_tokens(tool_format: str | None, reasoning_format: str | None) -> bool:
    """Whether the marks may be special tokens, which the text must then show (``skip_special_tokens`` off)."""
    style = None if tool_format in (None, "none") else _named(STYLES, tool_format, "tool call")
    return (style is not None and style.special) or reasoning_format not in (None, "none")


def _named(table: Mapping[str, T], name: str | None, what: str) -> T:
    found = None if name is None else table.get(name)
    if found is None:
        cause = f"no {what} format is called {name!r}"
        raise EyasError("flags.unknown", cause, f"use one of {', '.join(sorted(table))}, none")
    return found
