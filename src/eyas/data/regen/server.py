"""Answers from any OpenAI-compatible server: many requests at a time, each tried again with back-off."""

from __future__ import annotations

import asyncio
import json
from collections import deque
from dataclasses import dataclass
from typing import Any, Literal
from urllib.parse import urlsplit

import httpx2
from pydantic import BaseModel, JsonValue, ValidationError
from tenacity import (
    AsyncRetrying,
    RetryCallState,
    retry_if_exception_type,
    stop_after_attempt,
    wait_exponential,
    wait_random,
)

from eyas.contract.schema import describe
from eyas.corpus.rendering import THINK_CLOSE
from eyas.data.regen.settings import RegenSettings
from eyas.data.regen.source import AnswerSource, Ask, Failure, Message, Reply
from eyas.data.regen.turns import split_reasoning
from eyas.errors import EyasError

MOMENT = 0.5
"""Seconds that a wait lasts at most, so that progress is seen to live."""
PASSING = (408, 409, 425, 429)
"""Refusals that are worth another try, beside every 5xx."""
NEVER = (401, 403, 404, 405)
"""Refusals that no other request would escape."""
MAX_PAUSE = 60.0


@dataclass(frozen=True)
class ServerOptions:
    """``url``: up to and with ``/v1``. ``model``: None asks the server, which must then have one only. ``tries`` of one
    request in all; the first pause is about ``first_pause`` seconds, each later one twice as long, at most 60.
    ``timeout``: seconds without a byte, on one try.
    """

    url: str
    model: str | None = None
    key: str | None = None
    concurrency: int = 64
    tries: int = 6
    timeout: float = 600.0
    first_pause: float = 1.0

    def __post_init__(self) -> None:
        if urlsplit(self.url).scheme not in ("http", "https") or not urlsplit(self.url).netloc:
            raise EyasError("flags.range", f"--server {self.url} is no address", "write e.g. http://127.0.0.1:30000/v1")
        positive = {"--concurrency": self.concurrency, "--tries": self.tries, "--timeout": self.timeout}
        for flag, value in positive.items():
            if value <= 0:
                raise EyasError("flags.range", f"{flag} {value}", f"give {flag} 1 or more")


class _PassingError(Exception):
    """A fault that the next try may not meet; ``pause``: how long the server asks to wait, in seconds."""

    def __init__(self, what: str, pause: float = 0.0) -> None:
        super().__init__(what)
        self.pause = pause


class _RefusedError(Exception):
    """The server understood and refuses; ``status`` of HTTP."""

    def __init__(self, what: str, status: int) -> None:
        super().__init__(what)
        self.status = status


class _Turn(BaseModel):
    content: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    tool_calls: list[dict[str, Any]] | None = None


class _Choice(BaseModel):
    message: _Turn
    finish_reason: Literal["stop", "length", "tool_calls"]


class _Usage(BaseModel):
    completion_tokens: int = 0


class _Completion(BaseModel):
    """What is read of a chat completion; servers send much more."""

    choices: list[_Choice]
    usage: _Usage | None = None


class _Models(BaseModel):
    class Entry(BaseModel):
        id: str

    data: list[Entry]


