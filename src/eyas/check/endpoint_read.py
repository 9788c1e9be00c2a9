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
from typing import Any

from eyas.dialects import counters
from eyas.dialects.counters import Counts, bad_metrics, counts_between, counts_of_rounds, total_of
from eyas.errors import EyasError
from eyas.servers.figures import Answered, completion_of, is_list, read_answer
from eyas.servers.http import MAX_BYTES, Http, check_key, root_of, within
from eyas.servers.look import Kind, Server, counters_now, gauge, look, only_model, printable

Prompt = Sequence[int] | Sequence[Mapping[str, Any]]
"""Token ids, or the messages of a chat."""
SETTLE_TRIES = 40
SETTLE_PAUSE = 0.05
"""Seconds between two looks at counters that are written after the answer."""
NO_FIGURES: dict[str, str] = {
    "sglang": "give prompts as token ids, so that /generate is asked, or use sglang 0.5.23 for chats",
    "vllm": "start vLLM without --disable-log-stats",
    "other": "give figures in a file: a list with one accepted-drafts histogram a request",
}


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
    check_key(key)
    return within(timeout, _observe(root, prompts, num_tokens, key, model), root)


async def _observe(
    root: str, prompts: Sequence[Prompt], num_tokens: int, key: str | None, model: str | None
) -> Observation:
    async with Http(root, key) as http:
        server = await look(http)
        needs_model = server.kind != "sglang" or any(isinstance(prompt[0], Mapping) for prompt in prompts if prompt)
        name = model or (await only_model(http) if needs_model else "")
        answered = [await _ask(http, server, name, prompt, num_tokens) for prompt in prompts]
        known = [one.counts for one in answered if one.counts is not None]
        mean = None if known else await gauge(http)
    if not known and mean is None and server.speculates is not False:
        cause = f"{root} gave no figures of speculation for {len(prompts)} requests"
        raise EyasError("server.metrics", cause, NO_FIGURES.get(server.kind, NO_FIGURES["other"]))
    total = total_of(known)
    return Observation(tuple(answered), server.kind, server.version, total, server.speculates, mean)


async def _ask(http: Http, server: Server, model: str, prompt: Prompt, num_tokens: int) -> Answered:
    before = await counters_now(http) if server.counted else {}
    path, body = _request(server, model, prompt, num_tokens)
    said = (await http.post(path, body)).whole().json()
    answered = read_answer(said)
    completion = completion_of(said)
    if completion is not None and completion > num_tokens:
        raise bad_metrics(f"{http.root}{path} counts {completion} tokens, and {num_tokens} were asked for")
    if answered.counts is None and server.counted:
        counts = await _settled(http, before, completion)
        answered = Answered(answered.tokens, answered.text, counts)
    return answered


def _request(server: Server, model: str, prompt: Prompt, num_tokens: int) -> tuple[str, dict[str, Any]]:
    sampling: dict[str, Any] = {"temperature": 0.0}
    if server.kind == "eyas":
        sampling["return_token_ids"] = True
        if server.speculates:
            # Predicted is a walk with one K, not with what pays at each moment.
            sampling["speculation"] = {"adaptive": False}
    messages = [dict(message) for message in prompt if isinstance(message, Mapping)]
    if messages:
        body = {"model": model, "messages": messages, "max_tokens": num_tokens, **sampling}
        extra = {"sglang": "return_meta_info", "vllm": "return_token_ids"}.get(server.kind)
        return "/v1/chat/completions", body | ({extra: True} if extra else {})
    if server.kind == "sglang":
        return "/generate", {"input_ids": list(prompt), "sampling_params": sampling | {"max_new_tokens": num_tokens}}
    body = {"model": model, "prompt": list(prompt), "max_tokens": num_tokens, **sampling}
    return "/v1/completions", body | ({"return_token_ids": True} if server.kind == "vllm" else {})


async def _settled(http: Http, before: counters.Gauges, completion: int | None) -> Counts:
    """What the counters moved by, once two looks agree and explain the answer."""
    last: Counts | None = None
    for _ in range(SETTLE_TRIES):
        now = counts_between(before, await counters_now(http), completion)
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
    if not is_list(requests) or not requests:
        raise EyasError("server.metrics", f"{path} holds no list of requests", fix)
    answered = tuple(_saved(request, i) for i, request in enumerate(requests))
    engine = about.get("engine")
    kind: Kind = "sglang" if engine == "sglang" else "vllm" if engine == "vllm" else "other"
    known = [one.counts for one in answered if one.counts is not None]
    return Observation(answered, kind, printable(about.get("version")), total_of(known), True)


def _saved(request: Any, number: int) -> Answered:
    if is_list(request):
        return Answered(None, None, counts_of_rounds(request))
    answered = read_answer(request) if isinstance(request, dict) else None
    if answered is None or answered.counts is None:
        raise bad_metrics(f"request {number} of the file has no figures of speculation", "leave it out of the file")
    return answered
