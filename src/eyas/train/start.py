"""Where training starts: a fresh draft for a target, or an earlier draft, whose vocabulary map stays."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from eyas.contract import default_taps
from eyas.corpus.features import Features, FeatureSource
from eyas.corpus.samples import trained_slots
from eyas.draft.config import DraftConfig
from eyas.draft.model import DraftModel
from eyas.draft.vocab import choose_vocabulary, offsets_from_ids
from eyas.errors import EyasError
from eyas.models.config import LLAMA_FAMILY, ModelConfig, architecture_of, parse_llama_config
from eyas.train.settings import USUAL_DRAFT_VOCABULARY, DraftOptions, TrainSettings

_SCALE_SAMPLES = 64
_COUNT_POSITIONS = 20_000
_CHUNK = 256
# Head rows taken from the target read a state of another size at first; so scaled, the first logits are of its size.
_NORM_SHARE = 0.4


@dataclass(frozen=True)
class Weights:
    """The target's own, fp32: ``embedding`` and ``head`` [V, H], ``norm`` [H] of its final norm."""

    embedding: Tensor
    head: Tensor
    norm: Tensor


@dataclass(frozen=True)
class Start:
    """A draft that reads scaled taps: ``tap_scales`` [taps]. ``coverage``: the share of answer tokens, as the target
    expects them, that its vocabulary holds; None where the map was taken over.
    """

    model: DraftModel
    tap_scales: Tensor
    coverage: float | None


def draft_config(document: Mapping[str, Any], options: DraftOptions) -> DraftConfig:
    """The draft's shape from the target's config.json. Raises ``model.config``, ``taps.…``, ``draft.config``."""
    c = _shape_of(document, options)
    heads = options.num_heads or c.num_heads
    hidden = options.hidden_size or c.hidden_size
    return DraftConfig(
        taps=options.taps if options.taps is not None else default_taps(c.num_layers),
        target_num_layers=c.num_layers,
        target_hidden_size=c.hidden_size,
        vocab_size=c.vocab_size,
        draft_vocab_size=options.draft_vocab_size or min(USUAL_DRAFT_VOCABULARY, c.vocab_size),
        hidden_size=hidden,
        intermediate_size=options.intermediate_size or c.intermediate_size,
        num_heads=heads,
        num_kv_heads=options.num_kv_heads or (options.num_heads or c.num_kv_heads),
        head_dim=options.head_dim or c.head_dim,
        num_layers=options.num_layers,
        rms_norm_eps=c.rms_norm_eps,
        rope_theta=c.rope_theta,
        rope_scaling=dict(c.rope_scaling) if c.rope_scaling else None,
        max_position_embeddings=c.max_position_embeddings,
        norm_output=options.norm_output,
        fc_norm=options.fc_norm,
        norm_before_residual=options.norm_before_residual,
        own_embedding=options.own_embedding or hidden != c.hidden_size,
    )


def _shape_of(document: Mapping[str, Any], options: DraftOptions) -> ModelConfig:
    """The decoder's shape, which a multimodal config nests.

    A draft is a Llama layer whatever the target is: where the target's attention is of another kind (MLA, linear), its
    heads mean something else, and the draft's must be named.
    """
    if architecture_of(document) in LLAMA_FAMILY:
        return parse_llama_config(document)
    text = document.get("text_config", document)
    named = {
        "num_attention_heads": options.num_heads,
        "num_key_value_heads": options.num_kv_heads,
        "head_dim": options.head_dim,
        "intermediate_size": options.intermediate_size,
    }
    if None in named.values():
        raise EyasError(
            "draft.config",
            f"the shape of a draft for {architecture_of(document)} cannot be read off the target",
            "set num_heads, num_kv_heads, head_dim and intermediate_size of the draft",
        )
    return parse_llama_config({**text, **named, "architectures": ["LlamaForCausalLM"], "hidden_act": "silu"})


