"""Chat templates as the families have them, written by hand: what each does to a conversation, not its exact text."""

from __future__ import annotations

from pathlib import Path

from transformers import AutoTokenizer, PreTrainedTokenizerBase

CHATML = """{% for m in messages %}{{ '<|im_start|>' + m.role + '\\n' + m.content + '<|im_end|>\\n' }}{% endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"""

LLAMA3 = """{{- '<|begin_of_text|>' }}
{%- set date = date_string if date_string is defined else strftime_now('%d %b %Y') %}
{%- if messages[0].role == 'system' %}{% set system = messages[0].content | trim %}{% set rest = messages[1:] %}
{%- else %}{% set system = '' %}{% set rest = messages %}{% endif %}
{{- '<|start_header_id|>system<|end_header_id|>\\n\\nCutting Knowledge Date: December 2023\\nToday Date: ' + date }}
{{- '\\n\\n' + system + '<|eot_id|>' }}
{%- for m in rest %}
{{- '<|start_header_id|>' + m.role + '<|end_header_id|>\\n\\n' + m.content | trim + '<|eot_id|>' }}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}{% endif %}"""
"""A system prompt with a date, always; contents are trimmed."""

QWEN3 = """{%- if tools %}{{ '<|im_start|>system\\n# Tools\\n' }}
{%- for tool in tools %}{{ tool | tojson + '\\n' }}{% endfor %}{{ '<|im_end|>\\n' }}{% endif %}
{%- set ns = namespace(last=-1) %}
{%- for m in messages %}{% if m.role == 'user' %}{% set ns.last = loop.index0 %}{% endif %}{% endfor %}
{%- for m in messages %}
{%- if m.role == 'assistant' %}
{%- set content = m.content %}{% set reasoning = '' %}
{%- if m.reasoning_content is string %}{% set reasoning = m.reasoning_content %}
{%- elif '</think>' in content %}
{%- set reasoning = content.split('</think>')[0].split('<think>')[-1].strip('\\n') %}
{%- set content = content.split('</think>')[-1].lstrip('\\n') %}
{%- endif %}
{{- '<|im_start|>assistant\\n' }}
{%- if loop.index0 > ns.last and (loop.last or reasoning) %}
{{- '<think>\\n' + reasoning.strip('\\n') + '\\n</think>\\n\\n' }}
{%- endif %}
{{- content }}
{%- for call in m.tool_calls or [] %}
{{- '\\n<tool_call>\\n{"name": "' + call.function.name + '", "arguments": ' + call.function.arguments | tojson }}
{{- '}\\n</tool_call>' }}
{%- endfor %}
{{- '<|im_end|>\\n' }}
{%- elif m.role == 'tool' %}
{{- '<|im_start|>user\\n<tool_response>\\n' + m.content + '\\n</tool_response><|im_end|>\\n' }}
{%- else %}{{ '<|im_start|>' + m.role + '\\n' + m.content + '<|im_end|>\\n' }}
{%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}
{%- if enable_thinking is defined and not enable_thinking %}{{ '<think>\\n\\n</think>\\n\\n' }}{% endif %}{% endif %}"""
"""A thinking switch; an (empty) thinking block in the last turn, no reasoning in earlier ones; tools."""

R1 = """{{- '<|begin_of_text|>' }}
{%- for m in messages %}
{%- if m.role == 'assistant' %}{{ '<|Assistant|>' + m.content.split('</think>')[-1] + '<|eot_id|>' }}
{%- else %}{{ '<|User|>' + m.content }}{% endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|Assistant|><think>\\n' }}{% endif %}"""
"""Thinks always: the prompt opens the reasoning, and every rendered turn loses it."""

MISTRAL = """{{- '<s>' }}
{%- for m in messages %}
{%- if (m.role == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('roles must alternate user and assistant') }}
{%- elif m.role == 'user' %}{{ '[INST] ' + m.content + ' [/INST]' }}
{%- else %}{{ ' ' + m.content | trim + '</s>' }}{% endif %}
{%- endfor %}"""
"""No system role, roles alternate, nothing opens an answer, and a space is put before it."""

ENDS = {CHATML: "<|im_end|>", LLAMA3: "<|eot_id|>", QWEN3: "<|im_end|>", R1: "<|eot_id|>", MISTRAL: "</s>"}
"""The token that each closes an answer with; of any other template, </s>."""

SPECIAL = (
    "<|begin_of_text|>",
    "<|start_header_id|>",
    "<|end_header_id|>",
    "<|eot_id|>",
    "<|User|>",
    "<|Assistant|>",
    "<s>",
    "</s>",
    "[INST]",
    "[/INST]",
)
PLAIN = ("<think>", "</think>", "<tool_call>", "</tool_call>")
"""Single tokens that are not special, as in the real vocabularies."""


def templated(folder: Path, template: str) -> tuple[PreTrainedTokenizerBase, int]:
    """The tokenizer of ``folder`` with the families' markers as single tokens, under ``template``, and its
    end-of-turn token's id.
    """
    tokenizer = AutoTokenizer.from_pretrained(folder)
    tokenizer.add_special_tokens({"additional_special_tokens": ["<|im_start|>", "<|im_end|>", *SPECIAL]})
    tokenizer.add_tokens(list(PLAIN))
    tokenizer.chat_template = template
    return tokenizer, tokenizer.convert_tokens_to_ids(ENDS.get(template, "</s>"))
