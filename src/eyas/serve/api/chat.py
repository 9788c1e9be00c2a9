"""POST /v1/chat/completions."""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any

from fastapi import Request
from starlette.responses import Response

from eyas.corpus.texts import content_of
from eyas.serve import parsers
from eyas.serve.api import asking
from eyas.serve.api.answers import ChatChoice, ChatChunk, ChatCompletion, ChunkChoice, Delta
from eyas.serve.api.bodies import ChatBody, NamedTool, Templated
from eyas.serve.api.failures import FieldError
from eyas.serve.api.figures import figures_of
from eyas.serve.api.grammars import check_size, grammar_of
from eyas.serve.api.pieces import Tally, merged, unfinished
from eyas.serve.api.replies import StreamReply, WholeReply, event
from eyas.serve.api.service import Service, service_of
from eyas.serve.api.speaker import Speaker, formats_of
from eyas.serve.wire import Ask, Grammar


@dataclass(frozen=True)
class Plan:
    """One request, checked and on its way."""

    service: Service
    body: ChatBody
    model: str
    asks: list[Ask]
    seeds: list[int | None]
    opened: bool | None
    """Whether the prompt ends within the reasoning; None: it says nothing of it."""
    id: str
    created: int

    @property
    def figures(self) -> bool:
        """Whether the answer tells its figures of speculation."""
        asked = self.body.speculation_figures
        return not self.body.stream if asked is None else asked

    def speakers(self) -> list[Speaker]:
        """One a choice."""
        return [Speaker(self.service, self.body, i, seed, self.opened) for i, seed in enumerate(self.seeds)]

    def tally(self) -> Tally:
        """Of all choices."""
        n = len(self.asks)
        return Tally(self.service.counted, len(self.asks[0].prompt), n, n)


async def chat_completions(body: ChatBody, request: Request) -> Response:
    """Answer a conversation."""
    service = service_of(request)
    plan = await _plan(body, request, service)
    seconds = service.limits.request_seconds
    if body.stream:
        return StreamReply(service.gate, seconds, _events(plan))
    return WholeReply(service.gate, seconds, lambda: _whole(plan))


async def _plan(body: ChatBody, request: Request, service: Service) -> Plan:
    ready = service.ready()
    model = service.check_model(body.model)
    asking.num_choices(body, 1, service.limits)
    _check_fields(body)
    logprobs = (body.top_logprobs or 0) if body.logprobs else None
    grammar = _grammar(body, service)
    longest = service.longest_prompt(ready)
    prompt, text = await chat_prompt(body, service, longest)
    thinking = service.settings.reasoning_format
    opened = parsers.opens_reasoning(thinking, text)
    grammar = None if grammar is None else parsers.after_reasoning(grammar, thinking, opened)
    shared = asking.wanted(request, body, service, grammar, logprobs)
    limit = body.max_completion_tokens if body.max_completion_tokens is not None else body.max_tokens
    room = asking.room_of(prompt, limit, None, ready, longest)
    asks = asking.asks(shared, body, [prompt], [room], shown_special(body, service))
    seeds = [(shared.seed + i) % (1 << 63) if shared.sampled else None for i in range(len(asks))]
    return Plan(service, body, model, asks, seeds, opened, f"chatcmpl-{secrets.token_hex(12)}", int(time.time()))


def _check_fields(body: ChatBody) -> None:
    both = body.max_tokens is not None and body.max_completion_tokens is not None
    if both and body.max_tokens != body.max_completion_tokens:
        cause = "max_tokens and max_completion_tokens differ"
        raise FieldError("request.field", "max_tokens", cause, "give one of them")
    if body.top_logprobs is not None and not body.logprobs:
        cause = "top_logprobs is given without logprobs"
        raise FieldError("request.field", "top_logprobs", cause, 'set "logprobs": true')
    if body.stream_options is not None and not body.stream:
        cause = "stream_options is given without stream"
        raise FieldError("request.field", "stream_options", cause, 'set "stream": true')
    if body.tool_choice not in (None, "none") and not body.tools:
        raise FieldError("request.field", "tool_choice", "tool_choice is given without tools", "give tools")


def _grammar(body: ChatBody, service: Service) -> Grammar | None:
    """Of the answer's text, or of the calls that it must make."""
    grammar = grammar_of(body, service.limits)
    tools, choice = body.tools or [], body.tool_choice or "auto"
    if len(tools) > service.limits.tools:
        cause = f"tools has {len(tools)} entries, and {service.limits.tools} are allowed"
        raise FieldError("request.limit", "tools", cause, "give fewer")
    if not tools or choice == "none":
        return grammar
    tool_format = service.settings.tool_format
    if tool_format is None:
        cause = "how this model writes calls of tools is not known"
        raise FieldError("request.unsupported", "tools", cause, 'leave tools out, or set "tool_choice": "none"')
    if choice == "auto":
        return grammar
    if grammar is not None:
        cause = "tool_choice asks for a call, and another field for a text of its own form"
        raise FieldError("request.field", "tool_choice", cause, "give one of them")
    name = choice.function.name if isinstance(choice, NamedTool) else None
    if name is not None and name not in {tool.function.name for tool in tools}:
        raise FieldError("request.field", "tool_choice", "tool_choice names no tool of tools", "name one of them")
    several, dumped = body.parallel_tool_calls is not False, dumped_tools(body)
    schemas = [json.dumps(tool["function"].get("parameters"), ensure_ascii=False) for tool in dumped]
    check_size("tools", "\n".join(schemas), service.limits)
    return parsers.tool_grammar(tool_format, dumped, "required" if name is None else name, several)


