"""A streamed answer, event by event: when its tokens came, how many came together, and what it says of itself."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from eyas.dialects.counters import Counts, counts_of
from eyas.errors import EyasError
from eyas.servers.figures import completion_of, fields_of, is_list

DONE = "[DONE]"
MAX_TEXT = 16 << 20


class Refused(Exception):  # noqa: N818 - it is a fault of the server's
    """What a request met in place of a whole answer. ``code``: what it is counted under."""

    def __init__(self, code: str, said: str = "") -> None:
        super().__init__(said)
        self.code, self.said = code, said[:300]


@dataclass(frozen=True)
class Chunk:
    """``at``: seconds on the client's clock · ``tokens``: new ones in it; None: the server does not say."""

    at: float
    tokens: int | None


@dataclass
class Stream:
    """An answer as it comes. ``completion``, ``prompt``, ``cached``: tokens by the server's usage."""

    max_tokens: int
    chunks: list[Chunk] = field(default_factory=list)
    parts: list[str] = field(default_factory=list)
    size: int = 0
    told: int = 0
    completion: int | None = None
    prompt: int | None = None
    cached: int | None = None
    finish: str | None = None
    done: bool = False
    fields: dict[str, Any] = field(default_factory=dict)

    def take(self, data: str, at: float) -> None:
        """One event. Raises :class:`Refused`."""
        if data.strip() == DONE:
            self.done = True
            return
        body = _object(data)
        if "error" in body and body["error"] is not None:
            raise Refused("error", json.dumps(body["error"], ensure_ascii=False))
        self.fields = fields_of(body) or self.fields
        choices = body.get("choices")
        choice = choices[0] if is_list(choices) and choices and isinstance(choices[0], dict) else {}
        text, tokens = _text(choice), self._new_tokens(body, choice)
        if text or tokens:
            self._add(text, tokens, at)
        if isinstance(choice.get("finish_reason"), str):
            self.finish = choice["finish_reason"][:40]
        self._usage(body.get("usage"))

    def _add(self, text: str, tokens: int | None, at: float) -> None:
        self.chunks.append(Chunk(at, tokens))
        self.parts.append(text)
        self.size += len(text)
        if self.size > MAX_TEXT or len(self.chunks) > 4 * self.max_tokens + 64:
            raise Refused("endless", f"{len(self.chunks)} chunks, {self.size} characters for {self.max_tokens} tokens")

    def _new_tokens(self, body: Mapping[str, Any], choice: Mapping[str, Any]) -> int | None:
        """By the ids themselves (Eyas, vLLM), or by what the running usage or the timings (llama.cpp) grew by."""
        ids = choice.get("token_ids")
        if is_list(ids):
            return len(ids)
        usage, timings = body.get("usage"), body.get("timings")
        said = usage.get("completion_tokens") if isinstance(usage, dict) and choice else None
        if said is None and isinstance(timings, dict) and choice:
            said = timings.get("predicted_n")
        if said is None:
            return None
        now = _whole(said)
        if now is None or now < self.told:
            raise Refused("usage", f"{said!r:.40} tokens so far, after {self.told}")
        grown, self.told = now - self.told, now
        return grown

    def _usage(self, usage: Any) -> None:
        if not isinstance(usage, dict):
            return
        try:
            self.completion = completion_of({"usage": usage})
        except EyasError as error:
            raise Refused("usage", error.cause) from error
        details = usage.get("prompt_tokens_details")
        self.prompt = _whole(usage.get("prompt_tokens"))
        self.cached = _whole(details.get("cached_tokens")) if isinstance(details, dict) else None

    def close(self) -> None:
        """The stream has ended. Raises :class:`Refused` if it is not whole, or counts what cannot be."""
        if self.finish is None and not self.done:
            raise Refused("cut", f"the stream ended after {len(self.chunks)} chunks without a finish reason")
        if self.completion is not None and not bool(self.chunks) <= self.completion <= self.max_tokens:
            said = f"usage counts {self.completion} tokens for {len(self.chunks)} chunks, of {self.max_tokens} at most"
            raise Refused("usage", said)

    def counts(self) -> tuple[Counts | None, str | None]:
        """(figures of speculation, what is wrong with them)."""
        try:
            return (counts_of(self.fields, self.completion), None) if self.fields else (None, None)
        except EyasError as error:
            return None, error.cause


def _object(data: str) -> dict[str, Any]:
    try:
        body = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise Refused("bad-stream", f"an event is no JSON: {data[:80]!r}") from error
    if not isinstance(body, dict):
        raise Refused("bad-stream", f"an event is no JSON object: {data[:80]!r}")
    return body


def _text(choice: Mapping[str, Any]) -> str:
    """What the event adds to the answer: thoughts, text and tool calls alike."""
    delta = choice.get("delta")
    if not isinstance(delta, dict):
        text = choice.get("text")
        return text if isinstance(text, str) else ""
    # Thoughts go by two names, and some servers send both.
    given = (delta.get("reasoning_content") or delta.get("reasoning"), delta.get("content"))
    calls = delta.get("tool_calls")
    return "".join(part for part in given if isinstance(part, str)) + (
        json.dumps(calls, ensure_ascii=False) if is_list(calls) and calls else ""
    )


def _whole(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None
