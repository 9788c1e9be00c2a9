"""Completions and the plain routes, against a real server."""

from __future__ import annotations

from collections.abc import Iterator

import openai
import pytest

from eyas.serve.api.answers import Completion
from eyas.serve.wire import Grammar
from support.fake_engine_client import tokenizer
from support.http_rig import Rig, serving

PROMPT = "The fox lives"


@pytest.fixture(scope="module")
def rig() -> Iterator[Rig]:
    with serving() as running:
        yield running


@pytest.fixture(autouse=True)
def _fresh(rig: Rig) -> None:
    rig.engine.__init__()  # type: ignore[misc]


def ask(rig: Rig, prompt: object = PROMPT, **more: object) -> openai.types.Completion:
    return rig.openai().completions.create(model="tiny", prompt=prompt, **more)  # type: ignore[arg-type]


def test_a_text_is_gone_on_with(rig):
    answer = ask(rig, max_tokens=20)
    assert (answer.choices[0].text, answer.choices[0].finish_reason) == (rig.engine.text, "stop")
    assert answer.usage.completion_tokens == 19
    assert '"max_new_tokens":20' in rig.engine.asks[0].sampling


def test_openais_limit_of_16_tokens(rig):
    ask(rig)
    assert '"max_new_tokens":16' in rig.engine.asks[0].sampling


def test_prompts_in_all_forms(rig):
    ids = tokenizer()(PROMPT, add_special_tokens=False)["input_ids"]
    for prompt in (PROMPT, ids, [PROMPT], [ids]):
        ask(rig, prompt)
    assert [a.prompt for a in rig.engine.asks] == [ids] * 4


def test_several_prompts_with_several_answers(rig):
    answer = ask(rig, [PROMPT, "A whale"], n=2, seed=4)
    assert [c.index for c in answer.choices] == [0, 1, 2, 3]
    by_seed = sorted(rig.engine.asks, key=lambda a: a.sampling.partition('"seed":')[2])
    assert [len(a.prompt) for a in by_seed] == [len(by_seed[0].prompt)] * 2 + [len(by_seed[2].prompt)] * 2
    assert answer.usage.prompt_tokens == len(by_seed[0].prompt) + len(by_seed[2].prompt)


def test_a_stream(rig):
    chunks = list(ask(rig, stream=True, stream_options={"include_usage": True}))
    assert "".join(c.choices[0].text for c in chunks[:-1]) == rig.engine.text
    assert chunks[-2].choices[0].finish_reason == "stop"
    assert (chunks[-1].choices, chunks[-1].usage.completion_tokens) == ([], 19)


def test_echo(rig):
    assert ask(rig, echo=True).choices[0].text == PROMPT + rig.engine.text
    streamed = list(ask(rig, echo=True, stream=True))
    assert "".join(c.choices[0].text for c in streamed) == PROMPT + rig.engine.text


@pytest.mark.parametrize("stream", [False, True])
def test_logprobs_of_the_old_form(rig, stream):
    rig.engine.text = "The é fox"
    answer = ask(rig, logprobs=2, stream=stream)
    parts = [c.choices[0].logprobs for c in answer if c.choices[0].logprobs] if stream else [answer.choices[0].logprobs]
    tokens = [t for part in parts for t in part.tokens]
    offsets = [o for part in parts for o in part.text_offset]
    assert len(tokens) == len(offsets) == sum(len(part.token_logprobs) for part in parts)
    assert offsets[0] == 0
    assert offsets[-1] == len(rig.engine.text) - len(tokens[-1])
    assert all(len(top) >= 2 for part in parts for top in part.top_logprobs)


def test_logprobs_without_others(rig):
    assert ask(rig, logprobs=0).choices[0].logprobs.top_logprobs is None


def test_an_answer_holds_what_is_described(rig):
    body = {"prompt": PROMPT, "return_token_ids": True, "origins": True}
    with rig.http() as http:
        answer = Completion.model_validate(http.post("/v1/completions", json=body).json())
    assert len(answer.choices[0].token_ids) == len(answer.choices[0].origins) == 19
    assert answer.choices[0].prompt_token_ids == rig.engine.asks[0].prompt


