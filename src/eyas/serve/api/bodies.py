"""What requests may hold: strict, no unknown fields, no conversions."""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Discriminator, Field, Tag

from eyas.config import MAX_DRAFT_TOKENS, MAX_STEPS, MAX_TOPK, DraftSampling

Item = TypeVar("Item")
Items = Annotated[list[Item], Field(fail_fast=True)]
"""A list whose first fault is told alone: a fault of each of millions would hold up all who are served."""
Token = Annotated[int, Field(ge=0, lt=1 << 31)]
Positive = Annotated[int, Field(ge=1, lt=1 << 31)]
Penalty = Annotated[float, Field(ge=-2, le=2)]
Choices = Annotated[Items[Annotated[str, Field(min_length=1)]], Field(min_length=1)]
StopString = Annotated[str, Field(min_length=1)]
TEXT_BRANCH, CHAT_BRANCH = "of a text", "of a chat"
TokenKey = Annotated[str, Field(pattern="^[0-9]{1,10}$")]
Name = Annotated[str, Field(max_length=256)]


class Body(BaseModel):
    """Base of all."""

    model_config = ConfigDict(strict=True, extra="forbid", allow_inf_nan=False)


class WithoutEffect(Body):
    """OpenAI's fields that say nothing about the answer: accepted, for clients that always send them. All others that
    have no meaning here are refused. This is the whole table.
    """

    store: bool | None = Field(None, description="Nothing is stored.")
    metadata: dict[str, str] | None = Field(None, description="Labels of what is stored.")
    service_tier: Literal["auto", "default"] | None = Field(None, description="There is one.")
    safety_identifier: str | None = Field(None, description="For OpenAI's own policing.")
    prompt_cache_key: str | None = Field(None, description="The prefix cache finds prefixes by itself.")
    prompt_cache_retention: str | None = Field(None, description="The prefix cache keeps what fits.")
    modalities: Items[Literal["text"]] | None = Field(None, description="Answers are text.")


class Speculation(Body):
    """How drafts are proposed for this request: settings as the server's flags, K = ``num_steps``."""

    num_steps: Annotated[int, Field(ge=1, le=MAX_STEPS)] | None = None
    eagle_topk: Annotated[int, Field(ge=1, le=MAX_TOPK)] | None = None
    num_draft_tokens: Annotated[int, Field(ge=2, le=MAX_DRAFT_TOKENS)] | None = None
    draft_sampling: DraftSampling = "one-hot"
    adaptive: bool | None = Field(None, description="false: exactly so many drafts each round, paying or not.")


class StreamOptions(Body):
    """``include_usage``: a last chunk without choices tells the usage."""

    include_usage: bool | None = None
    include_obfuscation: Literal[False] | None = None


class StructuredOutputs(Body):
    """vLLM's; exactly one of them."""

    # "json" would hide a method of pydantic's.
    json_: dict[str, Any] | str | None = Field(None, alias="json")
    regex: str | None = None
    choice: Choices | None = None
    grammar: str | None = None
    json_object: bool | None = None


class Generation(WithoutEffect):
    """What chats and completions have in common."""

    model: Name | None = None
    max_tokens: Positive | None = None
    temperature: Annotated[float, Field(ge=0, le=100)] | None = None
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    top_k: Annotated[int, Field(ge=-1, lt=1 << 31)] | None = Field(None, description="-1 or 0: off.")
    min_p: Annotated[float, Field(ge=0, le=1)] | None = None
    seed: int | None = None
    n: Positive | None = None
    stop: StopString | Items[StopString] | None = None
    stop_token_ids: Items[Token] | None = None
    include_stop_str_in_output: bool = False
    ignore_eos: bool = False
    skip_special_tokens: bool = True
    repetition_penalty: Annotated[float, Field(gt=0, le=10)] | None = None
    presence_penalty: Penalty | None = None
    frequency_penalty: Penalty | None = None
    logit_bias: dict[TokenKey, Annotated[float, Field(ge=-100, le=100)]] | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    user: Name | None = Field(None, description="Users of one priority take turns.")
    priority: Annotated[int, Field(ge=-1000, le=1000)] = Field(0, description="Higher goes first.")
    guided_regex: str | None = None
    guided_json: dict[str, Any] | str | None = None
    guided_grammar: str | None = None
    guided_choice: Choices | None = None
    structured_outputs: StructuredOutputs | None = None
    regex: str | None = None
    ebnf: str | None = None
    speculation: Speculation | bool | None = Field(None, description="false: decode plainly.")
    speculation_figures: bool | None = Field(
        None, description="Whether the answer tells its figures of speculation; not given: all but streams do."
    )
    origins: bool = Field(False, description="Tell of each token's text who proposed it: 0 target, i draft step i.")
    return_token_ids: bool = False


