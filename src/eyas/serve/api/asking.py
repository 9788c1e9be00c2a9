"""Requests as the engine takes them: sampling, speculation, stops and limits."""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from starlette.requests import Request

from eyas.config import SamplingSettings, SpeculativeSettings
from eyas.errors import EyasError
from eyas.serve.api.bodies import ChatBody, CompletionBody, Speculation
from eyas.serve.api.failures import FieldError
from eyas.serve.api.guard import KEY_NUMBER
from eyas.serve.api.service import Service
from eyas.serve.limits import Limits
from eyas.serve.wire import Ask, Grammar, Ready

DEFAULT_COMPLETION_TOKENS = 16
OPENAI_DEFAULTS: Mapping[str, float] = {"temperature": 1.0, "top_p": 1.0}
MOST_NEW_TOKENS = 1 << 20
SEED_BITS = 48
"""Of a seed that is drawn: every JSON reader keeps it exactly."""
PLAIN = "null"
"""A request's settings of speculation that ask for none."""
SAMPLED = ("temperature", "top_p", "min_p", "repetition_penalty", "presence_penalty", "frequency_penalty")


@dataclass(frozen=True)
class Wanted:
    """What the asks of one request share. ``seed``: of the first; ``drawn`` tells whether one is reported."""

    sampling: dict[str, Any]
    seed: int
    sampled: bool
    speculation: str | None
    adaptive: bool
    stop: list[str]
    grammar: Grammar | None
    top_logprobs: int | None
    client: str
    user: str


def wanted(
    request: Request, body: ChatBody | CompletionBody, service: Service, grammar: Grammar | None, logprobs: int | None
) -> Wanted:
    """Checked against the limits and the model. Raises ``request.…``, ``flags.…``."""
    limits, ready = service.limits, service.ready()
    sampling = _sampling(body, service.settings.defaults, limits, ready)
    sampled = sampling["temperature"] != 0
    seed = body.seed if body.seed is not None else service.settings.seed
    if seed is None:
        seed = secrets.randbits(SEED_BITS) if sampled else 0
    if logprobs is not None and logprobs > limits.top_logprobs:
        field = "top_logprobs" if isinstance(body, ChatBody) else "logprobs"
        cause = f"{field} is {logprobs}, and {limits.top_logprobs} is the most"
        raise FieldError("request.limit", field, cause, f"ask for {limits.top_logprobs} or fewer")
    return Wanted(
        sampling,
        # Any whole number is a seed; the noise is keyed with 63 bits.
        seed % (1 << 63),
        sampled,
        _speculation(body.speculation, service.settings.speculation),
        not isinstance(body.speculation, Speculation) or body.speculation.adaptive is not False,
        _stops(body, limits),
        grammar,
        logprobs,
        _client(request),
        body.user or "",
    )


def asks(
    wanted: Wanted,
    body: ChatBody | CompletionBody,
    prompts: Sequence[list[int]],
    room: Sequence[int],
    special: bool,
) -> list[Ask]:
    """``n`` asks a prompt, with seeds one after the other. ``room``: answer tokens for each prompt · ``special``: the
    text shows special tokens.
    """
    found: list[Ask] = []
    n = body.n or 1
    for prompt, most in zip(prompts, room, strict=True):
        for _ in range(n):
            seed = (wanted.seed + len(found)) % (1 << 63)
            sampling = SamplingSettings(**wanted.sampling, seed=seed, max_new_tokens=most)
            found.append(
                Ask(
                    id=secrets.token_hex(8),
                    prompt=prompt,
                    sampling=sampling.model_dump_json(),
                    speculation=wanted.speculation,
                    adaptive=wanted.adaptive,
                    stop=wanted.stop,
                    include_stop=body.include_stop_str_in_output,
                    grammar=wanted.grammar,
                    top_logprobs=wanted.top_logprobs,
                    skip_special_tokens=not special,
                    priority=body.priority,
                    client=wanted.client,
                    user=wanted.user,
                )
            )
    return found


def num_choices(body: ChatBody | CompletionBody, prompts: int, limits: Limits) -> int:
    """Answers of the request. Raises ``request.limit``."""
    number = (body.n or 1) * prompts
    if number > limits.choices:
        field = "n" if prompts == 1 else "prompt"
        cause = f"{number} answers are asked for, and {limits.choices} are allowed"
        raise FieldError("request.limit", field, cause, "ask for fewer in one request")
    return number


