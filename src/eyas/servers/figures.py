"""What an answer says of itself, in any engine's form: its text, its tokens, its figures of speculation."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeGuard

from eyas.dialects import counters
from eyas.dialects.counters import Counts, bad_metrics, counts_of

MAX_DEPTH = 6


@dataclass(frozen=True)
class Answered:
    """One request. ``tokens``, ``text``: as far as the server gives them · ``counts`` None: it gave no figures."""

    tokens: tuple[int, ...] | None
    text: str | None
    counts: Counts | None


def read_answer(body: Mapping[str, Any]) -> Answered:
    """Tokens, text and figures out of an answer in any of the engines' forms. Raises ``server.metrics``."""
    choices = body.get("choices")
    first = choices[0] if is_list(choices) and choices and isinstance(choices[0], dict) else body
    message = first.get("message")
    text = message.get("content") if isinstance(message, dict) else first.get("text")
    ids = first.get("token_ids", first.get("output_ids"))
    tokens = tuple(i for i in ids if isinstance(i, int) and not isinstance(i, bool) and i >= 0) if is_list(ids) else ()
    whole = is_list(ids) and len(tokens) == len(ids)
    fields = fields_of(body)
    counts = counts_of(fields, completion_of(body)) if fields else None
    return Answered(tokens if whole else None, text if isinstance(text, str) else None, counts)


def fields_of(body: Any, depth: int = 0) -> dict[str, Any]:
    """The outermost object that holds figures, wherever this version puts it; empty without any."""
    if depth > MAX_DEPTH:
        return {}
    if isinstance(body, dict):
        if any(metric.name in body for metric in counters.METRICS if metric.where == "answer"):
            return body
        inner = [value for value in body.values() if isinstance(value, dict | list)]
    else:
        inner = [value for value in body[:4] if isinstance(value, dict)] if is_list(body) else []
    return next((found for value in inner if (found := fields_of(value, depth + 1))), {})


def completion_of(body: Mapping[str, Any]) -> int | None:
    """Tokens of the answer as the server counts them; None: it does not say. Raises ``server.metrics``."""
    return count_in(body, counters.COMPLETION)


def count_in(body: Mapping[str, Any], name: str) -> int | None:
    """A count of tokens, wherever an answer has it; None: it does not say. Raises ``server.metrics``."""
    for place in (body.get("usage"), body.get("meta_info"), body):
        value = place.get(name) if isinstance(place, dict) else None
        if value is not None:
            if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= counters.LARGEST:
                raise bad_metrics(f"{name} is {str(value)[:60]!r}")
            return value
    return None


def is_list(value: Any) -> TypeGuard[list[Any]]:
    """Whether it is a list, of whatever."""
    return isinstance(value, list)
