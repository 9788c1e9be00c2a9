"""Every metric of /metrics: its name, what it means, and what SGLang 0.5.23 and vLLM 0.32.0 call the same."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from eyas.serve.wire import Status

SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600)
TOKENS = (1, 4, 16, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384, 32768, 65536, 131072)
NO_SUCH = "none"

Read = Callable[[Status], "float | dict[int, int] | None"]
"""A figure out of a status: one number, None where it is not known, or one for each position from 1."""


@dataclass(frozen=True)
class Metric:
    """``name``: as it stands in the text, so that a counter ends with _total · ``definition``: one sentence, with the
    words of ``eyas.metrics`` · ``sglang``, ``vllm``: the equivalent there · ``read``: None where the HTTP side counts.
    """

    name: str
    type: Literal["gauge", "counter", "histogram"]
    unit: str
    definition: str
    sglang: str = NO_SUCH
    vllm: str = NO_SUCH
    read: Read | None = None
    labels: tuple[str, ...] = ()
    buckets: tuple[float, ...] = ()


def _at_least(counts: list[int]) -> dict[int, int]:
    """Rounds by accepted drafts, from 0 → rounds that accepted at least i, i from 1."""
    return {i: sum(counts[i:]) for i in range(1, len(counts))}


INFO = Metric("eyas_info", "gauge", "1", "Always 1; its labels say what is served", labels=("version", "model"))
READY = Metric("eyas_ready", "gauge", "0 or 1", "1 while the engine is loaded and answers")
RESTARTS = Metric(
    "eyas_engine_restarts_total", "counter", "restarts", "How often the engine died and was started again"
)

STATE = (
    Metric(
        "eyas_requests_running", "gauge", "requests", "Requests in the batch now",
        "sglang:num_running_reqs", "vllm:num_requests_running", lambda s: s.running,
    ),
    Metric(
        "eyas_requests_waiting", "gauge", "requests", "Requests in the queue now",
        "sglang:num_queue_reqs", "vllm:num_requests_waiting", lambda s: s.waiting,
    ),
    Metric(
        "eyas_kv_slots", "gauge", "slots", "Cache slots there are; a slot holds the keys and values of one position",
        "sglang:max_total_num_tokens", "vllm:cache_config_info, its labels num_gpu_blocks × block_size",
        lambda s: s.slots_total,
    ),
    Metric(
        "eyas_kv_slots_used", "gauge", "slots", "Cache slots held by requests that run",
        "sglang:kv_used_tokens", "vllm:kv_cache_usage_perc, as a share", lambda s: s.slots_used,
    ),
    Metric(
        "eyas_kv_slots_kept", "gauge", "slots",
        "Cache slots held by the prefix cache alone, given up when a request needs them",
        "sglang:kv_evictable_tokens", NO_SUCH, lambda s: s.slots_kept,
    ),
    Metric(
        "eyas_tokens_per_second", "gauge", "tokens/s",
        "Answer tokens of the last seconds by wall time, all requests together; 0 while nothing runs",
        "sglang:gen_throughput", "rate(vllm:generation_tokens_total)",
        lambda s: s.tokens_per_second if s.running else 0.0,
    ),
    Metric(
        "eyas_plain_tokens_per_second", "gauge", "tokens/s",
        "What the same batch would make without drafts, by the measured costs; absent where not known",
        read=lambda s: s.plain_tokens_per_second if s.running else None,
    ),
    Metric(
        "eyas_num_steps", "gauge", "steps", "Mean K of the last rounds, K = 0 included; absent without a draft",
        "sglang:spec_num_steps",
        "rate(vllm:spec_decode_num_draft_tokens_total) / rate(vllm:spec_decode_num_drafts_total)",
        lambda s: s.num_steps,
    ),
)  # fmt: skip

WORK = (
    Metric(
        "eyas_prompt_tokens_total", "counter", "tokens", "Prompt tokens of all requests, those from the cache too",
        "sglang:prompt_tokens_total", "vllm:prompt_tokens_total", lambda s: s.prompt_tokens,
    ),
    Metric(
        "eyas_cached_tokens_total", "counter", "tokens", "Prompt tokens that the prefix cache gave",
        "sglang:cached_tokens_total", "vllm:prompt_tokens_cached_total", lambda s: s.cached_tokens,
    ),
    Metric(
        "eyas_answer_tokens_total", "counter", "tokens", "Answer tokens: 1 from the prompt + Σ committed, per request",
        "sglang:generation_tokens_total", "vllm:generation_tokens_total", lambda s: s.answer_tokens,
    ),
    Metric(
        "eyas_steps_total", "counter", "steps", "Steps of the engine: forwards of the whole batch",
        NO_SUCH, "vllm:iteration_tokens_total_count", lambda s: s.steps,
    ),
    Metric(
        "eyas_busy_seconds_total", "counter", "seconds", "Time that the engine spent in steps",
        "sglang:forward_execution_seconds_total", NO_SUCH, lambda s: s.busy_seconds,
    ),
    Metric(
        "eyas_preemptions_total", "counter", "requests", "Requests put back into the queue because slots ran short",
        "sglang:num_retracted_requests_total", "vllm:num_preemptions_total", lambda s: s.preemptions,
    ),
    Metric(
        "eyas_aborted_requests_total", "counter", "requests", "Requests given up before their end",
        "sglang:num_aborted_requests_total", 'vllm:request_success_total{finished_reason="abort"}', lambda s: s.aborted,
    ),
)  # fmt: skip

SPECULATION = (
    Metric(
        "eyas_rounds_total", "counter", "rounds",
        "Whole rounds that proposed something: the denominator of accept length, rate and survival",
        "sglang:spec_verify_calls_total, cut rounds too", "vllm:spec_decode_num_drafts_total, cut rounds too",
        lambda s: s.rounds,
    ),
    Metric(
        "eyas_cut_rounds_total", "counter", "rounds", "Rounds that a stop or a limit cut short; in no other figure",
        read=lambda s: s.cut_rounds,
    ),
    Metric(
        "eyas_plain_rounds_total", "counter", "rounds", "Rounds with K = 0, which proposed nothing",
        read=lambda s: s.plain_rounds,
    ),
    Metric(
        "eyas_proposed_tokens_total", "counter", "drafts", "Drafts verified in whole rounds; in a tree, its nodes",
        NO_SUCH, "vllm:spec_decode_num_draft_tokens_total, cut rounds too", lambda s: s.proposed,
    ),
    Metric(
        "eyas_accepted_tokens_total", "counter", "drafts", "Σ a over whole rounds, the target's own token not counted",
        NO_SUCH, "vllm:spec_decode_num_accepted_tokens_total, cut rounds too",
        lambda s: sum(i * n for i, n in enumerate(s.accepted_histogram)),
    ),
    Metric(
        "eyas_accepted_tokens_per_position_total", "counter", "rounds",
        "Whole rounds with a ≥ position, from 1: over eyas_rounds_total it is survival",
        NO_SUCH, "vllm:spec_decode_num_accepted_tokens_per_pos_total, position from 0, cut rounds too",
        lambda s: _at_least(s.accepted_histogram), ("position",),
    ),
    Metric(
        "eyas_possible_tokens_per_position_total", "counter", "rounds",
        "Whole rounds that could accept at least position drafts, from 1: the longest path that they proposed",
        read=lambda s: dict(enumerate(s.proposed_at_least, 1)), labels=("position",),
    ),
)  # fmt: skip

HTTP_REQUESTS = Metric(
    "eyas_http_requests_total", "counter", "requests",
    "HTTP requests answered, by route and status; 499: the client was gone",
    "sglang:http_responses_total", "http_requests_total", labels=("route", "status"),
)  # fmt: skip
FIRST_TOKEN = Metric(
    "eyas_time_to_first_token_seconds", "histogram", "seconds",
    "From a request's arrival to the first token of its answer",
    "sglang:time_to_first_token_seconds", "vllm:time_to_first_token_seconds", buckets=SECONDS,
)  # fmt: skip
INTER_TOKEN = Metric(
    "eyas_inter_token_latency_seconds", "histogram", "seconds",
    "Between two deliveries of an answer, over the tokens of the later one; each token counts once",
    "sglang:inter_token_latency_seconds",
    "vllm:inter_token_latency_seconds, which counts a delivery once however many tokens it brings", buckets=SECONDS,
)  # fmt: skip
REQUEST_SECONDS = Metric(
    "eyas_request_seconds", "histogram", "seconds", "From a request's arrival to the end of its answer",
    "sglang:e2e_request_latency_seconds", "vllm:e2e_request_latency_seconds", buckets=SECONDS,
)  # fmt: skip
PROMPT_TOKENS = Metric(
    "eyas_request_prompt_tokens", "histogram", "tokens", "Prompt tokens of an answered request",
    "sglang:prompt_tokens_histogram", "vllm:request_prompt_tokens", buckets=TOKENS,
)  # fmt: skip
ANSWER_TOKENS = Metric(
    "eyas_request_answer_tokens", "histogram", "tokens",
    "Answer tokens of an answered request, all its choices together",
    "sglang:generation_tokens_histogram", "vllm:request_generation_tokens", buckets=TOKENS,
)  # fmt: skip

SERVER = (INFO, READY, RESTARTS)
ENGINE = STATE + WORK + SPECULATION
HTTP = (HTTP_REQUESTS, FIRST_TOKEN, INTER_TOKEN, REQUEST_SECONDS, PROMPT_TOKENS, ANSWER_TOKENS)

GROUPS: dict[str, tuple[Metric, ...]] = {
    "Server": SERVER,
    "Requests": HTTP,
    "Engine": STATE + WORK,
    "Speculation": SPECULATION,
}

QUERIES: dict[str, str] = {
    "accept length": "1 + rate(eyas_accepted_tokens_total[5m]) / rate(eyas_rounds_total[5m])",
    "its ceiling, for the K that was run": (
        "1 + sum without (position) (rate(eyas_possible_tokens_per_position_total[5m])) / rate(eyas_rounds_total[5m])"
    ),
    "survival by position": (
        "rate(eyas_accepted_tokens_per_position_total[5m]) / ignoring (position) group_left rate(eyas_rounds_total[5m])"
    ),
    "acceptance rate": "rate(eyas_accepted_tokens_total[5m]) / rate(eyas_proposed_tokens_total[5m])",
    "prefix cache hit rate": "rate(eyas_cached_tokens_total[5m]) / rate(eyas_prompt_tokens_total[5m])",
    "time to first token, 95th percentile": (
        "histogram_quantile(0.95, sum by (le) (rate(eyas_time_to_first_token_seconds_bucket[5m])))"
    ),
}
"""What one asks of them, in PromQL."""