def fresh(config: DraftConfig, source: FeatureSource, indices: Sequence[int], own: Weights, seed: int) -> Start:
    """A new draft: the vocabulary that the training samples ``indices`` ask for, head rows from the target's head, the
    rest drawn by ``seed`` so that states and logits start at an ordinary size.
    """
    normed = config.fc_norm or config.norm_before_fc
    kept, coverage = torch.arange(config.vocab_size), 1.0
    if config.has_map:
        kept, coverage = choose_vocabulary(expected_counts(source, indices, own.head), config.draft_vocab_size)
    model, H, generator = DraftModel(config), config.hidden_size, torch.Generator().manual_seed(seed)
    with torch.no_grad():
        model.d2t.copy_(offsets_from_ids(kept, config.vocab_size))
        model.norm.fill_(_NORM_SHARE)
        linears = [(model.fc, config.feature_size, 1.0), (model.head, H, 1.0)]
        for i, layer in enumerate(model.decoder_layers):
            width = 2 * H if i == 0 else H
            linears += [(layer.qkv, width, 1.0), (layer.gate_up, H, 1.0)]
            linears += [(layer.o, config.num_heads * config.head_dim, 0.5), (layer.down, config.intermediate_size, 0.5)]
        for linear, fan_in, gain in linears:
            linear.weight.normal_(0, gain * fan_in**-0.5, generator=generator)
        model.embed_tokens.normal_(0, own.embedding.float().std().item(), generator=generator)
        if config.target_hidden_size == H:
            model.embed_tokens.copy_(own.embedding)
            model.head.weight.copy_(own.head[kept])
            model.norm.copy_(_NORM_SHARE * own.norm)
    return Start(model, tap_scales(source, indices, normed), coverage)


def warm(model: DraftModel, source: FeatureSource, indices: Sequence[int]) -> Start:
    """Go on from an earlier draft, unpacked and in fp32: its map, shape and options stay as they are."""
    normed = model.config.fc_norm or model.config.norm_before_fc
    scales = tap_scales(source, indices, normed)
    scale_feature_columns(model, 1 / scales)
    return Start(model, scales, None)


def settings_of(settings: TrainSettings, config: DraftConfig) -> TrainSettings:
    """The settings with the draft's part as the draft to start from has it.

    Raises ``flags.contradiction`` for a wish that it does not fulfil.
    """
    usual, asked = DraftOptions(), settings.draft
    options = {name: getattr(config, name) for name in DraftOptions.model_fields}
    for name, has in options.items():
        wish = getattr(asked, name)
        if wish not in (getattr(usual, name), has):
            raise EyasError(
                "flags.contradiction",
                f"draft.{name} is to be {wish}, and the draft to start from has {has}",
                "leave the setting out, or start without --draft",
            )
    return settings.model_copy(update={"draft": DraftOptions(**options)})


def scale_feature_columns(model: DraftModel, scales: Tensor) -> None:
    """Multiply fc's columns by the scales [taps] of their taps: from scaled taps to taps as they are, and back."""
    assert not (model.config.fc_norm or model.config.norm_before_fc) or bool((scales == 1).all()), "a norm undoes it"
    with torch.no_grad():
        model.fc.weight.mul_(scales.repeat_interleave(model.config.target_hidden_size))


def tap_scales(source: FeatureSource, indices: Sequence[int], normed: bool) -> Tensor:
    """[taps] factors that bring the taps to a common size, so that one learning rate suits all of fc.

    From the median over rows, because a text's first state can be a thousand times larger than the others. Ones where
    the draft norms the taps itself.
    """
    if normed:
        return torch.ones(len(source.facts.taps))
    sizes = [source.read(i).taps[1:].float().pow(2).mean(-1).sqrt().median(0).values for i in indices[:_SCALE_SAMPLES]]
    return 1 / torch.stack(sizes).median(0).values.clamp(min=1e-6)


def expected_counts(source: FeatureSource, indices: Sequence[int], head_VH: Tensor) -> Tensor:
    """How often the target expects each token in answers, [V]: its distributions, summed over some positions, and the
    answers' own tokens, over all.

    The few tokens of a small corpus leave most of a vocabulary uncounted; distributions do not.
    """
    counts, seen = torch.zeros(len(head_VH)), 0
    for index in indices:
        sample = source.samples[index]
        answers = torch.from_numpy(sample.tokens[sample.segments() > 0]).long()
        counts += torch.bincount(answers, minlength=len(counts))
        if seen < _COUNT_POSITIONS:
            rows = trained_slots(torch.from_numpy(sample.segments()), 0).nonzero()[:, 0] + 1
            counts += _expected(source.read(index), rows, head_VH)
            seen += len(rows)
    return counts


def _expected(features: Features, rows: Tensor, head_VH: Tensor) -> Tensor:
    """The target's distributions after ``rows``, summed: [V]."""
    total = torch.zeros(len(head_VH))
    if features.top is not None:
        return total.scatter_add_(0, features.top.ids[rows].flatten(), features.top.logprobs[rows].exp().flatten())
    assert features.hidden is not None
    for hidden in features.hidden[rows].split(_CHUNK):
        total += (hidden.float() @ head_VH.T).softmax(-1).sum(0)
    return total
