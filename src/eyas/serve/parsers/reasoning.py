"""What a target thinks before it answers, told from the answer."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import regex

from eyas.serve.parsers.events import Piece, Reasoning


@dataclass(frozen=True)
class Marks:
    """``opened``: reasoning begins without a mark. ``until``: what else ends it, and is not part of it."""

    open: str
    close: str
    opened: bool = False
    until: str | None = None


_KIMI_CALLS, _DEEPSEEK_CALLS = r"<\|tool_calls?_section_begin\|>", "<｜tool▁calls▁begin｜>"

REASONING: dict[str, Marks] = {
    "deepseek-r1": Marks("<think>", "</think>", opened=True, until=_DEEPSEEK_CALLS),
    "deepseek_r1": Marks("<think>", "</think>", opened=True, until=_DEEPSEEK_CALLS),
    "deepseek-v3": Marks("<think>", "</think>", until=_DEEPSEEK_CALLS),
    "deepseek_v3": Marks("<think>", "</think>", until=_DEEPSEEK_CALLS),
    "qwen3": Marks("<think>", "</think>"),
    "qwen3-thinking": Marks("<think>", "</think>", opened=True),
    "smollm3": Marks("<think>", "</think>"),
    "kimi": Marks("◁think▷", "◁/think▷", until=_KIMI_CALLS),
    "kimi_k2": Marks("<think>", "</think>", until=_KIMI_CALLS),
}
"""By the names that SGLang and vLLM give them."""


class ReasoningSplitter:
    """Reasoning stands before the answer and nowhere else; line breaks beside its marks belong to them.

    ``opened``: whether the prompt ends within it; None: as the target's templates do.
    """

    def __init__(self, marks: Marks, opened: bool | None) -> None:
        until = "" if marks.until is None else f"|(?={marks.until})"
        self._open = regex.compile(rf"\s*+{marks.open}")
        self._close = regex.compile(rf"(?<!\n)\n*+(?:{marks.close}{until})")
        self._opened = marks.opened if opened is None else opened
        self._text = ""
        self._ending = False
        self._state = self._before

    def feed(self, text: str) -> Iterator[Piece | str]:
        """Pieces of reasoning, and text of the answer as it is."""
        self._text += text
        yield from self._run()

    def end(self) -> Iterator[Piece | str]:
        """What was held back."""
        self._ending = True
        yield from self._run()

    def _run(self) -> Iterator[Piece | str]:
        while True:
            before = self._state, self._text
            yield from self._state()
            if (self._state, self._text) == before:
                return

    def _cut(self, length: int) -> str:
        cut, self._text = self._text[:length], self._text[length:]
        return cut

    def _before(self) -> Iterator[Piece | str]:
        match = self._open.match(self._text, partial=not self._ending)
        if match is None:
            self._state = self._thinking if self._opened else self._answer
        elif not match.partial:
            yield self._cut(match.end()), None
            self._state = self._first_line

    def _first_line(self) -> Iterator[Piece | str]:
        yield from self._skip_breaks()
        if self._text:
            self._state = self._thinking

    def _thinking(self) -> Iterator[Piece | str]:
        match = self._close.search(self._text, partial=not self._ending)
        thought = self._cut(len(self._text) if match is None else match.start())
        if thought:
            yield thought, Reasoning(thought)
        if match is not None and not match.partial:
            yield self._cut(match.end() - match.start()), None
            self._state = self._behind

    def _behind(self) -> Iterator[Piece | str]:
        yield from self._skip_breaks()
        if self._text:
            self._state = self._answer

    def _answer(self) -> Iterator[Piece | str]:
        if self._text:
            yield self._cut(len(self._text))

    def _skip_breaks(self) -> Iterator[Piece | str]:
        breaks = self._cut(len(self._text) - len(self._text.lstrip("\n")))
        if breaks:
            yield breaks, None
