"""Messages as chat templates take them, and whether a text says what a message says."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from eyas.errors import EyasError

Message = Mapping[str, Any]
"""As in OpenAI's API: role, content, and where they apply reasoning_content, tool_calls, tool_call_id, name."""


def content_of(message: Message) -> str:
    """The text of a message's content; raises ``rendering.refused`` for parts that are not text."""
    content = message.get("content")
    if isinstance(content, list | tuple):
        if any(part.get("type") != "text" for part in content):
            cause = "a message has parts that are not text"
            raise EyasError("rendering.refused", cause, "use conversations of text")
        return "".join(part["text"] for part in content)
    return content or ""


def is_plain(message: Message) -> bool:
    """Whether the message is its content alone, without calls of tools and without reasoning, be it empty."""
    return message.get("reasoning_content") is None and not message.get("tool_calls")


def for_template(message: Message) -> dict[str, Any]:
    """As templates expect a message: content is text, and a call's arguments are an object, not JSON within JSON.

    Raises ``rendering.refused``.
    """
    out = {**message, "content": content_of(message)}
    if message.get("tool_calls"):
        out["tool_calls"] = [_call(call) for call in message["tool_calls"]]
    return out


def _call(call: Message) -> dict[str, Any]:
    function = dict(call.get("function", {}))
    if isinstance(function.get("arguments"), str):
        try:
            function["arguments"] = json.loads(function["arguments"] or "{}")
        except ValueError as error:
            cause = f"the arguments of a call of {function.get('name')!r} are no JSON: {error}"
            raise EyasError("rendering.refused", cause, "leave out the conversation") from error
    return {**call, "function": function}


def tells(text: str, message: Message) -> bool:
    """Whether ``text`` is the message, up to white space and to how reasoning and calls are marked."""
    text = squeezed(text)
    if is_plain(message):
        return text == squeezed(content_of(message))
    parts = [message.get("reasoning_content") or "", content_of(message)]
    parts += [str(call.get("function", {}).get("name", "")) for call in message.get("tool_calls") or ()]
    at = 0
    for part in map(squeezed, parts):
        at = text.find(part, at)
        if at < 0:
            return False
        at += len(part)
    return True


def squeezed(text: str) -> str:
    """The text without its white space."""
    return "".join(text.split())


def common_length(a: str, b: str) -> int:
    """How many characters at the beginning two texts share."""
    pairs = zip(a, b, strict=False)
    return next((i for i, (x, y) in enumerate(pairs) if x != y), min(len(a), len(b)))


def shown(text: str, last: bool = False, width: int = 60) -> str:
    """A text for an error: quoted, and its beginning or its end alone if it is long."""
    if len(text) <= width:
        return repr(text)
    return f"…{text[-width:]!r}" if last else f"{text[:width]!r}…"
