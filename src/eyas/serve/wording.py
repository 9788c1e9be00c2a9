"""The text side of a server: its tokenizer and template, and what the model's own files say of its answers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from transformers import AutoTokenizer, PreTrainedTokenizerBase

from eyas.config import SamplingSettings
from eyas.contract import Contract
from eyas.errors import EyasError
from eyas.serve.parsers import REASONING_FORMATS, TOOL_FORMATS, detect
from eyas.serve.settings import ServeSettings

OFF = "none"
SAMPLED = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty")


def open_tokenizer(settings: ServeSettings, target: Path) -> PreTrainedTokenizerBase:
    """The tokenizer that was asked for, with the chat template that was. Raises ``artifact.missing``."""
    folder = target
    if settings.tokenizer_path is not None:
        folder = Path(settings.tokenizer_path).expanduser()
        if not (folder / "tokenizer.json").is_file():
            cause = f"there is no tokenizer.json in {settings.tokenizer_path}"
            raise EyasError("artifact.missing", cause, "give --tokenizer-path a folder that has one")
    tokenizer = AutoTokenizer.from_pretrained(folder, trust_remote_code=False)
    template = read_template(settings)
    if template is not None:
        tokenizer.chat_template = template
    return tokenizer


def read_template(settings: ServeSettings) -> str | None:
    """The chat template that was given; None: the tokenizer's own. Raises ``artifact.missing``."""
    if settings.chat_template is None:
        return None
    path = settings.chat_template.expanduser()
    if not path.is_file():
        raise EyasError("artifact.missing", f"there is no file {path}", "check --chat-template")
    return path.read_text(encoding="utf-8")


def formats(settings: ServeSettings, template: object, model_type: str) -> tuple[str | None, str | None]:
    """(of tool calls, of reasoning): as asked, else as the chat template tells. Raises ``flags.range``."""
    found = detect(template if isinstance(template, str) else None, model_type)
    tools = _format("--tool-call-parser", settings.tool_call_parser, TOOL_FORMATS, found[0])
    return tools, _format("--reasoning-parser", settings.reasoning_parser, REASONING_FORMATS, found[1])


def _format(flag: str, asked: str | None, known: tuple[str, ...], otherwise: str | None) -> str | None:
    if asked is None:
        return otherwise
    if asked == OFF:
        return None
    if asked not in known:
        raise EyasError("flags.range", f"{flag} {asked} is not known", f"use one of: {', '.join(known)}, {OFF}")
    return asked


def sampling_defaults(target: Path) -> dict[str, float | int]:
    """What generation_config.json says of sampling, for requests that are silent. Raises ``model.config``."""
    path = target / "generation_config.json"
    document = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    found = {name: document[name] for name in SAMPLED if document.get(name) is not None}
    try:
        SamplingSettings(**found)
    except EyasError as error:
        raise EyasError("model.config", f"generation_config.json: {error.cause}", "mend the file") from error
    return found


def template_kwargs(contract: Contract | None) -> dict[str, Any]:
    """What the chat template is told unless a request says otherwise: the thinking mode that the draft learnt."""
    if contract is None or contract.rendering.thinking not in ("on", "off"):
        return {}
    on = contract.rendering.thinking == "on"
    return {"enable_thinking": on, "thinking": on}
