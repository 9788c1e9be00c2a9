"""What a request says of its answer's form, under any engine's names, as one grammar."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from eyas.errors import EyasError
from eyas.serve.api.bodies import ChatBody, CompletionBody, JsonObjectFormat, JsonSchemaFormat, StructuredOutputs
from eyas.serve.api.failures import FieldError
from eyas.serve.limits import Limits
from eyas.serve.wire import Grammar

OPENING, CLOSING = "([{", ")]}"


def grammar_of(body: ChatBody | CompletionBody, limits: Limits) -> Grammar | None:
    """None: any text. Raises ``request.field`` for two at once, ``request.limit``, ``request.json``."""
    found = list(_asked(body))
    if len(found) > 1:
        cause = f"{found[0][0]} and {found[1][0]} both say what the answer must look like"
        raise FieldError("request.field", found[1][0], cause, "give one of them")
    for field, grammar in found:
        _check(field, grammar, limits)
    return found[0][1] if found else None


def _asked(body: ChatBody | CompletionBody) -> Iterator[tuple[str, Grammar]]:
    match body.response_format:
        case JsonObjectFormat():
            yield "response_format", Grammar("json_object", "")
        case JsonSchemaFormat(json_schema=given):
            yield "response_format", Grammar("json_schema", json.dumps(given.schema_, ensure_ascii=False))
    yield from _named("guided_json", "json_schema", body.guided_json)
    yield from _named("guided_regex", "regex", body.guided_regex)
    yield from _named("guided_grammar", "lark", body.guided_grammar)
    yield from _named("guided_choice", "lark", body.guided_choice)
    yield from _named("regex", "regex", body.regex)
    yield from _named("ebnf", "lark", body.ebnf)
    if body.structured_outputs is not None:
        yield from _structured(body.structured_outputs)


def _structured(given: StructuredOutputs) -> Iterator[tuple[str, Grammar]]:
    yield from _named("structured_outputs.json", "json_schema", given.json_)
    yield from _named("structured_outputs.regex", "regex", given.regex)
    yield from _named("structured_outputs.grammar", "lark", given.grammar)
    yield from _named("structured_outputs.choice", "lark", given.choice)
    if given.json_object:
        yield "structured_outputs.json_object", Grammar("json_object", "")


def _named(field: str, kind: Any, value: dict[str, Any] | list[str] | str | None) -> Iterator[tuple[str, Grammar]]:
    if value is None:
        return
    if isinstance(value, list):
        yield field, Grammar("lark", "start: " + " | ".join(json.dumps(choice) for choice in value))
    elif isinstance(value, dict):
        yield field, Grammar(kind, json.dumps(value, ensure_ascii=False))
    else:
        if not value.strip():
            raise FieldError("request.field", field, f"{field} is empty", f"leave {field} out")
        yield field, Grammar(kind, value)


def check_size(field: str, text: str, limits: Limits) -> None:
    """Raise ``request.limit`` for a grammar or schema that is too long, or nested too deeply, to be read."""
    size, depth = len(text.encode()), nesting(text)
    if size > limits.grammar_bytes:
        raise _more(field, f"has {size} bytes", limits.grammar_bytes)
    if depth > limits.grammar_depth:
        raise _more(field, f"is nested {depth} deep", limits.grammar_depth)


def _check(field: str, grammar: Grammar, limits: Limits) -> None:
    check_size(field, grammar.text, limits)
    if grammar.kind == "json_schema":
        try:
            schema = json.loads(grammar.text)
        except ValueError as error:
            cause = f"{field} is no JSON: {error}"
            raise FieldError("request.field", field, cause, "give a JSON schema") from error
        if not isinstance(schema, dict):
            cause = f"{field} is JSON, but no object"
            raise FieldError("request.field", field, cause, "give a JSON schema")


def nesting(text: str) -> int:
    """How many brackets of any kind stand open at most. Those in strings count too: a bound, not a parse."""
    deepest = depth = 0
    for character in text:
        if character in OPENING:
            depth += 1
            deepest = max(deepest, depth)
        elif character in CLOSING:
            depth -= 1
    return deepest


def _more(field: str, what: str, most: int) -> EyasError:
    return FieldError("request.limit", field, f"{field} {what}, and {most} are allowed", "make it simpler")
