"""Grammars as masks: what is allowed matches, however it is asked; what cannot be used is refused, and soon."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Sequence

import jsonschema_rs
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from eyas.engine.grammar import MAX_BYTES, GrammarFactory, GrammarState
from eyas.errors import EyasError
from eyas.speculate.constraint import Constraint
from eyas.testing import tiny_eos_ids, tiny_tokenizer

TOKENIZER = tiny_tokenizer()
VOCAB = TOKENIZER.get_vocab_size()
EXTRA = 40
"""Rows of the head that no token belongs to."""
EOS = tiny_eos_ids()[0]
FACTORY = GrammarFactory(TOKENIZER, tiny_eos_ids(), VOCAB + EXTRA)

PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 6},
        "age": {"type": "integer", "minimum": 0, "maximum": 150},
        "tags": {"type": "array", "items": {"enum": ["a", "ä", "fox"]}, "maxItems": 3},
        "more": {"anyOf": [{"type": "null"}, {"type": "boolean"}]},
    },
    "required": ["name", "age"],
    "additionalProperties": False,
}
TREE = {
    "$defs": {
        "node": {
            "type": "object",
            "properties": {"kids": {"type": "array", "items": {"$ref": "#/$defs/node"}, "maxItems": 1}},
            "required": ["kids"],
            "additionalProperties": False,
        }
    },
    "$ref": "#/$defs/node",
}
REGEXES = ["[a-c]{2,5}(x|yz)", r"\d{4}-\d\d-\d\d", "(fox|whale)( and (fox|whale)){0,3}", "ä?€{1,3}|b", "(ab?){1,4}"]

seeds = st.integers(0, 2**32 - 1)
slowly = settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.too_slow])


def ids(text: str) -> list[int]:
    return TOKENIZER.encode(text, add_special_tokens=False).ids


def allowed(state: Constraint, path: Sequence[int] = ()) -> list[int]:
    mask = state.mask(path)
    assert mask is not None
    assert (mask.shape, mask.dtype, mask.device.type) == ((VOCAB + EXTRA,), torch.bool, "cpu")
    assert not mask[VOCAB:].any()
    found: list[int] = mask.nonzero()[:, 0].tolist()
    return found


def walk(state: GrammarState, seed: int, longest: int = 400) -> list[int] | None:
    """A random answer under the masks, without its end; None if it became too long."""
    rng, answer = random.Random(seed), list[int]()
    while len(answer) < longest:
        may = allowed(state)
        assert may, "the grammar ends in nothing"
        token = rng.choice(may)
        state.commit([token])
        if token == EOS:
            assert state.finished
            return answer
        answer.append(token)
    return None


def spells(state: Constraint, text: str) -> bool:
    """Whether a text, in the tokenizer's own tokens, is a whole answer."""
    path: list[int] = []
    for token in [*ids(text), EOS]:
        mask = state.mask(path)
        if mask is None or not mask[token]:
            return False
        path.append(token)
    return True


@slowly
@given(st.sampled_from(REGEXES), seeds)
def test_what_a_regex_allows_matches_it(pattern, seed):
    answer = walk(FACTORY.compile("regex", pattern), seed)
    assert answer is not None
    assert re.fullmatch(pattern, TOKENIZER.decode(answer))


@slowly
@given(st.sampled_from([PERSON, TREE, {"type": "string", "minLength": 1, "maxLength": 3}]), seeds)
def test_what_a_schema_allows_is_valid(schema, seed):
    answer = walk(FACTORY.compile("json_schema", json.dumps(schema)), seed)
    if answer is not None:
        assert jsonschema_rs.is_valid(schema, json.loads(TOKENIZER.decode(answer)))


@pytest.mark.parametrize("seed", range(5))
def test_walks_come_to_an_end(seed):
    assert walk(FACTORY.compile("json_schema", json.dumps(PERSON)), seed) is not None


