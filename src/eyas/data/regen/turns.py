"""What a target wrote, as a message: thoughts and tool calls taken out of the text where it marks them."""

from __future__ import annotations

import json
import re
from typing import Any

from eyas.corpus.rendering import THINK_CLOSE, THINK_OPEN
from eyas.data.regen.source import Message

_CALL = re.compile(r"<tool_call>\s*(\{.*?\})\s*</tool_call>", re.DOTALL)
"""How Hermes, Qwen, SmolLM3 and others write a call."""


def message_of(text: str, *, thinks: bool, opened: bool, may_call: bool) -> Message:
    """The assistant's message that ``text`` is.

    ``thinks``: the target marks its thoughts. ``opened``: the prompt has already begun them. ``may_call``: tools were
    offered. Text in which nothing is marked stays as it is, to the last space.
    """
    message: Message = {"role": "assistant", "content": text}
    if thinks:
        reasoning, content = split_reasoning(text, opened)
        if reasoning is not None:
            message = {"role": "assistant", "reasoning_content": reasoning, "content": content}
    calls = _calls(message["content"]) if may_call else []
    if calls:
        message["content"] = _CALL.sub("", message["content"]).strip()
        message["tool_calls"] = calls
    return message


def split_reasoning(text: str, opened: bool) -> tuple[str | None, str]:
    """(thoughts, answer); no thoughts are None. Thoughts that never end leave an answer of nothing."""
    begun = text.lstrip().startswith(THINK_OPEN)
    before, closed, after = text.partition(THINK_CLOSE)
    if not (begun or opened):
        return None, text
    thoughts = before.lstrip().removeprefix(THINK_OPEN).strip("\n")
    return thoughts, after.lstrip("\n") if closed else ""


def _calls(text: str) -> list[dict[str, Any]]:
    """The calls in a text, in OpenAI's form; none if one of them is no call, so that the text stays as it is."""
    calls = []
    for number, found in enumerate(_CALL.finditer(text)):
        try:
            call = json.loads(found[1])
            name, arguments = call["name"], call.get("arguments", {})
        except (ValueError, KeyError):
            return []
        if not isinstance(name, str) or not isinstance(arguments, dict):
            return []
        function = {"name": name, "arguments": json.dumps(arguments, ensure_ascii=False)}
        calls.append({"id": f"call_{number}", "type": "function", "function": function})
    return calls
