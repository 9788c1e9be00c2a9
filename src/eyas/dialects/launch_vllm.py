"""vLLM: what a launch's speculative configuration becomes, by version (its SpeculativeConfig)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from eyas.dialects.flags import Resolution, vllm_resolve
from eyas.dialects.launch import LaunchFlags
from eyas.dialects.launch_rules import Case, Row, Rule, half_precision, refusal
from eyas.errors import EyasError

EAGLE3_METHODS = ("eagle3", "deepseek_eagle3")
_METHODS = (
    "ngram ngram_gpu suffix medusa mlp_speculator draft_model eagle eagle3 deepseek_eagle3 mtp dflash dspark"
    " custom_class extract_hidden_states"
)
METHODS = frozenset(_METHODS.split())
INFERRED = (("eagle-", "eagle"), ("eagle3", "eagle3"), ("dflash", "dflash"), ("dspark", "dspark"))
"""Where no method is given: (what the draft's path holds, the method), the first that fits."""
RENAMED = ("deepseek_v3", "deepseek_v32", "glm_moe_dsa")
"""Values of model_type in a draft's config that are taken for an MTP module."""
_ENTRIES = (
    "enforce_eager num_speculative_tokens model method draft_tensor_parallel_size tensor_parallel_size quantization"
    " moe_backend attention_backend kv_cache_dtype max_model_len revision code_revision index_share_for_mtp_iteration"
    " disable_padded_drafter_batch disable_eagle_block_drop use_local_argmax_reduction use_heterogeneous_vocab"
    " prompt_lookup_max prompt_lookup_min parallel_drafting num_speculative_tokens_per_batch_size"
    " suffix_decoding_max_tree_depth suffix_decoding_max_cached_requests suffix_decoding_max_spec_factor"
    " suffix_decoding_min_token_prob draft_load_config rejection_sample_method synthetic_acceptance_rates"
    " synthetic_acceptance_length draft_sample_method dspark_draft_topk enable_adaptive_verification"
    " speculative_token_tree disable_by_batch_size disable_logprobs disable_mqa_scorer posterior_threshold"
    " posterior_alpha acceptance_method typical_acceptance_sampler_posterior_threshold"
    " typical_acceptance_sampler_posterior_alpha"
)
ENTRIES = frozenset(_ENTRIES.split())
"""Every entry that some version read here takes."""
SINCE: dict[str, str] = {
    "parallel_drafting": "0.18",
    "rejection_sample_method": "0.18",
    "draft_sample_method": "0.22",
    "kv_cache_dtype": "0.26",
    "num_speculative_tokens_per_batch_size": "0.26",
}
GONE: dict[str, str] = {"disable_by_batch_size": "0.18", "speculative_token_tree": "0.22"}
EAGLE3_TARGETS = ("llama", "qwen", "minicpm", "gptoss", "gpt_oss")
"""Parts of a target's name that versions 0.11 to 0.14 take for EAGLE-3."""


def method(flags: LaunchFlags) -> str | None:
    """The method as it runs; None: no speculation, or nothing to infer it from."""
    if flags.algorithm:
        return "mtp" if flags.algorithm.endswith("_mtp") else flags.algorithm
    if not flags.draft:
        return None
    path = flags.draft.lower()
    if path in ("ngram", "[ngram]"):
        return "ngram"
    return next((name for part, name in INFERRED if part in path), "draft_model")


def asks(flags: LaunchFlags) -> bool:
    """Whether any speculation is asked for."""
    return bool(flags.speculative or flags.algorithm or flags.draft or flags.num_speculative_tokens is not None)


def resolve(case: Case) -> tuple[Resolution | None, tuple[Row, ...]]:
    """The chain that runs, and the row of a K that cannot."""
    tokens = case.flags.num_speculative_tokens
    if tokens is None:
        return None, ()
    try:
        return vllm_resolve(tokens), ()
    except EyasError as error:
        return None, (refusal("num_speculative_tokens", tokens, error),)


def _entry(case: Case, name: str) -> Any:
    return case.flags.speculative.get(name)


def _schedule(case: Case) -> list[int]:
    """K of each range of batch sizes, where the schedule can be read."""
    rows = _entry(case, "num_speculative_tokens_per_batch_size")
    rows = rows if isinstance(rows, list) else []
    last = [row[-1] for row in rows if isinstance(row, list) and row]
    return [k for k in last if isinstance(k, int) and not isinstance(k, bool)]


def _eagle3_draft(case: Case) -> bool:
    return case.draft.method == "eagle3" and asks(case.flags)


def _runs_eagle3(case: Case) -> bool:
    return method(case.flags) in EAGLE3_METHODS


def _wrong_tp(case: Case) -> bool:
    return case.flags.draft_tp not in (None, 1, case.flags.tp or 1)


def _beyond(case: Case) -> bool:
    asked, longest = case.flags.context_length, case.draft.max_positions
    return _runs_eagle3(case) and asked is not None and longest is not None and asked > longest


def _draft_too_long(case: Case) -> bool:
    given, target = case.flags.draft_context_length, case.flags.context_length
    return given is not None and target is not None and given > target


def _has(name: str) -> Callable[[Case], bool]:
    return lambda case: name in case.flags.speculative


_ADD_METHOD = 'add "method": "eagle3"'
_NO_ENTRY = "{engine} knows no such entry and does not start"

RULES: tuple[Rule, ...] = (
    Rule("flags.off", "fault", "--speculative-config", None, "plain decoding", lambda c: not asks(c.flags),
         "without it vLLM decodes plainly",
         '''add --speculative-config '{{"method": "eagle3", "model": "DRAFT", "num_speculative_tokens": 3}}\''''),
    Rule("flags.refused", "fault", "method", "{flags.algorithm}", None,
         lambda c: method(c.flags) not in (None, *METHODS), "{engine} has no such method", _ADD_METHOD),
    Rule("flags.algorithm", "fault", "method", None, lambda c: method(c.flags),
         lambda c: _eagle3_draft(c) and not c.flags.algorithm and bool(c.flags.draft) and not _runs_eagle3(c),
         "no method is given, so it is inferred from the draft's path, where \"eagle-\" counts before \"eagle3\", and"
         " anything else is a stand-alone model: the draft is an EAGLE-3 one", _ADD_METHOD),
    Rule("flags.inferred", "warning", "method", None, "eagle3",
         lambda c: not c.flags.algorithm and _runs_eagle3(c),
         "no method is given, and it is right only because of how the draft's path is spelt", _ADD_METHOD),
    Rule("flags.algorithm", "fault", "method", "{flags.algorithm}", lambda c: method(c.flags),
         lambda c: _eagle3_draft(c) and bool(c.flags.algorithm) and method(c.flags) in METHODS and not _runs_eagle3(c),
         "this method does not run an EAGLE-3 draft as one", _ADD_METHOD),
    Rule("flags.algorithm", "fault", "method", "{flags.algorithm}", lambda c: method(c.flags),
         lambda c: c.draft.method == "eagle" and _runs_eagle3(c),
         "the draft is an EAGLE-1 or EAGLE-2 one, which reads no taps", 'write "method": "eagle"'),
    Rule("flags.no-draft", "fault", "model", None, None,
         lambda c: method(c.flags) in (*EAGLE3_METHODS, "eagle") and not c.flags.draft,
         "the method needs a draft and none is named: {engine} does not start", 'add "model": "DRAFT"'),
    Rule("flags.no-draft", "fault", "model", None, "the target's own path",
         lambda c: method(c.flags) == "mtp" and not c.flags.draft and _eagle3_draft(c),
         "mtp without a draft takes the target's own module, with the target's quantisation",
         'add "model": "DRAFT" and "method": "eagle3"'),
    Rule("flags.refused", "fault", "num_speculative_tokens", None, None,
         lambda c: asks(c.flags) and c.flags.num_speculative_tokens is None and not c.draft.has_depth,
         "a draft that names no depth of its own needs it: {engine} does not start",
         'add "num_speculative_tokens": 3'),
    Rule("flags.refused", "fault", "tensor_parallel_size", "{flags.speculative[tensor_parallel_size]}", None,
         lambda c: "tensor_parallel_size" in c.flags.speculative,
         "inside the speculative configuration it is a ValueError", "write draft_tensor_parallel_size"),
    Rule("flags.refused", "fault", "draft_tensor_parallel_size", "{flags.draft_tp}", None, _wrong_tp,
         "it must be 1 or the target's tensor parallel size: {engine} does not start", "leave it out, or write 1"),
    Rule("flags.effective", "note", "draft_tensor_parallel_size", None, "{flags.tp}",
         lambda c: asks(c.flags) and c.flags.draft_tp is None and (c.flags.tp or 1) > 1,
         "the draft is split over as many GPUs as the target"),
    Rule("flags.renamed", "fault", "model_type", "{draft.model_type}", "deepseek_mtp",
         lambda c: c.draft.model_type in RENAMED and _eagle3_draft(c),
         "this model_type in the draft's config.json is rewritten as an MTP module's, and no such EAGLE-3 architecture"
         " is registered", "write model_type kimi_k2 or deepseek_v2 in the draft's config.json"),
    Rule("flags.refused", "fault", "max_model_len", "{flags.draft_context_length}", None, _draft_too_long,
         "the draft's may not be more than the target's", "leave max_model_len out of the speculative configuration"),
    Rule("flags.context", "warning", "--max-model-len", lambda c: c.flags.context_length,
         lambda c: c.draft.max_positions, _beyond,
         "the draft declares {draft.max_positions} positions, and beyond them it does not speculate",
         "lower --max-model-len, or train the draft on longer texts", before="0.29"),
    Rule("flags.context", "warning", "--max-model-len", lambda c: c.flags.context_length,
         lambda c: c.flags.context_length, _beyond,
         "the draft declares {draft.max_positions} positions and is stretched in silence: the accept length falls"
         " beyond them", "lower --max-model-len, or train the draft on longer texts", since="0.29"),
    Rule("flags.ignored", "warning", "disable_by_batch_size", lambda c: str(_entry(c, "disable_by_batch_size")), None,
         lambda c: _entry(c, "disable_by_batch_size") is not None,
         "it is checked and then read nowhere", "use num_speculative_tokens_per_batch_size of vllm 0.26",
         before="0.18"),
    Rule("flags.ignored", "warning", "num_speculative_tokens_per_batch_size", "given", None,
         lambda c: bool(_schedule(c)) and (c.flags.dp or 1) > 1,
         "with data parallelism the schedule is switched off", "use one num_speculative_tokens", since="0.26"),
    Rule("flags.effective", "note", "num_speculative_tokens_per_batch_size", "given",
         lambda c: f"K {min(_schedule(c))} to {max(_schedule(c))}",
         lambda c: bool(_schedule(c)) and (c.flags.dp or 1) == 1,
         "K follows the batch: the ceiling moves with it", since="0.26"),
    Rule("flags.simulated", "fault", "rejection_sample_method", "synthetic", "simulated",
         lambda c: _entry(c, "rejection_sample_method") == "synthetic",
         "the acceptance is made up, and so is the text", "leave rejection_sample_method out"),
    Rule("flags.parallel", "warning", "parallel_drafting", True, True,
         lambda c: _entry(c, "parallel_drafting") is True and _runs_eagle3(c),
         "it needs a draft that was trained for it, with a mask_hidden tensor", "leave parallel_drafting out"),
    Rule("flags.refused", "fault", "method", "eagle3", None,
         lambda c: _runs_eagle3(c) and not any(part in c.architecture.lower() for part in EAGLE3_TARGETS),
         "this version takes EAGLE-3 for Llama, Qwen, MiniCPM and GPT-OSS targets only", "use vllm 0.18 or later",
         since="0.11", before="0.18"),
    Rule("flags.refused", "fault", "--kv-sharing-fast-prefill", True, None,
         lambda c: c.flags.kv_sharing and method(c.flags) in (*EAGLE3_METHODS, "eagle"),
         "it does not go with EAGLE: ValueError", "leave it out"),
    Rule("flags.refused", "fault", "--async-scheduling", True, None,
         lambda c: c.flags.async_scheduling and _entry(c, "disable_padded_drafter_batch") is True,
         "it does not go with disable_padded_drafter_batch: ValueError", "leave one of them out"),
    Rule("flags.dummy", "fault", "--load-format", "dummy", "random weights",
         lambda c: asks(c.flags) and c.flags.load_format == "dummy",
         "dummy loads random weights in the draft's place", "leave the load format out"),
    Rule("flags.half", "warning", "--dtype", "{flags.dtype}", "{flags.dtype}", half_precision,
         "drafts overflow in fp16, and NaN makes them propose the first tokens of the vocabulary",
         "use --dtype bfloat16"),
    Rule("flags.counting", "note", "num_speculative_tokens", lambda c: c.flags.num_speculative_tokens,
         lambda c: c.flags.num_speculative_tokens, lambda c: c.resolution is not None,
         "it is K and leaves the root out: SGLang's flags for the same chain are --speculative-num-steps"
         " {run.num_steps} --speculative-num-draft-tokens {run.num_draft_tokens}"),
    Rule("flags.refused", "fault", "--spec-method, --spec-model, --spec-tokens", "given", None,
         lambda c: any(flag.startswith("--spec-") for flag in c.flags.given),
         "{engine} knows no such flags and does not start", "write --speculative-config", before="0.22"),
    *(
        Rule("flags.refused", "fault", name, "given", None, _has(name),
             _NO_ENTRY, f"leave it out, or use vllm {since} or later", before=since)
        for name, since in SINCE.items()
    ),
    *(
        Rule("flags.refused", "fault", name, "given", None, _has(name),
             "it is gone: {engine} does not start", "leave it out", since=gone)
        for name, gone in GONE.items()
    ),
)  # fmt: skip


def unknown_entries(case: Case) -> tuple[Row, ...]:
    """Entries of the configuration that no version takes."""
    said, fix = f"{case.engine} knows no such entry and does not start", "leave it out; SGLang's names are others"
    return tuple(
        Row(str(name), "given", None, said, "fault", "flags.refused", fix)
        for name in case.flags.speculative
        if name not in ENTRIES
    )  # fmt: skip


def ceiling(case: Case) -> int | None:
    """The greatest accept length that can be seen; None: not known."""
    if not asks(case.flags):
        return 1
    scheduled = _schedule(case) if case.engine.within("0.26", None) and (case.flags.dp or 1) == 1 else []
    if scheduled:
        return max(0, *scheduled) + 1
    return case.resolution.ceiling if case.resolution else None
