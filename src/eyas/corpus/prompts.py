"""Prompts: what a target is to be asked, one JSON object a line, in any of the three forms that people have.

``messages`` (OpenAI's API) · ``conversations`` (ShareGPT: from and value) · ``prompt`` (a text, or messages).
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO, Any, NoReturn

from pydantic import ValidationError, model_validator

from eyas.contract.schema import Name, Strict, describe
from eyas.corpus.messages import check_messages, from_openai, from_sharegpt
from eyas.errors import EyasError

MAX_LINE_BYTES = 1 << 25
"""A conversation of a million tokens is a quarter of this; a longer line is a file of another kind."""

_BOM = b"\xef\xbb\xbf"
_FORMS = ("messages", "conversations", "prompt")
_FIX = (
    'write one JSON object a line: {"prompt": "…"}, {"messages": [{"role": "user", "content": "…"}]} or'
    ' {"conversations": [{"from": "human", "value": "…"}]}'
)
_IS_ARRAY = "; it begins a JSON array, and each element must be a line of its own"
_UNREADABLE = ("functions", "images", "videos", "audios")
"""Columns that change what is asked and that no prompt here can hold."""


class Prompt(Strict):
    """What to ask, and where it comes from.

    ``messages``: as in OpenAI's API, each with role (system, user, assistant, tool), content, and where they apply
    reasoning_content, tool_calls, tool_call_id, name. Assistant turns are kept as they were given. Where two user
    messages follow each other (MT-Bench), the target's own answer belongs between them. ``raw``: the text for a
    completion model, if there is one. ``licence`` "" is: not stated.
    """

    id: Name
    messages: tuple[dict[str, Any], ...]
    source: str = ""
    licence: str = ""
    domain: str = ""
    tools: tuple[dict[str, Any], ...] = ()
    raw: str | None = None

    @model_validator(mode="after")
    def _in_order(self) -> Prompt:
        check_messages(self.messages)
        return self

    @property
    def user_turns(self) -> tuple[str, ...]:
        """What the user says, turn by turn."""
        return tuple(message["content"] for message in self.messages if message["role"] == "user")

    def to_line(self) -> str:
        """The prompt as one line of JSON, without the newline."""
        return json.dumps(self.model_dump(mode="json", exclude_defaults=True), ensure_ascii=False)


def read_prompts(path: Path) -> Iterator[Prompt]:
    """The prompts of a JSON Lines file, in order, whichever form each line has; blank lines count as nothing.

    ``id`` is the file's name and the line's number where it is not given, ``source`` the file's name; ``category``
    and ``license`` are read as domain and licence, other columns are left out. Raises ``artifact.missing`` and, naming
    the line, ``artifact.corrupt``: bytes that are not UTF-8, no JSON, none of the forms, empty or ill-ordered
    messages, an id that is there twice, a line over ``MAX_LINE_BYTES``, or no prompt at all.
    """
    if not path.is_file():
        raise EyasError("artifact.missing", f"there is no file {path}", "give a JSON Lines file of prompts")
    seen: dict[str, int] = {}
    with path.open("rb") as file:
        for number, line in _lines(file, path):
            prompt = _parse(line, path, number)
            if prompt.id in seen:
                _refuse(path, number, f"id {prompt.id!r} is there already, in line {seen[prompt.id]}")
            seen[prompt.id] = number
            yield prompt
    if not seen:
        raise EyasError("artifact.corrupt", f"{path} holds no prompt", _FIX)


def write_prompts(prompts: Sequence[Prompt]) -> str:
    """The text of a file that :func:`read_prompts` reads to the same prompts."""
    return "".join(prompt.to_line() + "\n" for prompt in prompts)


def _lines(file: IO[bytes], path: Path) -> Iterator[tuple[int, bytes]]:
    """(number, line without its end) of every line that holds something."""
    number = 0
    while line := file.readline(MAX_LINE_BYTES + 1):
        number += 1
        if len(line) > MAX_LINE_BYTES:
            _refuse(path, number, f"it is longer than {MAX_LINE_BYTES} bytes{_if_array(line)}")
        if number == 1:
            line = line.removeprefix(_BOM)
        if line.strip():
            yield number, line


def _parse(line: bytes, path: Path, number: int) -> Prompt:
    try:
        record = json.loads(line.decode("utf-8"), parse_constant=_refuse_constant)
        return _prompt(record, path, number)
    except ValidationError as error:
        _refuse(path, number, describe(error), error)
    except UnicodeDecodeError as error:
        _refuse(path, number, f"byte {error.start + 1} is not UTF-8", error)
    except json.JSONDecodeError as error:
        cut = "" if line.endswith(b"\n") else "; the file ends within this line, so it may be cut off"
        _refuse(path, number, f"it is no whole JSON object ({error}){cut}{_if_array(line)}", error)
    except (ValueError, RecursionError) as error:
        _refuse(path, number, str(error), error)


def _if_array(line: bytes) -> str:
    return _IS_ARRAY if line.lstrip()[:1] == b"[" else ""


def _refuse(path: Path, number: int, why: str, error: Exception | None = None) -> NoReturn:
    raise EyasError("artifact.corrupt", f"{path}, line {number}, is no prompt: {why}", _FIX) from error


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a number in JSON")


def _prompt(record: Any, path: Path, number: int) -> Prompt:
    if not isinstance(record, dict):
        array = _IS_ARRAY if isinstance(record, list) else ""
        raise ValueError(f"a JSON object is expected, not {type(record).__name__}{array}")
    given = {name: value for name, value in record.items() if value is not None}
    unreadable = [name for name in _UNREADABLE if given.get(name)]
    if unreadable:
        raise ValueError(f"{unreadable[0]} cannot be held by a prompt")
    tools = given.get("tools", [])
    if not isinstance(tools, list):
        raise ValueError("tools is no list")
    prompt = Prompt(
        id=_text(given, ("id",), f"{path.stem}-{number}"),
        messages=tuple(_messages(given)),
        source=_text(given, ("source",), path.name),
        licence=_text(given, ("licence", "license"), ""),
        domain=_text(given, ("domain", "category"), ""),
        tools=tuple(tools),
        raw=given.get("raw"),
    )
    _check_encodable(prompt)
    return prompt


def _text(given: dict[str, Any], names: tuple[str, ...], default: str) -> str:
    for name in names:
        value = given.get(name, "")
        if isinstance(value, bool) or not isinstance(value, (str, int)):
            raise ValueError(f"{name} is neither a text nor a number")
        if value != "":
            return str(value)
    return default


def _messages(given: dict[str, Any]) -> list[dict[str, Any]]:
    forms = [name for name in _FORMS if name in given]
    if not forms:
        raise ValueError(f"it has none of {', '.join(_FORMS)}")
    if len(forms) > 1:
        # Some sets repeat the first question beside the whole conversation, which says nothing else.
        whole = _read_form(forms[0], given[forms[0]])
        if forms[1:] != ["prompt"] or given["prompt"] not in [message.get("content") for message in whole]:
            raise ValueError(f"it has {' and '.join(forms)}, which say different things")
    messages = _read_form(forms[0], given[forms[0]])
    system = given.get("system", "")
    if not isinstance(system, str):
        raise ValueError("system is no text")
    return [{"role": "system", "content": system}, *messages] if system.strip() else messages


def _read_form(form: str, value: Any) -> list[dict[str, Any]]:
    if form == "prompt" and isinstance(value, str):
        return [{"role": "user", "content": value}]
    if not isinstance(value, list) or not all(isinstance(turn, dict) for turn in value):
        raise ValueError(f"{form} is no list of messages")
    return [from_sharegpt(turn) if form == "conversations" and "from" in turn else from_openai(turn) for turn in value]


def _check_encodable(prompt: Prompt) -> None:
    """JSON can escape half of a character, which no file and no tokenizer takes."""
    try:
        prompt.to_line().encode("utf-8")
    except UnicodeEncodeError as error:
        raise ValueError("it holds half of a surrogate pair, which is no character") from error
