"""A launch command → typed flags: what was asked of SGLang or vLLM, before any rule changed it."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from eyas.dialects.engines import EngineName
from eyas.dialects.launch_names import CONFIG_FIELDS, CONFIG_FLAGS, NAMES, OTHER_SPECULATIVE, SPECULATIVE_SGLANG, Name
from eyas.dialects.launch_text import Words, read_words
from eyas.errors import EyasError

Scalar = str | int | float | bool
LARGEST = 10**9


@dataclass(frozen=True)
class LaunchFlags:
    """What a launch asks for; None or empty: not given. Counts in tokens, requests, GPUs.

    ``algorithm``: SGLang's algorithm, or vLLM's method · ``num_speculative_tokens``: vLLM's K · ``speculative``: the
    entries of vLLM's configuration as given · ``unrecognised``: flags that look speculative and are not the engine's ·
    ``repeated``: flags given twice with different values, of which the last counts.
    """

    engine: EngineName
    version: str | None = None
    algorithm: str | None = None
    num_steps: int | None = None
    eagle_topk: int | None = None
    num_draft_tokens: int | None = None
    num_speculative_tokens: int | None = None
    model: str | None = None
    draft: str | None = None
    quantization: str | None = None
    draft_quantization: str | None = None
    attention_backend: str | None = None
    prefill_backend: str | None = None
    decode_backend: str | None = None
    draft_backend: str | None = None
    page_size: int | None = None
    dtype: str | None = None
    tp: int | None = None
    pp: int | None = None
    dp: int | None = None
    draft_tp: int | None = None
    max_running_requests: int | None = None
    context_length: int | None = None
    draft_context_length: int | None = None
    threshold_single: float | None = None
    threshold_acc: float | None = None
    rejection_sampling: bool = False
    block_verification: bool = False
    dp_attention: bool = False
    multi_layer: bool = False
    mixed_chunk: bool = False
    adaptive: bool = False
    adaptive_config: str | None = None
    token_map: str | None = None
    load_format: str | None = None
    draft_load_format: str | None = None
    kv_sharing: bool = False
    async_scheduling: bool = False
    speculative: Mapping[str, Any] = field(default_factory=dict)
    env: Mapping[str, str] = field(default_factory=dict)
    given: tuple[str, ...] = ()
    unrecognised: tuple[str, ...] = ()
    repeated: tuple[str, ...] = ()

    @property
    def backends(self) -> tuple[str, ...]:
        """The attention backends named for the target, without doubles."""
        named = (self.prefill_backend, self.decode_backend, self.attention_backend)
        return tuple(dict.fromkeys(name for name in named if name))


def parse_launch(text: str, engine: EngineName | None = None) -> LaunchFlags:
    """Read a launch command. ``engine``: for bare flags, and it may not contradict what the text starts.

    Raises ``flags.unknown`` for what is no launch of SGLang or vLLM, ``flags.range`` for a value that cannot be read,
    ``flags.contradiction``.
    """
    words = read_words(text)
    if engine is not None and words.engine is not None and engine != words.engine:
        cause = f"the command starts {words.engine}, and {engine} is asked for"
        raise EyasError("flags.contradiction", cause, f"use --engine {words.engine}, or give the command of {engine}")
    chosen = words.engine or engine or _guess(words)
    values: dict[str, Any] = {}
    entries: dict[str, Any] = {}
    given, unrecognised, repeated = [], [], []
    names = {flag: name for name in NAMES[chosen] for flag in name.flags}
    for flag, raw in words.flags:
        name = names.get(flag) or _abbreviated(chosen, flag)
        if name is not None:
            value = _READ[name.kind](f"--{flag}", raw[0] if raw else None)
            repeated += [f"--{flag}"] if values.get(name.field, value) != value else []
            values[name.field] = value
        elif chosen == "vllm" and flag.partition(".")[0] in CONFIG_FLAGS:
            entries |= _config(flag, raw)
        elif _looks_speculative(flag) and not (chosen == "sglang" and flag in OTHER_SPECULATIVE):
            unrecognised.append(f"--{flag}")
        given.append(f"--{flag}")
    _take_entries(entries, values)
    if words.positional and chosen == "vllm":
        values.setdefault("model", words.positional[0])
    values["context_length"] = _context(values.get("context_length"))
    return LaunchFlags(
        engine=chosen,
        version=words.version,
        speculative=entries,
        env=dict(words.env),
        given=tuple(given),
        unrecognised=tuple(unrecognised),
        repeated=tuple(repeated),
        **values,
    )


def _guess(words: Words) -> EngineName:
    flags = {flag.partition(".")[0] for flag, _ in words.flags}
    if flags & {*CONFIG_FLAGS, "spec-method", "spec-model", "spec-tokens"}:
        return "vllm"
    if any(flag.startswith("speculative-") for flag in flags):
        return "sglang"
    said = ", ".join(f"--{flag}" for flag in sorted(flags)[:5])
    raise EyasError("flags.unknown", f"flags that may be SGLang's or vLLM's: {said}", "add --engine sglang or vllm")


def _looks_speculative(flag: str) -> bool:
    return flag.startswith(("speculat", "spec-", "num-speculative", "eagle", "draft-"))


def _abbreviated(engine: EngineName, flag: str) -> Name | None:
    """SGLang's parser takes any beginning that fits one flag only."""
    if engine != "sglang" or not flag.startswith("speculative-") or flag in OTHER_SPECULATIVE:
        return None
    every = {whole: name for name in SPECULATIVE_SGLANG for whole in name.flags}
    fits = [whole for whole in {*every, *OTHER_SPECULATIVE} if whole.startswith(flag)]
    return every.get(fits[0]) if len(fits) == 1 else None


