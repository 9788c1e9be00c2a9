"""Any OpenAI-compatible server, with the real client over real HTTP, and whatever can go wrong there."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest

from eyas.data.regen.server import Server, ServerOptions
from eyas.data.regen.settings import RegenSettings
from eyas.errors import EyasError
from eyas.testing.fake_openai import FakeOpenAI, Fault
from regen_rigs import SYSTEM, prompt, regenerated, user

PROMPTS = [prompt(SYSTEM, user(f"{i}"), user("and?"), id=f"p{i}") for i in range(6)]
SETTINGS = RegenSettings(temperatures=(0.7,), top_p=0.9, max_new_tokens=33, seed=5)
BUSY = Fault(429, '{"error": "busy"}')
BROKEN = Fault(500, "oh")
JSON_FAULTS = ("{", "[]", '{"choices": []}', '{"choices": [{"message": {"content": 1}, "finish_reason": "stop"}]}')


def options(fake: FakeOpenAI, **more: Any) -> ServerOptions:
    return ServerOptions(**{"url": fake.url, "first_pause": 0.01, "timeout": 5.0, "tries": 4, **more})


def run(folder: Path, fake: FakeOpenAI, settings: RegenSettings = SETTINGS, **more: Any) -> tuple[list, list]:
    source = Server(options(fake, **more), settings)
    try:
        return regenerated(folder, PROMPTS, source, settings)
    finally:
        source.close()


def texts(chats: list) -> list[list[str]]:
    return [[m["content"] for m in chat.messages if m["role"] == "assistant"] for chat in chats]


WHOLE = [[f"2: {i}", "4: and?"] for i in range(6)]


def test_a_server_answers_turn_by_turn(tmp_path: Path) -> None:
    with FakeOpenAI() as fake:
        chats, left_out = run(tmp_path, fake, key="secret")
    assert texts(chats) == WHOLE
    assert left_out == []
    assert {a.token_ids for chat in chats for a in chat.answers} == {None}
    body = fake.requests[0]
    assert (body["model"], body["temperature"], body["top_p"], body["max_tokens"]) == ("fake", 0.7, 0.9, 33)
    assert len({body["seed"] for body in fake.requests}) == 12
    assert "tools" not in body
    assert "chat_template_kwargs" not in body
    assert fake.headers[0]["authorization"] == "Bearer secret"


def test_as_many_requests_are_open_as_may_be(tmp_path: Path) -> None:
    with FakeOpenAI(latency=0.05) as fake:
        run(tmp_path, fake, concurrency=3)
    assert fake.most_at_once == 3


@pytest.mark.parametrize(
    "fault",
    [
        BUSY,
        Fault(429, "slowly", {"retry-after": "0"}),
        BROKEN,
        Fault(503, "<html>"),
        Fault(cut=True),
        *(Fault(200, body) for body in JSON_FAULTS),
        Fault(200, '{"choices": [{"message": {"content": "\\ud800"}, "finish_reason": "stop"}]}'),
    ],
    ids=str,
)
def test_a_fault_that_passes_is_tried_again(tmp_path: Path, fault: Fault) -> None:
    with FakeOpenAI(faults=[fault] * 3) as fake:
        chats, left_out = run(tmp_path, fake)
    assert texts(chats) == WHOLE
    assert left_out == []
    assert len(fake.requests) == 12 + 3


def test_a_request_that_hangs_is_given_up_and_tried_again(tmp_path: Path) -> None:
    with FakeOpenAI(faults=[Fault(hang=True)]) as fake:
        chats, _ = run(tmp_path, fake, timeout=0.3)
    assert texts(chats) == WHOLE


def test_a_server_that_asks_to_wait_is_obeyed(tmp_path: Path) -> None:
    with FakeOpenAI(faults=[Fault(429, "", {"retry-after": "1"})]) as fake:
        run(tmp_path, fake, concurrency=1)
    assert fake.arrived[1] - fake.arrived[0] >= 1


def test_a_server_that_dies_ends_the_run_and_keeps_what_there_is(tmp_path: Path) -> None:
    fake = FakeOpenAI()

    def respond(body: dict[str, Any]) -> dict[str, Any]:
        if len(fake.requests) >= 7:
            # From another thread than the one that this reply waits in.
            fake.faults.extend([BROKEN] * 1000)
        return {"message": {"content": f"{len(body['messages'])}: {body['messages'][-1]['content']}"}, **STOP}

    fake.respond = respond
    with fake, pytest.raises(EyasError) as error:
        run(tmp_path, fake, concurrency=2)
    assert error.value.code == "server.unreachable"
    assert "4 tries: HTTP 500: oh" in error.value.cause
    assert "finished chats are kept" in error.value.cause
    kept = (tmp_path / "journal.jsonl").read_text().count("\n") - 1
    assert kept >= 1
    with FakeOpenAI() as healthy:
        chats, _ = run(tmp_path, healthy)
    assert texts(chats) == WHOLE
    assert len(healthy.requests) == 12 - 2 * kept


STOP = {"finish_reason": "stop"}


def test_a_server_that_is_not_there_is_named(tmp_path: Path) -> None:
    with FakeOpenAI() as fake:
        pass
    with pytest.raises(EyasError, match="ConnectError") as error:
        run(tmp_path, fake)
    assert error.value.code == "server.unreachable"
    with pytest.raises(EyasError) as error:
        run(tmp_path, fake, model="named")
    assert error.value.code == "server.unreachable"


def test_one_request_that_breaks_the_server_is_left_out(tmp_path: Path) -> None:
    fake = FakeOpenAI()

    def respond(body: dict[str, Any]) -> dict[str, Any]:
        if body["messages"][1]["content"] == "2":
            return {"message": {"content": 5}, "finish_reason": "stop"}
        time.sleep(0.02)
        return {"message": {"content": "Well."}, "finish_reason": "stop"}

    fake.respond = respond
    with fake:
        chats, left_out = run(tmp_path, fake, concurrency=2)
    assert len(chats) == 5
    assert [(one.chat_id, one.why) for one in left_out] == [("p2#0", "server-error")]


@pytest.mark.parametrize(
    ("body", "why"),
    [
        ('{"message": "This model\'s maximum context length is 2048 tokens."}', "too-long"),
        ('{"message": "no such role"}', "refused"),
    ],
)
def test_a_request_that_is_refused_is_left_out_at_once(tmp_path: Path, body: str, why: str) -> None:
    with FakeOpenAI(faults=[Fault(400, body)]) as fake:
        chats, left_out = run(tmp_path, fake, concurrency=1)
    assert len(chats) == 5
    assert [(one.chat_id, one.why) for one in left_out] == [("p0#0", why)]
    assert body in left_out[0].detail


@pytest.mark.parametrize("status", [401, 403, 404])
def test_a_refusal_that_all_requests_would_meet_ends_the_run(tmp_path: Path, status: int) -> None:
    with FakeOpenAI(faults=[Fault(status, "who are you?")] * 99) as fake, pytest.raises(EyasError) as error:
        run(tmp_path, fake)
    assert error.value.code == "server.refused"
    assert "who are you?" in error.value.cause


@pytest.mark.parametrize("models", [(), ("a", "b")])
def test_the_model_must_be_named_unless_there_is_one(tmp_path: Path, models: tuple[str, ...]) -> None:
    with FakeOpenAI(models=models) as fake:
        with pytest.raises(EyasError) as error:
            run(tmp_path, fake)
        assert error.value.code == "server.refused"
        assert f"serves {len(models)} models" in error.value.cause
        chats, _ = run(tmp_path, fake, model="b")
    assert len(chats) == 6
    assert fake.requests[0]["model"] == "b"


CALL = {"id": "c", "type": "function", "function": {"name": "f", "arguments": '{"a":  1}'}, "index": 0}


@pytest.mark.parametrize(
    ("turn", "message"),
    [
        ({"content": "x"}, {"content": "x"}),
        ({"content": "x", "reasoning_content": "Hm."}, {"content": "x", "reasoning_content": "Hm."}),
        ({"content": "x", "reasoning": "Hm."}, {"content": "x", "reasoning_content": "Hm."}),
        ({"content": "<think>\nHm.\n</think>\n\nx"}, {"content": "x", "reasoning_content": "Hm."}),
        ({"content": "Hm.\n</think>\n\nx"}, {"content": "x", "reasoning_content": "Hm."}),
        ({"content": None, "tool_calls": [CALL]}, {"content": "", "tool_calls": [CALL]}),
    ],
)
def test_thoughts_and_calls_are_kept(tmp_path: Path, turn: dict[str, Any], message: dict[str, Any]) -> None:
    finish = "tool_calls" if "tool_calls" in turn else "stop"
    tools = ({"type": "function", "function": {"name": "f"}},)
    settings = RegenSettings(thinking="on")
    with FakeOpenAI(lambda _: {"message": turn, "finish_reason": finish}) as fake:
        source = Server(options(fake), settings)
        chats, _ = regenerated(tmp_path, [prompt(user(), tools=tools)], source, settings)
        source.close()
    assert chats[0].messages[1] == {"role": "assistant", **message}
    assert chats[0].answers[0].finish == finish
    assert fake.requests[0]["tools"] == list(tools)
    assert fake.requests[0]["chat_template_kwargs"]["enable_thinking"] is True
    assert json.loads((tmp_path / "journal.jsonl").read_text().splitlines()[1])["chat"]["messages"][1]["content"] in (
        "",
        "x",
    )


@pytest.mark.parametrize(
    "wrong", [{"url": "localhost:8000"}, {"url": "http://"}, {"concurrency": 0}, {"tries": 0}, {"timeout": 0.0}]
)
def test_options_that_mean_nothing_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(EyasError) as error:
        ServerOptions(**{"url": "http://127.0.0.1:1/v1", **wrong})
    assert error.value.code == "flags.range"
