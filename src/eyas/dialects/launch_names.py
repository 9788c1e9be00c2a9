"""The names of launch flags that the rules look at, by engine, and the fields that they fill."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Name:
    """A flag of one engine, and the field that it fills. ``kind``: how its value is read."""

    field: str
    kind: Literal["text", "whole", "number", "switch"]
    flags: tuple[str, ...]


SPECULATIVE_SGLANG = (
    Name("algorithm", "text", ("speculative-algorithm", "speculative-algo")),
    Name("num_steps", "whole", ("speculative-num-steps",)),
    Name("eagle_topk", "whole", ("speculative-eagle-topk",)),
    Name("num_draft_tokens", "whole", ("speculative-num-draft-tokens",)),
    Name("draft", "text", ("speculative-draft-model-path", "speculative-draft-model")),
    Name("draft_quantization", "text", ("speculative-draft-model-quantization",)),
    Name("draft_backend", "text", ("speculative-draft-attention-backend",)),
    Name("threshold_single", "number", ("speculative-accept-threshold-single",)),
    Name("threshold_acc", "number", ("speculative-accept-threshold-acc",)),
    Name("rejection_sampling", "switch", ("speculative-use-rejection-sampling",)),
    Name("block_verification", "switch", ("speculative-use-block-verification",)),
    Name("adaptive", "switch", ("speculative-adaptive",)),
    Name("adaptive_config", "text", ("speculative-adaptive-config",)),
    Name("token_map", "text", ("speculative-token-map",)),
    Name("draft_load_format", "text", ("speculative-draft-load-format",)),
    Name("multi_layer", "switch", ("enable-multi-layer-eagle",)),
)
NAMES: dict[str, tuple[Name, ...]] = {
    "sglang": (
        *SPECULATIVE_SGLANG,
        Name("model", "text", ("model-path", "model")),
        Name("quantization", "text", ("quantization",)),
        Name("attention_backend", "text", ("attention-backend",)),
        Name("prefill_backend", "text", ("prefill-attention-backend",)),
        Name("decode_backend", "text", ("decode-attention-backend",)),
        Name("page_size", "whole", ("page-size",)),
        Name("dtype", "text", ("dtype",)),
        Name("tp", "whole", ("tp", "tp-size", "tensor-parallel-size")),
        Name("pp", "whole", ("pp", "pp-size", "pipeline-parallel-size")),
        Name("dp", "whole", ("dp", "dp-size", "data-parallel-size")),
        Name("max_running_requests", "whole", ("max-running-requests",)),
        Name("context_length", "whole", ("context-length",)),
        Name("dp_attention", "switch", ("enable-dp-attention",)),
        Name("mixed_chunk", "switch", ("enable-mixed-chunk",)),
        Name("load_format", "text", ("load-format",)),
    ),
    "vllm": (
        Name("algorithm", "text", ("spec-method",)),
        Name("draft", "text", ("spec-model",)),
        Name("num_speculative_tokens", "whole", ("spec-tokens",)),
        Name("model", "text", ("model",)),
        Name("quantization", "text", ("quantization", "q")),
        Name("attention_backend", "text", ("attention-backend",)),
        Name("page_size", "whole", ("block-size",)),
        Name("dtype", "text", ("dtype",)),
        Name("tp", "whole", ("tensor-parallel-size", "tp")),
        Name("pp", "whole", ("pipeline-parallel-size", "pp")),
        Name("dp", "whole", ("data-parallel-size", "dp")),
        Name("max_running_requests", "whole", ("max-num-seqs",)),
        Name("context_length", "text", ("max-model-len",)),
        Name("load_format", "text", ("load-format",)),
        Name("kv_sharing", "switch", ("kv-sharing-fast-prefill",)),
        Name("async_scheduling", "switch", ("async-scheduling",)),
    ),
}
_OTHERS = (
    "draft-model-revision attention-mode dsa-topk-backend draft-kv-cache-dtype draft-window-size draft-sink-size"
    " moe-runner-backend moe-a2a-backend dflash-block-size domino-candidate-pool-size dspark-block-size"
    " dspark-sps-table-path dspark-confidence-sts-path dspark-align-verify-tokens-to-graph-tier"
    " ngram-min-bfs-breadth ngram-max-bfs-breadth ngram-match-type ngram-max-trie-depth ngram-capacity"
    " ngram-external-corpus-path ngram-external-sam-budget ngram-external-corpus-max-tokens"
)
OTHER_SPECULATIVE = frozenset(f"speculative-{name}" for name in _OTHERS.split())
"""Speculative flags of SGLang that change nothing here; some versions lack some of them."""
CONFIG_FLAGS = ("speculative-config", "sc")
# vLLM's entry → (field, how it is read).
CONFIG_FIELDS: dict[str, tuple[str, Literal["text", "whole", "number", "switch"]]] = {
    "method": ("algorithm", "text"),
    "model": ("draft", "text"),
    "num_speculative_tokens": ("num_speculative_tokens", "whole"),
    "quantization": ("draft_quantization", "text"),
    "draft_tensor_parallel_size": ("draft_tp", "whole"),
    "max_model_len": ("draft_context_length", "whole"),
    "attention_backend": ("draft_backend", "text"),
}
