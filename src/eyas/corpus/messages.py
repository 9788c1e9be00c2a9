"""Messages as in OpenAI's API: reading other forms into them, and the order that they must have."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

ROLES = ("system", "user", "assistant", "tool")
SHAREGPT_ROLES = {
    "human": "user",
    "user": "user",
    "system": "system",
    "tool": "tool",
    **dict.fromkeys(("gpt", "assistant", "chatgpt", "bing", "bard"), "assistant"),
}
"""Who speaks in a ShareGPT conversation → role."""

_TEXTS = ("reasoning_content", "tool_call_id", "name")
_KEYS = ("role", "content", "tool_calls", *_TEXTS)


def from_sharegpt(turn: dict[str, Any]) -> dict[str, Any]:
    """A turn of ``from`` and ``value`` as a message; raises ``ValueError`` for a party that is not known."""
    role = SHAREGPT_ROLES.get(turn["from"]) if isinstance(turn["from"], str) else None
    if role is None:
        raise ValueError(f"{turn['from']!r} speaks, who is none of {', '.join(SHAREGPT_ROLES)}")
    return {"role": role, "content": turn.get("value")}


def from_openai(message: dict[str, Any]) -> dict[str, Any]:
    """A message with its parts of text joined and its empty keys left out; "developer" is the newer name of "system".

    Raises ``ValueError`` for parts that are no text and for keys that no message here can hold.
    """
    given = {key: value for key, value in message.items() if value not in (None, [])}
    unknown = [key for key in given if key not in _KEYS]
    if unknown:
        raise ValueError(f"a message has {unknown[0]!r}, which is none of {', '.join(_KEYS)}")
    if given.get("role") == "developer":
        given["role"] = "system"
    if isinstance(given.get("content"), list):
        given["content"] = "".join(_part(part) for part in given["content"])
    return given


def _part(part: Any) -> str:
    if not isinstance(part, dict) or part.get("type") != "text" or not isinstance(part.get("text"), str):
        raise ValueError("a part of a message's content is no text")
    return str(part["text"])


def check_messages(messages: Sequence[dict[str, Any]]) -> None:
    """Raise ``ValueError``, naming the message (counted from 1), unless the conversation can have taken place.

    A system message only at the beginning; then a user; an assistant only after a user or a tool; a tool only after an
    assistant or another tool, answering a call that is open; a user not while calls are open. Only a tool's result,
    and the content beside tool calls, may be empty.
    """
    previous = ""
    waiting: list[str | None] = []
    for number, message in enumerate(messages, 1):
        try:
            _check_form(message)
            waiting = _check_order(message, previous, waiting)
        except ValueError as error:
            raise ValueError(f"message {number}: {error}") from None
        previous = message["role"]
    if previous in ("", "system"):
        raise ValueError("nobody asks anything")


def _check_form(message: dict[str, Any]) -> None:
    role, content = message.get("role"), message.get("content")
    if role not in ROLES:
        raise ValueError(f"its role is {role!r}, which is none of {', '.join(ROLES)}")
    if content is not None and not isinstance(content, str):
        raise ValueError("its content is no text")
    for key in _TEXTS:
        if key in message and not isinstance(message[key], str):
            raise ValueError(f"its {key} is no text")
    calls = message.get("tool_calls", [])
    if calls and role != "assistant":
        raise ValueError(f"a {role} cannot call tools")
    if not isinstance(calls, (list, tuple)) or not all(_is_call(call) for call in calls):
        raise ValueError("its tool_calls are no list of functions with a name and arguments")
    if "tool_call_id" in message and role != "tool":
        raise ValueError(f"a {role} has no tool_call_id")
    if role != "tool" and not calls and not (content or "").strip():
        raise ValueError("its content is empty")
    if role == "tool" and content is None:
        raise ValueError("it has no content")


def _is_call(call: Any) -> bool:
    function = call.get("function") if isinstance(call, dict) else None
    return isinstance(function, dict) and isinstance(function.get("name"), str) and "arguments" in function


def _check_order(message: dict[str, Any], previous: str, waiting: list[str | None]) -> list[str | None]:
    """The ids of the tool calls that are open after ``message``, given those before it."""
    role = message["role"]
    if role == "system" and previous:
        raise ValueError("a system message stands only at the beginning")
    if role == "assistant" and previous not in ("user", "tool"):
        raise ValueError(f"an assistant speaks {f'after {previous}' if previous else 'first'}: a user must ask before")
    if role == "tool":
        if previous not in ("assistant", "tool"):
            raise ValueError("a tool answers, and no assistant called it")
        return _answered(message.get("tool_call_id"), waiting)
    if waiting:
        raise ValueError(f"the tool call {waiting[0] or ''} before it has no answer".replace("  ", " "))
    return [call.get("id") for call in message.get("tool_calls", [])]


def _answered(call: str | None, waiting: list[str | None]) -> list[str | None]:
    # Where the assistant calls in plain text (ShareGPT), neither side has ids.
    if not waiting and call is None:
        return []
    if call in waiting:
        at = waiting.index(call)
    elif call is None or set(waiting) == {None}:
        raise ValueError("a tool call and its answer must both have an id, or neither")
    else:
        raise ValueError(f"it answers the tool call {call}, which is not open")
    return waiting[:at] + waiting[at + 1 :]