class Server(AnswerSource):
    """A server reached over HTTP. Its token ids are not known, and its sampled answers need not come again."""

    def __init__(self, options: ServerOptions, settings: RegenSettings) -> None:
        """Asks for the model's name where it is not given. Raises ``server.unreachable``, ``server.refused``."""
        self.options, self.settings, self.capacity = options, settings, options.concurrency
        self._loop = asyncio.Runner()
        self._client = httpx2.AsyncClient(
            headers={"authorization": f"Bearer {options.key}"} if options.key else {},
            timeout=httpx2.Timeout(options.timeout, connect=min(10.0, options.timeout)),
            limits=httpx2.Limits(max_connections=options.concurrency),
            # Reading the certificates takes a second that plain HTTP need not wait.
            verify=options.url.startswith("https"),
        )
        self._open: set[asyncio.Task[Reply | Failure]] = set()
        self._ready: deque[Reply | Failure] = deque()
        self._fatal: EyasError | None = None
        self._tokens = self._successes = 0
        try:
            self.model = options.model or self._loop.run(self._only_model())
        except BaseException:
            self.close()
            raise

    @property
    def tokens(self) -> int:
        return self._tokens

    def identity(self) -> dict[str, JsonValue]:
        return {"kind": "server", "model": self.model}

    def unfit(self, ask: Ask) -> Failure | None:
        return None

    def submit(self, ask: Ask) -> None:
        self._open.add(self._loop.get_loop().create_task(self._answer(ask)))

    def wait(self) -> list[Reply | Failure]:
        if self._open and self._fatal is None:
            self._loop.run(self._collect())
        ready = list(self._ready)
        self._ready.clear()
        if not ready and self._fatal is not None:
            raise self._fatal
        return ready

    def close(self) -> None:
        for task in self._open:
            task.cancel()
        self._loop.run(self._shut())
        self._loop.close()

    async def _shut(self) -> None:
        await asyncio.gather(*self._open, return_exceptions=True)
        self._open.clear()
        await self._client.aclose()

    async def _collect(self) -> None:
        done, self._open = await asyncio.wait(self._open, timeout=MOMENT, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            error = task.exception()
            if error is None:
                self._ready.append(task.result())
            elif isinstance(error, EyasError):
                self._fatal = self._fatal or error
            else:
                raise error

    async def _answer(self, ask: Ask) -> Reply | Failure:
        before = self._successes
        try:
            body = await self._tried("chat/completions", self._request(ask))
            choice, usage = _read_completion(body)
        except _PassingError as error:
            if self._successes == before:
                # Nobody else was answered meanwhile either: it is the server, not this request.
                raise self._dead(error) from error
            return Failure(ask, "server-error", str(error))
        except _RefusedError as error:
            if error.status in NEVER:
                raise _refusal(error) from error
            return Failure(ask, "too-long" if "context length" in str(error) else "refused", str(error))
        self._successes += 1
        self._tokens += usage
        return Reply(ask, self._message(choice.message), None, choice.finish_reason)

    async def _tried(self, path: str, body: dict[str, Any] | None) -> Any:
        """The JSON of a reply of status 200; raises :class:`_RefusedError`, and the last :class:`_PassingError`."""
        first = self.options.first_pause
        backoff = wait_exponential(multiplier=first, max=MAX_PAUSE) + wait_random(0, first)

        def pause(state: RetryCallState) -> float:
            error = state.outcome.exception() if state.outcome else None
            asked = error.pause if isinstance(error, _PassingError) else 0.0
            return max(min(asked, MAX_PAUSE), backoff(state))

        retrying = AsyncRetrying(
            retry=retry_if_exception_type(_PassingError),
            stop=stop_after_attempt(self.options.tries),
            wait=pause,
            reraise=True,
        )
        return await retrying(self._once, path, body)

    async def _once(self, path: str, body: dict[str, Any] | None) -> Any:
        url = f"{self.options.url.rstrip('/')}/{path}"
        try:
            response = await (self._client.get(url) if body is None else self._client.post(url, json=body))
        except httpx2.RequestError as error:
            raise _PassingError(f"{type(error).__name__} {error}".strip()) from error
        what = f"HTTP {response.status_code}: {response.text[:300]}"
        if response.status_code in PASSING or response.status_code >= 500:
            asked = response.headers.get("retry-after", "")
            raise _PassingError(what, float(asked) if asked.isdecimal() else 0.0)
        if response.status_code != 200:
            raise _RefusedError(what, response.status_code)
        try:
            parsed = response.json()
            # Half of a character, which JSON can escape, could not be written to any file.
            json.dumps(parsed, ensure_ascii=False).encode()
            if body is not None:
                _read_completion(parsed)
        except ValueError as error:
            why = describe(error) if isinstance(error, ValidationError) else str(error)
            raise _PassingError(f"a reply that is no chat completion: {why}") from error
        return parsed

    async def _only_model(self) -> str:
        try:
            names = [entry.id for entry in _Models.model_validate(await self._tried("models", None)).data]
        except _PassingError as error:
            raise self._dead(error) from error
        except _RefusedError as error:
            raise _refusal(error) from error
        except ValidationError as error:
            cause = f"{self.options.url}/models gives no list of models: {describe(error)}"
            raise EyasError("server.refused", cause, "check --server, or name the model with --served-model") from error
        if len(names) != 1:
            cause = f"{self.options.url} serves {len(names)} models: {', '.join(names[:5])}"
            raise EyasError("server.refused", cause, "choose one with --served-model")
        return names[0]

    def _request(self, ask: Ask) -> dict[str, Any]:
        body: dict[str, Any] = {
            "model": self.model,
            "messages": list(ask.messages),
            "temperature": ask.temperature,
            "top_p": self.settings.top_p,
            "max_tokens": self.settings.max_new_tokens,
            "seed": ask.seed,
        }
        if ask.tools:
            body["tools"] = list(ask.tools)
        if ask.thinking is not None:
            # Templates do not agree on the switch's name; they leave alone what they do not know.
            body["chat_template_kwargs"] = {"enable_thinking": ask.thinking, "thinking": ask.thinking}
        return body

    def _message(self, turn: _Turn) -> Message:
        reasoning, content = turn.reasoning_content or turn.reasoning, turn.content or ""
        if reasoning is None and self.settings.thinking != "none":
            # A server that was started without a parser of thoughts leaves them in the text.
            reasoning, content = split_reasoning(content, opened=THINK_CLOSE in content)
        message: Message = {"role": "assistant", "content": content}
        if reasoning:
            message["reasoning_content"] = reasoning
        if turn.tool_calls:
            message["tool_calls"] = turn.tool_calls
        return message

    def _dead(self, error: _PassingError) -> EyasError:
        cause = f"{self.options.url} gave nothing in {self.options.tries} tries: {error}"
        return EyasError("server.unreachable", cause, "start the server, or check --server")


def _read_completion(body: Any) -> tuple[_Choice, int]:
    """The first choice, and the answer's tokens as far as the server counts them; raises ``ValidationError``."""
    completion = _Completion.model_validate(body)
    if not completion.choices:
        raise ValueError("it has no choices")
    return completion.choices[0], completion.usage.completion_tokens if completion.usage else 0


def _refusal(error: _RefusedError) -> EyasError:
    return EyasError("server.refused", str(error), "check --server, --served-model and --api-key-env")
