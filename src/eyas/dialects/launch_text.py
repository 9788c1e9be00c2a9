"""A launch command as people keep it (a shell text, a docker run line, a list or a manifest in YAML or JSON) → the
engine that it starts, and the flags that it gives.

Nothing is run and nothing is looked up: variables are filled in only where the text itself sets them.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import yaml

from eyas.dialects.engines import EngineName
from eyas.errors import EyasError

MAX_CHARACTERS = 1 << 16
MAX_ITEMS = 10_000
MAX_VALUE = 4096
MAX_NESTING = 3
"""Shells inside shells: `docker run … bash -c '…'`."""

FIX = "give the command that starts the engine, such as: python -m sglang.launch_server --model-path M"

_SEPARATOR = re.compile(r"^[;&|]+$")
_ASSIGNMENT = re.compile(r"^([A-Za-z_]\w*)=(.*)$", re.DOTALL)
_VARIABLE = re.compile(r"\$(?:\{([A-Za-z_]\w*)(?::?-([^}]*))?\}|([A-Za-z_]\w*))")
_FLAG = re.compile(r"^--?[A-Za-z]")
_PROGRAMS: tuple[tuple[EngineName, re.Pattern[str]], ...] = (
    ("sglang", re.compile(r"^(?:\S*/)?(?:sglang(?:_router)?[./]launch_server(?:\.py)?|launch_server(?:\.py)?)$")),
    ("vllm", re.compile(r"^(?:\S*/)?(?:vllm[./]entrypoints[./]openai[./]api_server(?:\.py)?)$")),
)
_IMAGES: tuple[tuple[EngineName, re.Pattern[str]], ...] = (
    ("vllm", re.compile(r"^(?:\S*/)?vllm-(?:cpu|openai)\S*$|^(?:\S*/)vllm:\S+$")),
    ("sglang", re.compile(r"^(?:\S*/)sglang(?::\S+)?$")),
)
_VERSION = re.compile(r"\b(sglang|vllm)[\w-]*(?::v?|==)(\d+\.\d+(?:\.\d+)?(?:\.post\d+)?)(?![\w.])")


@dataclass
class Words:
    """``engine`` None: the text names none, only flags. ``flags``: (name without dashes, "-" for "_", its values) in
    the order given; ``positional``: words before the first flag. ``version``: from an image tag or a requirement.
    """

    engine: EngineName | None = None
    version: str | None = None
    flags: list[tuple[str, list[str]]] = field(default_factory=list)
    positional: list[str] = field(default_factory=list)
    env: dict[str, str] = field(default_factory=dict)


def read_words(text: str) -> Words:
    """Raises ``flags.unknown`` for a text that is no launch command, ``flags.range`` for one that is too long."""
    if len(text) > MAX_CHARACTERS:
        cause = f"the launch command has {len(text)} characters, more than {MAX_CHARACTERS}"
        raise EyasError("flags.range", cause, "give the command alone")
    if not text.strip() or "\0" in text:
        raise EyasError("flags.unknown", "the launch command is empty or not text", FIX)
    words = Words()
    document = _document(text)
    if isinstance(document, str):
        _read_shell(document, words, 0)
    else:
        _read_document(document, words)
    found = next((m for m in _VERSION.finditer(text) if words.engine in (None, m[1])), None)
    words.version = found[2] if found else None
    if words.engine is None and not words.flags:
        raise EyasError("flags.unknown", f"no start of SGLang or vLLM and no flag in {_short(text)!r}", FIX)
    return words


def _short(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= 80 else line[:79] + "…"


def _document(text: str) -> Any:
    """A list or mapping where the text is one, else the text."""
    stripped = text.strip()
    structured = stripped[0] in "[{" or re.search(r"(?m)^(?:- |[ \t]*[\w-]+:(?:[ \t]|$))", text)
    if not structured:
        return text
    try:
        document = json.loads(stripped) if stripped[0] in "[{" else yaml.safe_load(text)
    except (ValueError, RecursionError, yaml.YAMLError) as error:
        if stripped[0] not in "[{":
            return text
        why = "it is nested too deep" if isinstance(error, RecursionError) else str(error).splitlines()[0]
        raise EyasError("flags.unknown", f"the launch command is no JSON: {why}", FIX) from error
    return document if isinstance(document, list | dict) else text


def _read_document(document: Any, words: Words) -> None:
    """The first list of words in a manifest that starts an engine, else flags as a mapping's keys."""
    lists, mappings = [], []
    for node in _nodes(document):
        if isinstance(node, list) and node and all(isinstance(x, str | int | float) for x in node):
            lists.append([str(x) for x in node])
        elif isinstance(node, str) and len(node.split()) > 1:
            lists.append([*_split(node)])
        elif isinstance(node, dict):
            mappings.append(node)
            _read_environment(node, words)
    parts = sorted(lists, key=lambda part: (_start(part) is None, not any(_FLAG.match(word) for word in part)))
    if parts and (_start(parts[0]) or any(_FLAG.match(word) for word in parts[0])):
        # A manifest keeps program and arguments in two lists, under command and args.
        more = [w for part in parts[1:] if _start(part) is None and part[0].startswith("-") for w in part]
        _read_command([*parts[0], *more], words, 0)
        return
    for key, value in ((k, v) for mapping in mappings[:1] for k, v in mapping.items()):
        if value is not False and value is not None:
            written = json.dumps(value) if isinstance(value, list | dict) else str(value)
            words.flags.append((_name(str(key)), [] if value is True else [written]))


