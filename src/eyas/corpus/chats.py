"""Chats: prompts with the answers that the target gave, one JSON object a line."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, ValidationError, model_validator

from eyas.contract.schema import Name, Strict, describe
from eyas.errors import EyasError

Finish = Literal["stop", "length", "repetition", "tool_calls"]
"""Why an answer ended. ``length`` and ``repetition``: it was cut, so its last token is no end of turn."""

_FIX = "write the file again with `eyas regen`"


class Answer(Strict):
    """One assistant turn that the target itself gave.

    ``message``: its index in the chat's messages. ``token_ids``: as sampled, the end-of-turn token included where
    ``finish`` is ``stop``; None from a server that does not tell them, and then the text is tokenised.
    """

    message: Annotated[int, Field(ge=0)]
    token_ids: tuple[int, ...] | None
    finish: Finish
    temperature: Annotated[float, Field(ge=0)]
    seed: int | None


class Chat(Strict):
    """One conversation. ``id`` is unique in a file; samples of the same prompt share ``prompt_id``.

    ``messages``: as in OpenAI's API: role, content, and where they apply reasoning_content, tool_calls, tool_call_id,
    name. Assistant messages without an entry in ``answers`` were given with the prompt and are never trained on.
    """

    id: Name
    prompt_id: Name
    messages: tuple[dict[str, Any], ...]
    answers: tuple[Answer, ...]
    source: str
    licence: str
    domain: str
    tools: tuple[dict[str, Any], ...] = ()
    thinking: bool | None = None
    """Whether the target was told to think; None where its template has no such switch, or nobody knows."""

    @model_validator(mode="after")
    def _answers_are_assistant_turns(self) -> Chat:
        at = [answer.message for answer in self.answers]
        if at != sorted(set(at)):
            raise ValueError("answers must name messages in rising order, each once")
        for index in at:
            if index >= len(self.messages) or self.messages[index].get("role") != "assistant":
                raise ValueError(f"answers name message {index}, which is no assistant turn")
        return self

    def to_line(self) -> str:
        """The chat as one line of JSON, without the newline."""
        return json.dumps(self.model_dump(mode="json"), ensure_ascii=False)


def read_chats(path: Path) -> Iterator[Chat]:
    """The chats of a file, in order. Raises ``artifact.missing``, ``artifact.corrupt`` naming the line."""
    if not path.is_file():
        raise EyasError("artifact.missing", f"there are no chats at {path}", _FIX)
    seen: set[str] = set()
    with path.open("rb") as lines:
        for number, line in enumerate(lines, 1):
            chat = _parse(line, path, number)
            if chat.id in seen:
                raise EyasError("artifact.corrupt", f"{path}, line {number}: chat {chat.id} is there twice", _FIX)
            seen.add(chat.id)
            yield chat


def _parse(line: bytes, path: Path, number: int) -> Chat:
    try:
        return Chat.model_validate_json(line)
    except ValidationError as error:
        raise EyasError("artifact.corrupt", f"{path}, line {number}, is no chat: {describe(error)}", _FIX) from error
