"""POST /v1/completions."""

from __future__ import annotations

import secrets
import time
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass

from fastapi import Request
from starlette.responses import Response

from eyas.serve.api import asking
from eyas.serve.api.answers import Completion, Finish, Origins, TextChoice
from eyas.serve.api.bodies import CompletionBody
from eyas.serve.api.failures import FieldError
from eyas.serve.api.figures import figures_of
from eyas.serve.api.grammars import grammar_of
from eyas.serve.api.logprobs import TextOffsets
from eyas.serve.api.pieces import Tally, merged, unfinished
from eyas.serve.api.replies import StreamReply, WholeReply, event
from eyas.serve.api.service import Service, service_of
from eyas.serve.wire import Ask, Piece


@dataclass(frozen=True)
class Plan:
    """One request, checked and on its way. ``echoes``: each prompt's text, "" where it is not asked for."""

    service: Service
    body: CompletionBody
    model: str
    asks: list[Ask]
    seeds: list[int | None]
    echoes: list[str]
    id: str
    created: int

    @property
    def figures(self) -> bool:
        """Whether the answer tells its figures of speculation."""
        asked = self.body.speculation_figures
        return not self.body.stream if asked is None else asked

    @property
    def n(self) -> int:
        """Answers a prompt."""
        return self.body.n or 1

    def tally(self) -> Tally:
        """Of all choices."""
        prompts = sum(len(ask.prompt) for ask in self.asks[:: self.n])
        return Tally(self.service.counted, prompts, len(self.asks), self.n)

    def writers(self) -> list[Writer]:
        """One a choice."""
        return [Writer(self, i) for i in range(len(self.asks))]


async def completions(body: CompletionBody, request: Request) -> Response:
    """Go on from a text, or from several."""
    service = service_of(request)
    plan = await _plan(body, request, service)
    seconds = service.limits.request_seconds
    if body.stream:
        return StreamReply(service.gate, seconds, _events(plan))
    return WholeReply(service.gate, seconds, lambda: _whole(plan))


async def _plan(body: CompletionBody, request: Request, service: Service) -> Plan:
    ready = service.ready()
    model = service.check_model(body.model)
    _check_fields(body)
    given = _prompts(body)
    asking.num_choices(body, len(given), service.limits)
    shared = asking.wanted(request, body, service, grammar_of(body, service.limits), body.logprobs)
    longest = service.longest_prompt(ready)
    prompts = [await service.text.encode(p, True, longest) if isinstance(p, str) else p for p in given]
    default = asking.DEFAULT_COMPLETION_TOKENS
    rooms = [asking.room_of(prompt, body.max_tokens, default, ready, longest) for prompt in prompts]
    asks = asking.asks(shared, body, prompts, rooms, not body.skip_special_tokens)
    echoes = [""] * len(given)
    if body.echo:
        echoes = [p if isinstance(p, str) else await service.text.decode(p) for p in given]
    seeds = [(shared.seed + i) % (1 << 63) if shared.sampled else None for i in range(len(asks))]
    return Plan(service, body, model, asks, seeds, echoes, f"cmpl-{secrets.token_hex(12)}", int(time.time()))


def _check_fields(body: CompletionBody) -> None:
    if body.best_of is not None and body.best_of != (body.n or 1):
        cause = "best_of makes answers that are thrown away, which this server does not do"
        raise FieldError("request.unsupported", "best_of", cause, "leave it out, or give it the value of n")
    if body.suffix:
        cause = "this model has no way to write between two texts"
        raise FieldError("request.unsupported", "suffix", cause, "leave suffix out")
    if body.echo and body.logprobs is not None:
        cause = "logprobs of a prompt are not computed"
        raise FieldError("request.unsupported", "echo", cause, "leave out echo or logprobs")
    if body.stream_options is not None and not body.stream:
        cause = "stream_options is given without stream"
        raise FieldError("request.field", "stream_options", cause, 'set "stream": true')


def _prompts(body: CompletionBody) -> list[str | list[int]]:
    prompt = body.prompt
    if isinstance(prompt, str):
        return [prompt]
    if not prompt:
        raise FieldError("request.empty", "prompt", "prompt is an empty list", "send a text or token ids")
    tokens = [p for p in prompt if isinstance(p, int)]
    return [tokens] if tokens else [p for p in prompt if not isinstance(p, int)]


