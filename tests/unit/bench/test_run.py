"""Whole runs against servers over real HTTP: what is sent where, in which order, and what comes out."""

from __future__ import annotations

import json
from typing import Any

import pytest

from eyas.bench import run
from eyas.bench.client import Clock
from eyas.bench.report import document
from eyas.bench.run import Address, Result, bench, opening
from eyas.bench.settings import BenchSettings, Load
from eyas.corpus.prompts import Prompt
from eyas.errors import EyasError
from eyas.testing.fake_openai import FakeOpenAI, Fault, stream
from support.fake_engines import vllm_counters

PROMPTS = [Prompt(id=f"p{i}", messages=({"role": "user", "content": f"question {i}"},)) for i in range(6)]
EYAS = json.dumps({"engine": "eyas", "version": "0.1.0", "speculation": {
    "num_steps": 3, "eagle_topk": 1, "num_draft_tokens": 4}})  # fmt: skip
NOTHING = {"/metrics": "", "/server_info": "{}"}


def measured(addresses: list[Address], prompts: list[Prompt] = PROMPTS, **settings: Any) -> Result:
    return bench(addresses, prompts, BenchSettings(**settings), lambda step: None, Clock())


def said(fake: FakeOpenAI) -> list[str]:
    return [body["messages"][-1]["content"].removeprefix("question ") for body in fake.requests]


def test_two_servers_get_the_same_in_turns():
    order: list[str] = []

    def noting(name: str) -> Any:
        return lambda body: order.append(name) or stream()(body)

    with FakeOpenAI(events=noting("a")) as a, FakeOpenAI(events=noting("b")) as b:
        result = measured([Address("first", a.url), Address("second", b.url, "--against")], warmup=1)
    assert said(a) == said(b) == ["5", "0", "1", "2", "3", "4", "5"]
    assert order[:2] == ["a", "b"], "warm-up"
    assert order[2:] == ["a", "b", "b", "a"] * 3
    strip = [{k: v for k, v in body.items() if k != "stream"} for body in a.requests]
    assert strip == [{k: v for k, v in body.items() if k != "stream"} for body in b.requests]
    (level,) = result.levels
    assert level.paired is not None
    assert (level.paired.pairs, level.paired.same_text) == (6, 6)
    assert [f.requests for f in level.figures] == [6, 6]


def test_concurrency_is_swept():
    with FakeOpenAI(latency=0.05) as fake:
        result = measured([Address("server", fake.url)], concurrency=(1, 3), warmup=0)
    assert fake.most_at_once == 3
    assert [level.load for level in result.levels] == [Load("closed", 1), Load("closed", 3)]
    assert all(level.figures[0].tokens == sum(len(f"1: question {i}") for i in range(6)) for level in result.levels)


def test_open_load():
    with FakeOpenAI() as fake:
        result = measured([Address("server", fake.url)], rates=(200.0,), requests=20)
    (figures,) = result.levels[0].figures
    assert (figures.answered, figures.requests) == (20, 20)
    assert sorted(said(fake)[2:]) == sorted([*list("012345") * 3, "0", "1"]), "from the beginning, over and over"


def test_a_server_against_itself_without_speculation():
    figures = {"speculation": {"accepted_histogram": [2, 1, 0, 1], "cut_rounds": 0, "plain_rounds": 2}}
    with FakeOpenAI(events=stream(figures=figures), pages={"/metrics": "", "/server_info": EYAS}) as fake:
        both = [Address("speculating", fake.url), Address("plain", fake.url, plain=True)]
        result = measured(both, warmup=0)
    asked = [body.get("speculation") for body in fake.requests]
    assert asked == [None, False, False, None] * 3
    document_ = document(result, {}, with_requests=True)
    ours = document_["levels"][0]["servers"]["speculating"]
    assert ours["accept"]["length"] == pytest.approx(2.0)
    assert ours["ceiling"] == 4
    assert [row["rounds"] for row in ours["each"]] == [4] * 6
    assert document_["servers"][1]["asked"] == {"speculation": False}


def test_only_our_own_server_knows_requests_without_speculation():
    with FakeOpenAI(pages=NOTHING) as fake, pytest.raises(EyasError) as error:
        measured([Address("plain", fake.url, plain=True)])
    assert error.value.code == "flags.contradiction"


def test_counters_of_metrics_stand_in_for_answers(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(run, "SETTLE_SECONDS", 0.01)
    looks: list[int] = []

    class Pages(dict[str, str]):
        def get(self, path: str, default: Any = None) -> Any:
            if path != "/metrics":
                return default
            looks.append(len(looks))
            return vllm_counters([3, 0, 1] * max(0, len(looks) - 2), 3).decode()

    with FakeOpenAI() as fake:
        fake.pages = Pages()
        # The counters move with each look: as often as they are asked until two looks agree, or for so many tries.
        monkeypatch.setattr(run, "SETTLE_TRIES", 2)
        result = measured([Address("server", fake.url)], warmup=0)
    accept = result.levels[0].figures[0].accept
    assert accept is not None
    assert (accept.source, accept.length) == ("counters", pytest.approx(1 + 4 / 3))
    assert result.targets[0].server.ceiling == 4


def test_a_dead_server_ends_the_run_and_not_the_report():
    with FakeOpenAI(faults=[Fault(500, "dead")] * 100) as fake:
        result = measured([Address("server", fake.url)], warmup=0, concurrency=(1, 2), requests=40)
    (level,) = result.levels
    assert (level.figures[0].faults, result.unsent) == ({"http-500": 6}, [Load("closed", 2)])
    assert "dead" in str(level.figures[0].stopped)


@pytest.mark.parametrize(("fault", "code"), [(Fault(401), "server.refused"), (Fault(500), "server.unreachable")])
def test_a_first_request_that_fails(fault: Fault, code: str):
    with FakeOpenAI(faults=[fault]) as fake, pytest.raises(EyasError) as error:
        measured([Address("server", fake.url)])
    assert error.value.code == code


def test_no_key_in_the_result_and_none_for_the_other_server():
    with FakeOpenAI() as a, FakeOpenAI() as b:
        both = [Address("first", a.url, key="sk-secret"), Address("second", b.url, "--against")]
        result = measured(both, warmup=0)
    assert "sk-secret" not in json.dumps(document(result, {}, with_requests=True)) + repr(result)
    assert all(headers["authorization"] == "Bearer sk-secret" for headers in a.headers)
    assert not any("authorization" in headers for headers in b.headers)


def test_what_cannot_be_measured():
    for prompts, settings in (([], {}), (PROMPTS, {"concurrency": (7,)})):
        with pytest.raises(EyasError) as error:
            measured([Address("server", "http://127.0.0.1:9")], prompts, **settings)
        assert error.value.code in ("flags.range", "flags.contradiction")


@pytest.mark.parametrize(
    ("roles", "asked"),
    [("u", 1), ("su", 2), ("uu", 1), ("uau", 3), ("uauu", 3), ("ua", 1), ("uaua", 3), ("uat", 3)],
)
def test_a_conversation_is_asked_where_an_answer_is_due(roles: str, asked: int):
    names = {"u": "user", "s": "system", "a": "assistant", "t": "tool"}
    messages = [{"role": names[r], "content": "x"} for r in roles]
    if "t" in roles:
        messages[1] = {"role": "assistant", "content": "", "tool_calls": [{"id": "1", "type": "function", "function": {
            "name": "f", "arguments": "{}"}}]}  # fmt: skip
        messages[2]["tool_call_id"] = "1"
    assert len(opening(Prompt(id="p", messages=tuple(messages)))) == asked