def _nodes(document: Any) -> Iterator[Any]:
    """Every node, the outermost first; YAML's references could make them far more than the text has."""
    queue, seen = [document], 0
    while queue:
        node = queue.pop(0)
        seen += 1
        yield node
        queue.extend(node.values() if isinstance(node, dict) else node if isinstance(node, list) else ())
        if seen + len(queue) > MAX_ITEMS:
            raise EyasError("flags.range", f"the launch document has more than {MAX_ITEMS} items", FIX)


def _read_environment(node: Mapping[Any, Any], words: Words) -> None:
    if isinstance(node.get("name"), str) and "value" in node:
        words.env[node["name"]] = str(node["value"])
    environment = node.get("environment", node.get("env"))
    if isinstance(environment, dict):
        words.env |= {str(k): str(v) for k, v in environment.items()}
    elif isinstance(environment, list):
        for match in (_ASSIGNMENT.match(x) for x in environment if isinstance(x, str)):
            words.env |= {match[1]: match[2]} if match else {}
    image = node.get("image")
    if isinstance(image, str) and words.engine is None:
        words.engine = next((engine for engine, pattern in _IMAGES if pattern.match(image)), None)


def _split(text: str) -> list[str]:
    lines = [line for line in text.replace("\r\n", "\n").split("\n") if not line.lstrip().startswith("#")]
    lexer = shlex.shlex(re.sub(r"\\\n", " ", "\n".join(lines)), posix=True, punctuation_chars=";&|")
    lexer.whitespace_split, lexer.commenters = True, ""
    try:
        return list(lexer)
    except ValueError as error:
        cause = f"the launch command cannot be split into words: {str(error).lower()}"
        raise EyasError("flags.unknown", cause, "close the quotes as a shell needs them") from error


def _read_shell(text: str, words: Words, depth: int) -> None:
    _read_command(_split(text), words, depth)


def _read_command(tokens: Sequence[str], words: Words, depth: int) -> None:
    segments: list[list[str]] = [[]]
    for token in tokens:
        if _SEPARATOR.match(token):
            segments.append([])
        else:
            segments[-1].append(token)
    chosen = next((part for part in segments if _start(part)), None)
    bare = [part for part in segments if any(_FLAG.match(word) for word in part)]
    if chosen is None:
        chosen = next((part for part in segments if _inner(part)), None) or next(iter(bare), [])
    for part in segments[: segments.index(chosen) + 1] if chosen else segments:
        _read_assignments(part, words)
    inner = _inner(chosen)
    if inner is not None and depth < MAX_NESTING:
        _read_shell(_fill(inner, words.env), words, depth + 1)
        return
    start = _start(chosen)
    if start is not None:
        words.engine = start[0]
    rest = chosen[start[1] :] if start else [word for word in chosen if not _ASSIGNMENT.match(word)]
    _read_flags([_fill(word, words.env) for word in rest], words)


def _start(tokens: Sequence[str]) -> tuple[EngineName, int] | None:
    """(engine, where its arguments begin) in one simple command."""
    for i, token in enumerate(tokens):
        for engine, pattern in _PROGRAMS:
            if pattern.match(token):
                return engine, i + 1
        name = token.rpartition("/")[2]
        if tokens[i + 1 : i + 2] == ["serve"] and name in ("sglang", "vllm"):
            return "sglang" if name == "sglang" else "vllm", i + 2
    for i, token in enumerate(tokens):
        for engine, pattern in _IMAGES:
            # The image's own entry point is the server; what follows are its arguments.
            if "docker" in tokens[:i] and pattern.match(token):
                return engine, i + 1
    return None


def _inner(tokens: Sequence[str]) -> str | None:
    """The command that a shell is given with ``-c``."""
    for i, token in enumerate(tokens[:-2]):
        if token.rpartition("/")[2] in ("bash", "sh", "zsh") and re.match(r"^-\w*c$", tokens[i + 1]):
            return tokens[i + 2]
    return None


def _read_assignments(tokens: Sequence[str], words: Words) -> None:
    before = ""
    for token in tokens:
        match = _ASSIGNMENT.match(token.removeprefix("--env="))
        if match and (before in ("-e", "--env") or not before.startswith("-")):
            # Variables made of one another could grow without end.
            words.env[match[1]] = _fill(match[2], words.env)[:MAX_VALUE]
        before = token


def _fill(word: str, env: Mapping[str, str]) -> str:
    def value(match: re.Match[str]) -> str:
        known = env.get(match[1] or match[3], match[2])
        return match[0] if known is None else known

    return _VARIABLE.sub(value, word)


def _name(flag: str) -> str:
    return flag.lstrip("-").replace("_", "-")


def _read_flags(tokens: Sequence[str], words: Words) -> None:
    for token in tokens:
        if _FLAG.match(token):
            name, separator, value = token.partition("=")
            words.flags.append((_name(name), [value] if separator else []))
        elif words.flags:
            words.flags[-1][1].append(token)
        elif token != "--":
            words.positional.append(token)