class Writer:
    """One choice: its pieces as they are told, and all of them together."""

    def __init__(self, plan: Plan, index: int) -> None:
        self.index, self._plan = index, plan
        self._offsets = TextOffsets(plan.service.text, 0)
        self._parts: list[TextChoice] = []
        self._finish: Finish | None = None

    def take(self, piece: Piece) -> TextChoice | None:
        """What a piece makes; None for nothing to tell."""
        body, begins = self._plan.body, not self._parts
        text = (self._plan.echoes[self.index // self._plan.n] if begins else "") + "".join(piece.texts)
        choice = TextChoice(index=self.index, text=text, logprobs=None, finish_reason=None)
        if begins and self._plan.seeds[self.index] is not None:
            choice.seed = self._plan.seeds[self.index]
        if body.logprobs is not None and piece.logprobs:
            choice.logprobs = self._offsets.logprobs(piece.logprobs, body.logprobs > 0)
        if body.return_token_ids:
            choice.token_ids = piece.tokens
            if begins:
                choice.prompt_token_ids = self._plan.asks[self.index].prompt
        if body.origins:
            choice.origins = list(zip(piece.texts, piece.origins, strict=True))
        if piece.finish is not None:
            assert piece.finish != "abort"
            self._finish = choice.finish_reason = piece.finish
            choice.stop_reason = piece.stop_reason
        told = text or choice.logprobs or choice.token_ids or choice.origins or piece.finish or begins
        if not told:
            return None
        self._parts.append(choice)
        return choice

    def whole(self) -> TextChoice:
        """All of it. Raises ``engine.died`` if it has no end."""
        if self._finish is None:
            raise unfinished()
        first, *rest = self._parts
        whole = first.model_copy(deep=True)
        for part in rest:
            whole.text += part.text
            if part.token_ids is not None:
                whole.token_ids = [*(whole.token_ids or ()), *part.token_ids]
            if part.origins is not None:
                whole.origins = _joined(whole.origins, part.origins)
            if part.logprobs is not None:
                _extend(whole, part)
        whole.finish_reason, whole.stop_reason = self._finish, self._parts[-1].stop_reason
        return whole


def _joined(before: Origins | None, more: Origins) -> Origins:
    return [*(before or ()), *more]


def _extend(whole: TextChoice, part: TextChoice) -> None:
    more = part.logprobs
    assert more is not None
    if whole.logprobs is None:
        whole.logprobs = more.model_copy(deep=True)
        return
    whole.logprobs.tokens += more.tokens
    whole.logprobs.token_logprobs += more.token_logprobs
    whole.logprobs.text_offset += more.text_offset
    if whole.logprobs.top_logprobs is not None:
        whole.logprobs.top_logprobs += more.top_logprobs or []


async def _whole(plan: Plan) -> Completion:
    tally, writers = plan.tally(), plan.writers()
    async with aclosing(merged(plan.service.client, plan.asks)) as pieces:
        async for index, piece in pieces:
            tally.take(index, piece)
            writers[index].take(piece)
    answer = _completion(plan, [writer.whole() for writer in writers])
    answer.usage = tally.usage()
    if plan.figures:
        answer.speculation = figures_of(tally.rounds)
    return answer


async def _events(plan: Plan) -> AsyncGenerator[bytes, None]:
    tally, writers = plan.tally(), plan.writers()
    options = plan.body.stream_options
    usage = options is not None and bool(options.include_usage)
    async with aclosing(merged(plan.service.client, plan.asks)) as pieces:
        async for index, piece in pieces:
            tally.take(index, piece)
            choice = writers[index].take(piece)
            if choice is not None:
                part = _completion(plan, [choice])
                if usage:
                    part.usage = None
                yield event(part)
    if tally.ended < len(plan.asks):
        raise unfinished()
    if usage or plan.figures:
        last = _completion(plan, [])
        if usage:
            last.usage = tally.usage()
        if plan.figures:
            last.speculation = figures_of(tally.rounds)
        yield event(last)


def _completion(plan: Plan, choices: list[TextChoice]) -> Completion:
    return Completion(object="text_completion", id=plan.id, created=plan.created, model=plan.model, choices=choices)
