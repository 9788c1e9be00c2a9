"""Grammars that force a call of a tool, in the form that the target was taught."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from eyas.errors import EyasError
from eyas.serve.parsers.reasoning import REASONING
from eyas.serve.parsers.stream import tool_schemas
from eyas.serve.wire import Grammar

Format = dict[str, Any]

_LITERAL = r"""start: value
value: STRING | NUMBER | "True" | "False" | "None" | list | dict
list: "[" (value (", " value)*)? "]"
dict: "{" (STRING ": " value (", " STRING ": " value)*)? "}"
STRING: /"([^"\\\n]|\\["\\nt])*"/
NUMBER: /-?(0|[1-9][0-9]{0,15})(\.[0-9]{1,15})?/
"""


def tool_grammar(tool_format: str, tools: Sequence[Mapping[str, Any]], choice: str, parallel: bool = True) -> Grammar:
    """A grammar of calls, and nothing else, with arguments by the tools' schemas.

    In ``qwen3_coder`` a text is free up to its closing mark: its length and pattern are not forced.
    ``choice``: "required", one call or with ``parallel`` several of any tools; or a tool's name: one call of it.
    Raises ``flags.unknown`` for a format or name that there is none of.
    """
    schemas = tool_schemas(tools)
    chosen = schemas if choice == "required" else {name: s for name, s in schemas.items() if name == choice}
    if not chosen:
        raise EyasError("flags.unknown", f"there is no tool {choice!r}", f"name one of {', '.join(schemas) or 'some'}")
    several = parallel and choice == "required"
    return Grammar(
        "structural_tag", json.dumps({"type": "structural_tag", "format": _calls(tool_format, chosen, several)})
    )


def after_reasoning(grammar: Grammar, reasoning_format: str | None, opened: bool | None) -> Grammar:
    """The same for the answer alone, with the reasoning before it free. ``opened``: as for the parser."""
    if reasoning_format in (None, "none") or opened is False:
        return grammar
    marks = REASONING[str(reasoning_format)]
    begin = "" if opened or (opened is None and marks.opened) else marks.open
    thought: Format = {"type": "tag", "begin": begin, "content": {"type": "any_text"}, "end": marks.close}
    space: Format = {"type": "regex", "pattern": "\n{0,3}"}
    before: Format = {"type": "sequence", "elements": [thought, space]}
    if begin:
        before = {"type": "or", "elements": [before, _const("")]}
    form: Format = {"type": "sequence", "elements": [before, _as_format(grammar)]}
    return Grammar("structural_tag", json.dumps({"type": "structural_tag", "format": form}))


def _as_format(grammar: Grammar) -> Format:
    match grammar.kind:
        case "json_schema":
            return _json(_parsed(grammar.text))
        case "json_object":
            return _json({"type": "object"})
        case "regex":
            return {"type": "regex", "pattern": grammar.text}
        case "lark":
            return {"type": "grammar", "grammar": grammar.text}
        case "structural_tag":
            value = _parsed(grammar.text)
            form = value.get("format") if isinstance(value, dict) else None
            if isinstance(form, dict):
                return form
            cause = "behind a target's reasoning a structural tag must be one with a format"
            raise EyasError("request.grammar", cause, 'give {"type": "structural_tag", "format": …}')


def _parsed(text: str) -> Any:  # JSON is of any type
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise EyasError("request.grammar", "the grammar is no JSON, or nested too deeply", "give JSON") from error


def _calls(tool_format: str, schemas: Mapping[str, Any], several: bool) -> Format:
    match tool_format:
        case "hermes" | "qwen" | "qwen25" | "smollm3":
            ends = ('<tool_call>\n{"name": ', "}\n</tool_call>")
            return _joined([_named(*ends, name, schema) for name, schema in schemas.items()], "\n", several)
        case "smollm":
            objects = [_named('{"name": ', "}", name, schema) for name, schema in schemas.items()]
            return _sequence(_const("<tool_call>["), _joined(objects, ", ", several), _const("]</tool_call>"))
        case "llama3" | "llama3_json":
            objects = [_named('{"name": ', "}", name, schema, "parameters") for name, schema in schemas.items()]
            return _joined(objects, "; ", several)
        case "kimi_k2":
            return _section(_kimi(schemas), "<|tool_calls_section_begin|>", "<|tool_calls_section_end|>", several)
        case "deepseekv3" | "deepseek_v3" | "deepseekv31" | "deepseek_v31":
            tags = _deepseek(schemas, fenced="31" not in tool_format)
            return _section(tags, "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>", several)
        case "qwen3_coder":
            return _joined([_xml(name, schema) for name, schema in schemas.items()], "\n", several)
        case "pythonic":
            tags = [_python(name, schema) for name, schema in schemas.items()]
            return _sequence(_const("["), _joined(tags, ", ", several), _const("]"))
    raise EyasError("flags.unknown", f"no tool call format is called {tool_format!r}", "see --tool-call-parser")


def _named(begin: str, end: str, name: str, schema: Any, key: str = "arguments") -> Format:
    """An object of a name and its arguments."""
    return _tag(f'{begin}{json.dumps(name)}, "{key}": ', _json(schema), end)


def _kimi(schemas: Mapping[str, Any]) -> list[Format]:
    number: Format = {"type": "regex", "pattern": "[0-9]{1,3}"}
    return [
        _tag(
            f"<|tool_call_begin|>functions.{name}:",
            _sequence(number, _const("<|tool_call_argument_begin|>"), _json(schema)),
            "<|tool_call_end|>",
        )
        for name, schema in schemas.items()
    ]


def _deepseek(schemas: Mapping[str, Any], fenced: bool) -> list[Format]:
    kind, before, after = ("function<｜tool▁sep｜>", "\n```json\n", "\n```") if fenced else ("", "<｜tool▁sep｜>", "")
    return [
        _tag(f"<｜tool▁call▁begin｜>{kind}{name}{before}", _json(schema), f"{after}<｜tool▁call▁end｜>")
        for name, schema in schemas.items()
    ]


def _xml(name: str, schema: Any) -> Format:
    """Parameters in the schema's order; text is written as it is, all else as JSON."""
    parts = []
    for key, value in schema.get("properties", {}).items():
        of_text = isinstance(value, Mapping) and value.get("type") == "string" and "enum" not in value
        content: Format = {"type": "any_text"} if of_text else _xml_value(value)
        parameter = _tag(f"<parameter={key}>\n", content, "\n</parameter>\n")
        parts.append(parameter if key in schema.get("required", ()) else _maybe(parameter))
    return _tag(f"<tool_call>\n<function={name}>\n", _sequence(*parts), "</function>\n</tool_call>")


def _xml_value(schema: Any) -> Format:
    choices = schema.get("enum") if isinstance(schema, Mapping) else None
    if choices and all(isinstance(one, str) for one in choices):
        return {"type": "or", "elements": [_const(one) for one in choices]}
    return _json(schema)


def _python(name: str, schema: Any) -> Format:
    """``name(key=value, …)``: what is required first, then what is not."""
    properties, required = schema.get("properties", {}), schema.get("required", ())
    first = [key for key in properties if key in required]
    parts: list[Format] = []
    for key in first:
        parts.append(_tag(f"{', ' if parts else ''}{key}=", _python_value(properties[key]), ""))
    rest = [key for key in properties if key not in required]
    if parts:
        parts += [_maybe(_tag(f", {key}=", _python_value(properties[key]), "")) for key in rest]
    elif rest:
        alone = [_tag(f"{key}=", _python_value(properties[key]), "") for key in rest]
        parts = [_maybe({"type": "or", "elements": alone})]
    return _tag(f"{name}(", _sequence(*parts), ")")


def _python_value(schema: Any) -> Format:
    kind = schema.get("type") if isinstance(schema, Mapping) else None
    choices = schema.get("enum") if isinstance(schema, Mapping) else None
    if choices:
        return {"type": "or", "elements": [_const(repr(one)) for one in choices]}
    if kind in ("string", "integer", "number"):
        return _json(schema)
    if kind == "boolean":
        return {"type": "or", "elements": [_const("True"), _const("False")]}
    return {"type": "grammar", "grammar": _LITERAL}


def _section(tags: list[Format], begin: str, end: str, several: bool) -> Format:
    return _sequence(_const(begin), _joined(tags, "", several), _const(end))


def _joined(tags: list[Format], separator: str, several: bool) -> Format:
    return {
        "type": "tags_with_separator",
        "tags": tags,
        "separator": separator,
        "at_least_one": True,
        "stop_after_first": not several,
    }


def _tag(begin: str, content: Format, end: str) -> Format:
    return {"type": "tag", "begin": begin, "content": content, "end": end}


def _sequence(*elements: Format) -> Format:
    return {"type": "sequence", "elements": list(elements)}


def _maybe(form: Format) -> Format:
    return {"type": "or", "elements": [form, _const("")]}


def _const(text: str) -> Format:
    return {"type": "const_string", "value": text}


def _json(schema: Any) -> Format:
    return {"type": "json_schema", "json_schema": schema}
