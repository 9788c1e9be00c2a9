"""Text on the HTTP side: tokens, templates and the bytes of tokens; figures of rounds; counting nesting."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models
from transformers import PreTrainedTokenizerFast

from eyas.errors import EyasError
from eyas.metrics import Round, completion_tokens
from eyas.serve.api.figures import figures_of
from eyas.serve.api.grammars import nesting
from eyas.serve.api.strict import read_json
from eyas.serve.api.text import TextSide
from eyas.serve.wire import RoundCount
from support.fake_engine_client import tokenizer

SIDE = TextSide(tokenizer())


def run(coroutine):
    return asyncio.run(coroutine)


@given(st.text(max_size=30))
@settings(max_examples=60, deadline=None)
def test_the_bytes_of_tokens_are_the_texts(text):
    tokens = SIDE.backend.encode(text, add_special_tokens=False).ids
    assert b"".join(SIDE.token_bytes(token) for token in tokens) == text.encode()


def test_bytes_of_a_vocabulary_with_byte_fallback():
    vocabulary = {"<unk>": 0, "<0xC3>": 1, "<0xA9>": 2, "\u2581fox": 3}
    backend = Tokenizer(models.BPE(vocab=vocabulary, merges=[], unk_token="<unk>", byte_fallback=True))
    backend.decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Fuse()])
    side = TextSide(PreTrainedTokenizerFast(tokenizer_object=backend))
    assert [side.token_bytes(token) for token in (1, 2, 3)] == [b"\xc3", b"\xa9", b" fox"]
    assert side.token_bytes(99) is None


def test_many_texts_at_once_are_tokenised_as_one_alone():
    async def many():
        return await asyncio.gather(*(SIDE.encode(f"fox {i} é") for i in range(50)))

    assert run(many()) == [SIDE.backend.encode(f"fox {i} é").ids for i in range(50)]


@pytest.mark.parametrize("length", [9, 10])
def test_the_longest_text(length):
    assert len(run(SIDE.encode("1" * length, longest=10))) == length
    with pytest.raises(EyasError) as caught:
        run(SIDE.encode("1" * 11, longest=10))
    assert caught.value.code == "request.too-long"


def template(text: str, **defaults: object) -> TextSide:
    made = tokenizer()
    made.chat_template = text
    return TextSide(made, defaults)


USER = [{"role": "user", "content": "x"}]


def test_a_template_is_told_what_the_request_or_the_server_says():
    side = template("{{ enable_thinking }}|{{ tools | length if tools else 0 }}", enable_thinking=False)
    assert side.render(USER, [], {}) == "False|0"
    assert side.render(USER, [{"type": "function", "function": {"name": "f"}}], {"enable_thinking": True}) == "True|1"


def test_the_developers_role_is_the_systems_where_the_template_does_not_know_it():
    says = [{"role": "developer", "content": "be kind"}]
    assert template("{{ messages[0].role }}").render(says, [], {}) == "system"
    both = "{% if messages[0].role == 'developer' %}D{% endif %}"
    assert template(both).render(says, [], {}) == "D"


@pytest.mark.parametrize(
    "text",
    [
        "{{ raise_exception('no') }}",
        "{{ messages[5].role }}",
        "{{ 1 / 0 }}",
        "{{ messages + 1 }}",
        "{{ messages.x.y.z }}",
    ],
)
def test_a_template_that_refuses(text):
    with pytest.raises(EyasError) as caught:
        template(text).render(USER, [], {})
    assert caught.value.code == "rendering.refused"


def test_a_tokenizer_without_a_template():
    with pytest.raises(EyasError) as caught:
        template("").render(USER, [], {})
    assert caught.value.code == "tokenizer.chat-template"


def test_what_a_template_may_not_be_told():
    for name in ("tokenize", "tools", "messages", "eos_token", "chat_template", "add_generation_prompt"):
        with pytest.raises(EyasError) as caught:
            SIDE.render(USER, [], {name: 1})
        assert caught.value.code == "request.field"


def test_cut_and_plain_rounds_stand_apart():
    rounds = [RoundCount(2, 3, False, None), RoundCount(0, 0, False, None), RoundCount(1, 3, True, None)]
    found = figures_of({0: rounds, 1: [RoundCount(0, 5, False, 2)]})
    assert (found.rounds, found.cut_rounds, found.plain_rounds, found.proposed) == (2, 1, 1, 8)
    assert found.accepted_histogram == [1, 0, 1, 0]
    assert (found.accept_length, found.ceiling) == (2.0, 4)
    assert found.survival == [0.5, 0.5, 0.0]
    assert completion_tokens(Round(*one) for one in ((2, 3), (0, 0), (1, 3, True))) == 6


def test_figures_of_nothing():
    found = figures_of({0: []})
    assert (found.accepted_histogram, found.accept_length, found.rounds) == ([], None, 0)


@pytest.mark.parametrize(("text", "depth"), [("", 0), ("a", 0), ("((a)(b))", 2), ("[{()}]", 3), ("))((", 0)])
def test_nesting(text, depth):
    assert nesting(text) == depth


@pytest.mark.parametrize("depth", [3, 4])
def test_depth_is_counted(depth):
    text = b"[" * depth + b"1" + b"]" * depth
    assert read_json(text, 4) is not None
    with pytest.raises(EyasError) as caught:
        read_json(b"[" * 5 + b"1" + b"]" * 5, 4)
    assert caught.value.code == "request.json"