def room_of(prompt: Sequence[int], asked: int | None, default: int | None, ready: Ready, longest: int) -> int:
    """Tokens that the answer may have: what is asked for; if nothing is, ``default`` or all that the context leaves.

    Raises ``request.empty``, ``request.too-long``, ``request.field``.
    """
    if not prompt:
        raise FieldError("request.empty", "prompt", "the prompt has no tokens", "send one with a word or more")
    if len(prompt) > longest:
        cause = f"the prompt has {len(prompt)} tokens, and {longest} fit"
        raise EyasError("request.too-long", cause, "shorten the prompt")
    foreign = next((token for token in prompt if token >= ready.vocab_size), None)
    if foreign is not None:
        cause = f"prompt names token {foreign}, and the vocabulary has {ready.vocab_size}"
        raise FieldError("request.field", "prompt", cause, "tokenise it with /tokenize")
    left = min(ready.context - len(prompt), MOST_NEW_TOKENS)
    if asked is not None and asked > left:
        cause = f"max_tokens is {asked}, and after {len(prompt)} tokens of the prompt the context leaves {left}"
        raise FieldError("request.too-long", "max_tokens", cause, f"ask for at most {left}, or leave max_tokens out")
    if asked is not None:
        return asked
    return left if default is None else min(default, left)


def _sampling(
    body: ChatBody | CompletionBody, defaults: Mapping[str, float | int], limits: Limits, ready: Ready
) -> dict[str, Any]:
    given = {name: getattr(body, name) for name in SAMPLED}
    values: dict[str, Any] = {**OPENAI_DEFAULTS, **defaults, **{k: v for k, v in given.items() if v is not None}}
    if body.top_k is not None:
        values["top_k"] = max(body.top_k, 0)
    values["ignore_eos"] = body.ignore_eos
    values["stop_token_ids"] = _tokens("stop_token_ids", body.stop_token_ids or (), limits.stop_token_ids, ready)
    values["logit_bias"] = _biases(body.logit_bias or {}, limits, ready)
    # So that a value outside its range is refused here, with its name, before anything runs.
    for name, value in values.items():
        try:
            SamplingSettings(**{name: value})
        except EyasError as error:
            raise FieldError(error.code, name, error.cause, error.fix) from error
    return values


def _tokens(field: str, tokens: Sequence[int], most: int, ready: Ready) -> tuple[int, ...]:
    if len(tokens) > most:
        raise _many(field, len(tokens), most)
    foreign = next((t for t in tokens if t >= ready.vocab_size), None)
    if foreign is not None:
        cause = f"{field} names token {foreign}, and the vocabulary has {ready.vocab_size}"
        raise FieldError("request.field", field, cause, "leave it out")
    return tuple(tokens)


def _biases(given: Mapping[str, float], limits: Limits, ready: Ready) -> dict[int, float]:
    tokens = _tokens("logit_bias", [int(k) for k in given], limits.logit_biases, ready)
    return dict(zip(tokens, given.values(), strict=True))


def _stops(body: ChatBody | CompletionBody, limits: Limits) -> list[str]:
    stops = [body.stop] if isinstance(body.stop, str) else list(body.stop or ())
    if len(stops) > limits.stop_strings:
        raise _many("stop", len(stops), limits.stop_strings)
    for stop in stops:
        if len(stop) > limits.stop_chars:
            cause = f"a string of stop has {len(stop)} characters, and {limits.stop_chars} are allowed"
            raise FieldError("request.limit", "stop", cause, "give shorter strings")
    return stops


def _speculation(given: Speculation | bool | None, own: Mapping[str, Any] | None) -> str | None:
    """``own``: the server's settings, which stand where the request gives none."""
    if given is None or given is True:
        return None
    if given is False:
        return PLAIN
    asked = given.model_dump(exclude={"adaptive"})
    if own is not None and not given.model_fields_set - {"adaptive"}:
        return None
    try:
        settings = SpeculativeSettings.resolve(**asked)
    except EyasError as error:
        raise FieldError(error.code, "speculation", error.cause, error.fix) from error
    return settings.model_dump_json()


def _client(request: Request) -> str:
    """Who takes turns with others: the key where there are several, for one address may be many clients'."""
    number = getattr(request.state, KEY_NUMBER, None)
    host = request.client.host if request.client else ""
    return host if number is None else f"key {number}"


def _many(field: str, number: int, most: int) -> EyasError:
    return FieldError("request.limit", field, f"{field} has {number} entries, and {most} are allowed", "give fewer")
