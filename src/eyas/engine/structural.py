"""Structural tags: text that is free up to a tag, and strict inside; in the forms that SGLang and vLLM take."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from eyas.engine.lark import gbnf_as_lark, is_gbnf, literal, regex_as_lark
from eyas.errors import EyasError

Format = Mapping[str, Any]

_ANY = "/(.|\\n)*/"
_SPACE = r"[ \n\r\t]{0,64}"
"""Between the parts of a JSON text. Without a bound a small model may write spaces for ever."""
_DEEPEST = 60


def with_bounded_space(schema: str | Mapping[str, Any] | bool) -> str:
    """A JSON schema as text, with what may stand between the parts. Raises ``request.grammar``."""
    value = _parsed(schema) if isinstance(schema, str) else schema
    if isinstance(value, bool):
        value = {} if value else {"not": {}}
    if not isinstance(value, Mapping):
        raise _wrong("a JSON schema is an object")
    return json.dumps({**value, "x-guidance": {"whitespace_pattern": _SPACE}}, ensure_ascii=False)


def structural_tag_as_lark(text: str, special: Mapping[str, int]) -> str:
    """A structural tag, as JSON, in llguidance's form; ``special``: text → id of special tokens.

    Either ``{"type": "structural_tag", "format": …}`` with the formats ``const_string``, ``json_schema``, ``any_text``,
    ``regex``, ``grammar``, ``sequence``, ``or``, ``tag``, ``triggered_tags`` and ``tags_with_separator``, or the older
    ``{"structures": [{"begin", "schema", "end"}], "triggers": […]}``. Raises ``request.grammar``.
    """
    value = _parsed(text)
    if not isinstance(value, Mapping):
        raise _wrong("it is no object")
    writer = _Writer(special)
    try:
        start = writer.write(_modern(value), 0)
    except KeyError as error:
        raise _wrong(f"a format lacks its {error}") from error
    except (TypeError, AttributeError) as error:
        raise _wrong(f"a value is of the wrong type ({error})") from error
    rules = "\n".join([f"start: {start}", *writer.rules])
    grammars = [{"name": "main", "lark_grammar": f"%llguidance {{}}\n{rules}\n"}, *writer.grammars]
    return json.dumps({"grammars": grammars})


def _modern(value: Format) -> Format:
    if "structures" not in value:
        return value["format"]
    tags = [
        {"begin": one["begin"], "content": {"type": "json_schema", "json_schema": one["schema"]}, "end": one["end"]}
        for one in value["structures"]
    ]
    return {"type": "triggered_tags", "triggers": value["triggers"], "tags": tags}


class _Writer:
    """Writes formats as Lark expressions; rules and grammars that they need are collected."""

    def __init__(self, special: Mapping[str, int]) -> None:
        self._special = special
        self.rules: list[str] = []
        self.grammars: list[dict[str, str]] = []

    def write(self, form: Format, depth: int) -> str:
        if depth > _DEEPEST:
            raise _wrong("it is nested too deeply")
        simple: dict[str, Callable[[], str]] = {
            "const_string": lambda: self._literal(form["value"]),
            "json_schema": lambda: f"%json {with_bounded_space(form['json_schema'])}",
            "any_text": lambda: _ANY,
            "regex": lambda: regex_as_lark(form["pattern"]),
            "grammar": lambda: self._grammar(form["grammar"]),
        }
        nested: dict[str, Callable[[Format, int], str]] = {
            "sequence": self._sequence,
            "or": self._alternatives,
            "tag": self._tag,
            "triggered_tags": self._triggered,
            "tags_with_separator": self._separated,
        }
        kind = form["type"]
        if kind in simple:
            return simple[kind]()
        if kind in nested:
            return nested[kind](form, depth + 1)
        raise _wrong(f"{kind!r} is no known format")

    def _rule(self, body: str, head: str = "") -> str:
        name = f"r{len(self.rules)}"
        self.rules.append(f"{name}{head}: {body}")
        return name

    def _literal(self, text: str) -> str:
        return literal(text, self._special)

    def _grammar(self, text: str) -> str:
        name = f"g{len(self.grammars)}"
        self.grammars.append({"name": name, "lark_grammar": gbnf_as_lark(text) if is_gbnf(text) else text})
        return f"@{name}"

    def _until(self, mark: str) -> str:
        """Free text up to the first ``mark``, and the mark."""
        if any(mark.startswith(token) for token in self._special):
            return f"{_ANY} {self._literal(mark)}"  # free text has no special tokens
        return self._rule(f"{_ANY} {self._literal(mark)}", "[lazy]")

    def _sequence(self, form: Format, depth: int) -> str:
        written: list[str] = []
        elements = list(form["elements"])
        while elements:
            element = elements.pop(0)
            if element["type"] != "any_text" or not elements:
                written.append(self.write(element, depth))
                continue
            mark, rest = _opening(elements.pop(0))
            written.append(self._until(mark))
            elements[:0] = rest
        return self._rule(" ".join(written) or '""')

    def _alternatives(self, form: Format, depth: int) -> str:
        return self._rule(" | ".join(self.write(element, depth) for element in form["elements"]))

    def _tag(self, form: Format, depth: int) -> str:
        return self._rule(f"{self._literal(form['begin'])} {self._inside(form, depth)}")

    def _inside(self, tag: Format, depth: int) -> str:
        """A tag's content and its end."""
        content, end = tag["content"], tag["end"]
        if content["type"] == "any_text" and end:
            return self._until(end)
        return f"{self.write(content, depth)} {self._literal(end)}"

    def _triggered(self, form: Format, depth: int) -> str:
        """Free text, and after each trigger one of the tags that begin with it."""
        options = []
        for trigger in form["triggers"]:
            tags = [tag for tag in form["tags"] if tag["begin"].startswith(trigger)]
            if not tags or not trigger:
                raise _wrong(f"no tag begins with the trigger {trigger!r}")
            rests = " | ".join(
                f"({self._literal(tag['begin'][len(trigger) :])} {self._inside(tag, depth)})" for tag in tags
            )
            options.append(f"{self._until(trigger)} ({rests})")
        if not options:
            raise _wrong("it has no triggers")
        one = self._rule(" | ".join(options))
        least, only = form.get("at_least_one", False), form.get("stop_after_first", False)
        if only:
            return one if least else self._rule(f"{one} | {_ANY}")
        return self._rule(f"{one}{'+' if least else '*'} {_ANY}")

    def _separated(self, form: Format, depth: int) -> str:
        """Tags one after another, with a separator between them and nothing else."""
        one = self._rule(" | ".join(self._tag(tag, depth) for tag in form["tags"]))
        least, only = form.get("at_least_one", False), form.get("stop_after_first", False)
        more = "" if only else f" ({self._literal(form['separator'])} {one})*"
        return self._rule(f"{one}{more}") if least else self._rule(f'({one}{more}) | ""')


def _opening(form: Format) -> tuple[str, Sequence[Format]]:
    """The fixed text that a format begins with, and what comes after it."""
    if form["type"] == "const_string" and form["value"]:
        return form["value"], []
    if form["type"] == "tag" and form["begin"]:
        return form["begin"], [form["content"], {"type": "const_string", "value": form["end"]}]
    raise _wrong("any_text must be followed by a fixed text, or a tag that begins with one")


def _parsed(text: str) -> Any:  # JSON is of any type
    try:
        return json.loads(text)
    except ValueError as error:
        raise _wrong(f"it is no JSON ({error})") from error
    except RecursionError as error:
        raise _wrong("it is nested too deeply") from error


def _wrong(why: str) -> EyasError:
    return EyasError("request.grammar", f"the grammar cannot be used: {why}", "see the documentation of that grammar")
