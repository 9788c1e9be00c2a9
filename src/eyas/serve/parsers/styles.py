"""How models write calls of tools: what opens one, its head, its arguments, what closes it. Facts, as data.

A pattern's match must not grow with text that comes later: it ends in something definite, or looks ahead to it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import regex

from eyas.serve.parsers.arguments import Arguments, JsonArguments, JsonScan, Schema, XmlArguments
from eyas.serve.parsers.python_calls import read_python_calls

Tools = Mapping[str, Schema]
"""Name → schema of its parameters."""


@dataclass(frozen=True)
class Call:
    """``arguments``: JSON where all of it is known, or what reads them as they come."""

    name: str
    arguments: str | Arguments
    id: str | None = None


@dataclass(frozen=True)
class Read:
    """Calls that begin in a text, and how much of it says so."""

    used: int
    calls: list[Call]


WAIT = "wait"
Reading = Read | str | None
"""None: it is no call; WAIT: it may become one."""


@dataclass(frozen=True)
class Style:
    """``anywhere``: opens a call within text. ``first``: opens one at the answer's beginning, or behind a call.

    ``read``: the head, from where the opener ended. ``next``: leads from one call's arguments to another's head.
    ``close``: what else comes behind them. ``special``: the markers may be special tokens.
    """

    read: Callable[[str, Tools, bool], Reading]
    anywhere: regex.Pattern[str] | None
    close: regex.Pattern[str]
    first: regex.Pattern[str] | None = None
    next: regex.Pattern[str] | None = None
    special: bool = False


def opener(marker: str) -> regex.Pattern[str]:
    """A marker with the space before it."""
    return regex.compile(rf"(?<!\s)\s*+{marker}")


_JSON_HEAD = regex.compile(
    r'\s*+(?:\[\s*+)?\{\s*+"name"\s*+:\s*+"(?P<name>[^"\\]{1,256})"\s*+,\s*+'
    r'"(?:arguments|parameters)"\s*+:\s*+(?=\{)'
)
_JSON_OPEN = regex.compile(r"\s*+(?:\[\s*+)?(?=\{)")


def read_json_call(text: str, tools: Tools, ending: bool) -> Reading:
    """``{"name": …, "arguments": {…}}``, perhaps in a list; in another order only once it is whole."""
    head = _JSON_HEAD.match(text, partial=not ending)
    if head is not None and head.partial:
        return WAIT
    if head is not None:
        return Read(head.end(), [Call(head["name"], JsonArguments())]) if known(head["name"], tools) else None
    begin = _JSON_OPEN.match(text)
    if begin is None:
        return None
    end = JsonScan().feed(text[begin.end() :])
    if end is None:
        return None if ending else WAIT
    call = _whole_json_call(text[begin.end() : begin.end() + end], tools)
    # Its last brace is left for the pattern that closes the call.
    return None if call is None else Read(begin.end() + end - 1, [call])


def _whole_json_call(text: str, tools: Tools) -> Call | None:
    value = _object(text)
    if value is None:
        return None
    name, given = value.get("name"), value.get("arguments", value.get("parameters"))
    if not isinstance(name, str) or not known(name, tools):
        return None
    if isinstance(given, str):
        return Call(name, given) if _object(given) is not None else None
    if given is None or isinstance(given, dict):
        return Call(name, json.dumps(given or {}, ensure_ascii=False))
    return None


def _object(text: str) -> dict[str, Any] | None:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def known(name: str, tools: Tools) -> bool:
    """Without tools, any name is."""
    return not tools or name in tools


def by_head(pattern: str) -> Callable[[str, Tools, bool], Reading]:
    """A reader of calls with a head of markers (groups ``name``, perhaps ``id``) and JSON arguments."""
    head = regex.compile(pattern + r"\s*+(?=\{)")

    def read(text: str, tools: Tools, ending: bool) -> Reading:
        match = head.match(text, partial=not ending)
        if match is None:
            return None
        if match.partial:
            return WAIT
        name, id_ = match["name"], match.groupdict().get("id")
        return Read(match.end(), [Call(name, JsonArguments(), id_)]) if known(name, tools) else None

    return read


_FUNCTION = regex.compile(r"\s*+(?:<function=)?(?P<name>[^>\s<]{1,256})>")


def read_xml_call(text: str, tools: Tools, ending: bool) -> Reading:
    """``<function=name>`` and its parameters."""
    match = _FUNCTION.match(text, partial=not ending)
    if match is None:
        return None
    if match.partial:
        return WAIT
    name = match["name"]
    return Read(match.end(), [Call(name, XmlArguments(tools.get(name, {})))]) if known(name, tools) else None


def read_pythonic(text: str, tools: Tools, ending: bool) -> Reading:
    """``[name(key=value, …), …]``, once it is whole."""
    found = read_python_calls(text)
    if found is None or isinstance(found, str):
        return None if ending else found
    used, calls = found
    if not all(known(name, tools) for name, _ in calls):
        return None
    return Read(used, [Call(name, json.dumps(given, ensure_ascii=False)) for name, given in calls])


_TAGGED = Style(
    read_json_call,
    anywhere=opener("<tool_call>"),
    close=regex.compile(r"\s*+\}?\s*+(?:\]\s*+)?</tool_call>"),
    next=regex.compile(r"\s*+\}?\s*+,\s*+(?=\{)"),
)
_XML = Style(
    read_xml_call,
    anywhere=opener(r"(?:<tool_call>\s*+(?=<function=)|<function=)"),
    close=regex.compile(r"\s*+</tool_call>"),
)
_LLAMA = Style(
    read_json_call,
    anywhere=opener(r"<\|python_tag\|>"),
    first=regex.compile(r"\s*+(?:<\|python_tag\|>\s*+)?(?=\{)"),
    next=regex.compile(r"\s*+\}\s*+[;,]\s*+(?=\{)"),
    close=regex.compile(r"\s*+\}"),
    special=True,
)
_PYTHONIC = Style(
    read_pythonic,
    anywhere=opener(r"<\|python_start\|>"),
    first=regex.compile(r"\s*+(?:<\|python_start\|>\s*+)?(?=\[\s*+[A-Za-z_])"),
    close=regex.compile(r"\s*+<\|python_end\|>"),
    special=True,
)
_KIMI = Style(
    by_head(
        r"\s*+<\|tool_call_begin\|>\s*+(?P<id>(?:functions\.)?(?P<name>[^:<\s]{1,256})(?::\d{1,9})?)"
        r"\s*+<\|tool_call_argument_begin\|>"
    ),
    anywhere=opener(r"<\|tool_calls?_section_begin\|>"),
    next=regex.compile(r"\s*+<\|tool_call_end\|>(?=\s*+<\|tool_call_begin\|>)"),
    close=regex.compile(r"\s*+<\|tool_call_end\|>\s*+<\|tool_calls?_section_end\|>"),
    special=True,
)
_DEEPSEEK_V3 = Style(
    by_head(r"\s*+<｜tool▁call▁begin｜>function<｜tool▁sep｜>(?P<name>[^\s<]{1,256})\s*+```json"),
    anywhere=opener("<｜tool▁calls▁begin｜>"),
    next=regex.compile(r"\s*+```\s*+<｜tool▁call▁end｜>(?=\s*+<｜tool▁call▁begin｜>)"),
    close=regex.compile(r"\s*+```\s*+<｜tool▁call▁end｜>\s*+<｜tool▁calls▁end｜>"),
    special=True,
)
_DEEPSEEK_V31 = Style(
    by_head(r"\s*+<｜tool▁call▁begin｜>(?P<name>[^\s<]{1,256})<｜tool▁sep｜>"),
    anywhere=opener("<｜tool▁calls▁begin｜>"),
    next=regex.compile(r"\s*+<｜tool▁call▁end｜>(?=\s*+<｜tool▁call▁begin｜>)"),
    close=regex.compile(r"\s*+<｜tool▁call▁end｜>\s*+<｜tool▁calls▁end｜>"),
    special=True,
)

STYLES: dict[str, Style] = {
    "hermes": _TAGGED,
    "qwen": _TAGGED,
    "qwen25": _TAGGED,
    "smollm": _TAGGED,
    "smollm3": _TAGGED,
    "qwen3_coder": _XML,
    "llama3": _LLAMA,
    "llama3_json": _LLAMA,
    "pythonic": _PYTHONIC,
    "kimi_k2": _KIMI,
    "deepseekv3": _DEEPSEEK_V3,
    "deepseek_v3": _DEEPSEEK_V3,
    "deepseekv31": _DEEPSEEK_V31,
    "deepseek_v31": _DEEPSEEK_V31,
}
"""By the names that SGLang and vLLM give them."""
