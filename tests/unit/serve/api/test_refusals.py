"""Every limit, and every error's form: what a client sees of what goes wrong."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from typing import Any

import openai
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from eyas.errors import CODES, EyasError
from eyas.serve.api import ApiSettings, Limits
from eyas.serve.api.bodies import ChatBody
from eyas.serve.api.failures import ErrorBody, error_body, status_of
from support.fake_engine_client import FakeEngine
from support.http_rig import Rig, serving

CHAT = "/v1/chat/completions"
MESSAGES = [{"role": "user", "content": "x"}]
LIMITS = Limits(
    body_bytes=20_000,
    json_depth=16,
    prompt_tokens=60,
    choices=4,
    top_logprobs=3,
    stop_strings=2,
    stop_chars=10,
    stop_token_ids=2,
    logit_biases=2,
    tools=1,
    grammar_bytes=500,
    grammar_depth=6,
)


@pytest.fixture(scope="module")
def rig() -> Iterator[Rig]:
    with serving(limits=LIMITS, settings=ApiSettings(tool_format="hermes")) as running:
        yield running


@pytest.fixture(autouse=True)
def _fresh(rig: Rig) -> None:
    rig.engine.__init__()  # type: ignore[misc]


def post(rig: Rig, body: Any = None, path: str = CHAT, content: bytes | None = None) -> tuple[int, Any]:
    """(status, error); every error must have its form."""
    if content is None:
        reply = rig.client.post(path, json=body)
    else:
        reply = rig.client.post(path, content=content, headers={"content-type": "application/json"})
    if reply.status_code == 200:
        return 200, None
    error = ErrorBody.model_validate(reply.json()).error
    assert error.code in CODES
    assert status_of(error.code) == reply.status_code
    return reply.status_code, error


CALL = {"type": "function", "function": {"name": "f", "arguments": "{"}}
TOOL = {"type": "function", "function": {"name": "f"}}
LONG = {"type": "function", "function": {"name": "f", "parameters": {"description": "a" * 500}}}
DEEP = {"type": "function", "function": {"name": "f", "parameters": {"a": [{"a": [{"a": [{}]}]}]}}}


@pytest.mark.parametrize(
    ("fields", "code", "param"),
    [
        ({"n": 5}, "request.limit", "n"),
        ({"n": 0}, "request.field", "n"),
        ({"logprobs": True, "top_logprobs": 4}, "request.limit", "top_logprobs"),
        ({"stop": ["a", "b", "c"]}, "request.limit", "stop"),
        ({"stop": "a" * 11}, "request.limit", "stop"),
        ({"stop": ""}, "request.field", "stop"),
        ({"stop_token_ids": [1, 2, 3]}, "request.limit", "stop_token_ids"),
        ({"stop_token_ids": [512]}, "request.field", "stop_token_ids"),
        ({"logit_bias": {"1": 0, "2": 0, "3": 0}}, "request.limit", "logit_bias"),
        ({"logit_bias": {"512": 0}}, "request.field", "logit_bias"),
        ({"logit_bias": {"x": 0}}, "request.field", "logit_bias.x"),
        ({"tools": [TOOL, TOOL]}, "request.limit", "tools"),
        *(({"tools": [tool], "tool_choice": "required"}, "request.limit", "tools") for tool in (LONG, DEEP)),
        ({"guided_regex": "a" * 501}, "request.limit", "guided_regex"),
        ({"guided_regex": "(" * 7 + "a" + ")" * 7}, "request.limit", "guided_regex"),
        ({"guided_regex": " "}, "request.field", "guided_regex"),
        ({"guided_json": "{"}, "request.field", "guided_json"),
        ({"guided_json": "[]"}, "request.field", "guided_json"),
        ({"guided_choice": []}, "request.field", "guided_choice"),
        ({"regex": "a", "ebnf": "b"}, "request.field", "ebnf"),
        ({"foo": 1}, "request.field", "foo"),
        ({"functions": []}, "request.field", "functions"),
        ({"temperature": -1}, "request.field", "temperature"),
        ({"temperature": 1e-9}, "request.sampling", "temperature"),
        ({"temperature": True}, "request.field", "temperature"),
        ({"temperature": "1"}, "request.field", "temperature"),
        ({"max_tokens": 0}, "request.field", "max_tokens"),
        ({"max_tokens": 1.5}, "request.field", "max_tokens"),
        ({"max_tokens": 10**30}, "request.field", "max_tokens"),
        ({"max_tokens": 1, "max_completion_tokens": 2}, "request.field", "max_tokens"),
        ({"top_logprobs": 1}, "request.field", "top_logprobs"),
        ({"stream_options": {"include_usage": True}}, "request.field", "stream_options"),
        ({"tool_choice": "required"}, "request.field", "tool_choice"),
        (
            {"tools": [TOOL], "tool_choice": {"type": "function", "function": {"name": "g"}}},
            "request.field",
            "tool_choice",
        ),
        ({"tools": [TOOL], "tool_choice": "required", "guided_regex": "a"}, "request.field", "tool_choice"),
        ({"speculation": {"num_steps": 3, "num_draft_tokens": 9}}, "flags.contradiction", "speculation"),
        ({"speculation": {"num_steps": 0}}, "request.field", "speculation.num_steps"),
        ({"chat_template_kwargs": {"chat_template": "x"}}, "request.field", "chat_template_kwargs"),
        ({"chat_template_kwargs": {"tokenize": True}}, "request.field", "chat_template_kwargs"),
        ({"continue_final_message": True}, "request.field", "continue_final_message"),
        ({"model": "other"}, "request.model", "model"),
        ({"messages": []}, "request.field", "messages"),
        ({"messages": [{"role": "cook", "content": "x"}]}, "request.field", "messages.0"),
        ({"messages": [{"role": "user", "content": 3}]}, "request.field", "messages.0.content"),
        ({"messages": [{"role": "user"}]}, "request.field", "messages.0.content"),
        ({"messages": [*MESSAGES, {"role": "assistant", "tool_calls": [CALL]}]}, "rendering.refused", None),
        ({"messages": [{"role": "user", "content": "fox " * 80}]}, "request.too-long", None),
    ],
)
def test_a_field_is_refused_by_name(rig, fields, code, param):
    status, error = post(rig, {"messages": MESSAGES} | fields)
    assert (error.code, error.param) == (code, param)
    assert status == (404 if code == "request.model" else 400)
    assert rig.engine.asks == []


@pytest.mark.parametrize(
    ("body", "code", "param"),
    [
        ({"prompt": []}, "request.empty", "prompt"),
        ({"prompt": ""}, "request.empty", "prompt"),
        ({"prompt": [[]]}, "request.empty", "prompt"),
        ({"prompt": [600]}, "request.field", "prompt"),
        ({"prompt": [-1]}, "request.field", "prompt"),
        ({"prompt": ["a", 1]}, "request.field", "prompt"),
        ({"prompt": [1] * 61}, "request.too-long", None),
        ({"prompt": ["a"] * 5}, "request.limit", "prompt"),
        ({}, "request.field", "prompt"),
    ],
)
def test_a_prompt_is_refused(rig, body, code, param):
    status, error = post(rig, body, "/v1/completions")
    assert status == 400
    assert error.code == code
    assert error.param is None if param is None else error.param.startswith(param)


def test_far_too_long_a_text_is_not_even_read(rig):
    _, error = post(rig, {"prompt": "a" * 15_000}, "/v1/completions")
    assert error.code == "request.too-long"
    assert "characters" in error.message


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"[]",
        b"null",
        b'"text"',
        b"\xff\xfe",
        b'{"messages": NaN}',
        b'{"temperature": Infinity}',
        b'{"temperature": 1e999}',
        b'{"a": 1, "a": 2}',
        b'{"messages": [{"role": "user", "content": "\\ud800"}]}',
        b'{"\\udfff": 1}',
        b'{"a":' * 2500 + b"1" + b"}" * 2500,
        b'{"a":' * 20 + b"1" + b"}" * 20,
        b"[" * 19_000,
        b'{"seed": ' + b"9" * 5000 + b"}",
        b'{"messages": "\x00"}',
    ],
)
def test_a_body_that_is_no_request(rig, content):
    status, error = post(rig, content=content)
    assert status == 400
    assert error.code in ("request.json", "request.field")


def test_a_chat_to_tokenise_is_refused_as_a_chat(rig):
    _, error = post(rig, {"messages": [{"role": "user", "content": 1}]}, "/tokenize")
    assert error.param == "messages.0.content"
    assert post(rig, {"messages": MESSAGES, "prompt": "x"}, "/tokenize")[1].param == "prompt"


@pytest.mark.parametrize(("depth", "status"), [(10, 200), (16, 400)])
def test_how_deep_a_body_may_be(rig, depth, status):
    nested: Any = 1
    for _ in range(depth):
        nested = [nested]
    found, error = post(rig, {"messages": MESSAGES, "chat_template_kwargs": {"x": nested}})
    assert found == status
    assert error is None or error.code == "request.json"


def test_a_whole_number_may_be_written_with_a_point(rig):
    body = b'{"messages": [{"role": "user", "content": "x"}], "max_tokens": 5.0, "temperature": 1.0}'
    assert post(rig, content=body)[0] == 200
    assert json.loads(rig.engine.asks[0].sampling)["max_new_tokens"] == 5


def test_a_body_must_be_called_json(rig):
    with rig.http() as http:
        reply = http.post(CHAT, content=json.dumps({"messages": MESSAGES}), headers={"content-type": "text/plain"})
    assert reply.status_code == 400
    assert "Content-Type" in reply.json()["error"]["message"]


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)
FIELDS = sorted(ChatBody.model_fields)


@given(st.dictionaries(st.sampled_from(FIELDS) | st.text(max_size=5), values, max_size=4), st.booleans())
@settings(max_examples=120, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_no_body_makes_the_server_fail(rig, fields, asked):
    body = ({"messages": MESSAGES} if asked else {}) | fields
    status, _ = post(rig, content=json.dumps(body).encode("utf-8", "surrogatepass"))
    assert status in (200, 400, 404, 413)


@given(st.binary(max_size=200))
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_no_bytes_make_the_server_fail(rig, content):
    assert post(rig, content=content)[0] == 400


def test_too_large_a_body(rig):
    status, error = post(rig, {"messages": [{"role": "user", "content": "x" * 30_000}]})
    assert (status, error.code) == (413, "request.too-large")


def test_too_large_a_body_of_unknown_length(rig):
    with rig.http() as http:
        reply = http.post(CHAT, content=(b" " * 1000 for _ in range(100)))
    assert (reply.status_code, reply.json()["error"]["code"]) == (413, "request.too-large")
    assert reply.headers["connection"] == "close"


def test_paths_and_methods(rig):
    with rig.http() as http:
        lost, wrong = http.get("/v1/nothing"), http.delete(CHAT)
    assert (lost.status_code, lost.json()["error"]["code"]) == (404, "server.path")
    assert (wrong.status_code, wrong.json()["error"]["code"]) == (405, "server.method")
    assert wrong.headers["allow"] == "POST"


def test_no_other_sites_scripts(rig):
    with rig.http() as http:
        reply = http.post(CHAT, json={"messages": MESSAGES}, headers={"origin": "http://evil.example"})
        asked = http.options(CHAT, headers={"origin": "http://evil.example", "access-control-request-method": "POST"})
    assert not [name for r in (reply, asked) for name in r.headers if name.startswith("access-control")]
    assert reply.headers["x-content-type-options"] == "nosniff"
    assert "server" not in reply.headers


KEYS = ApiSettings(keys=("secret-1", "sécret-2"))


def test_a_key_is_asked_for():
    with serving(settings=KEYS) as rig:
        with rig.http() as http:
            statuses = {
                p: http.get(p).status_code for p in ("/health", "/ready", "/metrics", "/v1/models", "/server_info")
            }
            wrong = [
                http.get("/v1/models", headers={"authorization": h}).status_code for h in ("Bearer x", "secret-1", "")
            ]
            reply = http.post(CHAT, content=b"x" * 100_000)
        assert rig.openai("secret-1").models.list().data
        with pytest.raises(openai.AuthenticationError) as caught:
            rig.openai("secret-2").models.list()
        described = rig.http("secret-1").get("/openapi.json").json()
    assert statuses == {"/health": 200, "/ready": 200, "/metrics": 401, "/v1/models": 401, "/server_info": 401}
    assert wrong == [401, 401, 401]
    assert (caught.value.code, reply.status_code) == ("server.key", 401)
    assert described["paths"]["/v1/models"]["get"]["security"] == [{"key": []}]
    assert "security" not in described["paths"]["/health"]["get"]


@pytest.mark.parametrize("key", ["secret-1", "sécret-2"])
def test_each_key_fits(key):
    with serving(settings=KEYS) as rig, rig.http() as http:
        headers = {"authorization": b"Bearer " + key.encode()}
        assert http.get("/v1/models", headers=headers).status_code == 200


@pytest.mark.parametrize(
    ("code", "status"),
    [
        ("server.busy", 429),
        ("engine.died", 503),
        ("request.too-long", 400),
        ("engine.cache-full", 400),
        ("model.nonfinite", 500),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
def test_what_the_engine_says_before_it_answers(rig, code, status, stream):
    rig.engine.failure = EyasError(code, "a cause", "a fix")
    with rig.http() as http:
        reply = http.post(CHAT, json={"messages": MESSAGES, "stream": stream})
    assert reply.status_code == status
    error = ErrorBody.model_validate(reply.json()).error
    assert (error.code, error.message) == (code, "a cause; a fix")
    assert ("retry-after" in reply.headers) == (status in (429, 503))


def test_an_error_amid_a_stream_ends_it(rig):
    rig.engine.failure, rig.engine.fail_after = EyasError("engine.died", "it is gone", "again"), 2
    stream = rig.openai().chat.completions.create(model="tiny", messages=MESSAGES, stream=True)  # type: ignore[call-overload]
    said = []
    with pytest.raises(openai.APIError) as caught:
        said.extend(chunk for chunk in stream)
    assert caught.value.code == "engine.died"
    assert rig.engine.open == 0


def test_one_of_several_that_fails_ends_all(rig):
    rig.engine.failure, rig.engine.fail_after = EyasError("engine.died", "it is gone", "again"), 2
    status, error = post(rig, {"messages": MESSAGES, "n": 3})
    assert (status, error.code) == (503, "engine.died")
    assert rig.engine.open == 0


@pytest.mark.parametrize("stream", [False, True])
def test_what_nobody_foresaw_says_nothing(stream):
    with serving(FakeEngine(failure=RuntimeError("a prompt's text"))) as rig, rig.http() as http:
        reply = http.post(CHAT, json={"messages": MESSAGES, "stream": stream})
    assert (reply.status_code, reply.json()["error"]["code"]) == (500, "server.internal")
    assert "prompt" not in reply.text
    assert any("RuntimeError" in line for line in rig.said)
    assert not any("prompt" in line for line in rig.said)


def test_a_fault_amid_a_stream_is_told_in_it():
    with serving(FakeEngine(failure=RuntimeError("a prompt's text"), fail_after=1)) as rig, rig.http() as http:
        reply = http.post(CHAT, json={"messages": MESSAGES, "stream": True})
    last = json.loads(reply.text.strip().rpartition("data: ")[2])
    assert last["error"]["code"] == "server.internal"


def test_an_answer_without_an_end(rig):
    rig.engine.finish = None  # type: ignore[assignment]
    assert post(rig, {"messages": MESSAGES})[1].code == "engine.died"
    assert post(rig, {"prompt": "x"}, "/v1/completions")[1].code == "engine.died"


def test_a_request_that_takes_too_long():
    with serving(FakeEngine(pause=0.3), Limits(request_seconds=0.5)) as rig:
        whole, error = post(rig, {"messages": MESSAGES})
        with rig.http() as http:
            streamed = http.post(CHAT, json={"messages": MESSAGES, "stream": True}).text
        rig.until(lambda: rig.engine.open == 0)
    assert (whole, error.code) == (408, "request.timeout")
    assert '"code":"request.timeout"' in streamed.replace(" ", "")
    assert "[DONE]" not in streamed


def test_too_many_requests_at_once():
    with serving(FakeEngine(pause=0.2), Limits(open_requests=1)) as rig, rig.http() as http:
        with http.stream("POST", CHAT, json={"messages": MESSAGES, "stream": True}) as first:
            lines = first.iter_lines()
            next(lines)
            status, error = post(rig, {"messages": MESSAGES})
        rig.until(lambda: rig.engine.open == 0)
        after = post(rig, {"messages": MESSAGES})[0]
    assert (status, error.code, after) == (429, "server.busy", 200)


def test_a_model_that_is_not_loaded():
    with serving(FakeEngine(loaded=False)) as rig, rig.http() as http:
        assert http.get("/health").status_code == 200
        ready = http.get("/ready")
        assert (ready.status_code, ready.json()["error"]["code"]) == (503, "server.loading")
        assert post(rig, {"messages": MESSAGES})[0] == 503
        rig.engine.loaded = True
        assert http.get("/ready").status_code == 200


def test_messages_name_no_values():
    assert error_body(EyasError("server.busy", "a", "b")).error.type == "rate_limit_error"


def test_refusing_is_quick(rig):
    began = time.monotonic()
    post(rig, content=b'{"a":[' + b"1," * 9000 + b"1]}")
    assert time.monotonic() - began < 20
