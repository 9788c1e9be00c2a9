"""The arguments of a call, while they come: as JSON, or as one XML element each."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Protocol

import regex

Schema = Mapping[str, Any]

_NEXT = regex.compile(r"\s*+(?:<parameter=(?P<key>[^>\s]{1,256})>|</function>)")


class Arguments(Protocol):
    """One call's arguments on their way."""

    def read(self, text: str, ending: bool) -> tuple[int, str, bool]:
        """(how much of the text is used, what it says as JSON, whether the arguments are at their end)."""
        ...


class JsonArguments:
    """A JSON object, given on as it is."""

    def __init__(self) -> None:
        self._scan = JsonScan()

    def read(self, text: str, ending: bool) -> tuple[int, str, bool]:
        end = self._scan.feed(text)
        used = len(text) if end is None else end
        return used, text[:used], end is not None


class JsonScan:
    """Finds where a JSON object or list ends, over any pieces of its text."""

    def __init__(self) -> None:
        self._depth = 0
        self._in_string = self._escaped = False

    def feed(self, text: str) -> int | None:
        """Where in this text it ends; None: it goes on."""
        for i, character in enumerate(text):
            if self._escaped:
                self._escaped = False
            elif self._in_string:
                self._escaped = character == "\\"
                self._in_string = character != '"'
            elif character == '"':
                self._in_string = True
            elif character in "{[":
                self._depth += 1
            elif character in "}]":
                self._depth -= 1
                if self._depth <= 0:
                    return i + 1
        return None


class XmlArguments:
    """``<parameter=key>value</parameter>`` elements up to ``</function>``; a value's type is the tool's to say."""

    def __init__(self, parameters: Schema) -> None:
        properties = parameters.get("properties")
        self._types: Schema = properties if isinstance(properties, Mapping) else {}
        self._open = "{"

    def read(self, text: str, ending: bool) -> tuple[int, str, bool]:
        used, said = 0, ""
        while True:
            match = _NEXT.match(text, pos=used, partial=not ending)
            if match is None:
                return used, said + self._end(), True
            if match.partial:
                return used, said, False
            if match["key"] is None:
                return match.end(), said + self._end(), True
            end = text.find("</parameter>", match.end())
            if end < 0 and not ending:
                return used, said, False
            key = self._open + json.dumps(match["key"], ensure_ascii=False) + ": "
            self._open = ", "
            if end < 0:
                cut = json.dumps(text[match.end() :].removeprefix("\n"), ensure_ascii=False)[:-1]
                return len(text), said + key + cut, True
            value = text[match.end() : end].removeprefix("\n").removesuffix("\n")
            said += key + as_json(value, self._types.get(match["key"]))
            used = end + len("</parameter>")

    def _end(self) -> str:
        return "{}" if self._open == "{" else "}"


def as_json(text: str, schema: object) -> str:
    """A value written as plain text, as JSON: what reads as its schema's type is of that type, else it is a text."""
    wanted = schema.get("type") if isinstance(schema, Mapping) else None
    if wanted == "string":
        return json.dumps(text, ensure_ascii=False)
    if wanted == "boolean" and text.lower() in ("true", "false"):
        return text.lower()
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return json.dumps(text, ensure_ascii=False)
    return text
