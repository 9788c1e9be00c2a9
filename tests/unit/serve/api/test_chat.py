"""Chats through the `openai` package, against a real server."""

from __future__ import annotations

import json
from collections.abc import Iterator

import openai
import pytest

from eyas.check.endpoint_read import observe
from eyas.config import SamplingSettings, SpeculativeSettings
from eyas.serve.api import ApiSettings
from eyas.serve.api.answers import ChatChunk, ChatCompletion
from support.fake_engine_client import tokenizer
from support.http_rig import Rig, serving

MESSAGES = [{"role": "user", "content": "Where does the fox live?"}]
SETTINGS = ApiSettings(
    tool_format="hermes",
    reasoning_format="qwen3",
    speculation={"num_steps": 3, "num_draft_tokens": 4, "eagle_topk": 1},
)
TOOL = {
    "type": "function",
    "function": {"name": "find", "parameters": {"type": "object", "properties": {"what": {"type": "string"}}}},
}


@pytest.fixture(scope="module")
def rig() -> Iterator[Rig]:
    with serving(settings=SETTINGS) as running:
        yield running


@pytest.fixture(autouse=True)
def _fresh(rig: Rig) -> None:
    rig.engine.__init__()  # type: ignore[misc]


def ask(rig: Rig, **more: object) -> openai.types.chat.ChatCompletion:
    return rig.openai().chat.completions.create(model="tiny", messages=MESSAGES, **more)  # type: ignore[arg-type]


def sampling(rig: Rig, index: int = -1) -> SamplingSettings:
    fields = json.loads(rig.engine.asks[index].sampling)
    fields["logit_bias"] = {int(k): v for k, v in fields["logit_bias"].items()}
    return SamplingSettings(**fields | {"stop_token_ids": tuple(fields["stop_token_ids"])})


def test_a_chat_is_answered(rig):
    answer = ask(rig)
    (choice,) = answer.choices
    assert choice.message.content == rig.engine.text
    assert (choice.message.role, choice.finish_reason, answer.object) == ("assistant", "stop", "chat.completion")
    assert answer.usage.completion_tokens == 19
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + 19
    assert answer.usage.prompt_tokens_details.cached_tokens == 4
    text = tokenizer().decode(rig.engine.asks[0].prompt)
    assert text == "<|im_start|>user\nWhere does the fox live?<|im_end|>\n<|im_start|>assistant\n"


def test_openais_own_defaults(rig):
    ask(rig)
    found = sampling(rig)
    assert (found.temperature, found.top_p) == (1.0, 1.0)
    assert found.max_new_tokens == rig.engine.context - len(rig.engine.asks[0].prompt)


def test_the_models_defaults_hold_where_a_request_is_silent():
    with serving(settings=ApiSettings(defaults={"temperature": 0.6, "top_k": 20}, seed=7)) as rig:
        ask(rig)
        ask(rig, temperature=0.0, extra_body={"top_k": -1})
        first, second = sampling(rig, 0), sampling(rig, 1)
    assert (first.temperature, first.top_k, first.seed) == (0.6, 20, 7)
    assert (second.temperature, second.top_k) == (0.0, 0)


def test_every_sampling_field_arrives(rig):
    given = {"temperature": 0.5, "top_p": 0.9, "seed": 11, "presence_penalty": 0.1, "frequency_penalty": 0.2}
    extra = {"top_k": 9, "min_p": 0.05, "repetition_penalty": 1.1, "ignore_eos": True, "stop_token_ids": [5]}
    ask(rig, **given, logit_bias={"7": -3.0}, max_completion_tokens=12, extra_body=extra)
    found = sampling(rig)
    assert {name: getattr(found, name) for name in given} == given
    assert (found.top_k, found.min_p, found.repetition_penalty, found.ignore_eos) == (9, 0.05, 1.1, True)
    assert (found.stop_token_ids, found.logit_bias, found.max_new_tokens) == ((5,), {7: -3.0}, 12)


def test_a_stream_is_as_openais(rig):
    options = {"include_usage": True}
    chunks = list(ask(rig, stream=True, stream_options=options))
    first, *middle, finish, usage = chunks
    assert first.choices[0].delta.role == "assistant"
    assert "".join(c.choices[0].delta.content for c in middle) == rig.engine.text
    assert (finish.choices[0].finish_reason, finish.choices[0].delta.content) == ("stop", None)
    assert (usage.choices, usage.usage.completion_tokens) == ([], 19)
    assert all(c.usage is None for c in chunks[:-1])
    assert {c.id for c in chunks} == {first.id}


