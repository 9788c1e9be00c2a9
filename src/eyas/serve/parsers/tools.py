"""Calls of tools in an answer's text, found while it comes."""

from __future__ import annotations

from collections.abc import Iterator

import regex

from eyas.serve.parsers.arguments import Arguments
from eyas.serve.parsers.events import Content, NewId, Piece, ToolArguments, ToolStart
from eyas.serve.parsers.styles import WAIT, Read, Style, Tools


class ToolSplitter:
    """Text → content and calls. What looks like a call and is none, or is of no known tool, is content.

    Text waits only while it may be part of a call's form; arguments do not wait.
    """

    def __init__(self, style: Style, tools: Tools, new_id: NewId) -> None:
        self._style, self._tools, self._new_id = style, tools, new_id
        self._text = ""
        self._ending = False
        self._opener = ""
        """What led to the head that is being read."""
        self._arguments: Arguments | None = None
        self._calls = 0
        self._state = self._at_first

    def feed(self, text: str) -> Iterator[Piece]:
        """What this text settles."""
        self._text += text
        yield from self._run()

    def end(self) -> Iterator[Piece]:
        """What was held back, now that no more comes."""
        self._ending = True
        yield from self._run()
        if self._text:
            only_space = self._calls and self._text.isspace()
            yield self._text, None if only_space else Content(self._text)
            self._text = ""

    def _run(self) -> Iterator[Piece]:
        """A state says what it found, and that it waits by leaving all as it is."""
        while True:
            before = self._state, self._text
            yield from self._state()
            if (self._state, self._text) == before:
                return

    def _cut(self, length: int) -> str:
        cut, self._text = self._text[:length], self._text[length:]
        return cut

    def _match(self, pattern: regex.Pattern[str] | None) -> regex.Match[str] | None:
        return None if pattern is None else pattern.match(self._text, partial=not self._ending)

    def _at_first(self) -> Iterator[Piece]:
        """At the answer's beginning, or behind a call."""
        match = self._match(self._style.first)
        if match is None:
            self._state = self._in_text
        elif not match.partial:
            self._opener, self._state = self._cut(match.end()), self._at_head
        yield from ()

    def _in_text(self) -> Iterator[Piece]:
        pattern = self._style.anywhere
        match = None if pattern is None else pattern.search(self._text, partial=not self._ending)
        if match is None and self._ending:
            return
        free = self._cut(len(self._text) if match is None else match.start())
        if free:
            yield free, Content(free)
        if match is not None and not match.partial:
            self._opener, self._state = self._cut(match.end() - match.start()), self._at_head

    def _at_head(self) -> Iterator[Piece]:
        found = self._style.read(self._text, self._tools, self._ending)
        if found == WAIT:
            return
        if isinstance(found, Read):
            yield from self._begin(found)
            return
        opener, self._opener = self._opener, ""
        self._state = self._in_text
        if opener:
            yield opener, Content(opener)

    def _begin(self, found: Read) -> Iterator[Piece]:
        source = self._opener + self._cut(found.used)
        self._opener = ""
        for call in found.calls:
            yield source, ToolStart(self._calls, call.id or self._new_id(), call.name)
            source = ""
            self._calls += 1
            self._state = self._behind
            if isinstance(call.arguments, str):
                yield "", ToolArguments(self._calls - 1, call.arguments)
            else:
                self._arguments, self._state = call.arguments, self._in_arguments

    def _in_arguments(self) -> Iterator[Piece]:
        assert self._arguments is not None
        used, said, whole = self._arguments.read(self._text, self._ending)
        source = self._cut(used)
        if said:
            yield source, ToolArguments(self._calls - 1, said)
        elif source:
            yield source, None
        if whole:
            self._arguments, self._state = None, self._behind

    def _behind(self) -> Iterator[Piece]:
        """Behind a call's arguments; where the answer was cut, so was what closes them."""
        another, close = self._match(self._style.next), self._match(self._style.close)
        if another is not None and not another.partial:
            self._opener, self._state = self._cut(another.end()), self._at_head
            return
        if another is not None or (close is not None and close.partial):
            return
        if close is not None:
            yield self._cut(close.end()), None
            self._state = self._at_first
        elif self._ending and self._is_cut_form():
            yield self._cut(len(self._text)), None
        else:
            self._state = self._at_first

    def _is_cut_form(self) -> bool:
        patterns = (self._style.next, self._style.close)
        return bool(self._text) and any(p is not None and p.match(self._text, partial=True) for p in patterns)
