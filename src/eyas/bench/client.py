"""One server under test: a request sent, streamed, timed, tried again where the server is busy, and bounded in all."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import httpx2

from eyas.bench.settings import MAX_OPEN, BenchSettings
from eyas.bench.stream import Chunk, Refused, Stream
from eyas.dialects.counters import Counts
from eyas.servers.http import MAX_PAUSE, asked_pause, headers_of
from eyas.servers.look import Server

BUSY = (429, 503)
"""Refusals that ask to come again."""
CONNECT_SECONDS = 10.0
ERROR_BYTES = 2000
FIRST_PAUSE = 0.5
"""Seconds before the second try where the server does not say; each later one twice as long."""


@dataclass(frozen=True)
class Clock:
    """Seconds, and waiting for them."""

    now: Callable[[], float] = time.perf_counter
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep


@dataclass(frozen=True)
class Question:
    """``number``: among the level's requests · ``messages``, ``tools``: as OpenAI has them."""

    number: int
    prompt: str
    messages: tuple[Mapping[str, Any], ...]
    tools: tuple[Mapping[str, Any], ...] = ()


@dataclass
class Outcome:
    """One request. Seconds on the client's clock: ``due`` (when it was to be sent), ``sent`` (first), ``ended``.

    ``fault``: what came in place of a whole answer · ``refusals``: tries refused as busy, by status · ``waited``:
    seconds that these cost · ``chunks``: when text came · ``completion``, ``prompt_tokens``, ``cached``: by the
    server's usage; None: it does not say · ``doubt``: figures of speculation that cannot be.
    """

    question: Question
    due: float
    sent: float = 0.0
    ended: float = 0.0
    fault: str | None = None
    said: str = ""
    refusals: dict[int, int] = field(default_factory=dict)
    waited: float = 0.0
    chunks: tuple[Chunk, ...] = ()
    text: str = ""
    completion: int | None = None
    prompt_tokens: int | None = None
    cached: int | None = None
    finish: str | None = None
    counts: Counts | None = None
    doubt: str | None = None


@dataclass(frozen=True)
class Target:
    """``name``: in the report · ``root``: the address without ``/v1`` · ``extra``: put into every request."""

    name: str
    root: str
    model: str
    server: Server
    key: str | None = field(default=None, repr=False)
    extra: Mapping[str, Any] = field(default_factory=dict)


class Client:
    """Requests to one server, for use inside one event loop, as a context."""

    def __init__(self, target: Target, settings: BenchSettings, clock: Clock) -> None:
        self.target, self.settings, self.clock = target, settings, clock
        self._http = httpx2.AsyncClient(
            headers=headers_of(target.key),
            timeout=httpx2.Timeout(None, connect=min(CONNECT_SECONDS, settings.timeout)),
            limits=httpx2.Limits(max_connections=MAX_OPEN, max_keepalive_connections=MAX_OPEN),
            verify=target.root.startswith("https"),
        )

    async def __aenter__(self) -> Client:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._http.aclose()

    async def ask(self, question: Question, due: float) -> Outcome:
        """Send it now. Whatever happens is in the outcome."""
        outcome = Outcome(question, due, sent=self.clock.now())
        try:
            async with asyncio.timeout(self.settings.timeout):
                await self._tries(outcome)
        except TimeoutError:
            outcome.fault, outcome.said = "timeout", f"not done after {self.settings.timeout:g} s"
        except Refused as error:
            outcome.fault, outcome.said = error.code, error.said
        outcome.ended = self.clock.now()
        return outcome

    async def _tries(self, outcome: Outcome) -> None:
        for number in range(self.settings.tries):
            status, pause, said = await self._once(outcome)
            if status not in BUSY:
                return
            outcome.refusals[status] = outcome.refusals.get(status, 0) + 1
            if number + 1 == self.settings.tries:
                raise Refused(f"http-{status}", said)
            began = self.clock.now()
            await self.clock.sleep(pause or min(FIRST_PAUSE * 2**number, MAX_PAUSE))
            outcome.waited += self.clock.now() - began

    async def _once(self, outcome: Outcome) -> tuple[int, float, str]:
        """(status, seconds that a busy server asks to wait, what it said)."""
        url, stream = f"{self.target.root}/v1/chat/completions", Stream(self.settings.max_tokens)
        try:
            async with self._http.stream("POST", url, json=self.body(outcome.question)) as response:
                if response.status_code in BUSY:
                    return response.status_code, asked_pause(response.headers), await _beginning(response)
                if response.status_code != 200:
                    raise Refused(f"http-{response.status_code}", await _beginning(response))
                await self._read(response, stream)
        except httpx2.SSEError as error:
            raise Refused("bad-stream", str(error)) from error
        except httpx2.RequestError as error:
            what = f"{type(error).__name__} {error}".strip()
            raise Refused("cut" if stream.chunks else "unreachable", what) from error
        finally:
            _fill(outcome, stream)
        return 200, 0.0, ""

    async def _read(self, response: httpx2.Response, stream: Stream) -> None:
        if response.headers.get("content-encoding", "identity") != "identity":
            raise Refused("bad-stream", "packed, though none was asked for")
        async for event in httpx2.EventSource(response):
            stream.take(event.data, self.clock.now())
            if stream.done:
                break
        stream.close()

    def body(self, question: Question) -> dict[str, Any]:
        """What is sent. Both servers of a pair get the same, but for what only one of them knows."""
        settings, kind = self.settings, self.target.server.kind
        body: dict[str, Any] = {
            "model": self.target.model,
            "messages": [dict(message) for message in question.messages],
            "max_tokens": settings.max_tokens,
            "temperature": settings.temperature,
            "top_p": settings.top_p,
            "seed": settings.seed + question.number,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        if question.tools:
            body["tools"] = [dict(tool) for tool in question.tools]
        if settings.ignore_eos:
            body["ignore_eos"] = True
        if kind in ("sglang", "vllm"):
            body["stream_options"]["continuous_usage_stats"] = True
        more = {
            "eyas": {"speculation_figures": True, "return_token_ids": True},
            "sglang": {"return_spec_tokens_details": True},
            "llama.cpp": {"timings_per_token": True},
        }
        return body | more.get(kind, {}) | dict(self.target.extra)


async def _beginning(response: httpx2.Response) -> str:
    """Of an error's body."""
    said = b""
    async for part in response.aiter_raw():
        said += part[:ERROR_BYTES]
        if len(said) >= ERROR_BYTES:
            break
    return said[:ERROR_BYTES].decode(errors="replace")


def _fill(outcome: Outcome, stream: Stream) -> None:
    outcome.chunks, outcome.text = tuple(stream.chunks), "".join(stream.parts)
    outcome.completion, outcome.prompt_tokens, outcome.cached = stream.completion, stream.prompt, stream.cached
    outcome.finish = stream.finish
    outcome.counts, outcome.doubt = stream.counts()
