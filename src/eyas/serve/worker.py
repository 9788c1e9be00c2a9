"""The engine's process: `python -m eyas.serve.worker`. Settings and requests come on stdin, pieces go to stdout.

It ends when its parent is gone (the end of stdin), when it is told to, and when it comes to an error that is not one
request's; then its exit status is not 0.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from functools import cached_property, lru_cache, partial
from types import TracebackType
from typing import BinaryIO, NoReturn

import msgspec

from eyas.config import STEPS_FLAG, SpeculativeSettings
from eyas.engine.engine import Engine
from eyas.engine.grammar import GrammarFactory, GrammarState
from eyas.engine.request import Extras
from eyas.engine.session import Session
from eyas.engine.text import TextStream
from eyas.errors import EyasError
from eyas.models.ranks import Ranks
from eyas.serve.answering import Answering, failure_of, sampling_of, silent_tokens
from eyas.serve.engine_settings import EngineSettings
from eyas.serve.figures import Figures
from eyas.serve.frames import framed, read_frame
from eyas.serve.inbox import Compiled, Inbox, News, OwnInbox, SharedInbox
from eyas.serve.loading import engine_of, open_engine_session, ready_of
from eyas.serve.rank_start import shared_ranks
from eyas.serve.wire import (
    Ask,
    Drop,
    Failure,
    Flush,
    FromEngine,
    Piece,
    Stop,
    decode_to_engine,
    encode,
)

Send = Callable[[Iterable[FromEngine]], None]


class Worker:
    """Owner of the engine. One thread steps it; others only put into its inbox."""

    def __init__(
        self, session: Session, settings: EngineSettings, inbox: Inbox, send: Send, ranks: Ranks | None = None
    ) -> None:
        """``ranks``: who shares the target. Each has a worker, with an inbox that they share; the first one sends."""
        self.session, self.settings, self.inbox, self.send = session, settings, inbox, send
        self.engine: Engine = engine_of(session, settings, ranks)
        self.figures = Figures(self.engine, settings.speculation is not None)
        self.answering: dict[str, Answering] = {}
        self._ends = frozenset(session.eos_ids)
        self._compiling: dict[str, Future[GrammarState]] = {}
        self._compiler = ThreadPoolExecutor(1, thread_name_prefix="grammar")
        self._stopping = False
        self._text_of = lru_cache(1 << 16)(self._token_text)

    def run(self) -> None:
        """Until told to stop. Between requests it waits for the next message, and uses no processor."""
        while True:
            self._receive()
            if self.engine.waiting or self.engine.running:
                self._step()
            elif self._stopping and not self._compiling:
                break
        self.send([self.figures.status()])
        self._compiler.shutdown(wait=False, cancel_futures=True)

    # ----------------------------------------------------------------------------------------------------------------

    def _receive(self) -> None:
        """Take in all that came; wait for something if there is nothing to do."""
        idle = not self.engine.waiting and not self.engine.running
        news = self.inbox.take(wait=False)
        if not news and idle and not (self._stopping and not self._compiling):
            self.engine.check_integrity()
            self.send([self.figures.status()])
            news = self.inbox.take(wait=True)
        for message in news:
            self._take(message)

    def _take(self, message: News) -> None:
        match message:
            case Ask():
                self._ask(message)
            case Compiled():
                if self._compiling.pop(message.ask.id, None) is not None:
                    self._submit(message.ask, message.result)
            case Drop():
                self._drop(message.id)
            case Flush():
                self.engine.flush()
            case Stop():
                self._stopping = True
                if message.now:
                    self._abort_all()

    def _ask(self, ask: Ask) -> None:
        if ask.grammar is None:
            self._submit(ask, None)
            return
        grammar = ask.grammar
        future = self._compiler.submit(lambda: self._grammars.compile(grammar.kind, grammar.text))
        self._compiling[ask.id] = future
        future.add_done_callback(partial(self._compiled, ask))

    @cached_property
    def _grammars(self) -> GrammarFactory:
        """Made by the compiler's thread, for it reads the whole vocabulary."""
        return GrammarFactory(self.session.tokenizer, self.session.eos_ids, self.session.target.vocab_size)

    def _compiled(self, ask: Ask, future: Future[GrammarState]) -> None:
        """In the compiler's thread."""
        if future.cancelled():
            return
        error = future.exception()
        if error is None:
            self.inbox.put(Compiled(ask, future.result()))
        elif isinstance(error, EyasError):
            self.inbox.put(Compiled(ask, error))
        else:
            said = EyasError("request.grammar", "the grammar cannot be compiled", "ask for a simpler grammar")
            self.inbox.put(Compiled(ask, said))

    def _submit(self, ask: Ask, grammar: GrammarState | EyasError | None) -> None:
        try:
            if isinstance(grammar, EyasError):
                raise grammar
            self.answering[ask.id] = self._begin(ask, grammar)
        except EyasError as error:
            self.send([failure_of(ask.id, error)])

    def _begin(self, ask: Ask, grammar: GrammarState | None) -> Answering:
        sampling = sampling_of(ask)
        if ask.priority and not self.settings.by_priority:
            cause = f"the request has priority {ask.priority}, and requests are answered in the order of arrival"
            raise EyasError(
                "request.unsupported", cause, "leave priority out, or start with --schedule-policy priority"
            )
        silent = silent_tokens(ask, sampling, self._ends)
        text = TextStream(self.session.tokenizer, ask.stop, ask.include_stop, ask.skip_special_tokens, silent)
        client, user = (ask.client, ask.user) if self.settings.by_priority else ("", "")
        extras = Extras(text, grammar, ask.top_logprobs, ask.priority, client, user, ask.adaptive)
        request = self.engine.submit(ask.prompt, sampling, self._speculation(ask), extras)
        return Answering(ask, request, text, grammar, self._text_of, self._ends)

    def _speculation(self, ask: Ask) -> SpeculativeSettings | None:
        if ask.speculation is None:
            return self.settings.speculation
        asked = msgspec.json.decode(ask.speculation)
        if asked is None:
            return None
        wanted, most = SpeculativeSettings(**asked), self.settings.speculation
        if most is not None and wanted.num_steps > most.num_steps:
            cause = f"the request asks for {wanted.num_steps} draft steps, and the server runs {most.num_steps} at most"
            raise EyasError("request.limit", cause, f"ask for {most.num_steps}, or start with more {STEPS_FLAG}")
        return wanted

    def _drop(self, id_: str) -> None:
        compiling = self._compiling.pop(id_, None)
        if compiling is not None:
            compiling.cancel()
        answering = self.answering.pop(id_, None)
        if answering is not None:
            self.engine.abort(answering.request)

    def _abort_all(self) -> None:
        for answering in self.answering.values():
            self.engine.abort(answering.request)
        self._tell()
        for id_ in [*self._compiling]:
            self._drop(id_)
            self.send([Piece(id_, [], [], [], finish="abort")])

    def _step(self) -> None:
        begun = time.perf_counter()
        try:
            self.engine.step()
        except EyasError as error:
            if error.code == "engine.died":  # another rank: no request is to blame, and none can be answered
                raise
            self._fail_running(error)
        self.figures.stepped(time.perf_counter() - begun)
        self._tell()

    def _fail_running(self, error: EyasError) -> None:
        """What a forward came to concerns all that were in it, and none that wait; what it wrote is not kept."""
        running = set(self.engine.running)
        for id_, answering in [*self.answering.items()]:
            if answering.request in running:
                self._drop(id_)
                self.send([failure_of(id_, error)])
        self.engine.flush()

    def _tell(self) -> None:
        """Send what the last step gave, and now and then the figures."""
        news: list[FromEngine] = []
        for id_, answering in [*self.answering.items()]:
            piece = answering.news()
            if piece is None:
                continue
            news.append(piece)
            if isinstance(piece, Failure) or piece.finish is not None:
                self._drop(id_)
        status = self.figures.due()
        self.send([*news, *([status] if status is not None else [])])

    def _token_text(self, token: int) -> str:
        return str(self.session.tokenizer.decode([token], skip_special_tokens=False))


