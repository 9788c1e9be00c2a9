"""Tokens of one answer as text, token by token: never half a character, and an end where a stop string comes."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from tokenizers import Tokenizer
from transformers import PreTrainedTokenizerBase

_HALF = "\ufffd"
_MOST_HALVES = 3
"""A character has four bytes at most: of that many wrong ones the first is no beginning of a character any more."""
_LONGEST_WINDOW, _SHORT_WINDOW = 64, 16
"""Tokens: each look decodes the whole window, which must not grow with the answer."""


@dataclass(frozen=True)
class Fed:
    """What new tokens brought. ``texts``: one for each of the ``kept`` tokens, "" where all of it is held back."""

    kept: int
    texts: list[str]
    stop: str | None
    """The stop string that the last kept token completed; the answer ends there."""


class TextStream:
    """The text of one answer. What is given is never taken back, and is the same however the tokens are fed.

    ``stop``: the string that is complete first ends the answer, of two the longer; it is part of the text only with
    ``include_stop``. ``silent``: tokens without text, as the one that ends the answer.
    """

    def __init__(
        self,
        tokenizer: Tokenizer | PreTrainedTokenizerBase,
        stop: Sequence[str] = (),
        include_stop: bool = False,
        skip_special_tokens: bool = True,
        silent: Collection[int] = (),
    ) -> None:
        assert all(stop), "an empty stop string ends every answer"
        backend = tokenizer if isinstance(tokenizer, Tokenizer) else tokenizer.backend_tokenizer
        special = backend.get_added_tokens_decoder().items() if skip_special_tokens else ()
        self._silent = frozenset([*silent, *(token for token, added in special if added.special)])
        self._characters = _Characters(backend)
        self._stop = tuple(stop)
        self._include_stop = include_stop
        self._held = ""
        self._texts: list[str] = []
        self.stopped: str | None = None
        """The stop string that ended the answer."""

    def feed(self, tokens: Sequence[int]) -> Fed:
        """The texts that these tokens of the answer set free, up to the one that completes a stop string."""
        texts: list[str] = []
        for token in tokens:
            if self.stopped is not None:
                break
            texts.append("" if token in self._silent else self._free(self._characters.feed(token)))
        return Fed(len(texts), texts, self.stopped)

    def watch(self, tokens: Sequence[int]) -> int | None:
        """Feed, and keep the texts for :meth:`take`: how many of the tokens stay if a stop string ends the answer."""
        fed = self.feed(tokens)
        self._texts += fed.texts
        return None if fed.stop is None else fed.kept

    def take(self) -> list[str]:
        """Per token that was kept in :meth:`watch` since the last call, the text that it set free."""
        taken, self._texts = self._texts, []
        return taken

    def end(self) -> str:
        """What was held back; "" if a stop string ended the answer. The answer must have ended."""
        if self.stopped is not None:
            return ""
        rest = self._free(self._characters.end())
        rest += "" if self.stopped is not None else self._held
        self._held = ""
        return rest

    def _free(self, text: str) -> str:
        """What of the held text and this one may go out; notes a stop string that is complete."""
        held = self._held + text
        found = [(held.index(stop) + len(stop), -len(stop), stop) for stop in self._stop if stop in held]
        if found:
            end, _, self.stopped = min(found)
            self._held = ""
            return held[:end] if self._include_stop else held[: end - len(self.stopped)]
        keep = max((_overlap(held, stop) for stop in self._stop), default=0)
        self._held = held[len(held) - keep :]
        return held[: len(held) - keep]


def _overlap(text: str, stop: str) -> int:
    """Length of the longest end of ``text`` that is a beginning of ``stop``, but not all of it."""
    longest = min(len(stop) - 1, len(text))
    return next((n for n in range(longest, 0, -1) if text.endswith(stop[:n])), 0)


class _Characters:
    """Whole characters out of tokens.

    The decoder sees a window: the tokens that gave the last text, for a piece may read otherwise at a text's beginning,
    and those since. A decoder that writes earlier text otherwise when more comes (byte fallback does on wrong bytes)
    cannot take back what is given.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._window: list[int] = []
        self._last = 0
        """How many tokens of the window gave the last text."""
        self._given = 0
        """How many characters of the window's text are given."""

    def feed(self, token: int) -> str:
        self._window.append(token)
        text = self._text()
        whole = len(text.rstrip(_HALF))
        new = text[self._given : max(whole, len(text) - _MOST_HALVES)]
        self._given += len(new)
        if new and whole == len(text):
            del self._window[: self._last]
            self._last = len(self._window)
            self._given = len(self._text())
        elif len(self._window) > _LONGEST_WINDOW:
            self._shorten(text[self._given :])
        return new

    def _shorten(self, held: str) -> None:
        """Of a window that never comes to a whole character (bytes that are none, tokens without text), its end."""
        window, self._window = self._window, self._window[-_SHORT_WINDOW:]
        text = self._text()
        if text.endswith(held):
            self._last, self._given = 0, len(text) - len(held)
        else:
            self._window = window

    def end(self) -> str:
        """The rest, broken characters and all."""
        rest = self._text()[self._given :]
        self._given += len(rest)
        return rest

    def _text(self) -> str:
        return self._tokenizer.decode(self._window, skip_special_tokens=False)
