"""Requests whose answers are known: what is asked, and what a plain engine in this process answers to it."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from eyas.config import SamplingSettings
from eyas.engine.engine import Engine
from eyas.engine.grammar import GrammarFactory
from eyas.engine.request import Extras, Request
from eyas.engine.session import Session
from eyas.engine.text import TextStream
from eyas.serve.parsers import tool_grammar, tools_prompt
from eyas.serve.wire import Grammar
from soak.pairs import Pair

CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
NUM_SLOTS = 16384
SAMPLING = (
    "temperature", "top_p", "top_k", "min_p", "presence_penalty", "frequency_penalty", "repetition_penalty",
    "ignore_eos",
)  # fmt: skip
SAMPLED = {"temperature": 0.9, "top_p": 0.95, "top_k": 50}
TOOL_FORMAT = "smollm"
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "look_up",
            "description": "Look up a word.",
            "parameters": {
                "type": "object",
                "properties": {"word": {"type": "string", "maxLength": 12}, "times": {"enum": [1, 2]}},
                "required": ["word", "times"],
                "additionalProperties": False,
            },
        },
    }
]
SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 16},
        "age": {"type": "integer"},
        "wild": {"type": "boolean"},
    },
    "required": ["name", "age", "wild"],
    "additionalProperties": False,
}
LARK = 'start: line line\nline: "- " WORD "\\n"\nWORD: /[a-z ]{3,12}/\n'
DATE = "[0-9]{4}-[0-9]{2}-[0-9]{2}"


@dataclass(frozen=True)
class Draft:
    """One request before its answer is known. ``grammar``: the one that its fields ask for."""

    name: str
    path: str
    fields: Mapping[str, Any]
    grammar: Grammar | None = None


@dataclass(frozen=True)
class Expected:
    """One choice."""

    tokens: tuple[int, ...]
    text: str
    finish: str
    logprobs: tuple[float, ...]


@dataclass(frozen=True)
class Case:
    """A request with the answers of its choices. ``fields``: all that may change them."""

    name: str
    path: str
    fields: Mapping[str, Any]
    prompt: tuple[int, ...]
    expected: tuple[Expected, ...]

    @property
    def calls_tools(self) -> bool:
        """Whether its text is read as calls."""
        return "tools" in self.fields

    @property
    def num_tokens(self) -> int:
        """Of all choices."""
        return sum(len(one.tokens) for one in self.expected)


def drafts(pair: Pair) -> Iterator[Draft]:
    """A fixed set."""
    asked, n = pair.questions, pair.tokens
    for i, question in enumerate(asked):
        yield chat(f"greedy {i}", question, n)
    for i, question in enumerate(asked[:4]):
        yield chat(f"seeded {i}", question, n, seed=100 + i, **SAMPLED)
    yield chat("three choices", asked[0], n // 2, n=3, seed=7, **SAMPLED)
    yield chat("hot", asked[1], n, temperature=1.5, seed=1 << 62)
    yield chat("stop strings", asked[2], n, stop=[" a", "\n\n"])
    yield chat("stop strings, sampled", asked[3], n, stop="e", include_stop_str_in_output=True, seed=3, **SAMPLED)
    yield chat("logprobs", asked[4], n, logprobs=True, top_logprobs=4)
    yield chat("logprobs, sampled", asked[5], n // 2, logprobs=True, top_logprobs=2, seed=9, n=2, **SAMPLED)
    penalties = {"presence_penalty": 0.6, "frequency_penalty": 0.4, "repetition_penalty": 1.1}
    yield chat("penalties", asked[6], n, **penalties)
    yield chat("penalties, sampled", asked[6], n, seed=11, **SAMPLED, **penalties)
    yield chat("biases", asked[7], n, logit_bias={"10": 3.0, "20": -100.0, "30": 1.5})
    yield chat("long", asked[7], 2 * n, ignore_eos=True)
    yield chat("long, sampled", asked[5], 3 * n, ignore_eos=True, seed=13, **SAMPLED)
    yield chat("one token", asked[0], 1)
    yield from shared_prefixes(pair)
    yield from constrained(pair)
    yield Draft("text", TEXT, {"prompt": asked[1], "max_tokens": n, "temperature": 0})
    yield Draft("text, sampled", TEXT, {"prompt": "Once upon a time", "max_tokens": n, "seed": 17, "n": 2, **SAMPLED})
    yield Draft("text, logprobs", TEXT, {"prompt": asked[3], "max_tokens": n, "logprobs": 3, "temperature": 0})


def chat(name: str, question: str, most: int, grammar: Grammar | None = None, **fields: Any) -> Draft:
    """One question."""
    messages = [{"role": "user", "content": question}]
    return Draft(name, CHAT, {"messages": messages, "max_tokens": most, "temperature": 0, **fields}, grammar)


def shared_prefixes(pair: Pair) -> Iterator[Draft]:
    """A long beginning that several have in common; it is read in several pieces."""
    words = " ".join(pair.questions).split()
    beginning = " ".join(words[i * 7 % len(words)] for i in range(pair.long_words))
    for i, question in enumerate(pair.questions[:3]):
        yield chat(f"long prompt {i}", f"{beginning} {question}", pair.tokens // 2)


def constrained(pair: Pair) -> Iterator[Draft]:
    """With grammars, and calls of tools."""
    asked, n = pair.questions, pair.tokens
    named = {"type": "json_schema", "json_schema": {"name": "animal", "schema": SCHEMA}}
    schema = Grammar("json_schema", json.dumps(SCHEMA))
    yield chat("schema", asked[0], n, schema, response_format=named)
    yield chat("schema, sampled", asked[2], n, schema, response_format=named, seed=19, **SAMPLED)
    yield chat("any object", asked[4], n, Grammar("json_object", ""), response_format={"type": "json_object"})
    yield chat("expression", asked[5], n, Grammar("regex", DATE), guided_regex=DATE)
    yield chat("grammar", asked[5], n, Grammar("lark", LARK), guided_grammar=LARK, seed=23, **SAMPLED)
    forced = tool_grammar(TOOL_FORMAT, TOOLS, "required")
    yield chat("tools", asked[4], n, tools=TOOLS)
    yield chat("tools, forced", asked[4], n, forced, tools=TOOLS, tool_choice="required")


def answered(session: Session, wanted: Sequence[Draft]) -> list[Case]:
    """All of them, by an engine without a draft and without a prefix cache."""
    engine = Engine(session.target, None, eos_ids=session.eos_ids, num_slots=NUM_SLOTS, prefix_cache=False)
    grammars = GrammarFactory(session.tokenizer, session.eos_ids, session.target.vocab_size)
    asked = []
    for draft in wanted:
        prompt = _prompt(session, draft)
        choices = [_submitted(session, engine, grammars, draft, prompt, i) for i in range(draft.fields.get("n", 1))]
        asked.append((draft, prompt, choices))
    engine.run()
    return [
        Case(draft.name, draft.path, dict(draft.fields), tuple(prompt), tuple(_expected(*one) for one in choices))
        for draft, prompt, choices in asked
    ]


def _prompt(session: Session, draft: Draft) -> list[int]:
    if draft.path == TEXT:
        return session.encode(draft.fields["prompt"])
    turns = [(message["role"], message["content"]) for message in draft.fields["messages"]]
    told = tools_prompt(TOOL_FORMAT, draft.fields.get("tools", ()))
    return session.encode_chat(turns if told is None else [("system", told), *turns])


def _submitted(
    session: Session, engine: Engine, grammars: GrammarFactory, draft: Draft, prompt: list[int], index: int
) -> tuple[Request, TextStream]:
    fields = draft.fields
    values = {name: fields[name] for name in SAMPLING if name in fields}
    sampling = SamplingSettings(
        **values,
        seed=fields.get("seed", 0) + index,
        logit_bias={int(token): bias for token, bias in fields.get("logit_bias", {}).items()},
        max_new_tokens=fields["max_tokens"],
    )
    stop = fields.get("stop", [])
    stops = [stop] if isinstance(stop, str) else stop
    included = bool(fields.get("include_stop_str_in_output"))
    silent = () if included or sampling.ignore_eos else session.eos_ids
    text = TextStream(session.tokenizer, stops, included, True, silent)
    top = fields.get("top_logprobs") if draft.path == CHAT else fields.get("logprobs")
    state = None if draft.grammar is None else grammars.compile(draft.grammar.kind, draft.grammar.text)
    return engine.submit(prompt, sampling, None, Extras(text, state, top)), text


def _expected(request: Request, text: TextStream) -> Expected:
    assert request.finished in ("stop", "length"), request.finished
    said = "".join(text.take()) + text.end()
    return Expected(tuple(request.answer), said, request.finished, tuple(entry.own for entry in request.logprobs))