def test_a_streams_bytes(rig):
    body = {"messages": MESSAGES, "stream": True, "temperature": 0, "speculation_figures": True, "origins": True}
    with rig.http() as http:
        reply = http.post("/v1/chat/completions", json=body)
    assert reply.headers["content-type"].startswith("text/event-stream")
    *events, done, rest = reply.text.split("\n\n")
    assert (done, rest) == ("data: [DONE]", "")
    chunks = [ChatChunk.model_validate_json(event.removeprefix("data: ")) for event in events]
    assert chunks[-1].speculation is not None
    assert chunks[-1].speculation.accepted_histogram == [1, 0, 5, 0]
    origins = [origin for c in chunks for choice in c.choices for origin in choice.origins or ()]
    assert "".join(text for text, _ in origins) == rig.engine.text
    assert [who for _, who in origins[:3]] == [1, 2, 0]


def test_an_answer_holds_what_is_described(rig):
    body = {"messages": MESSAGES, "logprobs": True, "top_logprobs": 2, "origins": True, "return_token_ids": True}
    with rig.http() as http:
        answer = ChatCompletion.model_validate(http.post("/v1/chat/completions", json=body).json())
    (choice,) = answer.choices
    assert len(choice.token_ids) == len(choice.origins) == len(choice.logprobs.content) == 19
    assert answer.prompt_token_ids == rig.engine.asks[0].prompt


def test_figures_of_speculation(rig):
    figures = ask(rig).speculation
    assert figures["accepted_histogram"] == [1, 0, 5, 0]
    assert (figures["rounds"], figures["cut_rounds"], figures["ceiling"]) == (6, 0, 4)
    assert figures["accept_length"] == pytest.approx(1 + 10 / 6)
    assert "speculation" not in (ask(rig, extra_body={"speculation_figures": False}).model_extra or {})


def test_check_reads_our_figures(rig):
    seen = observe(rig.url, [MESSAGES, [40, 41, 42]], 30)
    assert (seen.engine, seen.speculates) == ("eyas", True)
    assert seen.total.histogram == (2, 0, 10, 0)
    assert seen.total.completion == 38
    assert seen.total.cut is False


def test_several_answers_have_seeds_of_their_own(rig):
    answer = ask(rig, n=3, seed=100, temperature=0.7)
    assert [c.index for c in answer.choices] == [0, 1, 2]
    assert sorted(sampling(rig, i).seed for i in range(3)) == [100, 101, 102]
    assert [c.seed for c in answer.choices] == [100, 101, 102]
    assert answer.usage.completion_tokens == 57
    assert answer.usage.prompt_tokens == len(rig.engine.asks[0].prompt)
    assert answer.usage.prompt_tokens_details.cached_tokens == 4


def test_several_streamed_answers(rig):
    texts = {0: "", 1: ""}
    for chunk in ask(rig, n=2, stream=True):
        for choice in chunk.choices:
            texts[choice.index] += choice.delta.content or ""
    assert set(texts.values()) == {rig.engine.text}


def test_a_drawn_seed_is_told_and_gives_the_same(rig):
    first = ask(rig).choices[0].seed
    assert ask(rig, seed=first).choices[0].seed == first
    assert sampling(rig, 0).seed == sampling(rig, 1).seed == first
    assert ask(rig).choices[0].seed != first


def test_stop_strings(rig):
    rig.engine.stop_reason = "and"
    answer = ask(rig, stop=["and", "or"], extra_body={"include_stop_str_in_output": True})
    assert (rig.engine.asks[0].stop, rig.engine.asks[0].include_stop) == (["and", "or"], True)
    assert answer.choices[0].stop_reason == "and"


def test_logprobs_with_bytes(rig):
    rig.engine.text = "The é"
    answer = ask(rig, logprobs=True, top_logprobs=3)
    content = answer.choices[0].logprobs.content
    assert bytes(b for one in content for b in one.bytes).decode() == "The é"
    assert [len(one.top_logprobs) for one in content] == [3] * len(content)
    assert rig.engine.asks[0].top_logprobs == 3


def test_logprobs_in_a_stream(rig):
    chunks = list(ask(rig, logprobs=True, stream=True))
    content = [one for c in chunks for choice in c.choices if choice.logprobs for one in choice.logprobs.content]
    assert "".join(one.token for one in content) == rig.engine.text


def test_reasoning_stands_apart(rig):
    rig.engine.text = "<think>it is a fox</think>The fox."
    message = ask(rig).choices[0].message
    assert (message.reasoning_content, message.content) == ("it is a fox", "The fox.")
    whole = ask(rig, extra_body={"separate_reasoning": False}).choices[0].message
    assert whole.content == rig.engine.text


