"""Every key of a draft's config.json and what becomes of it: carried, without effect, or in the way.

Named here are keys of SGLang, vLLM, speculators, SpecForge and transformers that are seen in drafts.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from eyas.dialects.checkpoint import EAGLE_KEY, IDS_KEY, LOOSE_KEY, USE_KEY
from eyas.errors import EyasError

CARRIED = frozenset(
    {
        "architectures", "model_type", "torch_dtype", "dtype", "hidden_size", "intermediate_size",
        "num_hidden_layers", "num_attention_heads", "num_key_value_heads", "head_dim", "hidden_act", "rms_norm_eps",
        "max_position_embeddings", "rope_theta", "rope_scaling", "rope_parameters", "partial_rotary_factor",
        "original_max_position_embeddings", "vocab_size", "draft_vocab_size", "target_hidden_size",
        "num_aux_hidden_states", "tie_word_embeddings", "attention_bias", "mlp_bias", "bias", "qkv_bias", "fc_norm",
        "use_aux_norm", "norm_before_fc", "norm_output", "norm_before_residual", "eyas", EAGLE_KEY, IDS_KEY, LOOSE_KEY,
        "quantization_config", "logit_scale",
    }
)  # fmt: skip
"""Read or checked when a draft is read, so that their meaning is written in every layout."""

CARRIED_NESTED = frozenset({USE_KEY, IDS_KEY, LOOSE_KEY, "layer_ids", "norm_before_fc"})
"""The same for keys under ``eagle_config``."""

WITHOUT_EFFECT = frozenset(
    {
        "_name_or_path", "name_or_path", "transformers_version", "auto_map", "initializer_range", "use_cache",
        "bos_token_id", "eos_token_id", "pad_token_id", "attention_dropout", "hidden_dropout", "max_window_layers",
        "sliding_window", "use_sliding_window", "return_dict", "output_attentions", "output_hidden_states",
        "is_encoder_decoder", "chunk_size_feed_forward", "problem_type", "id2label", "label2id",
        "_attn_implementation", "attn_implementation", "embed_requires_grad", "torchscript", "draft_attn_impl",
    }
)  # fmt: skip
"""No engine computes with these in an EAGLE-3 draft: windows apply only where ``layer_types`` name them."""

HARMLESS: dict[str, tuple[Any, ...]] = {
    "pretraining_tp": (None, 1),
    "mrope_section": (None,),
    "rope_interleaved": (None, False),
    "num_nextn_predict_layers": (None, 0),
    "ignore_keys_at_rope_validation": (None,),
}
"""These would mean something with other values than these."""


def left_out(document: Mapping[str, Any]) -> dict[str, Any]:
    """The entries of a plain config that another layout need not hold, because nothing is computed with them.

    Raises ``export.no-place``, naming every entry that might matter and has no place elsewhere.
    """
    nested = document.get(EAGLE_KEY) or {}
    unplaced = [f"{key} = {value!r}" for key, value in document.items() if not _is_placed(key, value)]
    unplaced += [f"{EAGLE_KEY}.{key} = {nested[key]!r}" for key in nested if key not in CARRIED_NESTED]
    if unplaced:
        cause = f"config.json says {'; '.join(unplaced)}, which has no place in the other layout"
        fix = (
            "remove what means nothing to this draft from config.json; else only the engine it was made for can run it"
        )
        raise EyasError("export.no-place", cause, fix)
    return {key: value for key, value in document.items() if key not in CARRIED}


def _is_placed(key: str, value: Any) -> bool:
    if key == "layer_types":
        return isinstance(value, list) and all(kind == "full_attention" for kind in value)
    return key in CARRIED or key in WITHOUT_EFFECT or (key in HARMLESS and value in HARMLESS[key])
