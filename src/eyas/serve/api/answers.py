"""What answers hold: OpenAI's objects, with ours beside (``speculation``, ``origins``, ``seed``, ``stop_reason``)."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict

Origins = list[tuple[str, int]]
"""Text, and who proposed it: 0 the target itself, i the draft's step i."""
Finish = Literal["stop", "length", "tool_calls"]


class Answer(BaseModel):
    """Base: nothing that is not described."""

    model_config = ConfigDict(extra="forbid")


class PromptDetails(Answer):
    """``cached_tokens``: taken from the prefix cache."""

    cached_tokens: int


class Usage(Answer):
    """In tokens. ``completion_tokens``: all that were generated, end tokens too."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptDetails


class SpeculationFigures(Answer):
    """Over the rounds of all choices that proposed drafts. ``accepted_histogram``: whole rounds by accepted drafts,
    from 0; empty without any · ``cut_rounds``: ended by a stop or limit within their drafts, in no other figure ·
    ``plain_rounds``: that proposed nothing · ``accept_length``: tokens per whole round, the target's own included;
    null without any · ``ceiling``: its greatest possible value · ``survival``: [i − 1] = P(accepted ≥ i).
    """

    rounds: int
    cut_rounds: int
    plain_rounds: int
    proposed: int
    accepted_histogram: list[int]
    accept_length: float | None
    ceiling: int
    survival: list[float]


class TopLogprob(Answer):
    """Of one token, natural logarithms."""

    token: str
    bytes: list[int] | None
    logprob: float


class ChatLogprob(TopLogprob):
    """Of the chosen token."""

    top_logprobs: list[TopLogprob]


class ChatLogprobs(Answer):
    """One entry a generated token."""

    content: list[ChatLogprob]
    refusal: None = None


class CompletionLogprobs(Answer):
    """One entry a generated token; ``text_offset``: characters before it."""

    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float]] | None
    text_offset: list[int]


class FunctionDelta(Answer):
    """``arguments``: the next part of a JSON text."""

    name: str | None = None
    arguments: str | None = None


class ToolCallDelta(Answer):
    """A tool call or its next part."""

    index: int
    id: str | None = None
    type: Literal["function"] | None = None
    function: FunctionDelta


class CalledFunction(Answer):
    """``arguments``: a JSON text, as the model wrote it."""

    name: str
    arguments: str


class ToolCall(Answer):
    """A function to call."""

    id: str
    type: Literal["function"] = "function"
    function: CalledFunction


class Message(Answer):
    """The answer's turn."""

    role: Literal["assistant"] = "assistant"
    content: str | None
    refusal: None = None
    reasoning_content: str | None = None
    tool_calls: list[ToolCall] | None = None


class Delta(Answer):
    """What a chunk adds to the turn."""

    role: Literal["assistant"] | None = None
    content: str | None = None
    reasoning_content: str | None = None
    tool_calls: list[ToolCallDelta] | None = None


class Choice(Answer):
    """``seed``: of this choice's draws, where it was sampled · ``stop_reason``: the stop string or token id that ended
    it.
    """

    index: int
    seed: int | None = None
    stop_reason: str | int | None = None
    token_ids: list[int] | None = None
    origins: Origins | None = None


class ChatChoice(Choice):
    """One answer."""

    message: Message
    logprobs: ChatLogprobs | None
    finish_reason: Finish


class ChunkChoice(Choice):
    """A part of one answer."""

    delta: Delta
    logprobs: ChatLogprobs | None
    finish_reason: Finish | None


class TextChoice(Choice):
    """A text that goes on from a prompt, or a part of it."""

    text: str
    logprobs: CompletionLogprobs | None
    finish_reason: Finish | None
    prompt_token_ids: list[int] | None = None


class Whole(Answer):
    """What answers of all forms have in common."""

    id: str
    created: int
    model: str
    system_fingerprint: str | None = None
    usage: Usage | None = None
    speculation: SpeculationFigures | None = None
    prompt_token_ids: list[int] | None = None


class ChatCompletion(Whole):
    """The answer of /v1/chat/completions."""

    object: Literal["chat.completion"] = "chat.completion"
    choices: list[ChatChoice]


class ChatChunk(Whole):
    """An event of its stream."""

    object: Literal["chat.completion.chunk"] = "chat.completion.chunk"
    choices: list[ChunkChoice]


class Completion(Whole):
    """The answer of /v1/completions, and an event of its stream."""

    object: Literal["text_completion"] = "text_completion"
    choices: list[TextChoice]


class Model(Answer):
    """``max_model_len``: tokens of prompt and answer together."""

    id: str
    object: Literal["model"] = "model"
    created: int
    owned_by: Literal["eyas"] = "eyas"
    max_model_len: int


class Models(Answer):
    """All that are served."""

    object: Literal["list"] = "list"
    data: list[Model]


class Tokenized(Answer):
    """As vLLM's."""

    count: int
    max_model_len: int
    tokens: list[int]
    token_strs: list[str] | None


class Detokenized(Answer):
    """As vLLM's."""

    prompt: str


class Health(Answer):
    """``state``: ``alive``, or ``ready``."""

    state: Literal["alive", "ready"]


class Flushed(Answer):
    """The prefix cache is empty."""

    flushed: bool


class ServerInfo(Answer):
    """``speculation``: settings in effect, null without a draft · ``settings``: effective values, and where each came
    from · ``loaded``: what the engine said when it was, with contract and versions · ``status``: its figures now ·
    ``limits``: of the HTTP side.
    """

    engine: Literal["eyas"]
    version: str
    models: list[str]
    speculation: dict[str, Any] | None
    settings: dict[str, Any]
    loaded: dict[str, Any]
    status: dict[str, Any] | None
    restarts: int
    limits: dict[str, Any]
