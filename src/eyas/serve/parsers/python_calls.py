"""Calls written as Python: ``[name(key=value, …), …]``. They are read as a tree of literals and never run."""

from __future__ import annotations

import ast
from typing import Any

_MOST = 256 * 1024


def read_python_calls(text: str) -> tuple[int, list[tuple[str, dict[str, Any]]]] | str | None:
    """(how much of the text it is, calls by name and arguments); "wait" while it is open; None: it is none."""
    end = _end_of_list(text)
    if end is None:
        return "wait" if len(text) < _MOST else None
    try:
        tree = ast.parse(text[:end].strip(), mode="eval").body
        calls = [_call(node) for node in tree.elts] if isinstance(tree, ast.List) else []
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None
    return (end, calls) if calls else None


def _call(node: ast.expr) -> tuple[str, dict[str, Any]]:
    if not isinstance(node, ast.Call) or node.args:
        raise ValueError("it is no call with named arguments alone")
    arguments: dict[str, Any] = {}
    for keyword in node.keywords:
        if keyword.arg is None:
            raise ValueError("an argument has no name")
        arguments[keyword.arg] = _plain(ast.literal_eval(keyword.value))
    return ast.unparse(node.func), arguments


def _plain(value: Any) -> Any:
    """Of JSON's types. Raises ValueError."""
    if isinstance(value, (list, tuple)):
        return [_plain(one) for one in value]
    if isinstance(value, dict):
        if not all(isinstance(key, str) for key in value):
            raise ValueError("a key is no text")
        return {key: _plain(one) for key, one in value.items()}
    if value is None or isinstance(value, (str, bool, int, float)):
        return value
    raise ValueError("a value that JSON does not have")


def _end_of_list(text: str) -> int | None:
    depth, quote, escaped = 0, "", False
    for i, character in enumerate(text):
        if escaped:
            escaped = False
        elif quote:
            escaped = character == "\\"
            quote = "" if character == quote else quote
        elif character in "\"'":
            quote = character
        elif character in "([{":
            depth += 1
        elif character in ")]}":
            depth -= 1
            if depth <= 0:
                return i + 1
    return None
