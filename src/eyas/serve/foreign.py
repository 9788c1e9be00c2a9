"""Flags of SGLang and vLLM that ``eyas serve`` does not have: why not, and what to do instead. None is ever ignored."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from difflib import get_close_matches

from eyas.errors import EyasError

OUTGROWN = "leave it out; where it is needed, serve the same draft with SGLang or vLLM"
LEAVE = "leave it out"


@dataclass(frozen=True)
class Family:
    """Flags with one answer. A name that ends in ``*`` stands for all that begin so; the dashes are left out."""

    names: str
    why: str
    instead: str = LEAVE

    def covers(self, name: str) -> bool:
        return any(name.startswith(n[:-1]) if n.endswith("*") else name == n for n in self.names.split())


# The first that covers a name answers, so that single names stand before their families.
FAMILIES: tuple[Family, ...] = (
    # Other names for what is here.
    Family("max-model-len", "vLLM's name", "write --context-length"),
    Family("max-num-seqs", "vLLM's name", "write --max-running-requests"),
    Family("max-num-batched-tokens", "vLLM's name", "write --chunked-prefill-size"),
    Family("gpu-memory-utilization", "vLLM's name", "write --mem-fraction-static"),
    Family("num-gpu-blocks-override", "vLLM's name; a slot here is one token", "write --max-total-tokens"),
    Family("kv-cache-memory-bytes", "vLLM's name, in bytes", "write --max-total-tokens, in tokens"),
    Family("spec-method", "vLLM's name", "write --speculative-algorithm"),
    Family("spec-model", "vLLM's name", "write --speculative-draft-model-path"),
    Family("spec-tokens", "vLLM's name", "write --speculative-num-steps"),
    Family(
        "speculative-config sc",
        "vLLM's way to say it",
        "write --speculative-algorithm, --speculative-draft-model-path and --speculative-num-steps",
    ),
    Family("no-enable-prefix-caching", "vLLM's name", "write --disable-radix-cache"),
    Family("uvicorn-log-level log-level-http", "one level stands for all", "write --log-level"),
    Family("scheduling-policy", "vLLM's name", "write --schedule-policy"),
    Family("max-logprobs", "vLLM's name", "write --limit-top-logprobs"),
    Family("h11-max-*", "vLLM's name", "write --limit-header-bytes"),
    Family(
        "revision code-revision tokenizer-revision", "a part of the name here", "write --model-path org/name@revision"
    ),
    Family("draft-sample-method", "vLLM's name", "write --draft-sampling"),
    Family("speculative-use-rejection-sampling", "another name", "write --draft-sampling probabilistic"),
    Family(
        "speculative-draft-model-revision", "drafts are folders here", "give --speculative-draft-model-path a folder"
    ),
    # What is always so.
    Family(
        "enable-prefix-caching enable-chunked-prefill enable-mixed-chunk enable-cache-report enable-auto-tool-choice"
        " incremental-streaming-output async-scheduling enable-force-include-usage enable-server-load-tracking"
        " sleep-on-idle enable-priority-scheduling"
        " enable-tokenizer-info-endpoint",
        "this is always so",
    ),
    Family(
        "disable-cuda-graph* cuda-graph-* enforce-eager enable-torch-compile torch-compile-* compilation-config"
        " enable-profile-cuda-graph disable-overlap-schedule disable-custom-all-reduce piecewise-* enable-piecewise-*"
        " num-continuous-decode-steps cudagraph-*",
        "there are no CUDA graphs, compiled graphs or overlapped schedules here to be set",
    ),
    Family(
        "no-enable-chunked-prefill disable-chunked-prefix-cache no-async-scheduling",
        "prompts are always read in chunks beside the running answers; no text depends on it",
    ),
    Family(
        "disable-log-requests no-enable-log-requests no-log-requests disable-log-stats disable-uvicorn-access-log"
        " disable-fastapi-docs",
        "requests are not logged unless --log-requests is given",
    ),
    # What is about the text.
    Family(
        "enable-deterministic-inference batch-invariant",
        "the text of a seed depends on no other request wherever the kernels are exact row by row",
    ),
    Family(
        "speculative-accept-threshold-single speculative-accept-threshold-acc rejection-sample-method"
        " speculative-use-block-verification typical-acceptance* posterior-*",
        "it accepts what the target would not have said; here the text is always the target's own",
    ),
    Family(
        "kv-cache-dtype speculative-draft-kv-cache-dtype quantization-param-path calculate-kv-scales"
        " enable-fp32-lm-head speculative-draft-model-quantization torchao-config modelopt-* rl-quant-profile",
        "the cache and the draft have the dtype that --dtype gives",
        "leave it out, and choose --dtype",
    ),
    Family("trust-remote-code no-trust-remote-code", "no code of a model is ever run here"),
    Family(
        "json-model-override-args hf-overrides model-loader-extra-config override-generation-config"
        " preferred-sampling-params sampling-defaults generation-config",
        "the model runs as its own files say",
        "edit the files of the model's folder, or set it in the request",
    ),
    # Speculation that is not here.
    Family(
        "speculative-adaptive-config num-speculative-tokens-per-batch-size speculative-disable-by-batch-size",
        "the steps are chosen by what was measured, not by a table",
        "leave it out; --speculative-num-steps is the ceiling, and --no-speculative-adaptive always runs it",
    ),
    Family(
        "speculative-ngram-* prompt-lookup-*", "n-gram proposals have no settings", "use --speculative-num-steps alone"
    ),
    Family("speculative-token-map", "the map is a part of the draft", "export the draft with its own vocabulary map"),
    Family(
        "speculative-* enable-multi-layer-eagle spec-trace-dir uno-lora-path parallel-drafting",
        "speculation here is EAGLE-3 or n-gram, and has no such setting",
        "leave it out; `eyas serve --help` names what there is",
    ),
    # Placement beyond one machine.
    Family(
        "nnodes node-rank dist-init-addr dist-timeout nccl-port pp-* pipeline-parallel-size master-addr master-port"
        " distributed-executor-backend data-parallel-*",
        "one machine is the limit here",
        OUTGROWN,
    ),
    Family(
        "disaggregation-* kv-transfer-config kv-events-config encoder-*",
        "prefill and decoding share a process",
        OUTGROWN,
    ),
    Family(
        "ep ep-size expert-parallel-size enable-expert-parallel moe-* ep-* eplb-* enable-eplb init-expert-location"
        " deepep-* enable-dp-attention enable-dp-lm-head enable-two-batch-overlap attn-cp-size moe-dp-size"
        " enable-single-batch-overlap",
        "experts and attention are not spread over devices",
        OUTGROWN,
    ),
    Family(
        "load-balance-method router-* prefill-round-robin-balance", "requests go to the replica that knows their prefix"
    ),
    Family(
        "base-gpu-id gpu-id-step device-id",
        "the device is named as a whole",
        "write --device cuda, and choose it by the driver",
    ),
    # Memory.
    Family(
        "page-size block-size schedule-conservativeness radix-eviction-policy swa-* disable-hybrid-swa-memory mamba-*"
        " enable-hierarchical-cache hicache-* swap-space cpu-offload-gb offload-* enable-memory-saver"
        " enable-unified-memory enable-lmcache kv-offloading-* prefill-max-requests num-reserved-decode-tokens",
        "a cache slot is one token, kept in memory, least recently used first to go",
        "leave it out; --max-total-tokens or --mem-fraction-static is the size",
    ),
    Family(
        "attention-backend decode-attention-backend prefill-attention-backend sampling-backend mm-attention-backend"
        " flashinfer-* triton-* fp8-* fp4-* dsa-* nsa-* linear-attn-* mamba-backend",
        "another engine's kernels",
        "leave it out, or choose --backend",
    ),
    Family(
        "grammar-backend guided-decoding-backend structured-outputs-config constrained-json-*",
        "grammars are llguidance's",
    ),
    # Kinds of models and requests.
    Family(
        "enable-lora lora-* max-lora-* max-loras* max-cpu-loras fully-sharded-loras enable-lora-* lora",
        "there are no LoRA adapters here",
        OUTGROWN,
    ),
    Family(
        "enable-multimodal mm-* limit-mm-* language-only encoder-only image-* enable-broadcast-mm* media-io-kwargs"
        " allowed-local-media-path skip-mm-profiling interleave-mm-strings",
        "texts are all that is served",
        OUTGROWN,
    ),
    Family(
        "is-embedding runner convert task pooler-config enable-custom-logit-processor logits-processors",
        "answers are all that is served",
        OUTGROWN,
    ),
    Family(
        "load-format download-dir model-impl tokenizer-mode tokenizer-worker-num skip-tokenizer-init config-format"
        " weight-loader-* checkpoint-engine-* custom-weight-loader remote-instance-* delete-ckpt-after-loading",
        "a model is a folder of safetensors, or a GGUF file that is converted once",
        "leave it out; `eyas pull` fetches a model",
    ),
    Family(
        "completion-template hf-chat-template-name chat-template-content-format default-chat-template-kwargs"
        " trust-request-chat-template tool-server tool-parser-plugin reasoning-parser-plugin",
        "templates are the tokenizer's own, or one file",
        "write --chat-template FILE",
    ),
    # HTTP and logs.
    Family("ssl-* enable-ssl-*", "the server speaks plain HTTP", "put a proxy that speaks TLS in front of it"),
    Family(
        "allowed-origins allowed-methods allowed-headers allow-credentials", "CORS is off", "put a proxy in front of it"
    ),
    Family("admin-api-key", "every key may do everything", "use --api-key-file"),
    Family(
        "fastapi-root-path root-path uds grpc-mode smg-* middleware",
        "it listens on one address and port, at /",
        "put a proxy in front of it",
    ),
    Family("skip-server-warmup warmups", "nothing is warmed up by requests"),
    Family("soft-watchdog-timeout", "there is one watchdog", "write --watchdog-timeout"),
    Family("stream-interval stream-output", "tokens go out as they come"),
    Family(
        "log-requests-* crash-dump-folder show-time-cost enable-metrics-for-all-schedulers tokenizer-metrics-* bucket-*"
        " prompt-tokens-buckets generation-tokens-buckets collect-tokens-histogram decode-log-interval gc-*"
        " enable-request-time-stats-logging enable-trace otlp-* export-metrics-* enable-log-* max-log-len"
        " collect-detailed-traces log-level-* show-hidden-metrics-for-version kv-cache-metrics*"
        " per-request-spec-decode-metrics disable-log-* enable-log-outputs",
        "figures are at /metrics and in each response, with fixed names and buckets",
        "leave it out; see docs/serving-metrics.md",
    ),
    Family(
        "enable-return-hidden-states enable-return-aux-hidden-states return-* enable-return-routed-experts"
        " file-storage-path enable-prompt-embeds enable-prompt-tokens-details",
        "requests give texts and figures, not hidden states or files",
        "use `eyas capture` for hidden states",
    ),
    Family(
        "abort-on-priority-when-disabled schedule-low-priority-values-first priority-scheduling-*",
        "a higher priority goes first, and preempts only for memory",
    ),
)


def refuse(flag: str, known: Iterable[str]) -> EyasError:
    """The error for a flag that ``eyas serve`` does not have; ``known``: those that it has, with their dashes."""
    name = flag.partition("=")[0].lstrip("-").replace("_", "-")
    family = next((family for family in FAMILIES if family.covers(name)), None)
    if family is not None:
        return EyasError("flags.unsupported", f"--{name}: {family.why}", family.instead)
    near = get_close_matches(f"--{name}", list(known), n=3)
    fix = f"did you mean {' or '.join(near)}?" if near else "`eyas serve --help` names what there is"
    return EyasError("flags.unknown", f"{flag.partition('=')[0]} is no flag of eyas serve", fix)
