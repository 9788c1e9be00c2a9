"""Features as the target makes them, and the facts that bind them to their origin."""

from __future__ import annotations

import json
import math
from itertools import pairwise
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from eyas.corpus.features import (
    OnlineFeatures,
    Remembered,
    batches,
    check_origin,
    facts_for,
    make_features,
    require_same,
    top_tokens,
)
from eyas.errors import EyasError
from eyas.models.reading import read_text
from eyas.testing import load_tiny_target
from support.feature_rig import TAPS, shared_target, tiny_facts, tiny_samples, wanted

MADE = tiny_samples()


def test_a_batch_of_online_features_is_to_the_bit_what_each_sample_gives_alone() -> None:
    source = OnlineFeatures(shared_target(), MADE.samples, wanted(MADE, storage="none"), batch_rows=100)
    indices = [3, 0, 5, 2, 1]
    for index, together in zip(indices, source.read_batch(indices), strict=True):
        alone, text = source.read(index), MADE.samples[index].tokens.tolist()
        direct = read_text(shared_target(), text, TAPS)
        assert together.hidden is not None
        assert alone.hidden is not None
        assert together.taps.shape == (len(text), len(TAPS), 64)
        for one in (alone, direct):
            assert torch.equal(together.taps, one.taps)
            assert torch.equal(together.hidden, one.hidden)


class Counted(OnlineFeatures):
    """Says what the target was asked for."""

    def read_batch(self, indices):
        self.asked = [*getattr(self, "asked", []), *indices]
        return super().read_batch(indices)


def test_what_fits_into_memory_is_computed_once_and_the_rest_each_time() -> None:
    source = Counted(shared_target(), MADE.samples, wanted(MADE, storage="none"))
    sizes = [4 * 4 * 64 * len(sample.tokens) for sample in MADE.samples]
    kept = Remembered(source, sizes[0] + sizes[1])
    orders = ([0, 1, 2], [2, 1, 0], [1])
    for order in orders:
        for index, features in zip(order, kept.read_batch(order), strict=True):
            assert torch.equal(features.taps, OnlineFeatures.read_batch(source, [index])[0].taps)
    assert source.asked == [0, 1, 2, 2]


@given(st.lists(st.integers(0, 50), max_size=12), st.integers(1, 60))
def test_batches_hold_all_in_order_within_the_budget(lengths: list[int], budget: int) -> None:
    groups = list(batches(lengths, budget))
    assert [index for group in groups for index in group] == list(range(len(lengths)))
    assert all(len(group) == 1 or sum(lengths[i] for i in group) <= budget for group in groups)
    for group, after in pairwise(groups):
        assert sum(lengths[i] for i in group) + lengths[after.start] > budget


@given(st.integers(1, 512))
@settings(max_examples=10, deadline=None)
def test_top_tokens_are_those_of_the_whole_vocabulary(k: int) -> None:
    target = shared_target()
    hidden = read_text(target, MADE.samples[0].tokens.tolist(), ()).hidden
    top, truth = top_tokens(target, hidden, k), target.logits(hidden).double().log_softmax(-1)
    assert top.ids.shape == top.logprobs.shape == (len(hidden), k)
    torch.testing.assert_close(top.logprobs.double(), truth.gather(1, top.ids), rtol=0, atol=1e-5)
    assert (top.logprobs[:, :-1] >= top.logprobs[:, 1:]).all()
    torch.testing.assert_close(top.logprobs.double(), truth.topk(k).values, rtol=0, atol=1e-5)


def test_top_tokens_take_the_place_of_the_state() -> None:
    (features,) = make_features(shared_target(), MADE.samples[:1], TAPS, top_k=8)
    assert features.hidden is None
    assert features.top is not None
    assert features.top.ids.shape == (len(MADE.samples[0].tokens), 8)


