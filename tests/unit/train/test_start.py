"""Where training starts, and what of it is written: shapes, scales, the target's own rows, nothing made up."""

from __future__ import annotations

import pytest
import torch

from eyas.draft.checkpoint import read_draft
from eyas.draft.model import DraftModel
from eyas.errors import EyasError
from eyas.models.config import read_config
from eyas.testing import tiny_pair
from eyas.train.batch import Collator
from eyas.train.prepare import own_weights, stored_weights
from eyas.train.settings import DraftOptions
from eyas.train.start import draft_config, expected_counts, fresh, scale_feature_columns, tap_scales, warm
from eyas.train.ttt import slots_of, unroll
from train_rig import SMALL, make_start, source, tiny_samples, tiny_target, weights

DOCUMENT = read_config(tiny_pair()[0])
EVERYONE = range(len(tiny_samples()))
MLA = {
    "architectures": ["DeepseekV3ForCausalLM"],
    "hidden_size": 256,
    "num_attention_heads": 8,
    "num_hidden_layers": 12,
    "vocab_size": 1000,
    "rms_norm_eps": 1e-6,
    "max_position_embeddings": 4096,
}


def test_what_is_not_asked_follows_the_target():
    config = draft_config(DOCUMENT, DraftOptions())
    assert config.taps == (2, 4, 5)
    assert (config.draft_vocab_size, config.has_map) == (512, False)
    assert (config.intermediate_size, config.num_kv_heads, config.head_dim) == (160, 2, 16)


def test_another_width_brings_an_embedding_of_its_own():
    config = draft_config(DOCUMENT, DraftOptions(hidden_size=32, num_heads=2, num_kv_heads=1))
    assert config.own_embedding
    model = fresh(config, source(), EVERYONE, weights(), 0).model
    assert model.embed_tokens.requires_grad


@pytest.mark.parametrize(
    ("document", "options", "code"),
    [
        (DOCUMENT, {"draft_vocab_size": 513}, "draft.config"),
        (DOCUMENT, {"taps": (2, 2, 5)}, "taps.duplicate"),
        (DOCUMENT, {"taps": (2, 4, 9)}, "taps.range"),
        (DOCUMENT | {"num_hidden_layers": 4}, {}, "taps.too-shallow"),
        (MLA, {}, "draft.config"),
    ],
)
def test_a_shape_that_cannot_be_is_refused(document, options, code):
    with pytest.raises(EyasError) as caught:
        draft_config(document, DraftOptions(**options))
    assert caught.value.code == code


def test_a_target_with_attention_of_another_kind_needs_the_drafts_shape():
    options = DraftOptions(num_heads=8, num_kv_heads=2, head_dim=32, intermediate_size=512)
    config = draft_config(MLA, options)
    assert (config.num_heads, config.head_dim, config.target_hidden_size) == (8, 32, 256)


def test_a_fresh_draft_takes_head_and_embedding_from_the_target():
    start, again, other = (make_start(SMALL.model_copy(update={"seed": s}), list(EVERYONE)) for s in (1, 1, 2))
    kept = start.model.to_target_ids(torch.arange(256))
    assert torch.equal(start.model.head.weight, weights().head[kept])
    assert torch.equal(start.model.embed_tokens, weights().embedding)
    assert torch.equal(start.model.fc.weight, again.model.fc.weight)
    assert not torch.equal(start.model.fc.weight, other.model.fc.weight)
    assert 0.9 < start.coverage <= 1


def test_the_vocabulary_is_what_answers_and_the_target_ask_for():
    counts = expected_counts(source(), EVERYONE, weights().head)
    said = torch.cat([torch.from_numpy(s.tokens[s.segments() > 0]).long() for s in tiny_samples()]).unique()
    assert bool((counts[said] >= 1).all())
    assert bool((counts > 0).all()), "the target's distributions leave no token uncounted"


def test_scales_bring_the_taps_to_one_size():
    scales = tap_scales(source(), EVERYONE, normed=False)
    sizes = [source().read(i).taps[1:].pow(2).mean(-1).sqrt().median(0).values for i in EVERYONE]
    assert torch.stack(sizes).median(0).values * scales == pytest.approx(torch.ones(3), rel=0.01)
    assert tap_scales(source(), EVERYONE, normed=True).tolist() == [1, 1, 1]


def test_what_is_written_reads_taps_as_they_are():
    start = make_start(SMALL, list(EVERYONE))
    served = DraftModel(start.model.config)
    served.load_state_dict({name: value.clone() for name, value in start.model.state_dict().items()})
    scale_feature_columns(served, start.tap_scales)
    kept = start.model.to_target_ids(torch.arange(256))
    states = {}
    for name, model, scales in (("trained", start.model, start.tap_scales), ("served", served, torch.ones(3))):
        batch = Collator(source(), weights().head, kept, scales).batch([0, 1])
        states[name] = [normed for _, _, normed in unroll(model, batch, slots_of(batch.segments, 3))]
    for mine, theirs in zip(states["trained"], states["served"], strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-3, atol=1e-4)


def test_a_warm_start_is_the_draft_it_starts_from():
    draft = read_draft(tiny_pair()[1], tiny_target())
    before = draft.fc.weight.clone()
    start = warm(draft, source(), EVERYONE)
    assert start.coverage is None
    assert not torch.allclose(start.model.fc.weight, before)
    scale_feature_columns(start.model, start.tap_scales)
    torch.testing.assert_close(start.model.fc.weight, before)


def test_three_tensors_stand_for_a_target_that_is_not_loaded():
    loaded, read = own_weights(tiny_target()), stored_weights(tiny_pair()[0])
    assert torch.equal(loaded.embedding, read.embedding)
    assert torch.equal(loaded.head, read.head)
    torch.testing.assert_close(loaded.norm, read.norm, rtol=1e-4, atol=1e-5)