@slowly
@given(st.sampled_from(REGEXES), seeds, st.lists(st.lists(seeds, max_size=4), max_size=6))
def test_what_was_asked_before_changes_no_mask(pattern, seed, paths):
    """Paths of a tree are tried in any order, some forbidden: every mask is that of a fresh matcher."""
    state, rng, answer = FACTORY.compile("regex", pattern), random.Random(seed), list[int]()
    for _ in range(3):
        for drawn in paths:
            path: list[int] = []
            for number in drawn:
                may = allowed(state, path)
                path.append(may[number % len(may)] if number % 5 else number % VOCAB)
                fresh = FACTORY.compile("regex", pattern)
                fresh.commit(answer)
                mask, expected = state.mask(path), fresh.mask(path)
                assert (mask is None) == (expected is None)
                if mask is None or expected is None:
                    break
                assert torch.equal(mask, expected)
        token = rng.choice(allowed(state))
        if token == EOS:
            break
        answer.append(token)
        state.commit([token])


def test_a_round_commits_several_tokens():
    state = FACTORY.compile("regex", "(fox|whale) [0-9]{3}")
    text = ids("whale 123")
    assert allowed(state, text) == [EOS]
    assert not state.finished
    state.commit(text[:2])
    assert allowed(state, text[2:]) == [EOS]
    state.commit(text[2:])
    assert state.finished
    state.commit([EOS])
    assert state.finished
    assert allowed(state) == [EOS]
    assert state.failure is None


def test_a_forbidden_path_has_no_mask():
    state = FACTORY.compile("regex", "ab")
    assert state.mask(ids("c")) is None
    assert state.mask([*ids("ab"), EOS]) is None, "nothing follows the end"
    assert state.mask(ids("a")) is not None


@pytest.mark.parametrize(
    ("kind", "text", "good", "bad"),
    [
        ("json_object", "", ['{"a": [1, {"b": null}]}', "{}"], ["[1]", "{} {}", '{"a":' + " " * 70 + "1}"]),
        ("json_schema", json.dumps(PERSON), ['{"name": "Emma","age":12}'], ['{"name":"Emma"}', '{"name":1,"age":1}']),
        ("json_schema", "true", ["1", '"a"', "[]"], ["a"]),
        ("regex", "^a+$", ["a", "aaa"], ["", "ab"]),
        ("regex", "", [""], ["a"]),
        ("regex", "a/b\n?", ["a/b"], ["a"]),
        ("lark", 'start: "a" item*\nitem: /[0-9]/ | "(" item ")"', ["a", "a(1)2", "a((3))"], ["(1)", "a("]),
        ("lark", 'root ::= "a" item*\nitem ::= [0-9] | "(" item ")"', ["a", "a(1)2", "a((3))"], ["(1)", "a("]),
        ("lark", "start: /[a-z]*/ <|im_start|>", ["ab<|im_start|>"], ["ab"]),
    ],
)
def test_every_kind_of_grammar(kind, text, good, bad):
    for answer in good:
        assert spells(FACTORY.compile(kind, text), answer), answer
    for answer in bad:
        assert not spells(FACTORY.compile(kind, text), answer), answer


