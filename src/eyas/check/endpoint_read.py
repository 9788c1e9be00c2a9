"""What a running server did with some prompts: its answers, and its figures of speculation in one definition.

SGLang: ``meta_info`` of /generate and of chats · vLLM: its counters before and after each request, or its per-request
metrics · Eyas: the ``speculation`` object of an answer.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeGuard

from eyas.check.endpoint_http import MAX_BYTES, Http, root_of, within
from eyas.dialects import counters
from eyas.dialects.counters import Counts, bad_metrics, counts_between, counts_of, counts_of_rounds, total_of
from eyas.errors import EyasError

Prompt = Sequence[int] | Sequence[Mapping[str, Any]]
"""Token ids, or the messages of a chat."""
Kind = Literal["sglang", "vllm", "other"]
SETTLE_TRIES = 40
SETTLE_PAUSE = 0.05
"""Seconds between two looks at counters that are written after the answer."""
MAX_DEPTH = 6
NO_FIGURES: dict[str, str] = {
    "sglang": "give prompts as token ids, so that /generate is asked, or use sglang 0.5.23 for chats",
    "vllm": "start vLLM without --disable-log-stats",
    "other": "give figures in a file: a list with one accepted-drafts histogram a request",
}


@dataclass(frozen=True)
class Answered:
    """One request. ``tokens``, ``text``: as far as the server gives them · ``counts`` None: it gave no figures."""

    tokens: tuple[int, ...] | None
    text: str | None
    counts: Counts | None


@dataclass(frozen=True)
class Observation:
    """``total``: all requests together; None without any figures, which ``speculates`` False explains · ``gauge``: the
    server's own mean accept length over other traffic too, where that is all it gives.
    """

    requests: tuple[Answered, ...]
    engine: Kind = "other"
    version: str | None = None
    total: Counts | None = None
    speculates: bool | None = None
    gauge: float | None = None


@dataclass(frozen=True)
class _Server:
    kind: Kind
    version: str | None
    speculates: bool | None
    counted: bool
    """Its counters of speculation stand in /metrics."""


def observe(
    url: str,
    prompts: Sequence[Prompt],
    num_tokens: int,
    timeout: float = 300.0,
    key: str | None = None,
    model: str | None = None,
) -> Observation:
    """Send ``prompts`` one after the other, greedily, for up to ``num_tokens`` tokens each. ``url``: with or without
    ``/v1``; ``timeout``: seconds for all together; ``key``: of the API; ``model``: None takes the one that is served.

    Raises ``flags.range``, ``server.unreachable`` (no answer in time), ``server.refused``, ``server.metrics``.
    """
    root = root_of(url)
    for flag, value in (("num_tokens", num_tokens), ("timeout", timeout), ("prompts", len(prompts))):
        if not 0 < value < counters.LARGEST:
            raise EyasError("flags.range", f"{flag} is {value}", f"give {flag} 1 or more")
    if key is not None and not (key.isascii() and key.isprintable()):
        raise EyasError("flags.range", "the API key holds characters that no header can", "check the key")
    return within(timeout, _observe(root, prompts, num_tokens, key, model), root)


async def _observe(
    root: str, prompts: Sequence[Prompt], num_tokens: int, key: str | None, model: str | None
) -> Observation:
    async with Http(root, key) as http:
        server = await _look(http)
        needs_model = server.kind != "sglang" or any(isinstance(prompt[0], Mapping) for prompt in prompts if prompt)
        name = model or (await _only_model(http) if needs_model else "")
        answered = [await _ask(http, server, name, prompt, num_tokens) for prompt in prompts]
        known = [one.counts for one in answered if one.counts is not None]
        gauge = None if known else await _gauge(http)
    if not known and gauge is None and server.speculates is not False:
        cause = f"{root} gave no figures of speculation for {len(prompts)} requests"
        raise EyasError("server.metrics", cause, NO_FIGURES[server.kind])
    total = total_of(known)
    return Observation(tuple(answered), server.kind, server.version, total, server.speculates, gauge)


async def _look(http: Http) -> _Server:
    """Which engine it is, its version, and whether it speculates, as far as it says."""
    reply = await http.get("/metrics")
    text = reply.body.decode(errors="replace") if reply.status == 200 else ""
    if "\nvllm:" in f"\n{text}":
        counted = counters.has_counters(counters.read_metrics(text))
        return _Server("vllm", await _version(http, "/version"), counted, counted)
    for path in ("/server_info", "/get_server_info"):
        reply = await http.get(path)
        if reply.status == 200:
            info = reply.json()
            # SGLang lists its arguments, null where one is not given.
            known = "speculative_algorithm" in info
            speculates = info["speculative_algorithm"] is not None if known else None
            kind: Kind = "sglang" if known or "internal_states" in info else "other"
            return _Server(kind, _printable(info.get("version")), speculates, False)
    return _Server("sglang" if "\nsglang:" in f"\n{text}" else "other", None, None, False)


async def _version(http: Http, path: str) -> str | None:
    reply = await http.get(path)
    return _printable(reply.json().get("version")) if reply.status == 200 else None


def _printable(version: Any) -> str | None:
    fits = isinstance(version, str) and version.isprintable() and len(version) <= 60
    return version if fits else None


async def _only_model(http: Http) -> str:
    data = (await http.get("/v1/models")).json().get("data")
    names = [m["id"] for m in data if isinstance(m, dict) and isinstance(m.get("id"), str)] if _listed(data) else []
    if len(names) != 1:
        raise EyasError("server.refused", f"{http.root} serves {len(names)} models", "name the model that is meant")
    return names[0]


def _listed(value: Any) -> TypeGuard[list[Any]]:
    return isinstance(value, list)


async def _ask(http: Http, server: _Server, model: str, prompt: Prompt, num_tokens: int) -> Answered:
    before = await _counters(http) if server.counted else {}
    path, body = _request(server, model, prompt, num_tokens)
    said = (await http.post(path, body)).whole().json()
    answered = read_answer(said)
    completion = _completion(said)
    if completion is not None and completion > num_tokens:
        raise bad_metrics(f"{http.root}{path} counts {completion} tokens, and {num_tokens} were asked for")
    if answered.counts is None and server.counted:
        counts = await _settled(http, before, completion)
        answered = Answered(answered.tokens, answered.text, counts)
    return answered


def _request(server: _Server, model: str, prompt: Prompt, num_tokens: int) -> tuple[str, dict[str, Any]]:
    sampling: dict[str, Any] = {"temperature": 0.0}
    messages = [dict(message) for message in prompt if isinstance(message, Mapping)]
    if messages:
        body = {"model": model, "messages": messages, "max_tokens": num_tokens, **sampling}
        extra = {"sglang": "return_meta_info", "vllm": "return_token_ids"}.get(server.kind)
        return "/v1/chat/completions", body | ({extra: True} if extra else {})
    if server.kind == "sglang":
        return "/generate", {"input_ids": list(prompt), "sampling_params": sampling | {"max_new_tokens": num_tokens}}
    body = {"model": model, "prompt": list(prompt), "max_tokens": num_tokens, **sampling}
    return "/v1/completions", body | ({"return_token_ids": True} if server.kind == "vllm" else {})


async def _counters(http: Http) -> dict[str, dict[int, float]]:
    reply = (await http.get("/metrics")).whole()
    return counters.read_metrics(reply.body.decode(errors="replace"))


async def _settled(http: Http, before: counters.Gauges, completion: int | None) -> Counts:
    """What the counters moved by, once two looks agree and explain the answer."""
    last: Counts | None = None
    for _ in range(SETTLE_TRIES):
        now = counts_between(before, await _counters(http), completion)
        short = completion is not None and 1 + now.rounds + now.accepted < completion
        if now == last and not short:
            break
        last = now
        await asyncio.sleep(SETTLE_PAUSE)
    assert last is not None
    deepest = len(last.histogram or ()) or last.rounds + int(last.accepted)
    if completion is not None and 1 + last.rounds + last.accepted > completion + deepest:
        cause = f"the counters of {http.root} moved by {last.rounds} rounds for an answer of {completion} tokens"
        raise EyasError("server.metrics", cause, "let no other requests run meanwhile")
    return last


async def _gauge(http: Http) -> float | None:
    reply = await http.get("/metrics")
    if reply.status != 200:
        return None
    found = counters.read_metrics(reply.body.decode(errors="replace"))
    value = found.get("sglang:spec_accept_length", {}).get(0, 0.0)
    return value if value >= 1 else None


def read_answer(body: Mapping[str, Any]) -> Answered:
    """Tokens, text and figures out of an answer in any of the engines' forms. Raises ``server.metrics``."""
    choices = body.get("choices")
    first = choices[0] if _listed(choices) and choices and isinstance(choices[0], dict) else body
    message = first.get("message")
    text = message.get("content") if isinstance(message, dict) else first.get("text")
    ids = first.get("token_ids", first.get("output_ids"))
    tokens = tuple(i for i in ids if isinstance(i, int) and not isinstance(i, bool) and i >= 0) if _listed(ids) else ()
    whole = _listed(ids) and len(tokens) == len(ids)
    fields = _fields(body)
    counts = counts_of(fields, _completion(body)) if fields else None
    return Answered(tokens if whole else None, text if isinstance(text, str) else None, counts)