def _text(flag: str, raw: str | None) -> str:
    if not raw:
        raise EyasError("flags.range", f"{flag} has no value", f"give {flag} a value")
    return raw


def _whole(flag: str, raw: str | None) -> int:
    said = _text(flag, raw)
    digits = said.removeprefix("-").removeprefix("+")
    if not (digits.isascii() and digits.isdecimal() and len(digits) <= 10 and int(digits) <= LARGEST):
        raise _unreadable(flag, said, "a whole number")
    return int(said)


def _number(flag: str, raw: str | None) -> float:
    said = _text(flag, raw)
    try:
        value = float(said)
    except ValueError as error:
        raise _unreadable(flag, said, "a number") from error
    if not abs(value) <= LARGEST:
        raise _unreadable(flag, said, "a number")
    return value


def _unreadable(flag: str, said: str, wanted: str) -> EyasError:
    shown = said if len(said) <= 60 else said[:59] + "…"
    why = ": the command does not set this variable" if "$" in said else ""
    return EyasError("flags.range", f"{flag} {shown} is not {wanted}{why}", f"give {flag} {wanted}")


def _switch(flag: str, raw: str | None) -> bool:
    return raw is None or raw.lower() not in ("false", "0")


_READ: Mapping[str, Callable[[str, str | None], Scalar]] = {
    "text": _text,
    "whole": _whole,
    "number": _number,
    "switch": _switch,
}


def _context(said: int | str | None) -> int | None:
    """vLLM writes 32k, 1.5M (1000) and 32K (1024); "auto" and −1 leave it to the engine."""
    if said is None or said in ("auto", "-1"):
        return None
    if isinstance(said, int):
        return said
    factor = {"k": 1000, "m": 10**6, "K": 1 << 10, "M": 1 << 20}.get(said[-1:])
    return int(_number("--max-model-len", said[:-1]) * factor) if factor else _whole("--max-model-len", said)


def _config(flag: str, raw: list[str]) -> dict[str, Any]:
    """Entries of vLLM's speculative configuration, from its JSON or from one dotted flag."""
    said = _text(f"--{flag}", " ".join(raw))
    key = flag.partition(".")[2].replace("-", "_")
    try:
        value = json.loads(said)
    except (ValueError, RecursionError) as error:
        if key:
            return {key: said}
        cause = f"--{flag} is no JSON: {said[:80]}"
        raise EyasError("flags.range", cause, 'quote it for the shell: \'{"method": "eagle3", …}\'') from error
    if key:
        return {key: value}
    if not isinstance(value, dict):
        raise EyasError("flags.range", f"--{flag} is {said[:80]}, no object", "write it as {…}")
    return value


def _take_entries(entries: Mapping[str, Any], values: dict[str, Any]) -> None:
    """Entries over single flags, checked as the flags are."""
    for key, (name, kind) in CONFIG_FIELDS.items():
        value = entries.get(key)
        if value is None:
            continue
        if isinstance(value, bool | list | dict) or (kind == "text") != isinstance(value, str):
            raise _unreadable(f"--speculative-config {key}", json.dumps(value), f"a {kind} value")
        values[name] = _READ[kind](f"--speculative-config {key}", str(value))
