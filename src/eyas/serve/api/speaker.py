"""One choice of a chat: its pieces as deltas, and all of them as one message."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from eyas.serve.api.answers import (
    CalledFunction,
    ChatChoice,
    ChunkChoice,
    Delta,
    Finish,
    FunctionDelta,
    Message,
    Origins,
    ToolCall,
    ToolCallDelta,
)
from eyas.serve.api.bodies import ChatBody
from eyas.serve.api.logprobs import chat_logprobs
from eyas.serve.api.pieces import unfinished
from eyas.serve.api.service import Service
from eyas.serve.parsers import Content, Event, Reasoning, ToolArguments, ToolStart, stream_parser
from eyas.serve.wire import Piece, TokenLogprobs


def formats_of(service: Service, body: ChatBody) -> tuple[str | None, str | None]:
    """(of calls, of reasoning): what this answer's text is read as."""
    calls = bool(body.tools) and body.tool_choice != "none"
    settings = service.settings
    return settings.tool_format if calls else None, settings.reasoning_format if body.separate_reasoning else None


class Speaker:
    """``seed``: of its draws, to be told; None where nothing is drawn · ``opened``: the prompt ends within the
    reasoning; None: it says nothing of it.
    """

    def __init__(self, service: Service, body: ChatBody, index: int, seed: int | None, opened: bool | None) -> None:
        self.index, self.seed = index, seed
        self._text, self._body = service.text, body
        tools = [tool.model_dump(exclude_unset=True) for tool in body.tools or ()]
        self._split = stream_parser(*formats_of(service, body), tools, opened)
        self._one_call = body.parallel_tool_calls is False
        self._deltas: list[Delta] = []
        self._tokens: list[int] = []
        self._origins: Origins = []
        self._logprobs: list[TokenLogprobs] = []
        self._called = False
        self._finish: Finish | None = None
        self._stop_reason: str | int | None = None

    def take(self, piece: Piece) -> list[ChunkChoice]:
        """The chunks that a piece makes."""
        events = self._split.feed("".join(piece.texts))
        if piece.finish is not None:
            events = [*events, *self._split.end()]
        deltas = list(self._as_deltas(events))
        self._deltas += deltas
        self._tokens += piece.tokens
        origins = list(zip(piece.texts, piece.origins, strict=True))
        self._origins += origins
        self._logprobs += piece.logprobs or []
        chunks = [self._chunk(delta, None) for delta in deltas]
        told = bool(piece.logprobs) or (self._body.origins and bool(origins)) or self._body.return_token_ids
        if not chunks and told and piece.tokens:
            chunks = [self._chunk(Delta(), None)]
        if piece.finish is not None:
            assert piece.finish != "abort"
            self._finish = "tool_calls" if self._called and piece.finish == "stop" else piece.finish
            self._stop_reason = piece.stop_reason
            last = self._chunk(Delta(), self._finish)
            last.stop_reason = piece.stop_reason
            chunks.append(last)
        if chunks:
            self._tell(chunks[0], piece, origins)
        return chunks

    def whole(self) -> ChatChoice:
        """All of it. Raises ``engine.died`` if it has no end."""
        if self._finish is None:
            raise unfinished()
        choice = ChatChoice(
            index=self.index,
            message=self._message(),
            logprobs=chat_logprobs(self._text, self._logprobs) if self._body.logprobs else None,
            finish_reason=self._finish,
            stop_reason=self._stop_reason,
        )
        if self.seed is not None:
            choice.seed = self.seed
        if self._body.return_token_ids:
            choice.token_ids = self._tokens
        if self._body.origins:
            choice.origins = self._origins
        return choice

    def _tell(self, chunk: ChunkChoice, piece: Piece, origins: Origins) -> None:
        """A piece's tokens are told with the first of its chunks."""
        if self._body.logprobs and piece.logprobs:
            chunk.logprobs = chat_logprobs(self._text, piece.logprobs)
        if self._body.origins:
            chunk.origins = origins
        if self._body.return_token_ids:
            chunk.token_ids = piece.tokens

    def _chunk(self, delta: Delta, finish: Finish | None) -> ChunkChoice:
        return ChunkChoice(index=self.index, delta=delta, logprobs=None, finish_reason=finish)

    def _as_deltas(self, events: Sequence[Event]) -> Iterator[Delta]:
        for event in events:
            match event:
                case Content(text=text):
                    yield Delta(content=text)
                case Reasoning(text=text):
                    yield Delta(reasoning_content=text)
                case ToolStart(index=index) | ToolArguments(index=index) if self._one_call and index:
                    continue
                case ToolStart(index=index, id=id_, name=name):
                    self._called = True
                    function = FunctionDelta(name=name, arguments="")
                    yield Delta(tool_calls=[ToolCallDelta(index=index, id=id_, type="function", function=function)])
                case ToolArguments(index=index, text=text):
                    yield Delta(tool_calls=[ToolCallDelta(index=index, function=FunctionDelta(arguments=text))])

    def _message(self) -> Message:
        content = "".join(delta.content or "" for delta in self._deltas)
        reasoning = "".join(delta.reasoning_content or "" for delta in self._deltas)
        calls: dict[int, ToolCall] = {}
        for part in (part for delta in self._deltas for part in delta.tool_calls or ()):
            if part.id is not None:
                function = CalledFunction(name=part.function.name or "", arguments="")
                calls[part.index] = ToolCall(id=part.id, type="function", function=function)
            calls[part.index].function.arguments += part.function.arguments or ""
        message = Message(role="assistant", content=content if content or not calls else None, refusal=None)
        if reasoning:
            message.reasoning_content = reasoning
        if calls:
            message.tool_calls = [calls[index] for index in sorted(calls)]
        return message
