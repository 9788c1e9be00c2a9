"""Grammars that force a call: what they allow is a call by the schema, and the parser reads it back."""

from __future__ import annotations

import json
import random
from itertools import count
from typing import Any

import jsonschema_rs
import pytest
from tokenizers import AddedToken, Tokenizer

from eyas.engine.grammar import GrammarFactory, GrammarState
from eyas.errors import EyasError
from eyas.serve.parsers import (
    TOOL_FORMATS,
    Content,
    Reasoning,
    ToolArguments,
    ToolStart,
    after_reasoning,
    stream_parser,
    tool_grammar,
)
from eyas.serve.wire import Grammar
from eyas.testing import tiny_eos_ids, tiny_tokenizer

MARKS = [
    *("<|tool_calls_section_begin|>", "<|tool_call_begin|>", "<|tool_call_argument_begin|>", "<|tool_call_end|>"),
    *("<|tool_calls_section_end|>", "<｜tool▁calls▁begin｜>", "<｜tool▁call▁begin｜>", "<｜tool▁sep｜>"),
    *("<｜tool▁call▁end｜>", "<｜tool▁calls▁end｜>", "</think>"),
]


def tokenizer() -> Tokenizer:
    """The tiny one, with the marks of Kimi and DeepSeek as special tokens, as theirs have."""
    made = tiny_tokenizer()
    made.add_special_tokens([AddedToken(mark, special=True, normalized=False) for mark in MARKS])
    return made


TOKENIZER = tokenizer()
EOS = tiny_eos_ids()[0]
FACTORY = GrammarFactory(TOKENIZER, [EOS], TOKENIZER.get_vocab_size())
SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "maxLength": 5},
        "unit": {"type": "string", "enum": ["C", "F"]},
        "days": {"type": "integer", "minimum": 1, "maximum": 9},
        "dry": {"type": "boolean"},
    },
    "required": ["city", "unit", "days"],
    "additionalProperties": False,
}
NUMBER: dict[str, Any] = {"type": "object", "properties": {"n": {"type": "integer", "maximum": 99, "minimum": 0}}}
TOOLS = [
    {"type": "function", "function": {"name": "get_weather", "description": "…", "parameters": SCHEMA}},
    {"type": "function", "function": {"name": "pick", "parameters": NUMBER | {"additionalProperties": False}}},
    {"type": "function", "function": {"name": "now"}},
]
SCHEMAS: dict[str, Any] = {"get_weather": SCHEMA, "pick": NUMBER, "now": {"maxProperties": 0}}


def compiled(grammar: Grammar) -> GrammarState:
    return FACTORY.compile(grammar.kind, grammar.text)


def random_answer(state: GrammarState, seed: int, longest: int = 400) -> str | None:
    """A random text under the grammar, its end as soon as it may come."""
    rng, answer = random.Random(seed), list[int]()
    while len(answer) < longest:
        mask = state.mask(())
        assert mask is not None
        may = mask.nonzero()[:, 0].tolist()
        assert may
        if EOS in may:
            return TOKENIZER.decode(answer, skip_special_tokens=False)
        answer.append(rng.choice(may))
        state.commit([answer[-1]])
    return None


def calls_in(form: str, text: str) -> list[tuple[str, Any]]:
    """The calls that the form's own parser finds; all else must be form."""
    number = count()
    made = stream_parser(form, None, TOOLS, new_id=lambda: str(next(number)))
    events = [*made.feed(text), *made.end()]
    assert not [event for event in events if isinstance(event, (Content, Reasoning))], text
    names = {event.index: event.name for event in events if isinstance(event, ToolStart)}
    given = {
        i: "".join(event.text for event in events if isinstance(event, ToolArguments) and event.index == i)
        for i in names
    }
    return [(names[i], json.loads(given[i])) for i in names]


CHOICES = [(form, choice) for form in TOOL_FORMATS for choice in ("required", "get_weather", "pick", "now")]
CHOICES.remove(("qwen3_coder", "get_weather"))  # its city is free text, of which a random walk does not find the end


@pytest.mark.parametrize(("form", "choice"), CHOICES)
def test_what_is_forced_is_a_call_by_its_schema(form, choice):
    whole = 0
    for seed in range(6):
        text = random_answer(compiled(tool_grammar(form, TOOLS, choice)), seed)
        if text is None:
            continue
        whole += 1
        found = calls_in(form, text)
        assert found
        for name, arguments in found:
            assert choice in ("required", name)
            assert jsonschema_rs.is_valid(SCHEMAS[name], arguments), text
        assert choice == "required" or len(found) == 1
    assert whole >= 2, "walks come to an end"


