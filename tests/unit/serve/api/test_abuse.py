"""Bodies that are made to cost the server far more than their bytes, and clients that want more than their turn."""

from __future__ import annotations

from typing import Any

import pytest

from eyas.serve.api import ApiSettings, Limits, failures
from eyas.serve.api.failures import ErrorBody, ErrorDetail
from support.http_rig import Rig, serving

CHAT = "/v1/chat/completions"
MESSAGES = [{"role": "user", "content": "x"}]
MANY = 100_000
TWICE = b'{"messages": [], "messages": []}'


def post(rig: Rig, body: Any, path: str = CHAT) -> tuple[int, ErrorDetail]:
    reply = rig.client.post(path, json=body)
    return reply.status_code, ErrorBody.model_validate(reply.json()).error


@pytest.mark.parametrize(
    ("body", "path"),
    [
        ({"prompt": [1.5] * MANY}, "/v1/completions"),
        ({"prompt": [[1.5]] * 50_000}, "/v1/completions"),
        ({"prompt": "x", "stop": [1] * MANY}, "/v1/completions"),
        ({"messages": [1] * MANY}, CHAT),
        ({"messages": [{"role": "x"}] * 50_000}, CHAT),
        ({"messages": MESSAGES, "tools": [1] * MANY}, CHAT),
        ({"messages": [{"role": "user", "content": [1] * MANY}]}, CHAT),
        ({"tokens": ["x"] * MANY}, "/detokenize"),
    ],
)
def test_of_many_faults_few_are_looked_at(monkeypatch, body, path):
    counted: list[int] = []
    told = failures.invalid
    monkeypatch.setattr(failures, "invalid", lambda errors: (counted.append(len(errors)), told(errors))[1])
    with serving() as rig:
        assert post(rig, body, path)[0] == 400
    assert counted[0] < 10


@pytest.mark.parametrize(
    "fields", [{f"k{i}": 1 for i in range(5000)}, {"logit_bias": {f"x{i}": 1 for i in range(5000)}}]
)
def test_an_object_has_so_many_keys_and_no_more(fields):
    with serving() as rig:
        assert post(rig, {"messages": MESSAGES} | fields)[1].code == "request.limit"


def test_a_body_has_so_many_parts_and_no_more():
    with serving() as rig:
        assert post(rig, {"prompt": [[1]] * MANY}, "/v1/completions")[1].code == "request.limit"


def test_a_key_that_stands_twice_is_called_so():
    with serving() as rig:
        assert "twice" in rig.client.post(CHAT, content=TWICE, headers={"content-type": "application/json"}).text


def test_of_several_keys_each_is_a_client_of_its_own():
    with serving(settings=ApiSettings(keys=("one", "two"))) as rig:
        for key in ("one", "two", "two"):
            with rig.http(key) as http:
                assert http.post(CHAT, json={"messages": MESSAGES}).status_code == 200
        clients = [ask.client for ask in rig.engine.asks]
    assert clients[0] != clients[1] == clients[2]
    assert not any("one" in client or "two" in client for client in clients)


@pytest.mark.parametrize("body", [{"prompt": "a " * 60}, {"messages": [{"role": "user", "content": "a " * 60}]}])
def test_a_text_to_tokenize_has_a_length(body: dict) -> None:
    with serving(limits=Limits(tokenize_chars=100)) as rig, rig.http() as http:
        refused = http.post("/tokenize", json=body)
        fits = http.post("/tokenize", json={"prompt": "a " * 50})
    assert (refused.status_code, refused.json()["error"]["code"]) == (400, "request.limit")
    assert fits.status_code == 200


@pytest.mark.parametrize("path", [CHAT, "/v1/completions"])
def test_more_than_the_context_leaves_is_refused_and_not_cut(path: str) -> None:
    body = {"messages": MESSAGES} if path == CHAT else {"prompt": "x"}
    with serving() as rig:
        status, error = post(rig, {**body, "max_tokens": 1 << 20}, path)
        assert (status, error.code, error.param) == (400, "request.too-long", "max_tokens")
        assert rig.engine.asks == []
        assert rig.client.post(path, json=body).status_code == 200
