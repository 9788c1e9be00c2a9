"""What an answer's text says: reasoning, content and calls of tools, in the forms of the common chat templates."""

from __future__ import annotations

from eyas.serve.parsers.detect import detect, tools_prompt
from eyas.serve.parsers.events import Content, Event, Reasoning, ToolArguments, ToolStart, call_id
from eyas.serve.parsers.forced import after_reasoning, tool_grammar
from eyas.serve.parsers.reasoning import REASONING
from eyas.serve.parsers.stream import StreamParser, needs_special_tokens, opens_reasoning, stream_parser
from eyas.serve.parsers.styles import STYLES

TOOL_FORMATS = tuple(STYLES)
REASONING_FORMATS = tuple(REASONING)

__all__ = [
    "REASONING_FORMATS",
    "TOOL_FORMATS",
    "Content",
    "Event",
    "Reasoning",
    "StreamParser",
    "ToolArguments",
    "ToolStart",
    "after_reasoning",
    "call_id",
    "detect",
    "needs_special_tokens",
    "opens_reasoning",
    "stream_parser",
    "tool_grammar",
    "tools_prompt",
]
