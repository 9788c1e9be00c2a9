"""What the engine's process takes in, in the order in which it does: messages, and grammars that are compiled."""

from __future__ import annotations

from dataclasses import dataclass
from queue import Empty, SimpleQueue
from typing import Protocol

import msgspec
from msgspec import Struct

from eyas.engine.grammar import GrammarState
from eyas.errors import EyasError
from eyas.models.ranks import Ranks
from eyas.serve.wire import Ask, Drop, Stop, ToEngine

BEAT_SECONDS = 5.0
"""So often the first rank tells the others that there is nothing to do, and sees that they are there."""


@dataclass(frozen=True)
class Compiled:
    """A grammar of a request is ready, or cannot be used."""

    ask: Ask
    result: GrammarState | EyasError


News = ToEngine | Compiled


class Inbox(Protocol):
    """One thread takes; any thread puts."""

    def put(self, news: News) -> None: ...

    def take(self, wait: bool) -> list[News]:
        """All that came, in order; with ``wait``, at least one."""
        ...


class OwnInbox:
    """An :class:`Inbox` of one process."""

    def __init__(self) -> None:
        self._queue: SimpleQueue[News] = SimpleQueue()

    def put(self, news: News) -> None:
        self._queue.put(news)

    def take(self, wait: bool, seconds: float | None = None) -> list[News]:
        """``seconds``: to wait at most."""
        found: list[News] = []
        try:
            if wait:
                found.append(self._queue.get(timeout=seconds))
            while True:
                found.append(self._queue.get_nowait())
        except Empty:
            return found


class CompiledFor(Struct, frozen=True, tag=True):
    """The first rank has the grammar of this request. The others have compiled it too, and wait for their own."""

    id: str


class SharedInbox:
    """An :class:`Inbox` of one of several ranks: each takes what the first one took, at the same time.

    ``take`` raises ``engine.died`` where a rank is gone.
    """

    def __init__(self, ranks: Ranks, beat: float = BEAT_SECONDS) -> None:
        self.ranks, self.beat = ranks, beat
        self._own = OwnInbox()
        self._compiling: set[str] = set()
        """Asked for with a grammar, not compiled and not given up yet; on the first rank."""
        self._compiled: dict[str, Compiled] = {}
        """Before the first rank said so; on the others."""
        self._decode = msgspec.msgpack.Decoder(list[ToEngine | CompiledFor]).decode

    def put(self, news: News) -> None:
        """On the other ranks: what their own process makes, compiled grammars."""
        self._own.put(news)

    def take(self, wait: bool) -> list[News]:
        while True:
            if self.ranks.is_first:
                found = [news for news in self._own.take(wait, self.beat) if self._matters(news)]
                self.ranks.tell(msgspec.msgpack.encode([_told(news) for news in found]))
            else:
                found = [self._mine(told) for told in self._decode(self.ranks.tell())]
            if found or not wait:
                return found

    def _matters(self, news: News) -> bool:
        """False for a grammar that nobody waits for any more: others may have stopped compiling it."""
        match news:
            case Ask() if news.grammar is not None:
                self._compiling.add(news.id)
            case Drop():
                self._compiling.discard(news.id)
            case Stop() if news.now:
                self._compiling.clear()
            case Compiled():
                known = news.ask.id in self._compiling
                self._compiling.discard(news.ask.id)
                return known
        return True

    def _mine(self, told: ToEngine | CompiledFor) -> News:
        if not isinstance(told, CompiledFor):
            return told
        while told.id not in self._compiled:
            found = self._own.take(wait=True, seconds=self.ranks.patience)
            if not found:
                cause = f"rank {self.ranks.rank} is still compiling a grammar that the first one has"
                raise EyasError("engine.died", cause, "ask for a simpler grammar")
            self._compiled |= {news.ask.id: news for news in found if isinstance(news, Compiled)}
        return self._compiled.pop(told.id)


def _told(news: News) -> ToEngine | CompiledFor:
    return CompiledFor(news.ask.id) if isinstance(news, Compiled) else news
