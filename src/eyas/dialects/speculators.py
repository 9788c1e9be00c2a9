"""The speculators layout of a draft checkpoint: its config, its tensor names, and what it cannot hold.

Read from speculators 0.9 and from vLLM, the one engine that loads it. Its layer ids are taps, as vLLM reads them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from eyas.dialects.checkpoint import IDS_KEY, WRITTEN_ARCHITECTURE
from eyas.dialects.limits import DraftLayout, Limit
from eyas.errors import EyasError

FORMAT_KEY, LAYER_KEY, CONFIG_KEY = "speculators_model_type", "transformer_layer_config", "speculators_config"
VERSION = "0.9.0"
"""The version whose source the rules were read from, and which is written."""
ARCHITECTURE = "Eagle3DraftModel"
FIRST_LAYER = "layers.0."
"""Name of the first layer's tensors; the engines' layout calls them ``midlayer.``."""

LAYER_KEYS = (
    "model_type", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads",
    "num_key_value_heads", "head_dim", "hidden_act", "rms_norm_eps", "max_position_embeddings", "rope_theta",
    "rope_scaling", "rope_parameters", "vocab_size", "attention_bias", "mlp_bias",
)  # fmt: skip
"""Keys that stand under ``transformer_layer_config``; the draft's other keys stand at the top."""

LAYER_DEFAULTS: dict[str, Any] = {
    "vocab_size": 32000,
    "hidden_size": 4096,
    "intermediate_size": 11008,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "hidden_act": "silu",
    "max_position_embeddings": 2048,
    "rms_norm_eps": 1e-6,
    "attention_bias": False,
    "mlp_bias": False,
}
"""What a key means that the file leaves out, because it equals transformers' default for a Llama."""

_FORMAT_KEYS = frozenset(
    {FORMAT_KEY, LAYER_KEY, CONFIG_KEY, "speculators_version", "architectures", "model_type", "embed_requires_grad"}
)
# In the layer's config these say nothing about the draft: its head is stored, and the top names the rest.
_SAID_ABOVE = frozenset({"architectures", "model_type", "tie_word_embeddings"})

_UNKNOWN_THERE = "serve it with SGLang or vLLM in their own layout: `eyas export --to sglang` or `--to vllm`"


def _row(name: str, condition: str, consequence: str, applies: Any) -> Limit:
    return Limit(name, "vllm", "error", applies, condition, consequence, _UNKNOWN_THERE)


LIMITS: tuple[Limit, ...] = (
    _row("fc-bias", "a bias in fc", "there is no such parameter", lambda d: d.fc_bias),
    _row("two-norms", "fc_norm together with norm_before_fc", "they exclude each other",
         lambda d: d.norms.fc_norm and d.norms.norm_before_fc),
    _row("other-width", "another hidden size than the target's", "fc is built for the draft's own hidden size",
         lambda d: d.hidden_size != d.target_hidden_size),
    _row("deep-norm", "later layers with hidden_norm", "later layers have input_layernorm",
         lambda d: d.num_layers > 1 and d.deep_norm != "input_layernorm"),
    _row("no-head", "the target's head", "lm_head.weight is required", lambda d: not d.own_head),
)  # fmt: skip


def refuse_layout(layout: DraftLayout) -> None:
    """Raises ``draft.dialect``, listing what of this draft the layout cannot hold, if there is anything."""
    met = [row for row in LIMITS if row.applies(layout)]
    if met:
        cause = "; ".join(f"{row.condition}: {row.consequence}" for row in met)
        raise EyasError("draft.dialect", f"the speculators layout cannot hold this draft: {cause}", met[0].fix)


def is_speculators(document: Mapping[str, Any]) -> bool:
    """Whether a config.json is of this layout."""
    return FORMAT_KEY in document


def plain_document(document: Mapping[str, Any]) -> dict[str, Any]:
    """The config as the engines' own layout has it; keys that neither knows stay, to be judged there.

    Raises ``draft.dialect`` for other kinds of draft, and where speculators and vLLM read the file differently;
    ``draft.config`` for a file that contradicts itself.
    """
    layer = document.get(LAYER_KEY)
    if document[FORMAT_KEY] != "eagle3" or not isinstance(layer, Mapping):
        cause = f"{FORMAT_KEY} is {document[FORMAT_KEY]!r}" + ("" if layer else f", and there is no {LAYER_KEY}")
        raise EyasError("draft.dialect", cause, "use an EAGLE-3 draft in the speculators layout")
    _refuse_ambiguous(document, layer)
    plain = {key: value for key, value in document.items() if key not in _FORMAT_KEYS}
    for key, value in {**LAYER_DEFAULTS, **{k: v for k, v in layer.items() if k not in _SAID_ABOVE}}.items():
        if key in LAYER_KEYS and plain.get(key, value) != value:
            cause = f"config.json: {key} is {plain[key]!r} at the top and {value!r} in {LAYER_KEY}"
            raise EyasError("draft.config", cause, f"keep the one that was trained, in {LAYER_KEY}")
        plain[key] = value
    for key in ("target_hidden_size", IDS_KEY):
        if plain.get(key, 0) is None:
            del plain[key]
    return plain | {"architectures": [WRITTEN_ARCHITECTURE["gqa"]], "model_type": "llama"}


def _refuse_ambiguous(document: Mapping[str, Any], layer: Mapping[str, Any]) -> None:
    if layer.get("model_type") != "llama":
        said = f"{layer['model_type']!r}" if "model_type" in layer else "absent: qwen3 to speculators, llama to vLLM"
        cause = f"{LAYER_KEY}.model_type is {said}"
        raise EyasError("draft.dialect", cause, "use a draft with Llama layers")
    if "norm_before_residual" not in document:
        cause = "norm_before_residual is absent: false to speculators, true to vLLM"
        raise EyasError("draft.dialect", cause, "write the one that the draft was trained with into config.json")
    if any(kind != "full_attention" for kind in layer.get("layer_types") or ()):
        cause = f"{LAYER_KEY}.layer_types is {layer['layer_types']!r}, and this draft attends to everything"
        raise EyasError("draft.dialect", cause, "use a draft without sliding windows")


@dataclass(frozen=True)
class Provenance:
    """What the layout says besides the draft: the target's name (a hub id or path) and architecture, and the K that
    vLLM takes where it is told none.
    """

    target_name: str | None
    target_architecture: str
    num_steps: int


def read_provenance(document: Mapping[str, Any]) -> dict[str, Any]:
    """The entries of the layout that say nothing about what the draft computes."""
    return {key: document[key] for key in sorted(_FORMAT_KEYS - {LAYER_KEY, FORMAT_KEY}) if key in document}


def speculators_document(plain: Mapping[str, Any], own_embedding: bool, about: Provenance) -> dict[str, Any]:
    """The config of this layout for a draft whose ``plain`` config was written for vLLM."""
    moved = {key: plain[key] for key in LAYER_KEYS if key in plain}
    # The number of taps follows from the ids here.
    apart = {*LAYER_KEYS, "architectures", "num_aux_hidden_states"}
    method = {"proposal_type": "greedy", "speculative_tokens": about.num_steps}
    return {
        "architectures": [ARCHITECTURE],
        FORMAT_KEY: "eagle3",
        "speculators_version": VERSION,
        CONFIG_KEY: {
            "algorithm": "eagle3",
            "proposal_methods": [method],
            "default_proposal_method": "greedy",
            "verifier": {"name_or_path": about.target_name, "architectures": [about.target_architecture]},
        },
        LAYER_KEY: moved,
        "embed_requires_grad": own_embedding,
        **{key: value for key, value in plain.items() if key not in apart},
    }
