"""What an engine cannot express of a draft, or changes in silence: a table of conditions and consequences.

Read from the engines' sources. ``error``: the engine refuses to load · ``silent``: it loads and computes
something else · ``replaced``: it puts a part of the target in the draft's place.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from eyas.contract import NormOptions
from eyas.dialects.engines import Engine
from eyas.errors import EyasError


@dataclass(frozen=True)
class DraftLayout:
    """What a draft checkpoint needs from an engine. Sizes are whole numbers of rows or features.

    ``deep_norm``: the norm before attention in layers after the first · ``own_embeddings``: they differ from
    the target's · ``tensor_prefix``: "midlayer." or "layers.0." for the first layer's tensors, after
    ``model_prefix`` "model." or "".
    """

    norms: NormOptions
    num_taps: int
    hidden_size: int
    target_hidden_size: int
    target_vocab_size: int
    draft_vocab_size: int
    has_vocab_map: bool
    attention: Literal["gqa", "mla"] = "gqa"
    num_layers: int = 1
    deep_norm: Literal["hidden_norm", "input_layernorm"] = "hidden_norm"
    own_embeddings: bool = False
    own_head: bool = True
    tied_head: bool = False
    attention_bias: bool = False
    fc_bias: bool = False
    model_type: str = "llama"
    model_prefix: Literal["", "model."] = ""
    tensor_prefix: Literal["midlayer.", "layers.0."] = "midlayer."
    speculators_format: bool = False
    writes_draft_vocab_size: bool = True
    writes_null_target_hidden_size: bool = False

    @property
    def reduced(self) -> bool:
        """True if the draft's vocabulary is smaller than the target's."""
        return self.draft_vocab_size < self.target_vocab_size


Kind = Literal["error", "silent", "replaced"]


@dataclass(frozen=True)
class Limit:
    """One row: what ``engine`` does, from ``since`` until before ``before``, if the draft ``applies``."""

    name: str
    engine: Literal["sglang", "vllm"]
    kind: Kind
    applies: Callable[[DraftLayout], bool]
    condition: str
    consequence: str
    fix: str
    since: str | None = None
    before: str | None = None


_RETRAIN = "retrain without it, or serve with another engine"

LIMITS: tuple[Limit, ...] = (
    Limit("norm-before-residual", "sglang", "silent", lambda d: d.norms.norm_before_residual,
          "norm_before_residual", "the residual is taken before hidden_norm: other mathematics", _RETRAIN),
    Limit("fc-skipped", "sglang", "silent",
          lambda d: d.num_taps * d.target_hidden_size == d.hidden_size,
          "a feature as wide as the draft", "fc is skipped",
          "train on more than one tap, or serve with vLLM"),
    Limit("mla-norm-before-fc", "sglang", "silent", lambda d: d.attention == "mla" and d.norms.norm_before_fc,
          "norm_before_fc in an MLA draft", "the norm over the feature is left out", _RETRAIN),
    Limit("mla-norm-before-fc", "vllm", "silent", lambda d: d.attention == "mla" and d.norms.norm_before_fc,
          "norm_before_fc in an MLA draft", "the norm over the feature is left out", _RETRAIN),
    Limit("one-layer", "sglang", "error", lambda d: d.num_layers > 1,
          "more than one layer", "only one layer is possible", "use sglang 0.5.12 or later", before="0.5.12"),
    Limit("mla-one-layer", "sglang", "error", lambda d: d.attention == "mla" and d.num_layers > 1,
          "more than one layer in an MLA draft", "only one layer is possible", _RETRAIN),
    Limit("deep-norm", "sglang", "silent", lambda d: d.num_layers > 1 and d.deep_norm != "hidden_norm",
          "later layers with input_layernorm", "hidden_norm is used in later layers",
          "serve with vLLM", since="0.5.12"),
    Limit("deep-norm", "vllm", "silent", lambda d: d.num_layers > 1 and d.deep_norm != "input_layernorm",
          "later layers with hidden_norm", "input_layernorm is used in later layers", "serve with SGLang"),
    Limit("attention-bias", "sglang", "silent", lambda d: d.attention == "gqa" and d.attention_bias,
          "attention_bias", "biases of q, k and v are dropped", _RETRAIN),
    Limit("fc-bias", "vllm", "error", lambda d: d.fc_bias,
          "a bias in fc", "there is no such parameter", "serve with SGLang"),
    Limit("own-embeddings", "sglang", "replaced",
          lambda d: d.own_embeddings and d.target_hidden_size == d.hidden_size,
          "embeddings of its own", "they are replaced by the target's",
          "serve with vLLM, or retrain with the target's"),
    Limit("tied-head", "sglang", "replaced", lambda d: d.tied_head,
          "tie_word_embeddings", "the head becomes the target's embedding",
          "write the head as lm_head.weight, untied"),
    Limit("tied-head", "vllm", "silent", lambda d: d.tied_head,
          "tie_word_embeddings", "the key is ignored and the target's head is used",
          "write the head as lm_head.weight, untied"),
    Limit("map-missing", "sglang", "silent", lambda d: d.reduced and not d.has_vocab_map,
          "a reduced vocabulary without d2t", "draft ids are taken for target ids", "write d2t"),
    Limit("map-missing", "vllm", "silent", lambda d: d.reduced and not d.has_vocab_map,
          "a reduced vocabulary without d2t", "draft ids are taken for target ids", "write d2t"),
    Limit("map-required", "sglang", "error", lambda d: not d.has_vocab_map,
          "no d2t", "d2t is required", "write d2t, or use sglang 0.5.2 or later", before="0.5.2"),
    Limit("map-of-equal-size", "vllm", "error", lambda d: not d.reduced and d.has_vocab_map,
          "d2t with a full vocabulary", "there is no such parameter",
          "leave d2t out when the vocabularies are equal"),
    Limit("full-vocabulary-head", "sglang", "replaced",
          lambda d: d.own_head and not d.writes_draft_vocab_size,
          "draft_vocab_size null or absent", "null puts the target's head in place, absent is an error",
          "write draft_vocab_size"),
    Limit("null-target-hidden-size", "sglang", "error",
          lambda d: d.writes_null_target_hidden_size and d.attention == "gqa",
          "target_hidden_size null", "it is multiplied: TypeError", "leave target_hidden_size out"),
    Limit("null-target-hidden-size", "vllm", "error",
          lambda d: d.writes_null_target_hidden_size and d.attention == "gqa",
          "target_hidden_size null", "it is multiplied: TypeError", "leave target_hidden_size out"),
    Limit("model-type", "vllm", "error",
          lambda d: d.model_type in {"deepseek_v3", "deepseek_v32", "glm_moe_dsa"},
          "model_type deepseek_v3, deepseek_v32 or glm_moe_dsa", "the draft is taken for an MTP module",
          "write model_type kimi_k2 or deepseek_v2"),
    Limit("model-prefix", "vllm", "error", lambda d: d.model_prefix == "model.",
          "tensor names with the prefix model.", "the prefix is added twice",
          "write tensor names without it"),
    Limit("model-prefix", "sglang", "silent", lambda d: d.model_prefix == "model." and d.attention == "mla",
          "tensor names with the prefix model. in an MLA draft", "the tensors are skipped",
          "write tensor names without it"),
    Limit("layer-name", "sglang", "silent", lambda d: d.tensor_prefix == "layers.0.",
          "a first layer named layers.0", "its tensors are dropped", "name it midlayer", before="0.5.12"),
    Limit("speculators-format", "sglang", "error", lambda d: d.speculators_format,
          "the speculators format", "it is not read", "export with --to sglang"),
    Limit("fc-norm", "vllm", "silent", lambda d: d.norms.fc_norm,
          "fc_norm", "it is not known to this version", "use vllm 0.22 or later", before="0.22"),
    Limit("norm-output", "vllm", "silent", lambda d: d.norms.norm_output,
          "norm_output", "it is not known to this version", "use vllm 0.22 or later", before="0.22"),
    Limit("norm-before-fc", "vllm", "silent", lambda d: d.norms.norm_before_fc and d.attention == "gqa",
          "norm_before_fc", "it is not known to this version", "use vllm 0.18 or later", before="0.18"),
)  # fmt: skip


def limits(layout: DraftLayout, engine: Engine) -> tuple[Limit, ...]:
    """Every row that this draft meets in this engine version."""
    return tuple(
        row
        for row in LIMITS
        if row.engine == engine.name and engine.within(row.since, row.before) and row.applies(layout)
    )


def refuse_limits(layout: DraftLayout, engine: Engine) -> None:
    """Raises ``draft.dialect``, listing every limit met, if there is one."""
    met = limits(layout, engine)
    if met:
        cause = "; ".join(f"{row.condition}: {row.consequence} ({row.kind})" for row in met)
        raise EyasError("draft.dialect", f"{engine} cannot serve this draft as trained: {cause}", met[0].fix)
