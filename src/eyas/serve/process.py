"""An engine in a process of its own, seen from the HTTP side's event loop: started, asked, watched, started again."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass

from eyas.errors import EyasError
from eyas.serve.engine_settings import EngineSettings
from eyas.serve.frames import framed, receive_frame
from eyas.serve.wire import (
    Ask,
    Drop,
    Failure,
    Flush,
    Piece,
    Ready,
    Status,
    Stop,
    ToEngine,
    decode_from_engine,
    encode,
)

COMMAND = (sys.executable, "-P", "-m", "eyas.serve.worker")
FIRST_DELAY, MOST_DELAY = 0.5, 30.0
"""Seconds before an engine that died is started again; doubled each time that it dies without having been loaded."""
KILL_SECONDS = 5.0
"""For an engine that was told to end at once."""

Say = Callable[[str], None]


def silent(what: str) -> None:
    """For who wants no log."""


@dataclass(frozen=True)
class Care:
    """How an engine's process is looked after. ``watchdog_seconds``: without a sign while it has work ·
    ``drain_seconds``: for running requests when it is to end.
    """

    max_queued: int = 1024
    watchdog_seconds: float = 300.0
    drain_seconds: float = 30.0
    first_delay: float = FIRST_DELAY


@dataclass(eq=False)
class _Waiting:
    """A request on its way. Its queue is as long as its answer at most, so that a slow client holds up nobody."""

    news: asyncio.Queue[Piece | EyasError]
    begun: bool = False


class EngineProcess:
    """An :class:`eyas.serve.client.EngineClient`."""

    def __init__(
        self, settings: EngineSettings, care: Care | None = None, say: Say = silent, command: Sequence[str] = COMMAND
    ) -> None:
        self.settings, self.care = settings, care or Care()
        self._say, self._command = say, tuple(command)
        self._ready: Ready | None = None
        self._status: Status | None = None
        self._restarts = 0
        self._child: asyncio.subprocess.Process | None = None
        self._keeper: asyncio.Task[None] | None = None
        self._waiting: dict[str, _Waiting] = {}
        self._last_words: EyasError | None = None
        self._heard = 0.0
        self._closing = False

    @property
    def ready(self) -> Ready | None:
        return self._ready

    @property
    def status(self) -> Status | None:
        return self._status

    @property
    def restarts(self) -> int:
        return self._restarts

    @property
    def in_flight(self) -> int:
        """Requests that are not answered to their end."""
        return len(self._waiting)

    @property
    def pid(self) -> int | None:
        """Of the process that runs now."""
        return None if self._child is None or self._child.returncode is not None else self._child.pid

    async def start(self) -> None:
        """Start it and wait until it is loaded. Raises what loading it came to."""
        loaded: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        # Who starts it may be gone when loading fails.
        loaded.add_done_callback(lambda done: done.cancelled() or done.exception())
        self._keeper = asyncio.create_task(self._keep(loaded))
        await asyncio.shield(loaded)

    async def answer(self, ask: Ask) -> AsyncIterator[Piece]:
        """As the protocol says. Raises ``server.draining``, ``server.loading``, ``server.busy``, ``engine.died``, and
        what the engine says."""
        waiting = self._enter(ask)
        over = False
        try:
            self._send(ask)
            while not over:
                news = await waiting.news.get()
                over = isinstance(news, EyasError) or news.finish is not None
                if isinstance(news, EyasError):
                    raise news
                yield news
        finally:
            del self._waiting[ask.id]
            if not over:
                self._send(Drop(ask.id))

    async def flush(self) -> None:
        self._send(Flush())

    async def close(self, now: bool = False) -> None:
        self._closing = True
        if self._keeper is None:
            return
        if self.pid is None:
            # It died, and waits to be started again.
            self._keeper.cancel()
        elif self._ready is None:
            self._kill()
        self._send(Stop(now))
        await asyncio.wait([self._keeper], timeout=KILL_SECONDS if now else self.care.drain_seconds)
        self._kill()
        with suppress(asyncio.CancelledError):
            await self._keeper

    # ----------------------------------------------------------------------------------------------------------------

    def _enter(self, ask: Ask) -> _Waiting:
        if self._closing:
            raise EyasError("server.draining", "the server is about to end", "send the request to another, or later")
        if self._ready is None:
            cause = "the engine is being started again" if self._restarts else "the engine is not loaded yet"
            raise EyasError("server.loading", cause, "try again when /ready answers 200")
        assert ask.id not in self._waiting, "ids are unique"
        begun = sum(waiting.begun for waiting in self._waiting.values())
        room = max(self.settings.max_running - begun, 0) + self.care.max_queued
        if len(self._waiting) - begun >= room:
            cause = f"{len(self._waiting) - begun} requests wait, and no more may"
            raise EyasError("server.busy", cause, "try again in a moment, or with fewer at a time")
        if not self._waiting:
            self._heard = time.monotonic()
        waiting = self._waiting[ask.id] = _Waiting(asyncio.Queue())
        return waiting

    def _send(self, message: ToEngine) -> None:
        """The pipe takes what comes at once: requests are few and small beside their answers."""
        child = self._child
        if child is not None and child.stdin is not None and not child.stdin.is_closing():
            child.stdin.write(framed(encode(message)))

    def _kill(self) -> None:
        if self._child is not None and self._child.returncode is None:
            with suppress(ProcessLookupError):
                self._child.kill()

    async def _keep(self, loaded: asyncio.Future[None]) -> None:
        """Start the process, and again when it ends, until it is to end; a first one that cannot load ends it too."""
        delay = self.care.first_delay
        while True:
            code = await self._live(loaded)
            was_ready, self._ready, self._status = self._ready is not None, None, None
            words = self._last_words
            why = words if words is not None else self._died(code)
            for waiting in self._waiting.values():
                waiting.news.put_nowait(self._died(code, words is not None))
            if not loaded.done():
                loaded.set_exception(why)
                return
            if self._closing:
                return
            self._restarts += 1
            delay = self.care.first_delay if was_ready else min(2 * delay, MOST_DELAY)
            self._say(f"the engine ended [{why.code}] {why.cause}; it is started again in {delay:g} s")
            await asyncio.sleep(delay)

    def _died(self, code: int, said: bool = False) -> EyasError:
        """``said``: it told why, which is for who runs the server: the log has it."""
        if self._closing:
            return EyasError("server.draining", "the server ended before the answer did", "send the request again")
        how = f"by signal {-code}" if code < 0 else f"with status {code}"
        how = "with an error of its own" if said else how
        cause = f"the engine's process ended {how} before the answer did"
        return EyasError("engine.died", cause, "send the request again: the engine is started anew")

    async def _live(self, loaded: asyncio.Future[None]) -> int:
        """One process from its start to its end; its exit status."""
        self._last_words = None
        pipe = asyncio.subprocess.PIPE
        child = self._child = await asyncio.create_subprocess_exec(*self._command, stdin=pipe, stdout=pipe)
        assert child.stdin is not None
        assert child.stdout is not None
        child.stdin.write(framed(self.settings.model_dump_json().encode()))
        self._heard = time.monotonic()
        watch = asyncio.create_task(self._watch())
        try:
            while (message := await receive_frame(child.stdout)) is not None:
                self._heard = time.monotonic()
                self._take(decode_from_engine(message), loaded)
            return await child.wait()
        finally:
            watch.cancel()
            self._kill()

    def _take(self, message: Piece | Failure | Ready | Status, loaded: asyncio.Future[None]) -> None:
        match message:
            case Piece():
                waiting = self._waiting.get(message.id)
                if waiting is not None:
                    waiting.begun = True
                    waiting.news.put_nowait(message)
            case Failure(id=""):
                self._last_words = EyasError(message.code, message.cause, message.fix)
            case Failure():
                waiting = self._waiting.get(message.id)
                if waiting is not None:
                    waiting.news.put_nowait(EyasError(message.code, message.cause, message.fix))
            case Ready():
                self._ready = message
                if not loaded.done():
                    loaded.set_result(None)
                else:
                    self._say("the engine is loaded again")
            case Status():
                self._status = message

    async def _watch(self) -> None:
        """Kill a process that has work and gives no sign."""
        limit = self.care.watchdog_seconds
        while True:
            await asyncio.sleep(limit / 10)
            if self._ready is not None and self._waiting and time.monotonic() - self._heard > limit:
                self._say(f"the engine gave no sign for {limit:g} s and is killed")
                self._kill()
                return
