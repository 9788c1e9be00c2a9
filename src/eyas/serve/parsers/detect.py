"""Which forms a target was taught, by the marks in its chat template."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any


def detect(template: str | None, model_type: str) -> tuple[str | None, str | None]:
    """(tool format, reasoning format) of a chat template; None where it has no marks that are known.

    ``model_type``: of the target's config.json; it decides only between forms with the same marks.
    """
    text = template or ""
    return _tools_of(text, model_type), _reasoning_of(text, model_type)


def _tools_of(text: str, model_type: str) -> str | None:
    if "section_begin|>" in text and "<|tool_call" in text:
        return "kimi_k2"
    if "<｜tool▁calls▁begin｜>" in text:
        return "deepseekv3" if "```json" in text else "deepseekv31"
    if "<arg_key>" in text:
        return None
    if "<function=" in text and "<parameter=" in text:
        return "qwen3_coder"
    if "<tool_call>" in text:
        return "qwen25" if model_type.startswith("qwen") else "smollm3" if model_type == "smollm3" else "hermes"
    if "<|python_start|>" in text:
        return "pythonic"
    if "<|eot_id|>" in text and '"parameters"' in text:
        return "llama3_json"
    # SmolLM2 was taught calls, but its template does not show it tools.
    return "smollm" if "named SmolLM" in text else None


def _reasoning_of(text: str, model_type: str) -> str | None:
    if "◁think▷" in text:
        return "kimi"
    if "<think>" not in text and "</think>" not in text:
        return None
    if "<|tool_calls_section_begin|>" in text or model_type.startswith("kimi"):
        return "kimi_k2"
    if "<｜Assistant｜>" in text:
        # Where thinking can be switched, the template itself opens or closes it.
        return "deepseek-v3" if "thinking" in text else "deepseek-r1"
    return "smollm3" if model_type == "smollm3" else "qwen3"


def tools_prompt(tool_format: str | None, tools: Sequence[Mapping[str, Any]]) -> str | None:
    """What the system turn must say of the tools where the chat template does not say it; None: the template does."""
    if tool_format != "smollm" or not tools:
        return None
    listed = json.dumps([tool["function"] for tool in tools], ensure_ascii=False)
    return (
        "You can call functions. Decide by the question which of them to call, and with which arguments; "
        "if none fits, or an argument is not known, say so.\n\n"
        f"The functions are:\n<tools>{listed}</tools>\n\n"
        "A call is written like this, and nothing else is written with it:\n"
        '<tool_call>[{"name": "function", "arguments": {"argument": "value"}}]</tool_call>'
    )
