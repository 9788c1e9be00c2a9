"""What a chat becomes: the prompt as the target saw it and the answer as it gave it, under every template."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from transformers import AutoTokenizer

from eyas.contract import Rendering
from eyas.corpus.chats import Answer, Chat
from eyas.corpus.rendering import Renderer, default_rendering
from eyas.engine.session import Session, eos_ids_of
from eyas.errors import EyasError
from eyas.testing import tiny_pair
from support.chat_templates import CHATML, ENDS, LLAMA3, MISTRAL, QWEN3, R1, templated

OFF_UNLESS_TOLD = "{% for m in messages %}{{ m.content }}{% endfor %}{% if enable_thinking %}<think>{% endif %}"
ASK = {"role": "user", "content": "Why is the sky blue?"}
SAY = {"role": "assistant", "content": "Because of the air."}
MORE = {"role": "user", "content": "And at night?"}
THEN = {"role": "assistant", "content": "Then it is dark."}
THOUGHT = {**SAY, "reasoning_content": "Light is scattered."}


@pytest.fixture(params=["tiny", pytest.param("builtin", marks=pytest.mark.builtin)])
def folder(request: pytest.FixtureRequest) -> Path:
    return tiny_pair()[0] if request.param == "tiny" else request.getfixturevalue("builtin_target_folder")


def renderer(folder: Path, template: str, thinking: str = "none", system: str = "none", text: str | None = None):
    tokenizer, end = templated(folder, template)
    rendering = Rendering(thinking=thinking, system_prompt=system, system_prompt_text=text)
    return Renderer(tokenizer, rendering, (end,))


def chat(*messages: dict[str, Any], sampled: dict[int, list[int]] | None = None, finish: str = "stop", **more: Any):
    """All assistant turns are answers; ``sampled``: token ids by message."""
    answers = [
        Answer(
            message=i,
            token_ids=tuple(sampled[i]) if sampled and i in sampled else None,
            finish=finish,
            temperature=0.0,
            seed=None,
        )
        for i, message in enumerate(messages)
        if message["role"] == "assistant"
    ]
    facts = {"id": "c", "prompt_id": "p", "source": "s", "licence": "l", "domain": "d"}
    return Chat(messages=messages, answers=tuple(answers), **facts, **more)


def texts(made: Renderer, run: Any) -> tuple[str, list[str]]:
    """(the whole run, its answers) as text."""
    return made.tokenizer.decode(run.tokens), [made.tokenizer.decode(run.tokens[a:b]) for a, b in run.answers]


def refused(code: str, make: Any, *arguments: Any) -> EyasError:
    with pytest.raises(EyasError) as caught:
        make(*arguments)
    assert caught.value.code == code, caught.value
    return caught.value


@pytest.mark.parametrize("template", [CHATML, LLAMA3, MISTRAL])
def test_a_conversation_is_one_run_of_prompts_and_answers(folder, template):
    made = renderer(folder, template)
    (run,) = made.chat_tokens(chat(ASK, SAY, MORE, THEN)) if template != MISTRAL else [None]
    if template == MISTRAL:
        # The template puts a space before an earlier answer that this one did not begin with.
        first, second = made.chat_tokens(chat(ASK, SAY, MORE, THEN))
        assert texts(made, first) == (
            "<s>[INST] Why is the sky blue? [/INST]Because of the air.</s>",
            [SAY["content"] + "</s>"],
        )
        assert second.tokens[: second.answers[0][0]] == made.prompt_ids([ASK, SAY, MORE])
        return
    whole, answers = texts(made, run)
    assert answers == [SAY["content"] + ENDS[template], THEN["content"] + ENDS[template]]
    assert whole == made.prompt_text([ASK, SAY, MORE]) + answers[1]
    assert run.tokens[: run.answers[0][0]] == made.prompt_ids([ASK])
    assert run.cut == [False, False]
    assert run.messages == [1, 3]


def test_an_answer_that_begins_as_the_template_writes_it_stays_in_one_run(folder):
    made = renderer(folder, MISTRAL)
    spaced = [{**turn, "content": " " + turn["content"]} for turn in (SAY, THEN)]
    (run,) = made.chat_tokens(chat(ASK, spaced[0], MORE, spaced[1]))
    assert texts(made, run)[1] == [" Because of the air.</s>", " Then it is dark.</s>"]


def test_tokens_are_those_that_were_sampled_however_odd(folder):
    made = renderer(folder, CHATML)
    odd = [made.encode(letter)[0] for letter in SAY["content"]] + [made.eos_ids[0]]
    assert odd[:-1] != made.encode(SAY["content"])
    (run,) = made.chat_tokens(chat(ASK, SAY, MORE, THEN, sampled={1: odd}))
    begin, end = run.answers[0]
    assert run.tokens[begin:end] == odd
    assert run.tokens[:begin] == made.prompt_ids([ASK])
    assert made.tokenizer.decode(run.tokens[: run.answers[1][0]]) == made.prompt_text([ASK, SAY, MORE])


def test_a_cut_answer_has_no_end_of_turn(folder):
    made = renderer(folder, CHATML)
    for sampled in (None, {1: made.encode(SAY["content"])}):
        (run,) = made.chat_tokens(chat(ASK, SAY, sampled=sampled, finish="length"))
        assert run.cut == [True]
        assert made.eos_ids[0] not in run.tokens[slice(*run.answers[0])]
        assert run.answers[0][1] == len(run.tokens)
    (run,) = made.chat_tokens(chat(ASK, SAY, MORE, THEN, finish="length"))
    assert run.tokens[run.answers[0][1]] == made.eos_ids[0], "the template's, in the history of the next"


def test_turns_that_came_with_the_prompt_are_no_answers(folder):
    made = renderer(folder, CHATML)
    given = chat(ASK, SAY, MORE, THEN)
    given = given.model_copy(update={"answers": given.answers[1:]})
    (run,) = made.chat_tokens(given)
    assert texts(made, run)[1] == ["Then it is dark.<|im_end|>"]
    assert made.chat_tokens(given.model_copy(update={"answers": ()})) == []


# Templates that rewrite


def test_reasoning_stripped_from_history_begins_a_run_for_every_answer(folder):
    made = renderer(folder, QWEN3, "on")
    first, second = made.chat_tokens(chat(ASK, THOUGHT, MORE, {**THEN, "reasoning_content": "No light."}))
    assert "<think>\nLight is scattered.\n</think>\n\nBecause of the air.<|im_end|>" in texts(made, first)[1]
    whole, answers = texts(made, second)
    assert answers == ["<think>\nNo light.\n</think>\n\nThen it is dark.<|im_end|>"]
    assert "scattered" not in whole
    assert second.tokens[: second.answers[0][0]] == made.prompt_ids([ASK, THOUGHT, MORE])


def test_reasoning_as_sampled_is_kept_as_sampled(folder):
    made = renderer(folder, QWEN3, "on")
    said = "<think>\nLight  is scattered.</think>Because of the air.<|im_end|>"
    for message in (
        {**THOUGHT, "reasoning_content": "Light  is scattered."},
        {**SAY, "content": said.removesuffix("<|im_end|>")},
    ):
        (run,) = made.chat_tokens(chat(ASK, message, sampled={1: made.encode(said)}))
        assert texts(made, run) == (made.prompt_text([ASK]) + said, [said])


def test_an_empty_thinking_block_that_was_said_is_part_of_the_answer(folder):
    made = renderer(folder, QWEN3, "on")
    said = "<think>\n\n</think>\n\nBecause of the air.<|im_end|>"
    for sampled in ({1: made.encode(said)}, None):
        (run,) = made.chat_tokens(chat(ASK, {**SAY, "reasoning_content": ""}, sampled=sampled))
        assert texts(made, run)[1] == [said]


def test_an_empty_thinking_block_that_nobody_said_is_refused(folder):
    made = renderer(folder, QWEN3, "on")
    fault = refused("rendering.rewritten", made.chat_tokens, chat(ASK, SAY))
    assert "'Because of the air.'" in fault.cause
    assert "<think>\\n\\n</think>" in fault.cause


def test_with_thinking_off_the_empty_block_belongs_to_the_prompt(folder):
    made = renderer(folder, QWEN3, "off")
    first, second = made.chat_tokens(chat(ASK, SAY, MORE, THEN))
    assert texts(made, first)[1] == ["Because of the air.<|im_end|>"]
    assert texts(made, first)[0].endswith("assistant\n<think>\n\n</think>\n\nBecause of the air.<|im_end|>")
    assert texts(made, second)[0].count("<think>") == 1, "history has none"


def test_reasoning_that_a_server_kept_to_itself_is_missed(folder):
    made = renderer(folder, R1)
    assert "<think>" in refused("rendering.rewritten", made.chat_tokens, chat(ASK, SAY)).cause
    whole = {**SAY, "content": "Light is scattered.</think>Because of the air."}
    (run,) = made.chat_tokens(chat(ASK, whole))
    assert texts(made, run)[1] == ["Light is scattered.</think>Because of the air.<|eot_id|>"]


def test_trimmed_answers_are_taken_as_they_were_said(folder):
    made = renderer(folder, LLAMA3)
    spaced = {**SAY, "content": "\n" + SAY["content"] + " "}
    first, second = made.chat_tokens(chat(ASK, spaced, MORE, THEN))
    assert texts(made, first)[1] == ["\nBecause of the air. <|eot_id|>"]
    assert second.tokens[: second.answers[0][0]] == made.prompt_ids([ASK, SAY, MORE])


def test_a_template_that_drops_reasoning_from_the_last_turn_is_refused(folder):
    made = renderer(folder, CHATML)
    refused("rendering.rewritten", made.chat_tokens, chat(ASK, THOUGHT))


def test_a_template_without_reasoning_takes_it_as_sampled(folder):
    made = renderer(folder, CHATML)
    said = "Light is scattered. Because of the air.<|im_end|>"
    (run,) = made.chat_tokens(chat(ASK, THOUGHT, sampled={1: made.encode(said)}))
    assert texts(made, run)[1] == [said]


# Tools

CALL = {
    "role": "assistant",
    "content": None,
    "tool_calls": [{"id": "1", "type": "function", "function": {"name": "look", "arguments": '{"at": "sky"}'}}],
}
TOOLS = ({"type": "function", "function": {"name": "look", "parameters": {"type": "object", "properties": {}}}},)
SEEN = {"role": "tool", "content": "blue", "tool_call_id": "1"}


def test_calls_of_tools_are_answers_and_their_arguments_objects(folder):
    made = renderer(folder, QWEN3, "off")
    first, second = made.chat_tokens(chat(ASK, CALL, SEEN, SAY, tools=TOOLS))
    call = '<tool_call>\n{"name": "look", "arguments": {"at": "sky"}}\n</tool_call><|im_end|>'
    assert texts(made, first)[1] == ["\n" + call]
    assert '"name": "look", "parameters"' in texts(made, first)[0]
    assert "<tool_response>\nblue\n</tool_response>" in texts(made, second)[0]
    assert second.tokens[: second.answers[0][0]] == made.prompt_ids([ASK, CALL, SEEN], TOOLS)


def test_calls_as_sampled_need_not_look_as_the_template_writes_them(folder):
    made = renderer(folder, QWEN3, "off")
    said = '<tool_call>{"name":"look","arguments":{"at":"sky"}}</tool_call><|im_end|>'
    first, _ = made.chat_tokens(chat(ASK, CALL, SEEN, SAY, sampled={1: made.encode(said)}, tools=TOOLS))
    assert texts(made, first)[1] == [said]
    wrong = said.replace("look", "fetch")
    refused("rendering.answer-text", made.chat_tokens, chat(ASK, CALL, sampled={1: made.encode(wrong)}, tools=TOOLS))


def test_arguments_that_are_no_json_are_refused(folder):
    made = renderer(folder, QWEN3, "off")
    function = {"name": "look", "arguments": '{"at": '}
    refused("rendering.refused", made.chat_tokens, chat(ASK, {**CALL, "tool_calls": [{"function": function}]}))


# Thinking and system prompts


@pytest.mark.parametrize(
    ("template", "thinking"),
    [(CHATML, "none"), (LLAMA3, "none"), (QWEN3, "on"), ("", "none"), (OFF_UNLESS_TOLD, "off")],
)
def test_what_a_template_does_when_told_nothing(folder, template, thinking):
    tokenizer, _ = templated(folder, template)
    assert default_rendering(tokenizer) == Rendering(thinking=thinking, system_prompt="none", system_prompt_text=None)


@pytest.mark.parametrize(
    ("template", "thinking"), [(QWEN3, "none"), (CHATML, "on"), (CHATML, "off"), (LLAMA3, "mixed")]
)
def test_the_thinking_mode_must_be_one_that_the_template_has(folder, template, thinking):
    refused("rendering.thinking", renderer, folder, template, thinking)


def test_mixed_thinking_is_on_where_an_answer_has_reasoning(folder):
    made = renderer(folder, QWEN3, "mixed")
    (on,) = made.chat_tokens(chat(ASK, THOUGHT))
    (off,) = made.chat_tokens(chat(ASK, SAY))
    assert on.tokens[: on.answers[0][0]] == made.prompt_ids([ASK], thinking=True)
    assert off.tokens[: off.answers[0][0]] == made.prompt_ids([ASK], thinking=False)
    refused("rendering.thinking", made.prompt_ids, [ASK])


def test_system_prompts(folder):
    system = {"role": "system", "content": "Be brief."}
    none, fixed, own = (
        renderer(folder, CHATML),
        renderer(folder, CHATML, system="fixed", text="Be brief."),
        renderer(folder, CHATML, system="per-conversation"),
    )
    assert none.prompt_text([ASK]).startswith("<|im_start|>user")
    assert fixed.prompt_text([ASK]) == fixed.prompt_text([system, ASK]) == own.prompt_text([system, ASK])
    assert own.prompt_text([ASK]) == none.prompt_text([ASK])
    refused("rendering.system-prompt", none.prompt_ids, [system, ASK])
    fault = refused("rendering.system-prompt", fixed.prompt_ids, [{**system, "content": "Be rude."}, ASK])
    assert "'Be rude.'" in fault.cause
    assert "'Be brief.'" in fault.cause


def test_a_default_system_prompt_with_a_date_does_not_depend_on_the_day(folder):
    assert "Today Date: 26 Jul 2024" in renderer(folder, LLAMA3).prompt_text([ASK])


def test_what_the_template_has_no_place_for_is_refused(folder):
    made = renderer(folder, MISTRAL)
    fault = refused("rendering.refused", made.prompt_ids, [ASK, MORE])
    assert "alternate" in fault.cause
    refused(
        "rendering.refused",
        renderer(folder, MISTRAL, system="per-conversation").prompt_ids,
        [{**ASK, "role": "system"}],
    )
    refused("rendering.refused", made.prompt_ids, [])
    refused("rendering.refused", made.prompt_ids, [{**ASK, "content": [{"type": "image_url"}]}])
    parts = [{"type": "text", "text": "Why is the sky "}, {"type": "text", "text": "blue?"}]
    assert made.prompt_ids([{**ASK, "content": parts}]) == made.prompt_ids([ASK])


def test_without_a_template_nothing_is_rendered(folder):
    tokenizer, end = templated(folder, CHATML)
    tokenizer.chat_template = None
    rendering = Rendering(thinking="none", system_prompt="none", system_prompt_text=None)
    refused("tokenizer.chat-template", Renderer, tokenizer, rendering, (end,))


# Answers that are not what they should be


def test_tokens_of_another_text_are_refused(folder):
    made = renderer(folder, CHATML)
    ids = [*made.encode("Because of the sea."), made.eos_ids[0]]
    fault = refused("rendering.answer-text", made.chat_tokens, chat(ASK, SAY, sampled={1: ids}))
    assert "the sea" in fault.cause
    assert "the air" in fault.cause


def test_ends_that_do_not_belong_are_refused(folder):
    made = renderer(folder, CHATML)
    ids, end = made.encode(SAY["content"]), made.eos_ids[0]
    for tokens, finish in ((ids, "stop"), ([*ids, end], "length"), ([*ids, end, end], "stop")):
        refused("rendering.end-of-turn", made.chat_tokens, chat(ASK, SAY, sampled={1: tokens}, finish=finish))
    within = {**SAY, "content": "Because<|im_end|>of"}
    refused("rendering.end-of-turn", made.chat_tokens, chat(ASK, within))


def test_a_template_that_closes_with_another_token_than_the_target_is_refused(folder):
    tokenizer, _ = templated(folder, CHATML)
    rendering = Rendering(thinking="none", system_prompt="none", system_prompt_text=None)
    made = Renderer(tokenizer, rendering, (tokenizer.convert_tokens_to_ids("</s>"),))
    fault = refused("rendering.end-of-turn", made.chat_tokens, chat(ASK, SAY))
    assert "<|im_end|>" in fault.cause
    assert "</s>" in fault.cause


BARE = "{% for m in messages %}{{ m.content }}{% if m.role == 'assistant' %}</s>{% endif %}{% endfor %}"
OPEN = "{% for m in messages %}{{ m.content }}{% endfor %}"
"""Nothing stands between the turns, so that a tokenizer would join letters of two."""


def test_no_token_lies_in_prompt_and_answer(folder):
    made = renderer(folder, BARE)
    (run,) = made.chat_tokens(chat({**ASK, "content": "Here is th"}, {**SAY, "content": "e fox."}))
    begin, end = run.answers[0]
    assert made.encode("Here is the fox.")[:begin] != run.tokens[:begin], "or nothing is shown"
    assert run.tokens[:begin] == made.encode("Here is th")
    assert made.tokenizer.decode(run.tokens[begin:end]) == "e fox.</s>"


def test_no_token_lies_in_an_answer_and_the_next_prompt(folder):
    """The target saw the next prompt as one text: an answer that ends within one of its tokens is not gone on from."""
    made = renderer(folder, OPEN)
    asked = [{**ASK, "content": "Here is "}, {**SAY, "content": "th"}, {**MORE, "content": "e fox"}, THEN]
    first, second = made.chat_tokens(chat(*asked, finish="length"))
    assert made.tokenizer.decode(first.tokens) == "Here is th"
    assert second.tokens[: second.answers[0][0]] == made.encode("Here is the fox")


@pytest.mark.builtin
def test_the_built_in_targets_own_template(builtin_target_folder):
    """Its default system prompt belongs to every prompt, and the engine's way of asking gives the same tokens."""
    tokenizer = AutoTokenizer.from_pretrained(builtin_target_folder)
    ends = eos_ids_of(builtin_target_folder)
    rendering = Rendering(thinking="none", system_prompt="none", system_prompt_text=None)
    made = Renderer(tokenizer, rendering, ends)
    session = Session(None, None, tokenizer, ends)
    assert made.prompt_ids([ASK, SAY, MORE]) == session.encode_chat(
        [(turn["role"], turn["content"]) for turn in (ASK, SAY, MORE)]
    )
    (run,) = made.chat_tokens(chat(ASK, SAY, MORE, THEN))
    whole, answers = texts(made, run)
    assert answers == ["Because of the air.<|im_end|>", "Then it is dark.<|im_end|>"]
    assert whole.startswith("<|im_start|>system\nYou are a helpful AI assistant named SmolLM")
    assert whole.count("system") == 1