def test_tool_calls(rig):
    rig.engine.text = '<tool_call>{"name": "find", "arguments": {"what": "fox"}}</tool_call>'
    choice = ask(rig, tools=[TOOL]).choices[0]
    assert choice.finish_reason == "tool_calls"
    (call,) = choice.message.tool_calls
    assert (call.function.name, json.loads(call.function.arguments)) == ("find", {"what": "fox"})
    assert choice.message.content is None


def test_streamed_tool_calls(rig):
    rig.engine.text = '<tool_call>{"name": "find", "arguments": {"what": "fox"}}</tool_call>'
    with rig.openai().chat.completions.stream(model="tiny", messages=MESSAGES, tools=[TOOL]) as stream:  # type: ignore[list-item]
        final = stream.get_final_completion()
    (call,) = final.choices[0].message.tool_calls
    assert (call.function.name, json.loads(call.function.arguments)) == ("find", {"what": "fox"})
    assert final.choices[0].finish_reason == "tool_calls"


def test_only_one_call_where_only_one_may_be(rig):
    call = '<tool_call>{"name": "find", "arguments": {}}</tool_call>'
    rig.engine.text = call + "\n" + call
    assert len(ask(rig, tools=[TOOL]).choices[0].message.tool_calls) == 2
    assert len(ask(rig, tools=[TOOL], parallel_tool_calls=False).choices[0].message.tool_calls) == 1


def test_a_call_that_must_be_is_made_by_a_grammar(rig):
    ask(rig, tools=[TOOL], tool_choice="required")
    ask(rig, tools=[TOOL], tool_choice={"type": "function", "function": {"name": "find"}})
    ask(rig, tools=[TOOL], tool_choice="auto")
    ask(rig, tools=[TOOL], tool_choice="none")
    kinds = [one.grammar is not None for one in rig.engine.asks]
    assert kinds == [True, True, False, False]


def test_a_form_holds_behind_the_reasoning(rig):
    ask(rig, extra_body={"regex": "a+"})
    grammar = rig.engine.asks[0].grammar
    assert grammar.kind == "structural_tag"
    assert "</think>" in grammar.text
    assert '"a+"' in grammar.text


def test_speculation_of_one_request(rig):
    ask(rig, extra_body={"speculation": {"num_steps": 5}})
    ask(rig, extra_body={"speculation": False})
    ask(rig)
    ask(rig, extra_body={"speculation": {"adaptive": False}})
    ask(rig, extra_body={"speculation": {"num_steps": 2, "adaptive": False}})
    one, plain, started, exactly, two = (a.speculation for a in rig.engine.asks)
    assert SpeculativeSettings.model_validate_json(one) == SpeculativeSettings.resolve(num_steps=5)
    assert (plain, started, exactly) == ("null", None, None), "none given: as the server was started"
    assert SpeculativeSettings.model_validate_json(two).num_steps == 2
    assert [a.adaptive for a in rig.engine.asks] == [True, True, True, False, False]


def test_a_final_message_is_gone_on_with(rig):
    messages = [*MESSAGES, {"role": "assistant", "content": "It lives"}]
    rig.openai().chat.completions.create(
        model="tiny",
        messages=messages,  # type: ignore[arg-type]
        extra_body={"continue_final_message": True},
    )
    assert tokenizer().decode(rig.engine.asks[0].prompt).endswith("<|im_start|>assistant\nIt lives")


def test_users_and_priorities(rig):
    ask(rig, user="ann", extra_body={"priority": 3})
    ask(rig, user="bob")
    ask(rig)
    ann, bob, nobody = rig.engine.asks
    assert [a.user for a in (ann, bob, nobody)] == ["ann", "bob", ""]
    assert ann.client == bob.client == nobody.client != "", "users take turns in their client's place"
    assert (ann.priority, bob.priority) == (3, 0)


def test_an_answers_own_message_can_be_sent_back(rig):
    message = ask(rig).choices[0].message.model_dump()
    messages = [*MESSAGES, message, {"role": "user", "content": [{"type": "text", "text": "And now?"}]}]
    rig.openai().chat.completions.create(model="tiny", messages=messages)  # type: ignore[arg-type]
    assert "And now?" in tokenizer().decode(rig.engine.asks[1].prompt)


def test_fields_without_effect_are_taken(rig):
    ask(rig, store=True, metadata={"a": "b"}, service_tier="auto", prompt_cache_key="k", safety_identifier="s")
    assert len(rig.engine.asks) == 1


def test_limits_of_a_chat(rig):
    with pytest.raises(openai.BadRequestError) as caught:
        ask(rig, n=65)
    assert (caught.value.code, caught.value.param) == ("request.limit", "n")
    assert rig.engine.asks == []