@pytest.mark.parametrize(
    ("place", "named"), [("taps", "tap 4 at position 7"), ("hidden", "the last state at position 7")]
)
@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_feature_that_is_not_finite_is_refused_with_its_place(place: str, named: str, value: float) -> None:
    target = load_tiny_target()
    forward = target.forward

    def overflowing(rows: Any, cache: Any, out: Any) -> None:
        forward(rows, cache, out)
        (out.taps[:, 1] if place == "taps" else out.hidden)[7, 3] = value

    target.forward = overflowing  # type: ignore[method-assign]
    with pytest.raises(EyasError, match=named) as refused:
        list(make_features(target, MADE.samples[:1], TAPS, None))
    assert refused.value.code == "model.nonfinite"
    assert "s0" in refused.value.cause


OTHER = "f" * 64


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"tokenizer_sha256": OTHER}, "tokenizer"),
        ({"chat_template_sha256": OTHER}, "chat template"),
        ({"chat_template_sha256": None}, "chat template None"),
        ({"target_weights_sha256": OTHER}, "weights ffff"),
    ],
)
def test_samples_of_another_target_are_refused(change: dict[str, str | None], named: str) -> None:
    with pytest.raises(EyasError, match=named) as refused:
        check_origin(MADE.facts.model_copy(update=change), tiny_facts())
    assert refused.value.code == "features.origin"


def test_answers_of_unknown_or_allowed_weights_pass() -> None:
    check_origin(MADE.facts, tiny_facts())
    check_origin(MADE.facts.model_copy(update={"target_weights_sha256": None}), tiny_facts())
    check_origin(MADE.facts.model_copy(update={"target_weights_sha256": OTHER}), tiny_facts(), foreign_answers=True)


STALE: dict[str, tuple[dict[str, Any], tuple[str, ...]]] = {
    "taps": ({"taps": (1, 4, 5)}, ("taps", "(2, 4, 5)", "(1, 4, 5)")),
    "storage": ({"storage": "fp8"}, ("storage", "bf16", "fp8")),
    "top_k": ({"top_k": 8}, ("top_k", "None", "8")),
}


@pytest.mark.parametrize("name", STALE)
def test_other_features_are_refused_and_both_values_named(name: str) -> None:
    change, words = STALE[name]
    have = wanted(MADE)
    with pytest.raises(EyasError) as refused:
        require_same(have.model_copy(update=change), have, "the folder", "fix")
    assert refused.value.code == "features.stale"
    assert all(word in refused.value.cause for word in words), refused.value.cause


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("target.weights_sha256", OTHER),
        ("format.dtype", "bfloat16"),
        ("samples.tokenizer_sha256", OTHER),
        ("samples.chat_template_sha256", OTHER),
        ("samples.rendering.thinking", "on"),
        ("samples.loss_mask_rule", "all"),
    ],
)
def test_a_changed_origin_is_named_by_its_path(path: str, value: str) -> None:
    have = wanted(MADE)
    document = have.model_dump(mode="json")
    *parents, leaf = path.split(".")
    at = document
    for parent in parents:
        at = at[parent]
    at[leaf] = value
    changed = type(have).model_validate_json(json.dumps(document))
    with pytest.raises(EyasError, match=path) as refused:
        require_same(changed, have, "the folder", "fix")
    assert refused.value.code == "features.stale"


def test_what_was_measured_is_no_difference() -> None:
    require_same(wanted(MADE), wanted(MADE).model_copy(update={"identity_error": 1e-6}), "there", "fix")


@pytest.mark.parametrize(
    ("how", "code"),
    [
        ({"taps": (2, 2, 5)}, "taps.duplicate"),
        ({"taps": (2, 9)}, "taps.range"),
        ({"taps": ()}, "taps.range"),
        ({"taps": TAPS, "top_k": 0}, "flags.range"),
        ({"taps": TAPS, "top_k": 513}, "flags.range"),
    ],
)
def test_wishes_that_mean_nothing_are_refused(how: dict[str, Any], code: str) -> None:
    with pytest.raises(EyasError) as refused:
        facts_for(shared_target(), OTHER, MADE.facts, **how)
    assert refused.value.code == code
