"""Requests with a known answer, sent in any of the ways that must not change it, and compared."""

from __future__ import annotations

import json
import random
import time
from dataclasses import dataclass, field
from typing import Any

import httpx2 as httpx

from soak.cases import CHAT, Case, Expected
from soak.ledger import Ledger

TOLERANCE = 2e-3
"""Of log-probabilities: sums of other orders differ in their last bits."""
K_OVERRIDES: tuple[Any, ...] = (
    None, None, True, False, {"num_steps": 1}, {"num_steps": 2}, {"num_steps": 3},
    {"num_steps": 2, "eagle_topk": 2, "num_draft_tokens": 5},
)  # fmt: skip


@dataclass
class Seen:
    """One choice as it came."""

    tokens: list[int] = field(default_factory=list)
    text: str = ""
    finish: str | None = None
    logprobs: list[float] = field(default_factory=list)

    def take(self, choice: dict[str, Any], said: dict[str, Any]) -> None:
        """``said``: the message, its delta, or the choice itself."""
        self.tokens += choice.get("token_ids") or []
        self.text += (said.get("content") if "text" not in said else said["text"]) or ""
        self.finish = choice.get("finish_reason") or self.finish
        told = choice.get("logprobs") or {}
        self.logprobs += [entry["logprob"] for entry in told.get("content") or ()]
        self.logprobs += told.get("token_logprobs") or []


def body_of(case: Case, rng: random.Random, stream: bool) -> dict[str, Any]:
    """The case, with what must not change its answer chosen anew."""
    body = {**case.fields, "stream": stream, "return_token_ids": rng.random() < 0.8}
    how = rng.choice(K_OVERRIDES)
    if how is not None:
        body["speculation"] = how
    if rng.random() < 0.3:
        body |= {"user": f"user {rng.randrange(4)}", "priority": rng.randrange(-2, 3)}
    if rng.random() < 0.2:
        body["origins"] = True
    if stream and rng.random() < 0.5:
        body["stream_options"] = {"include_usage": True}
    if rng.random() < 0.3:
        body["speculation_figures"] = rng.random() < 0.5
    return body


async def ask(client: httpx.AsyncClient, case: Case, rng: random.Random, ledger: Ledger) -> None:
    """Send it, read its answer to the end, compare."""
    stream = rng.random() < 0.5
    kind = f"{'stream' if stream else 'whole'} {'chat' if case.path == CHAT else 'text'}"
    body, begun = body_of(case, rng, stream), time.monotonic()
    seen = [Seen() for _ in case.expected]
    if stream:
        over = await _streamed(client, case, body, seen, ledger, kind)
    else:
        over = await _whole(client, case, body, seen, ledger, kind)
    if over:
        ledger.note(kind, "right" if compare(case, body, seen, ledger, kind) else "wrong", begun)


async def _whole(
    client: httpx.AsyncClient, case: Case, body: dict[str, Any], seen: list[Seen], ledger: Ledger, kind: str
) -> bool:
    begun = time.monotonic()
    reply = await client.post(case.path, json=body)
    if reply.status_code != 200:
        return _refused(case, ledger, kind, begun, reply)
    answer = reply.json()
    for choice in answer["choices"]:
        seen[choice["index"]].take(choice, choice.get("message", choice))
    _check_usage(case, answer["usage"], ledger, kind)
    return True


async def _streamed(
    client: httpx.AsyncClient, case: Case, body: dict[str, Any], seen: list[Seen], ledger: Ledger, kind: str
) -> bool:
    begun, last = time.monotonic(), None
    async with client.stream("POST", case.path, json=body) as reply:
        if reply.status_code != 200:
            await reply.aread()
            return _refused(case, ledger, kind, begun, reply)
        async for line in reply.aiter_lines():
            if not line:
                continue
            last = line.removeprefix("data: ")
            if last == "[DONE]":
                continue
            part = json.loads(last)
            if "error" in part:
                code = part["error"]["code"]
                if not ledger.excused(code, begun):
                    ledger.fault(kind, f"{case.name}: a stream ended with {part}")
                ledger.note(kind, f"ended by {code}")
                return False
            for choice in part["choices"]:
                seen[choice["index"]].take(choice, choice.get("delta", choice))
            if part.get("usage"):
                _check_usage(case, part["usage"], ledger, kind)
    if last != "[DONE]":
        ledger.fault(kind, f"{case.name}: a stream ended with {last!r}")
        return False
    return True


def _refused(case: Case, ledger: Ledger, kind: str, begun: float, reply: httpx.Response) -> bool:
    code = ledger.refused(kind, begun, reply.status_code, reply.headers, reply.json())
    if code is not None and reply.status_code < 500:
        ledger.fault(kind, f"{case.name}: refused with {reply.text}")
    ledger.note(kind, f"{reply.status_code} {code}")
    return False


def _check_usage(case: Case, usage: dict[str, Any], ledger: Ledger, kind: str) -> None:
    told = usage["prompt_tokens"], usage["completion_tokens"]
    if told != (len(case.prompt), case.num_tokens):
        ledger.fault(kind, f"{case.name}: usage {told}, expected {(len(case.prompt), case.num_tokens)}")


def compare(case: Case, body: dict[str, Any], seen: list[Seen], ledger: Ledger, kind: str) -> bool:
    """Whether every choice is the reference's."""
    wrong = [
        f"choice {i}: {what}"
        for i, (one, expected) in enumerate(zip(seen, case.expected, strict=True))
        if (what := _difference(case, body, one, expected)) is not None
    ]
    if wrong:
        how = {name: value for name, value in body.items() if name not in case.fields}
        ledger.fault(kind, f"{case.name}, with {how}: {'; '.join(wrong)}")
    ledger.compared += len(seen)
    ledger.tokens += case.num_tokens
    return not wrong


def _difference(case: Case, body: dict[str, Any], seen: Seen, expected: Expected) -> str | None:
    if body["return_token_ids"] and tuple(seen.tokens) != expected.tokens:
        return f"tokens {seen.tokens}, expected {list(expected.tokens)}"
    if not case.calls_tools and (seen.text, seen.finish) != (expected.text, expected.finish):
        return f"{seen.text!r} ({seen.finish}), expected {expected.text!r} ({expected.finish})"
    if case.calls_tools and seen.finish not in (expected.finish, "tool_calls"):
        return f"finish reason {seen.finish}"
    if len(seen.logprobs) != len(expected.logprobs):
        return f"{len(seen.logprobs)} log-probabilities, expected {len(expected.logprobs)}"
    pairs = zip(seen.logprobs, expected.logprobs, strict=True)
    worst = max((abs(one - other) for one, other in pairs), default=0.0)
    return f"log-probabilities differ by {worst}" if worst > TOLERANCE else None