ABUSE = [
    ("regex", "(a{1,1000}){1,1000}"),
    ("regex", "((a{1,1000}){1,1000}){1,1000}"),
    ("regex", "(a|b)*a(a|b){2000}"),
    ("regex", "a{1,100000000}"),
    ("regex", "|".join(f"w{i * 7919 % 10007}" for i in range(15_000))),
    ("regex", "(" * 400 + "a" + ")*" * 400),
    ("regex", "(?=a)b"),
    ("regex", "(a"),
    ("lark", "start: start"),
    ("lark", 'start: ((x{1,1000}){1,1000}){1,1000}\nx: "a" x | "b"'),
    ("lark", "start: " + "(" * 5000 + '"a"' + ")" * 5000),
    ("lark", "start: e\ne: e e e | e e | /a+/"),
    ("lark", "start: nothing"),
    ("lark", "root ::= nothing"),
    ("lark", 'root ::= "a'),
    ("lark", 'root ::= a-b a_b\na-b ::= "x"\na_b ::= "y"'),
    ("lark", "root ::= " + "(" * 5000 + '"a"' + ")" * 5000),
    ("json_schema", '{"$ref": "http://127.0.0.1:9/x.json"}'),
    ("json_schema", '{"$ref": "file:///etc/passwd"}'),
    ("json_schema", '{"$ref": "#"}'),
    ("json_schema", "[" * 100_000),
    ("json_schema", '{"items":' * 500 + "{}" + "}" * 500),
    ("json_schema", "3"),
    ("json_schema", "{"),
    ("json_schema", "false"),
    ("json_schema", '{"not": {"type": "string"}}'),
    (
        "json_schema",
        json.dumps({"allOf": [{"anyOf": [{"required": [f"{i}{j}"]} for j in range(9)]} for i in range(9)]}),
    ),
    ("structural_tag", "{}"),
    ("structural_tag", "x"),
    ("structural_tag", '{"format": {"type": "nonsense"}}'),
    ("structural_tag", '{"format": {"type": "tag", "begin": 1, "content": {"type": "any_text"}, "end": ""}}'),
    ("structural_tag", '{"format": {"type": "sequence", "elements": [{"type":"any_text"},{"type":"any_text"}]}}'),
    ("structural_tag", '{"structures": [], "triggers": ["<f"]}'),
    ("structural_tag", '{"structures": [], "triggers": []}'),
    ("regex", "a" * (MAX_BYTES + 1)),
    ("sparql", "x"),
]


def kind_of_refusal(kind: str, text: str) -> str | None:
    try:
        FACTORY.compile(kind, text)
    except EyasError as error:
        return {"request.grammar": str(error)[:1000]}[error.code]
    return None


@pytest.mark.parametrize(("kind", "text"), ABUSE, ids=[f"{kind}:{text[:30]}" for kind, text in ABUSE])
def test_an_abusive_grammar_is_refused_or_harmless(kind, text):
    """Bounded: some are refused, the others walk on. None hangs, crashes or looks outside."""
    if kind_of_refusal(kind, text) is None:
        walk(FACTORY.compile(kind, text), 0, longest=30)


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        ("regex", "(?=a)b"),
        ("json_schema", '{"$ref": "http://127.0.0.1:9/x.json"}'),
        ("json_schema", "false"),
        ("lark", "root ::= nothing"),
        ("regex", "a" * (MAX_BYTES + 1)),
        ("sparql", "x"),
    ],
)
def test_what_cannot_be_used_is_an_error(kind, text):
    refusal = kind_of_refusal(kind, text)
    assert refusal is not None
    assert len(refusal) < 1000


def test_a_target_without_an_end_has_no_grammars():
    with pytest.raises(EyasError, match="no token that ends an answer"):
        GrammarFactory(TOKENIZER, [], VOCAB).compile("regex", "a")


GROWS = json.dumps(
    {
        "type": "object",
        "properties": {"a": {"properties": {f"p{i}": {"properties": {"q": {}}} for i in range(700)}}},
        "required": ["a"],
        "additionalProperties": False,
    }
)
"""Small at first; inside, a row of its parser has more items than the limit."""


def test_a_grammar_that_becomes_too_complex_ends_the_answer():
    step, deeper = FACTORY.compile("json_schema", GROWS), FACTORY.compile("json_schema", GROWS)
    text = ids('{"a":{')
    assert allowed(step, text) == [EOS]
    assert step.failure is None, "it is only a path"
    assert allowed(step, text[:2]) == allowed(deeper, text[:2]) != [EOS]
    for token in text:
        deeper.commit([token])
    assert allowed(deeper) == [EOS]
    for state, rest in ((step, [*text, EOS]), (deeper, [EOS])):
        state.commit(rest)
        assert state.finished
        assert state.failure is not None
        assert state.failure.code == "request.grammar"