@pytest.mark.parametrize(
    ("fields", "param"),
    [({"best_of": 2}, "best_of"), ({"suffix": "x"}, "suffix"), ({"echo": True, "logprobs": 1}, "echo")],
)
def test_what_is_not_done_is_refused(rig, fields, param):
    with pytest.raises(openai.BadRequestError) as caught:
        ask(rig, **fields)
    assert (caught.value.code, caught.value.param) == ("request.unsupported", param)


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"response_format": {"type": "json_object"}}, Grammar("json_object", "")),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "object"}}}},
            Grammar("json_schema", '{"type": "object"}'),
        ),
        ({"guided_regex": "a+"}, Grammar("regex", "a+")),
        ({"guided_json": '{"type": "string"}'}, Grammar("json_schema", '{"type": "string"}')),
        ({"guided_grammar": "start: A"}, Grammar("lark", "start: A")),
        ({"guided_choice": ["a", 'b"']}, Grammar("lark", 'start: "a" | "b\\""')),
        ({"structured_outputs": {"json": {"type": "number"}}}, Grammar("json_schema", '{"type": "number"}')),
        ({"regex": "b"}, Grammar("regex", "b")),
        ({"ebnf": "start: B"}, Grammar("lark", "start: B")),
    ],
)
def test_forms_of_answers(rig, fields, expected):
    ask(rig, extra_body=fields)
    assert rig.engine.asks[0].grammar == expected


def test_models(rig):
    (model,) = rig.openai().models.list().data
    assert model.id == "tiny"
    assert rig.openai().models.retrieve("tiny").owned_by == "eyas"
    with pytest.raises(openai.NotFoundError) as caught:
        rig.openai().models.retrieve("org/other")
    assert caught.value.code == "request.model"


def test_tokens_as_vllm_gives_them(rig):
    with rig.http() as http:
        found = http.post("/tokenize", json={"prompt": PROMPT, "return_token_strs": True}).json()
        back = http.post("/detokenize", json={"tokens": found["tokens"]}).json()
        chat = http.post("/tokenize", json={"messages": [{"role": "user", "content": "x"}]}).json()
        far = http.post("/detokenize", json={"tokens": [512]}).json()
    assert (found["count"], found["max_model_len"]) == (len(found["tokens"]), 256)
    assert len(found["token_strs"]) == found["count"]
    assert back == {"prompt": PROMPT}
    assert tokenizer().decode(chat["tokens"]).endswith("<|im_start|>assistant\n")
    assert far["error"]["param"] == "tokens"


def test_what_runs_here(rig):
    with rig.http() as http:
        info = http.get("/server_info").json()
        metrics = http.get("/metrics")
        flushed = http.post("/flush_cache").json()
    assert (info["engine"], info["models"], info["speculation"]) == ("eyas", ["tiny"], None)
    assert info["loaded"]["facts"]["versions"] == {"eyas": "test"}
    assert 'eyas_info{model="tiny"' in metrics.text
    assert metrics.headers["content-type"].startswith("text/plain; version=0.0.4")
    assert (flushed, rig.engine.flushed) == ({"flushed": True}, 1)


def test_requests_are_counted_by_route(rig):
    ask(rig)
    with rig.http() as http:
        http.get("/nowhere/at/all")
        page = http.get("/metrics").text
    assert 'route="/v1/completions",status="200"' in page
    assert 'route="other",status="404"' in page
    assert "/nowhere" not in page


def test_the_description_is_honest(rig):
    with rig.http() as http:
        made = http.get("/openapi.json").json()
    operation = made["paths"]["/v1/chat/completions"]["post"]
    assert set(operation["responses"]) == {"200", "400", "401", "404", "408", "413", "429", "431", "500", "503"}
    assert set(operation["responses"]["200"]["content"]) == {"application/json", "text/event-stream"}
    assert "HTTPValidationError" not in made["components"]["schemas"]
    body = made["components"]["schemas"]["ChatBody"]
    assert body["additionalProperties"] is False
    assert {"messages", "tools", "speculation", "temperature"} <= set(body["properties"])