def main() -> int:
    """Load what the first message on stdin says, answer, end. The exit status."""
    for number in (signal.SIGINT, signal.SIGTERM):
        # The parent lets running requests end and then tells; signals to the whole group are for it.
        signal.signal(number, signal.SIG_IGN)
    incoming, outgoing = _claim_pipes()

    def send(messages: Iterable[FromEngine]) -> None:
        outgoing.write(b"".join(framed(encode(message)) for message in messages))
        outgoing.flush()

    sys.excepthook = partial(_fall, send)
    first = read_frame(incoming)
    if first is None:
        return 0
    settings = EngineSettings.model_validate_json(first)
    try:
        with shared_ranks(settings) as ranks:
            inbox = OwnInbox() if ranks is None else SharedInbox(ranks)
            # From the first, so that an end of the parent is noticed while the model is loaded.
            threading.Thread(target=_listen, args=(incoming, inbox), daemon=True).start()
            session = open_engine_session(settings, ranks)
            worker = Worker(session, settings, inbox, send, ranks)
            send([ready_of(session, worker.engine, settings)])
            worker.run()
    except EyasError as error:
        send([failure_of("", error)])
        return 2
    return 0


def _fall(send: Send, kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """The last words. The error's text may hold what clients sent, so only its kind and place are told."""
    frames = traceback.extract_tb(trace)
    where = " < ".join(f"{frame.name}:{frame.lineno}" for frame in reversed(frames[-4:]))
    said = f"{kind.__name__} in {where}"
    sys.stderr.write(f"the engine's process: {said}\n")
    with suppress(OSError):
        send([failure_of("", EyasError("engine.died", said, "report it, with the versions in /server_info"))])
    _end(3)


def _end(status: int) -> NoReturn:
    """At once: taking the interpreter and its libraries down in order takes seconds, and all that matters is sent."""
    sys.stderr.flush()
    os._exit(status)


def _claim_pipes() -> tuple[BinaryIO, BinaryIO]:
    """Stdin and stdout for messages alone; whatever else is printed goes to stderr."""
    incoming, outgoing = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    return incoming, outgoing


def _listen(incoming: BinaryIO, inbox: Inbox) -> None:
    while (message := read_frame(incoming)) is not None:
        inbox.put(decode_to_engine(message))
    # The parent is gone, and with it everyone who could want an answer.
    os._exit(0)


if __name__ == "__main__":
    _end(main())
