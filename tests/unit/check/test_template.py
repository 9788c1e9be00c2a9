"""What a server makes of a chat: by ids, by their number, and told apart from what the target's own template writes."""

from __future__ import annotations

import json
from typing import Any

import pytest
from transformers import PreTrainedTokenizerBase

from eyas.check.findings import Finding
from eyas.check.template import (
    ITS_OWN,
    THINKING_OFF,
    THINKING_ON,
    Found,
    Heard,
    hear,
    judge_template,
    renderings,
    template_of_server,
)
from eyas.contract.schema import Rendering
from eyas.engine.session import open_session
from eyas.errors import EyasError
from eyas.testing import tiny_pair
from support.fake_engines import Body, FakeEngine, Replace, hang

TEXTS = ["where does the fox live?", "what is an owl?"]
CHATS = [[{"role": "user", "content": text}] for text in TEXTS]
THINKS = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n"
    "{% if enable_thinking is defined and not enable_thinking %}ok{% endif %}{% endif %}"
)


@pytest.fixture(scope="module")
def tokenizer() -> PreTrainedTokenizerBase:
    return open_session(tiny_pair()[0], None, "fp32").tokenizer


def writes(tokenizer: PreTrainedTokenizerBase, name: str, chat: list[dict[str, str]]) -> list[int]:
    return dict(renderings(tokenizer, chat))[name]


def engine(tokenizer: PreTrainedTokenizerBase, flavour: str, name: str) -> FakeEngine:
    """A server that writes chats in this way: vLLM tells the ids, others how many there are."""

    def reply(_: FakeEngine, path: str, body: Body | None) -> tuple[int, bytes] | None:
        if body is None or "messages" not in body:
            return None
        ids = writes(tokenizer, name, body["messages"])
        if path == "/tokenize":
            return 200, json.dumps({"count": len(ids), "tokens": ids}).encode()
        return 200, json.dumps({"choices": [], "usage": {"prompt_tokens": len(ids)}}).encode()

    return FakeEngine(flavour, [[0]] * 9, replace=reply)


def saying(data: bytes) -> Replace:
    """To every POST the same."""
    return lambda _, path, body: None if body is None else (200, data)


def found(tokenizer: PreTrainedTokenizerBase, flavour: str, name: str, rendering: Rendering | None = None) -> Found:
    with engine(tokenizer, flavour, name) as server:
        return template_of_server(server.url, tokenizer, TEXTS, rendering)


def fault(result: Found) -> Finding:
    assert result.finding is not None
    assert (result.finding.kind, result.finding.weight, result.link.state) == ("endpoint.template", "fault", "broken")
    return result.finding


@pytest.mark.parametrize(("flavour", "state"), [("vllm", "proven"), ("sglang", "sound")])
def test_the_right_template_is_no_fault(tokenizer: PreTrainedTokenizerBase, flavour: str, state: str) -> None:
    """By ids it is proven; where only their number is told it is not."""
    result = found(tokenizer, flavour, ITS_OWN)
    assert (result.finding, result.link.state) == (None, state)


@pytest.mark.parametrize("flavour", ["vllm", "sglang"])
def test_another_template_is_named(tokenizer: PreTrainedTokenizerBase, flavour: str) -> None:
    own = writes(tokenizer, ITS_OWN, CHATS[0])
    others = [name for name, ids in renderings(tokenizer, CHATS[0]) if ids != own]
    assert len(others) >= 4
    for name in others:
        said = fault(found(tokenizer, flavour, name))
        assert name in said.data["as"], (name, said)


def test_what_none_of_the_ways_explains_is_still_a_fault(tokenizer: PreTrainedTokenizerBase) -> None:
    result = judge_template([Heard(3, (5, 6, 7))] * 2, tokenizer, CHATS)
    assert fault(result).data["as"] == []
    assert "from token 0 on" in fault(result).evidence


def test_the_contract_says_which_way_the_switch_is_to_stand(tokenizer: PreTrainedTokenizerBase) -> None:
    own = tokenizer.chat_template
    tokenizer.chat_template = THINKS
    try:
        for thinking, right, wrong in (("off", THINKING_OFF, THINKING_ON), ("on", THINKING_ON, THINKING_OFF)):
            rendering = Rendering(thinking=thinking, system_prompt="none", system_prompt_text=None)
            assert found(tokenizer, "vllm", right, rendering).finding is None
            assert wrong in fault(found(tokenizer, "vllm", wrong, rendering)).data["as"]
        mixed = Rendering(thinking="mixed", system_prompt="none", system_prompt_text=None)
        assert all(found(tokenizer, "vllm", way, mixed).finding is None for way in (THINKING_OFF, THINKING_ON))
        assert fault(found(tokenizer, "vllm", THINKING_OFF)).data["as"] == [THINKING_OFF]
    finally:
        tokenizer.chat_template = own


@pytest.mark.parametrize("said", [{}, {"usage": None}, {"usage": {"prompt_tokens": None}}, {"tokens": ["a"]}])
def test_a_server_that_does_not_tell_leaves_it_open(tokenizer: PreTrainedTokenizerBase, said: Any) -> None:
    with FakeEngine("vllm", [[0]] * 9, replace=saying(json.dumps(said).encode())) as server:
        result = template_of_server(server.url, tokenizer, TEXTS)
    assert (result.finding, result.link.state) == (None, "unknown")


def test_one_that_lies_or_hangs_is_refused_in_time(tokenizer: PreTrainedTokenizerBase) -> None:
    lies = json.dumps({"usage": {"prompt_tokens": -4}}).encode()
    with (
        FakeEngine("sglang", [[0]] * 9, replace=saying(lies)) as server,
        pytest.raises(EyasError) as error,
    ):
        hear(server.url, CHATS)
    assert error.value.code == "server.metrics"
    with FakeEngine("vllm", [[0]] * 9, replace=hang) as server, pytest.raises(EyasError) as error:
        hear(server.url, CHATS, timeout=0.5)
    assert error.value.code == "server.unreachable"
