"""Which engine it is, and the ceiling that its flags allow."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from eyas.dialects.counters import counts_between, read_metrics
from eyas.errors import EyasError
from eyas.servers.http import Http, asked_pause, check_key, root_of
from eyas.servers.look import Server, look
from support.fake_engines import FakeEngine, vllm_counters

SGLANG = {"version": "0.5.23", "speculative_algorithm": "EAGLE3", "speculative_num_steps": 5}
SGLANG |= {"speculative_eagle_topk": 8, "speculative_num_draft_tokens": 4}
EYAS = {"engine": "eyas", "version": "0.1.0"}
LLAMA_METRICS = b"""# TYPE llamacpp:spec_decode_num_drafts_total counter
llamacpp:spec_decode_num_drafts_total 40
llamacpp:spec_decode_num_draft_tokens_total 120
llamacpp:spec_decode_num_accepted_tokens_total 30
llamacpp:spec_decode_num_accepted_tokens_per_pos_total{position="0"} 20
llamacpp:spec_decode_num_accepted_tokens_per_pos_total{position="1"} 10
"""
SETTINGS = {"num_steps": 3, "eagle_topk": 1, "num_draft_tokens": 4, "draft_sampling": "one-hot"}


def seen(answers: dict[str, Any]) -> Server:
    def replace(engine: FakeEngine, path: str, body: Any) -> tuple[int, bytes]:
        said = answers.get(path)
        if said is None:
            return 404, b"{}"
        return 200, said if isinstance(said, bytes) else json.dumps(said).encode()

    async def ask(root: str) -> Server:
        async with Http(root) as http:
            return await look(http)

    with FakeEngine("sglang", [], replace=replace) as fake:
        return asyncio.run(ask(fake.url))


@pytest.mark.parametrize(
    ("answers", "server"),
    [
        ({"/metrics": vllm_counters([0, 3], 3)}, Server("vllm", None, True, True, 4)),
        ({"/server_info": SGLANG}, Server("sglang", "0.5.23", True, False, 4)),
        ({"/get_server_info": SGLANG | {"speculative_algorithm": None}}, Server("sglang", "0.5.23", False)),
        ({"/server_info": SGLANG | {"speculative_num_steps": None}}, Server("sglang", "0.5.23", True)),
        ({"/server_info": EYAS | {"speculation": SETTINGS}}, Server("eyas", "0.1.0", True, False, 4)),
        ({"/server_info": EYAS | {"speculation": None}}, Server("eyas", "0.1.0", False)),
        ({"/props": {"build_info": "b6543-abc", "total_slots": 1}}, Server("llama.cpp", "b6543-abc")),
        (
            {"/props": {"build_info": "b1"}, "/metrics": LLAMA_METRICS},
            Server("llama.cpp", "b1", None, True),
        ),
        ({"/props": b"<html>"}, Server("other")),
        ({}, Server("other")),
    ],
)
def test_each_engine_is_known_by_what_it_says(answers: dict[str, Any], server: Server) -> None:
    assert seen(answers) == server


def test_what_llama_cpp_counts() -> None:
    counts = counts_between({}, read_metrics(LLAMA_METRICS.decode()))
    assert (counts.rounds, counts.accepted, counts.proposed, counts.histogram) == (40, 30, 120, (20, 10, 10))


def test_an_address_names_its_flag() -> None:
    assert root_of("http://127.0.0.1:80/v1/") == "http://127.0.0.1:80"
    with pytest.raises(EyasError, match="--against ftp://x") as error:
        root_of("ftp://x", "--against")
    assert error.value.code == "flags.range"


@pytest.mark.parametrize(("said", "seconds"), [("3", 3.0), ("9999", 60.0), ("soon", 0.0), ("-1", 0.0), ("²", 0.0)])
def test_a_pause_is_bounded(said: str, seconds: float) -> None:
    assert asked_pause({"retry-after": said}) == seconds


def test_a_key_must_fit_into_a_header() -> None:
    check_key("sk-1")
    with pytest.raises(EyasError):
        check_key("sk\n1")