def spells(state: GrammarState, text: str) -> bool:
    path: list[int] = []
    for token in [*TOKENIZER.encode(text, add_special_tokens=False).ids, EOS]:
        mask = state.mask(path)
        if mask is None or not mask[token]:
            return False
        path.append(token)
    return True


NOW = '<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>'


def test_several_calls_only_where_they_may_be():
    assert spells(compiled(tool_grammar("hermes", TOOLS, "required")), f"{NOW}\n{NOW}")
    assert not spells(compiled(tool_grammar("hermes", TOOLS, "required", parallel=False)), f"{NOW}\n{NOW}")
    assert not spells(compiled(tool_grammar("hermes", TOOLS, "now")), f"{NOW}\n{NOW}")
    assert not spells(compiled(tool_grammar("hermes", TOOLS, "pick")), NOW)
    assert not spells(compiled(tool_grammar("hermes", TOOLS, "required")), "Hello.")


def test_text_in_xml_parameters_is_written_as_it_is():
    head = "<tool_call>\n<function=get_weather>\n"
    city = '<parameter=city>\na "b"\n< c\n</parameter>\n'
    unit, days = "<parameter=unit>\nC\n</parameter>\n", "<parameter=days>\n3\n</parameter>\n"
    end = "</function>\n</tool_call>"
    state = compiled(tool_grammar("qwen3_coder", TOOLS, "required"))
    assert spells(state, head + city + unit + days + end)
    assert not spells(state, head + city + unit + end), "days are required"
    assert not spells(state, head + city + "<parameter=unit>\nK\n</parameter>\n" + days + end)


def test_python_calls_take_any_literal():
    tool = {
        "type": "function",
        "function": {"name": "f", "parameters": {"properties": {"a": {}, "b": {"type": "array"}}}},
    }
    state = compiled(tool_grammar("pythonic", [tool], "required"))
    assert spells(state, "[f()]")
    assert spells(state, '[f(a={"x": [1, True, None, -2.5]})]')
    assert not spells(state, "[f(a=open)]")


OBJECT = Grammar("json_schema", json.dumps(NUMBER))


@pytest.mark.parametrize(
    ("grammar", "reasoning", "opened", "good", "bad"),
    [
        (OBJECT, "qwen3", None, ['<think>\na {b}\n</think>\n\n{"n":1}', '{"n":1}'], ["<think>a", "a"]),
        (OBJECT, "qwen3", True, ['Hm.\n</think>\n\n{"n":1}'], ['{"n":1}']),
        (OBJECT, "qwen3", False, ['{"n":1}'], ['Hm.</think>{"n":1}']),
        (OBJECT, "deepseek-r1", None, ['Hm.</think>{"n":1}'], ['{"n":1}']),
        (OBJECT, None, None, ['{"n":1}'], ["Hm."]),
        (Grammar("json_object", ""), "qwen3", True, ["Hm.</think>{}"], ["Hm.</think>1"]),
        (Grammar("regex", "[ab]+"), "qwen3", True, ["c</think>ab"], ["c</think>c"]),
        (Grammar("lark", 'root ::= "a" | "b"'), "qwen3", True, ["c</think>a"], ["c</think>c"]),
        (tool_grammar("hermes", TOOLS, "now"), "qwen3", True, [f"c</think>\n\n{NOW}"], [NOW]),
    ],
)
def test_reasoning_stays_free(grammar, reasoning, opened, good, bad):
    state = compiled(after_reasoning(grammar, reasoning, opened))
    for text in good:
        assert spells(state, text), text
    for text in bad:
        assert not spells(state, text), text


@pytest.mark.parametrize(
    ("make", "code"),
    [
        (lambda: tool_grammar("nonsense", TOOLS, "required"), "flags.unknown"),
        (lambda: tool_grammar("hermes", TOOLS, "nonsense"), "flags.unknown"),
        (lambda: tool_grammar("hermes", [], "required"), "flags.unknown"),
        (lambda: after_reasoning(Grammar("json_schema", "{"), "qwen3", True), "request.grammar"),
        (lambda: after_reasoning(Grammar("structural_tag", "{}"), "qwen3", True), "request.grammar"),
    ],
)
def test_what_cannot_be_forced_is_an_error(make, code):
    with pytest.raises(EyasError) as caught:
        make()
    assert caught.value.code == code