def _fields(body: Any, depth: int = 0) -> dict[str, Any]:
    """The outermost object that holds figures, wherever this version puts it."""
    if depth > MAX_DEPTH:
        return {}
    if isinstance(body, dict):
        if any(metric.name in body for metric in counters.METRICS if metric.where == "answer"):
            return body
        inner = [value for value in body.values() if isinstance(value, dict | list)]
    else:
        inner = [value for value in body[:4] if isinstance(value, dict)] if _listed(body) else []
    return next((found for value in inner if (found := _fields(value, depth + 1))), {})


def _completion(body: Mapping[str, Any]) -> int | None:
    for place in (body.get("usage"), body.get("meta_info"), body):
        value = place.get(counters.COMPLETION) if isinstance(place, dict) else None
        if value is not None:
            if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= counters.LARGEST:
                raise bad_metrics(f"{counters.COMPLETION} is {str(value)[:60]!r}")
            return value
    return None


def read_observation(path: Path) -> Observation:
    """Figures saved in a JSON file: ``{"engine": …, "version": …, "requests": […]}`` or the list alone, where a request
    is an answer as an engine gives it, an object with its figures, or a list of accepted drafts per round.

    Raises ``server.metrics``.
    """
    fix = "write a JSON list with one object or list of accepted drafts a request"
    try:
        with path.open("rb") as file:
            data = file.read(MAX_BYTES + 1)
        document = json.loads(data) if len(data) <= MAX_BYTES else None
    except (OSError, ValueError, RecursionError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is no JSON"
        raise EyasError("server.metrics", f"{path} cannot be read: {why}", fix) from error
    about = document if isinstance(document, dict) else {}
    requests = about.get("requests", document)
    if not _listed(requests) or not requests:
        raise EyasError("server.metrics", f"{path} holds no list of requests", fix)
    answered = tuple(_saved(request, i) for i, request in enumerate(requests))
    engine = about.get("engine")
    kind: Kind = "sglang" if engine == "sglang" else "vllm" if engine == "vllm" else "other"
    known = [one.counts for one in answered if one.counts is not None]
    return Observation(answered, kind, _printable(about.get("version")), total_of(known), True)


def _saved(request: Any, number: int) -> Answered:
    if _listed(request):
        return Answered(None, None, counts_of_rounds(request))
    answered = read_answer(request) if isinstance(request, dict) else None
    if answered is None or answered.counts is None:
        raise bad_metrics(f"request {number} of the file has no figures of speculation", "leave it out of the file")
    return answered
