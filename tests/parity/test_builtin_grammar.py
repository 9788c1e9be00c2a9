"""Grammars over the built-in target's own tokenizer."""

from __future__ import annotations

import json
import random

import jsonschema_rs
import pytest
from transformers import AutoTokenizer

from eyas.engine.grammar import GrammarFactory
from eyas.engine.session import eos_ids_of

pytestmark = pytest.mark.builtin

SCHEMA = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "minLength": 1, "maxLength": 20},
        "days": {"type": "array", "items": {"type": "integer", "minimum": 1, "maximum": 31}, "maxItems": 4},
    },
    "required": ["city", "days"],
    "additionalProperties": False,
}


@pytest.fixture(scope="module")
def tokenizer(builtin_target_folder):
    return AutoTokenizer.from_pretrained(builtin_target_folder, trust_remote_code=False)


@pytest.fixture(scope="module")
def factory(builtin_target_folder, tokenizer):
    return GrammarFactory(tokenizer, eos_ids_of(builtin_target_folder), len(tokenizer) + 128)


def test_random_answers_under_a_schema_are_valid(tokenizer, factory):
    rng = random.Random(0)
    for _ in range(20):
        state, answer = factory.compile("json_schema", json.dumps(SCHEMA)), list[int]()
        while not state.finished:
            mask = state.mask(())
            assert not mask[len(tokenizer) :].any()
            answer.append(rng.choice(mask.nonzero()[:, 0].tolist()))
            state.commit([answer[-1]])
        assert jsonschema_rs.is_valid(SCHEMA, json.loads(tokenizer.decode(answer, skip_special_tokens=True)))


def test_the_targets_own_tokens_spell_what_is_allowed(tokenizer, factory):
    state = factory.compile("json_schema", json.dumps(SCHEMA))
    tokens = tokenizer('{"city": "São Paulo", "days": [1, 12]}', add_special_tokens=False)["input_ids"]
    for n, token in enumerate(tokens):
        assert state.mask(tokens[:n])[token]
    assert state.mask(tokens).nonzero()[:, 0].tolist() == [tokenizer.convert_tokens_to_ids("<|im_end|>")]
