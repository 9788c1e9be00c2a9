"""Which forms a chat template's own marks tell."""

from __future__ import annotations

import pytest
from transformers import AutoTokenizer

from eyas.serve.parsers import REASONING_FORMATS, TOOL_FORMATS, detect, tools_prompt
from eyas.testing import tiny_pair

TEMPLATES = [
    ('{{ \'<tool_call>\\n{"name": "\' }}…</tool_call>', "qwen2", ("qwen25", None)),
    ("<tool_call>…{% if enable_thinking is false %}<think>\\n\\n</think>", "qwen3", ("qwen25", "qwen3")),
    ("<tool_call>\\n<function=' + name + '>\\n<parameter=' …", "qwen3_moe", ("qwen3_coder", None)),
    ('<|start_header_id|>…<|eot_id|>… {"name": function name, "parameters": …', "llama", ("llama3_json", None)),
    ("<|start_header_id|>…<|eot_id|>", "llama", (None, None)),
    ("<|header_start|>…<|python_start|>…", "llama4", ("pythonic", None)),
    ("<tool_call>{…}</tool_call>", "llama", ("hermes", None)),
    ("<|tool_calls_section_begin|><|tool_call_begin|>{{ id }}", "kimi_k2", ("kimi_k2", None)),
    ("<|tool_calls_section_begin|><|tool_call_begin|>…<think></think>", "kimi_k25", ("kimi_k2", "kimi_k2")),
    ("…◁think▷", "kimi_vl", (None, "kimi")),
    ("<｜Assistant｜><｜tool▁calls▁begin｜>…```json…</think>", "deepseek_v3", ("deepseekv3", "deepseek-r1")),
    ("<｜Assistant｜>{% if thinking %}<think>…<｜tool▁calls▁begin｜>", "deepseek_v3", ("deepseekv31", "deepseek-v3")),
    ("xml_tools … <tool_call>…<think>", "smollm3", ("smollm3", "smollm3")),
    ("You are a helpful AI assistant named SmolLM, trained by Hugging Face", "llama", ("smollm", None)),
    ("<tool_call>…<arg_key>…<think>", "glm4_moe", (None, "qwen3")),
    ("<|im_start|>", "llama", (None, None)),
    (None, "llama", (None, None)),
]


@pytest.mark.parametrize(("template", "model_type", "expected"), TEMPLATES)
def test_a_template_tells_its_forms(template, model_type, expected):
    tools, reasoning = found = detect(template, model_type)
    assert found == expected
    assert tools is None or tools in TOOL_FORMATS
    assert reasoning is None or reasoning in REASONING_FORMATS


def test_the_tiny_target_has_none():
    tokenizer = AutoTokenizer.from_pretrained(tiny_pair()[0], trust_remote_code=False)
    assert detect(str(tokenizer.chat_template), "llama") == (None, None)


def test_a_template_without_a_place_for_tools_is_told_of_them():
    tools = [{"type": "function", "function": {"name": "now", "description": "Tells the time."}}]
    said = tools_prompt("smollm", tools)
    assert said is not None
    assert '"name": "now"' in said
    assert "<tool_call>[" in said
    assert tools_prompt("smollm", []) is None
    assert tools_prompt("qwen25", tools) is None, "its template lists them"
