"""A text read in chunks gives what it gives at once."""

from __future__ import annotations

from eyas.models.reading import read_text
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
