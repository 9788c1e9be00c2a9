"""Requests that must be refused, and how; and grammars that may be refused or answered, but must harm nobody."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from soak.cases import CHAT, TEXT
from soak.server import BODY_BYTES, HEADERS

JSON = {"content-type": "application/json"}
ASKED: dict[str, Any] = {"messages": [{"role": "user", "content": "x"}], "max_tokens": 4}
GRAMMAR_CODES = (200, "request.grammar", "request.limit", "request.field", "request.json", "request.unsupported")


@dataclass(frozen=True)
class Bad:
    """``codes``: those that it may be refused with; 200 among them: it may be answered."""

    name: str
    codes: tuple[str | int, ...]
    body: bytes
    path: str = CHAT
    method: str = "POST"
    headers: dict[str, str] = field(default_factory=lambda: {**HEADERS, **JSON})


def bad_requests() -> list[Bad]:
    """Each with the only code that is right."""
    found = [
        Bad("no JSON", ("request.json",), b'{"messages": ['),
        Bad("nothing", ("request.json", "request.field"), b""),
        Bad("no UTF-8", ("request.json",), b'{"messages": [{"role": "user", "content": "\xff"}]}'),
        Bad("half a character", ("request.json",), rb'{"messages": [{"role": "user", "content": "\ud800"}]}'),
        Bad("NaN", ("request.json",), b'{"messages": [], "temperature": NaN}'),
        Bad("a key twice", ("request.json",), b'{"n": 1, "n": 2}'),
        Bad("deep", ("request.json",), b"[" * 5000 + b"]" * 5000),
        Bad("a list", ("request.field",), b"[1]"),
        Bad("oversize", ("request.too-large",), b" " * (BODY_BYTES + 1)),
        Bad("wrong path", ("server.path",), b"{}", path="/v1/nothing"),
        Bad("wrong method", ("server.method",), b"", method="DELETE"),
        Bad("wrong key", ("server.key",), _json(ASKED), headers={**JSON, "authorization": "Bearer key-of-others"}),
        Bad("no key", ("server.key",), _json(ASKED), headers=JSON),
        Bad("another scheme", ("server.key",), _json(ASKED), headers={**JSON, "authorization": "Basic eDp5"}),
    ]
    found += [Bad(name, codes, _json({**ASKED, **fields})) for name, codes, fields in _wrong_fields()]
    found += [Bad(name, codes, _json(fields), path=TEXT) for name, codes, fields in _wrong_texts()]
    return found


def _wrong_fields() -> Iterator[tuple[str, tuple[str, ...], dict[str, Any]]]:
    yield "unknown field", ("request.field",), {"presence": 1}
    yield "unknown field inside", ("request.field",), {"stream_options": {"usage": True}, "stream": True}
    yield "n over the limit", ("request.limit",), {"n": 65}
    yield "huge n", ("request.field",), {"n": 10**12}
    yield "n of 0", ("request.field",), {"n": 0}
    yield "top_logprobs over the limit", ("request.limit",), {"logprobs": True, "top_logprobs": 21}
    yield "huge top_logprobs", ("request.field", "request.limit"), {"logprobs": True, "top_logprobs": 10**9}
    yield "negative max_tokens", ("request.field",), {"max_tokens": -1}
    yield "temperature as text", ("request.field",), {"temperature": "0"}
    yield "temperature of 1e-9", ("request.sampling",), {"temperature": 1e-9}
    yield "other model", ("request.model",), {"model": "gpt-of-others"}
    yield "a path as model", ("request.model",), {"model": "../../etc/passwd"}
    yield "unknown role", ("request.field",), {"messages": [{"role": "root", "content": "x"}]}
    yield "no messages", ("request.field",), {"messages": []}
    yield "foreign token", ("request.field",), {"logit_bias": {"99999999": 1}}
    yield "many stops", ("request.limit",), {"stop": [str(i) for i in range(17)]}
    yield "a long stop", ("request.limit",), {"stop": "x" * 257}
    yield "too many steps", ("request.limit",), {"speculation": {"num_steps": 50}}
    yield "steps beyond all", ("request.field",), {"speculation": {"num_steps": 10**6}}
    yield "a contradiction", ("flags.contradiction",), {"speculation": {"num_steps": 2, "num_draft_tokens": 9}}
    yield "a tool that is none", ("request.field",), {"tool_choice": "required"}
    yield "prompt too long", ("request.too-long",), {"messages": [{"role": "user", "content": "word " * 100_000}]}
    yield (
        "more than the cache or the context",
        ("engine.cache-full", "request.too-long"),
        {"max_tokens": 1 << 20, "ignore_eos": True},
    )


def _wrong_texts() -> Iterator[tuple[str, tuple[str, ...], dict[str, Any]]]:
    yield "empty prompt", ("request.empty",), {"prompt": ""}
    yield "no prompt", ("request.field",), {"max_tokens": 1}
    yield "foreign prompt token", ("request.field",), {"prompt": [99_999_999], "max_tokens": 1}
    yield "many prompts", ("request.limit",), {"prompt": ["x"] * 65, "max_tokens": 1}
    yield "huge logprobs", ("request.limit",), {"prompt": "x", "max_tokens": 1, "logprobs": 10**6}
    yield "best_of", ("request.unsupported",), {"prompt": "x", "best_of": 5}


def abusive_grammars() -> list[Bad]:
    """What would take for ever, or all memory, if it were let."""
    many = {"enum": [f"value {i}" for i in range(4000)]}
    ladder: dict[str, Any] = {"type": "string"}
    for _ in range(12):
        ladder = {"anyOf": [ladder, {"type": "array", "items": ladder}]}
    found = {
        "nested brackets": {"guided_regex": "(" * 400 + "a" + ")" * 400},
        "repeated repetitions": {"guided_regex": "((a{1,900}){1,900}){1,900}"},
        "overlapping choices": {"guided_regex": "(a|aa|aaa|aaaa)*b{40,4000}" * 8},
        "look-ahead": {"guided_regex": "(?=a)b"},
        "not a regex": {"guided_regex": "[a-"},
        "left recursion": {"guided_grammar": 'start: start start | "a"'},
        "no way out": {"guided_grammar": 'start: "a" start'},
        "unknown rule": {"guided_grammar": "start: nothing"},
        "many rules": {
            "guided_grammar": "\n".join(["start: r0", *(f"r{i}: r{i + 1} r{i + 1}" for i in range(60)), 'r60: "a"'])
        },
        "allows nothing": {"guided_json": {"type": "string", "minLength": 5, "maxLength": 2}},
        "elsewhere": {"guided_json": {"$ref": "http://127.0.0.1:9/schema.json"}},
        "itself": {"guided_json": {"$ref": "#"}},
        "many items": {"guided_json": {"type": "array", "items": {"type": "integer"}, "minItems": 10**9}},
        "many values": {"guided_json": many},
        "a ladder": {"guided_json": ladder},
        "a long one": {"guided_regex": "a" * (65 << 10)},
        "two at once": {"guided_regex": "a", "guided_choice": ["b"]},
        "many choices": {"guided_choice": [f"choice {i} of many" for i in range(2000)]},
        "a number range": {"guided_json": {"type": "integer", "minimum": 10**15, "maximum": 10**15 + 7}},
        "patterns": {"guided_json": {"type": "object", "patternProperties": {"^(a+)+$": {"type": "string"}}}},
    }
    return [Bad(name, GRAMMAR_CODES, _json({**ASKED, "temperature": 0, **fields})) for name, fields in found.items()]


def _json(body: Any) -> bytes:
    return json.dumps(body).encode()
