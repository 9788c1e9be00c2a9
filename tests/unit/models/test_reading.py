"""A text read in chunks gives what it gives at once."""

from __future__ import annotations

import random
from unittest.mock import patch

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from backends import RUNNABLE
from eyas.engine.greedy import greedy_answers
from eyas.models.reading import read_answers, read_text, read_texts
from eyas.testing import load_tiny_target, tiny_prompts


def test_chunks_do_not_change_what_is_read() -> None:
    target, text = load_tiny_target(), tiny_prompts()[0]
    whole = read_text(target, text, (0, 2, 8))
    assert whole.taps.shape == (len(text), 3, target.hidden_size)
    parts = read_text(target, text, (0, 2, 8), chunk=5)
    assert parts.taps.allclose(whole.taps, atol=1e-4)
    assert parts.hidden.allclose(whole.hidden, atol=1e-4)


def test_last_tap_through_the_norm_is_the_hidden_state() -> None:
    target, text = load_tiny_target(), tiny_prompts()[1]
    read = read_text(target, text, (target.num_layers,))
    assert target.final_norm(read.taps[:, 0]).allclose(read.hidden, atol=1e-5)


BY_BACKEND = {backend: load_tiny_target(backend) for backend in RUNNABLE}
TINY = BY_BACKEND[RUNNABLE[-1]]
LENGTHS = st.lists(st.integers(1, 70), min_size=1, max_size=5)


@given(LENGTHS, st.integers(3, 40), st.integers(0, 2**31))
@settings(max_examples=25, deadline=None)
@pytest.mark.parametrize("backend", RUNNABLE)
def test_texts_read_together_are_to_the_bit_what_each_is_alone(
    backend: str, lengths: list[int], chunk: int, seed: int
) -> None:
    """And so is a second call."""
    target, draw = BY_BACKEND[backend], random.Random(seed)
    texts = [[draw.randrange(target.vocab_size) for _ in range(length)] for length in lengths]
    first, second = (read_texts(target, texts, (0, 4, 8), chunk) for _ in range(2))
    for text, together, again in zip(texts, first, second, strict=True):
        alone = read_text(target, text, (0, 4, 8), chunk)
        for other in (alone, again):
            assert torch.equal(together.taps, other.taps)
            assert torch.equal(together.hidden, other.hidden)


@given(LENGTHS, st.integers(1, 20), st.integers(3, 40), st.integers(0, 2**31))
@settings(max_examples=15, deadline=None)
@pytest.mark.parametrize("backend", [name for name, target in BY_BACKEND.items() if target.row_exact])
def test_an_answer_that_is_read_while_it_is_given_is_that_of_the_engine(
    backend: str, lengths: list[int], tokens: int, chunk: int, seed: int
) -> None:
    """To the bit what it is when it is read afterwards."""
    target, draw = BY_BACKEND[backend], random.Random(seed)
    prompts = [[draw.randrange(target.vocab_size) for _ in range(length)] for length in lengths]
    likely = greedy_answers(target, prompts[:1], (), tokens)[0]
    eos_ids = likely[len(likely) // 2 :][:1]  # ends the first answer early, and maybe others
    found = read_answers(target, prompts, eos_ids, tokens, (0, 4, 8), chunk)
    assert [answer for answer, _ in found] == greedy_answers(target, prompts, eos_ids, tokens)
    for prompt, (answer, out) in zip(prompts, found, strict=True):
        alone = read_text(target, [*prompt, *answer], (0, 4, 8))
        assert torch.equal(out.taps, alone.taps)
        assert torch.equal(out.hidden, alone.hidden)


def test_texts_share_forwards_on_a_row_exact_target_only() -> None:
    for target in BY_BACKEND.values():
        with patch.object(target, "forward", wraps=target.forward) as forward:
            read_texts(target, [[1, 2, 3], [4, 5]], (2,))
        sizes = [len(call.args[0]) for call in forward.call_args_list]
        assert sizes == ([5] if target.row_exact else [3, 2])


def test_no_text_is_no_work() -> None:
    assert read_texts(TINY, [], (2,)) == []
    assert len(read_text(TINY, [], (2,)).hidden) == 0