class TextPart(Body):
    """A part of a message's content."""

    type: Literal["text"]
    text: str


class CalledFunction(Body):
    """``arguments``: JSON in a string."""

    name: str
    arguments: str


class ToolCall(Body):
    """A call in a former turn."""

    id: str | None = None
    type: Literal["function"] = "function"
    function: CalledFunction
    index: Annotated[int, Field(ge=0, lt=1 << 31)] | None = None


class Turn(Body):
    """What is said by anyone but the assistant."""

    role: Literal["system", "developer", "user", "tool"]
    content: str | Items[TextPart]
    name: str | None = None
    tool_call_id: str | None = None


class AssistantTurn(Body):
    """A former answer; clients send it back as they got it."""

    role: Literal["assistant"]
    content: str | Items[TextPart] | None = None
    name: str | None = None
    tool_calls: Items[ToolCall] | None = None
    reasoning_content: str | None = None
    refusal: None = None
    annotations: Annotated[Items[Any], Field(max_length=0)] | None = None
    audio: None = None
    function_call: None = None


ChatMessage = Annotated[Turn | AssistantTurn, Field(discriminator="role")]


class Function(Body):
    """``parameters``: a JSON schema."""

    name: Annotated[str, Field(pattern=r"^[a-zA-Z0-9_.:-]{1,128}$")]
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class Tool(Body):
    """A function that the answer may call."""

    type: Literal["function"]
    function: Function


class FunctionName(Body):
    """Of a tool."""

    name: str


class NamedTool(Body):
    """The tool that must be called."""

    type: Literal["function"]
    function: FunctionName


class TextFormat(Body):
    """Anything."""

    type: Literal["text"]


class JsonObjectFormat(Body):
    """Any JSON object."""

    type: Literal["json_object"]


class JsonSchema(Body):
    """``strict``: the schema always holds."""

    model_config = ConfigDict(protected_namespaces=())

    name: Name
    schema_: dict[str, Any] = Field(alias="schema")
    description: str | None = None
    strict: bool | None = None


class JsonSchemaFormat(Body):
    """JSON of one schema."""

    type: Literal["json_schema"]
    json_schema: JsonSchema


ResponseFormat = Annotated[TextFormat | JsonObjectFormat | JsonSchemaFormat, Field(discriminator="type")]


class Templated(Body):
    """How messages become a prompt."""

    messages: Annotated[Items[ChatMessage], Field(min_length=1)]
    tools: Items[Tool] | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool = False
    reasoning_effort: Name | None = None
    chat_template_kwargs: dict[str, Any] | None = None


class ChatBody(Templated, Generation):
    """POST /v1/chat/completions."""

    max_completion_tokens: Positive | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Field(ge=0, lt=1 << 31)] | None = None
    response_format: ResponseFormat | None = None
    tool_choice: Literal["none", "auto", "required"] | NamedTool | None = None
    parallel_tool_calls: bool | None = None
    separate_reasoning: bool = True


class CompletionBody(Generation):
    """POST /v1/completions."""

    prompt: str | Items[Token] | Items[str] | Items[Items[Token]]
    best_of: Positive | None = None
    echo: bool | None = None
    suffix: str | None = None
    logprobs: Annotated[int, Field(ge=0, lt=1 << 31)] | None = None
    response_format: ResponseFormat | None = None


class TokenizeText(Body):
    """POST /tokenize for a text."""

    model: Name | None = None
    prompt: str
    add_special_tokens: bool = True
    return_token_strs: bool = False


class TokenizeChat(Templated):
    """POST /tokenize for a chat."""

    model: Name | None = None
    add_special_tokens: bool = False
    return_token_strs: bool = False


def _kind(body: Any) -> str:
    return CHAT_BRANCH if isinstance(body, dict) and "messages" in body else TEXT_BRANCH


TokenizeBody = Annotated[
    Annotated[TokenizeText, Tag(TEXT_BRANCH)] | Annotated[TokenizeChat, Tag(CHAT_BRANCH)], Discriminator(_kind)
]


class DetokenizeBody(Body):
    """POST /detokenize."""

    model: Name | None = None
    tokens: Items[Token]
