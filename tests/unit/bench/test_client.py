"""Requests over real HTTP to servers that are busy, hang, lie, break off or send garbage: all reported, all bounded."""

from __future__ import annotations

import asyncio
import json
import time
from typing import Any

import pytest

from eyas.bench.client import Client, Clock, Outcome, Question, Target
from eyas.bench.settings import BenchSettings
from eyas.servers.look import Server
from eyas.testing.fake_openai import FakeOpenAI, Fault, stream

QUESTION = Question(3, "p", ({"role": "user", "content": "abcdefghij"},))


def ask(fake: FakeOpenAI, kind: str = "other", key: str | None = None, extra: Any = None, **settings: Any) -> Outcome:
    target = Target("server", fake.url.removesuffix("/v1"), "fake", Server(kind), key, extra or {})  # type: ignore[arg-type]
    clock = Clock(sleep=lambda seconds: asyncio.sleep(seconds / 100))

    async def work() -> Outcome:
        async with Client(target, BenchSettings(**{"timeout": 20.0, **settings}), clock) as client:
            return await client.ask(QUESTION, clock.now())

    with fake:
        return asyncio.run(work())


def test_an_answer():
    fake = FakeOpenAI()
    done = ask(fake, key="sk-secret", ignore_eos=True, seed=7)
    assert (done.fault, done.text, done.completion, done.prompt_tokens) == (None, "1: abcdefghij", 13, 1)
    assert (done.finish, len(done.chunks), done.counts, done.refusals) == ("stop", 4, None, {})
    times = [done.due, done.sent, *(chunk.at for chunk in done.chunks), done.ended]
    assert times == sorted(times)
    (body,) = fake.requests
    assert (body["seed"], body["ignore_eos"], body["stream"]) == (10, True, True)
    assert body["stream_options"] == {"include_usage": True}
    assert fake.headers[0]["authorization"] == "Bearer sk-secret"
    assert "sk-secret" not in repr(Target("server", "", "", Server("other"), "sk-secret"))


@pytest.mark.parametrize(
    ("kind", "key"),
    [
        ("eyas", "return_token_ids"),
        ("sglang", "return_spec_tokens_details"),
        ("llama.cpp", "timings_per_token"),
        ("vllm", "stream_options"),
    ],
)
def test_each_engine_is_asked_for_its_figures(kind: str, key: str):
    fake = FakeOpenAI()
    ask(fake, kind, extra={"speculation": False})
    (body,) = fake.requests
    assert body["speculation"] is False
    value = body[key]
    assert value is True or value["continuous_usage_stats"] is True


def test_figures_beside_the_usage():
    figures = {"speculation": {"accepted_histogram": [2, 1], "cut_rounds": 1}}
    done = ask(FakeOpenAI(events=stream(figures=figures)), "eyas")
    assert done.counts is not None
    assert (done.counts.rounds, done.counts.accepted) == (3, 1)


def test_a_busy_server_is_asked_again_when_it_says():
    faults = [Fault(429, "{}", {"retry-after": "9"}), Fault(503), Fault(429)]
    done = ask(FakeOpenAI(faults=faults))
    assert (done.fault, done.refusals) == (None, {429: 2, 503: 1})
    # 9 s as it asked, then 1 s and 2 s of our own, at a hundredth.
    assert 0.115 < done.waited < 10
    assert done.ended - done.due >= done.waited, "the client had to wait, so it counts"


def test_a_server_that_stays_busy():
    fake = FakeOpenAI(faults=[Fault(429)] * 9)
    done = ask(fake, tries=3)
    assert (done.fault, done.refusals, len(fake.requests)) == ("http-429", {429: 3}, 3)


@pytest.mark.parametrize("status", [400, 401, 404, 500, 302])
def test_other_refusals_are_not_tried_again(status: int):
    fake = FakeOpenAI(faults=[Fault(status, "said why" * 1000)])
    done = ask(fake)
    assert (done.fault, len(fake.requests)) == (f"http-{status}", 1)
    assert done.said.startswith("said why")
    assert len(done.said) <= 300


def test_a_server_that_hangs():
    begun = time.monotonic()
    done = ask(FakeOpenAI(faults=[Fault(hang=True)]), timeout=0.3)
    assert done.fault == "timeout"
    assert time.monotonic() - begun < 15


def test_a_server_that_drips_without_end():
    def drip(body: dict[str, Any]):
        while True:
            yield json.dumps({"choices": [{"delta": {"role": "assistant"}}]})
            yield 0.01

    assert ask(FakeOpenAI(events=drip), timeout=0.5).fault == "timeout"


def test_nobody_there():
    fake = FakeOpenAI()
    with fake:
        pass
    target = Target("server", fake.url.removesuffix("/v1"), "fake", Server("other"))

    async def work() -> Outcome:
        async with Client(target, BenchSettings(timeout=20.0), Clock()) as client:
            return await client.ask(QUESTION, 0.0)

    assert asyncio.run(work()).fault == "unreachable"


CHUNK = json.dumps({"choices": [{"delta": {"content": "ab"}}]})
END = json.dumps({"choices": [{"delta": {}, "finish_reason": "stop"}]})
LIE = json.dumps({"choices": [], "usage": {"completion_tokens": 10**9}})


@pytest.mark.parametrize(
    ("events", "fault"),
    [
        ([CHUNK, None], "cut"),
        ([CHUNK], "cut"),
        ([CHUNK, "{oh"], "bad-stream"),
        ([CHUNK, END, LIE], "usage"),
        ([CHUNK, json.dumps({"error": {"message": "lost"}})], "error"),
        ([CHUNK] * 2000, "endless"),
        (["x" * (2 << 20)], "bad-stream"),
    ],
)
def test_streams_that_are_no_answer(events: list[str | None], fault: str):
    assert ask(FakeOpenAI(events=lambda body: events)).fault == fault


def test_a_server_that_does_not_stream():
    body = {"choices": [{"message": {"content": "all at once"}, "finish_reason": "stop"}]}
    assert ask(FakeOpenAI(faults=[Fault(200, json.dumps(body))])).fault == "bad-stream"


def test_a_server_without_usage():
    done = ask(FakeOpenAI(events=lambda body: [CHUNK, END, "[DONE]"]))
    assert (done.fault, done.completion) == (None, None)