OBJECT = {"type": "json_schema", "json_schema": {"properties": {"n": {"type": "integer"}}, "required": ["n"]}}
TAG = {"type": "tag", "begin": "<f>", "content": OBJECT, "end": "</f>"}
SPECIAL = {"type": "tag", "begin": "<|im_start|>f", "content": OBJECT, "end": "!"}


@pytest.mark.parametrize(
    ("form", "good", "bad"),
    [
        (TAG, ['<f>{"n":1}</f>'], ["", "<f></f>", '<f>{"n":1}', 'a<f>{"n":1}</f>']),
        (SPECIAL, ['<|im_start|>f{"n":1}!'], ['<|im_start|>g{"n":1}!']),
        (
            {"type": "triggered_tags", "triggers": ["<f"], "tags": [TAG]},
            ["", "a < b", 'so <f>{"n":1}</f> and <f>{"n":2}</f>.'],
            ["<f", "<f>no</f>"],
        ),
        (
            {"type": "triggered_tags", "triggers": ["<|im_start|>"], "tags": [SPECIAL], "at_least_one": True},
            ['so <|im_start|>f{"n":1}! Yes', '<|im_start|>f{"n":1}!<|im_start|>f{"n":2}!'],
            ["", "a", "<|im_start|>g"],
        ),
        (
            {
                "type": "triggered_tags",
                "triggers": ["<f"],
                "tags": [TAG],
                "at_least_one": True,
                "stop_after_first": True,
            },
            ['so <f>{"n":1}</f>'],
            ["a", '<f>{"n":1}</f> and'],
        ),
        (
            {"type": "tags_with_separator", "tags": [TAG], "separator": "\n", "at_least_one": True},
            ['<f>{"n":1}</f>', '<f>{"n":1}</f>\n<f>{"n":2}</f>'],
            ["", '<f>{"n":1}</f><f>{"n":2}</f>'],
        ),
        ({"type": "tags_with_separator", "tags": [TAG], "separator": "\n"}, ["", '<f>{"n":1}</f>'], ["\n"]),
        (
            {
                "type": "sequence",
                "elements": [
                    {"type": "tag", "begin": "<think>", "content": {"type": "any_text"}, "end": "</think>"},
                    {"type": "const_string", "value": "\n"},
                    OBJECT,
                ],
            },
            ['<think>a < b</think>\n{"n": 3}'],
            ['{"n":3}', "<think>a</think>\n"],
        ),
        ({"type": "sequence", "elements": [{"type": "any_text"}, TAG]}, ['hm <f>{"n":1}</f>'], ["hm"]),
        ({"type": "or", "elements": [{"type": "regex", "pattern": "[a-c]+"}, TAG]}, ["abc", '<f>{"n":1}</f>'], ["d"]),
        ({"type": "grammar", "grammar": 'root ::= "x" | "yz"+'}, ["x", "yzyz"], ["", "xy"]),
        ({"type": "any_text"}, ["", "a\nb"], ["<|im_start|>"]),
    ],
)
def test_structural_tags(form, good, bad):
    text = json.dumps({"type": "structural_tag", "format": form})
    for answer in good:
        assert spells(FACTORY.compile("structural_tag", text), answer), answer
    for answer in bad:
        assert not spells(FACTORY.compile("structural_tag", text), answer), answer


def test_the_older_structural_tag():
    structure = {"begin": "<function=f>", "schema": OBJECT["json_schema"], "end": "</function>"}
    text = json.dumps({"structures": [structure], "triggers": ["<function="]})
    assert spells(FACTORY.compile("structural_tag", text), 'so <function=f>{"n":1}</function>.')
    assert not spells(FACTORY.compile("structural_tag", text), "<function=g>{}</function>")