def dumped_tools(body: Templated) -> list[dict[str, Any]]:
    """As clients sent them."""
    return [tool.model_dump(exclude_unset=True) for tool in body.tools or ()]


def shown_special(body: ChatBody, service: Service) -> bool:
    """Whether the text must show special tokens, so that the marks of calls and reasoning are in it."""
    return not body.skip_special_tokens or parsers.needs_special_tokens(*formats_of(service, body))


async def chat_prompt(body: Templated, service: Service, longest: int | None) -> tuple[list[int], str]:
    """The conversation's token ids and text. Raises ``request.…``, ``rendering.refused``."""
    opened = body.add_generation_prompt
    if opened and body.continue_final_message:
        cause = "continue_final_message goes on with the last turn, and add_generation_prompt opens a new one"
        raise FieldError("request.field", "continue_final_message", cause, "set one of them")
    if body.continue_final_message and body.messages[-1].role != "assistant":
        cause = "continue_final_message is set, and the last message is not the assistant's"
        raise FieldError("request.field", "continue_final_message", cause, "leave it out")
    kwargs = dict(body.chat_template_kwargs or {})
    if body.reasoning_effort is not None:
        kwargs["reasoning_effort"] = body.reasoning_effort
    hidden = isinstance(body, ChatBody) and body.tool_choice == "none"
    tools = [] if hidden else dumped_tools(body)
    messages = [message.model_dump(exclude_none=True) for message in body.messages]
    messages = _told(messages, parsers.tools_prompt(service.settings.tool_format, tools))
    opened = not body.continue_final_message if opened is None else opened
    return await service.text.chat_prompt(messages, tools, kwargs, opened, body.continue_final_message, longest)


def _told(messages: list[dict[str, Any]], of_tools: str | None) -> list[dict[str, Any]]:
    """With what the target must know of the tools in the system's turn, where its template does not say it."""
    if of_tools is None:
        return messages
    if messages[0]["role"] not in ("system", "developer"):
        return [{"role": "system", "content": of_tools}, *messages]
    return [{**messages[0], "content": f"{content_of(messages[0])}\n\n{of_tools}"}, *messages[1:]]


async def _whole(plan: Plan) -> ChatCompletion:
    tally, speakers = plan.tally(), plan.speakers()
    async with aclosing(merged(plan.service.client, plan.asks)) as pieces:
        async for index, piece in pieces:
            tally.take(index, piece)
            speakers[index].take(piece)
    choices: list[ChatChoice] = [speaker.whole() for speaker in speakers]
    answer = ChatCompletion(
        object="chat.completion",
        id=plan.id,
        created=plan.created,
        model=plan.model,
        choices=choices,
        usage=tally.usage(),
    )
    if plan.figures:
        answer.speculation = figures_of(tally.rounds)
    if plan.body.return_token_ids:
        answer.prompt_token_ids = plan.asks[0].prompt
    return answer


async def _events(plan: Plan) -> AsyncGenerator[bytes, None]:
    tally, speakers = plan.tally(), plan.speakers()
    options = plan.body.stream_options
    usage = options is not None and bool(options.include_usage)
    opened: set[int] = set()

    def chunk(choices: list[ChunkChoice]) -> ChatChunk:
        part = ChatChunk(
            object="chat.completion.chunk", id=plan.id, created=plan.created, model=plan.model, choices=choices
        )
        if usage:
            part.usage = None
        return part

    async with aclosing(merged(plan.service.client, plan.asks)) as pieces:
        async for index, piece in pieces:
            tally.take(index, piece)
            if index not in opened:
                opened.add(index)
                yield event(chunk([_opening(index, plan.seeds[index])]))
            for choice in speakers[index].take(piece):
                yield event(chunk([choice]))
    if tally.ended < len(plan.asks):
        raise unfinished()
    if usage or plan.figures:
        last = chunk([])
        if usage:
            last.usage = tally.usage()
        if plan.figures:
            last.speculation = figures_of(tally.rounds)
        yield event(last)


def _opening(index: int, seed: int | None) -> ChunkChoice:
    choice = ChunkChoice(index=index, delta=Delta(role="assistant", content=""), logprobs=None, finish_reason=None)
    if seed is not None:
        choice.seed = seed
    return choice
