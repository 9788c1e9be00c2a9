"""SGLang: what a launch's speculative flags become, by version (its speculative_hook and what runs before it)."""

from __future__ import annotations

from collections.abc import Callable

from eyas.dialects.flags import Change, Flags, Resolution, sglang_resolve
from eyas.dialects.launch import LaunchFlags
from eyas.dialects.launch_rules import Case, Row, Rule, half_precision, refusal, simulated_length
from eyas.errors import EyasError

# Algorithm → the first version read that has it.
ALGORITHMS: dict[str, str | None] = {
    "EAGLE": None, "EAGLE3": None, "NEXTN": None, "STANDALONE": "0.5.2", "NGRAM": "0.5.3", "DFLASH": "0.5.11",
    "FROZEN_KV_MTP": "0.5.12", "DSPARK": "0.5.16", "UNO": "0.5.20",
}  # fmt: skip
EAGLE_FAMILY = ("EAGLE", "EAGLE3", "NEXTN", "STANDALONE")
# Flag → the first version read that has it.
FLAGS_SINCE: dict[str, str] = {
    "--speculative-draft-attention-backend": "0.5.7",
    "--speculative-draft-model-quantization": "0.5.7",
    "--enable-multi-layer-eagle": "0.5.7",
    "--speculative-adaptive": "0.5.11",
    "--speculative-adaptive-config": "0.5.11",
    "--speculative-draft-window-size": "0.5.12",
    "--speculative-use-rejection-sampling": "0.5.14",
    "--speculative-draft-kv-cache-dtype": "0.5.18",
    "--speculative-use-block-verification": "0.5.22",
}
# Backend → (page sizes that it takes, the one that it is given instead); a page size of 1 is the default.
FORCED_PAGES: dict[str, tuple[frozenset[int], int]] = {
    "flashmla": (frozenset({64}), 64),
    "trtllm_mla": (frozenset({32, 64}), 64),
    "cutedsl_mla": (frozenset({32, 64}), 64),
    "trtllm_mha": (frozenset({16, 32, 64, 128}), 64),
}
# Targets that carry a draft of their own (MTP) for EAGLE.
OWN_DRAFT = frozenset(
    f"{name}ForCausalLM"
    for name in ("DeepseekV3", "DeepseekV32", "DeepseekV4", "Glm4Moe", "Glm4MoeLite", "GlmMoeDsa", "BailingMoe",
                 "BailingMoeV2", "BailingMoeV2_5", "MistralLarge3", "HYV3", "HYV4")
)  # fmt: skip
ADAPTIVE_STEPS = (0, 1, 3, 5, 7)
"""Candidate steps of the adaptive mode where no configuration names others."""
STORED_QUANTIZED = ("awq", "gptq", "marlin", "fp4", "w4a", "compressed-tensors", "bitsandbytes", "gguf", "moe_wna16")
"""Beginnings and parts of methods that need weights stored that way."""


def algorithm(flags: LaunchFlags) -> str | None:
    """As SGLang compares it."""
    return flags.algorithm.upper() if flags.algorithm else None


def page_size(flags: LaunchFlags) -> int:
    """In tokens, after the attention backends have had their say; the draft's counts only for trtllm_mha."""
    size = flags.page_size or 1
    named = [*flags.backends, *([flags.draft_backend] if flags.draft_backend == "trtllm_mha" else [])]
    for backend in named:
        taken, forced = FORCED_PAGES.get(backend, (frozenset({size}), size))
        size = size if size in taken else forced
    return size


def adapts(case: Case) -> bool:
    """Whether the adaptive mode stays on."""
    f = case.flags
    fits = algorithm(f) in ("EAGLE", "EAGLE3") and f.eagle_topk in (None, 1)
    return f.adaptive and fits and not f.dp_attention and not f.multi_layer and case.engine.within("0.5.11", None)


def resolve(case: Case) -> tuple[Resolution | None, tuple[Row, ...]]:
    """Steps, topk and draft tokens as they run, and their rows."""
    flags = case.flags
    asked = Flags(flags.num_steps, flags.eagle_topk, flags.num_draft_tokens)
    if algorithm(flags) not in EAGLE_FAMILY:
        return None, ()
    if adapts(case):
        # The middle of the candidates; topk is 1 and draft tokens follow the steps.
        steps = ADAPTIVE_STEPS[len(ADAPTIVE_STEPS) // 2] if flags.num_steps is None else flags.num_steps
        asked = Flags(steps, 1, flags.num_draft_tokens)
    backend = next(iter(flags.backends), None)
    try:
        done = sglang_resolve(asked, case.engine, case.architecture, case.page_size, backend)
    except EyasError as error:
        return None, (refusal("--speculative-num-steps", flags.num_steps, error),)
    return done, tuple(_changed(change, done) for change in done.changes)


def _changed(change: Change, done: Resolution) -> Row:
    if change.asked is None:
        return Row(change.flag, None, change.effective, change.rule, "note", "flags.effective")
    lower = change.effective < change.asked
    fix = f"write {change.flag} {change.effective}"
    if lower and done.eagle_topk == 1 and change.asked > 1:
        fix += f", or --speculative-num-steps {change.asked - 1} to draft as many as were asked for"
    rule = f"{change.rule}: the accept length is at most {done.ceiling}"
    return Row(change.flag, change.asked, change.effective, rule, "fault" if lower else "warning", "flags.clamped", fix)


def _wants(case: Case) -> bool:
    return algorithm(case.flags) in ("EAGLE", "EAGLE3", "NEXTN")


def _eagle3_draft(case: Case) -> bool:
    return case.draft.method == "eagle3"


def _tree(case: Case) -> bool:
    return (case.flags.eagle_topk or 1) > 1


def _given_thresholds(case: Case) -> tuple[float, float]:
    single, acc = case.flags.threshold_single, case.flags.threshold_acc
    return 1.0 if single is None else single, 1.0 if acc is None else acc


def _thresholds(case: Case) -> bool:
    return _given_thresholds(case) != (1.0, 1.0)


def _samples(case: Case) -> bool:
    """Rejection sampling is on, also where block verification switches it on."""
    return case.flags.rejection_sampling or (case.flags.block_verification and _wants(case))


def _inherits(case: Case) -> bool:
    f = case.flags
    return bool(f.quantization) and not f.draft_quantization and not case.draft.own_quantization and _wants(case)


def _stored_quantized(case: Case) -> bool:
    return any(part in (case.flags.quantization or "").lower() for part in STORED_QUANTIZED)


def _too_long(case: Case) -> bool:
    longest, asked = case.draft.max_positions, case.flags.context_length
    return longest is not None and asked is not None and asked > longest and _wants(case)


def _overwrites(case: Case) -> bool:
    said = case.flags.env.get("SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN")
    # The default changed between these versions.
    return case.engine.within(None, "0.5.2") if said is None else said.lower() in ("1", "true")


def _v2_asked(case: Case) -> bool:
    return case.flags.env.get("SGLANG_ENABLE_SPEC_V2", "").lower() in ("1", "true")


def _given(flag: str) -> Callable[[Case], bool]:
    return lambda case: flag in case.flags.given


_OFF = "without --speculative-algorithm SGLang decodes plainly and says nothing"
_UNQUANT = "add --speculative-draft-model-quantization unquant"
_ONE = "--speculative-eagle-topk"

RULES: tuple[Rule, ...] = (
    Rule("flags.off", "fault", "--speculative-algorithm", None, "plain decoding", lambda c: not c.flags.algorithm,
         _OFF, "add --speculative-algorithm EAGLE3"),
    Rule("flags.refused", "fault", "--speculative-algorithm", "{flags.algorithm}", None,
         lambda c: c.flags.algorithm not in (None, algorithm(c.flags)),
         "{engine} takes algorithms in capitals only", "write it in capitals", before="0.5.7"),
    Rule("flags.refused", "fault", "--speculative-algorithm", "{flags.algorithm}", None,
         lambda c: bool(c.flags.algorithm) and not _known(c),
         "{engine} has no such algorithm", "use --speculative-algorithm EAGLE3"),
    Rule("flags.algorithm", "fault", "--speculative-algorithm", "{flags.algorithm}", "EAGLE",
         lambda c: algorithm(c.flags) in ("EAGLE", "NEXTN") and _eagle3_draft(c),
         "the draft is an EAGLE-3 one: as EAGLE it is fed the state after the final norm, fc is skipped, and the accept"
         " length is about 1", "use --speculative-algorithm EAGLE3"),
    Rule("flags.algorithm", "fault", "--speculative-algorithm", "{flags.algorithm}", "EAGLE3",
         lambda c: algorithm(c.flags) == "EAGLE3" and c.draft.method == "eagle",
         "the draft is an EAGLE-1 or EAGLE-2 one, which reads no taps", "use --speculative-algorithm EAGLE"),
    Rule("flags.algorithm", "fault", "--speculative-algorithm", "{flags.algorithm}", "{flags.algorithm}",
         lambda c: _known(c) and not _wants(c) and _eagle3_draft(c),
         "this algorithm does not run an EAGLE-3 draft", "use --speculative-algorithm EAGLE3"),
    Rule("flags.no-draft", "fault", "--speculative-draft-model-path", None, "the target's own path",
         lambda c: _wants(c) and not c.flags.draft,
         "without a draft path the target's own checkpoint is loaded in the draft's place: the start fails, or the"
         " draft's weights are random and the accept length is exactly 1.00",
         "add --speculative-draft-model-path DRAFT"),
    Rule("flags.effective", "note", "--speculative-draft-model-path", "{flags.draft}", "{flags.draft}",
         lambda c: bool(c.flags.draft) and c.architecture in OWN_DRAFT and algorithm(c.flags) == "EAGLE3",
         "SGLang warns that this target needs no draft path: that is about its MTP module, and EAGLE3 does need it"),
    Rule("flags.dummy", "fault", "--speculative-draft-load-format", "dummy", "random weights",
         lambda c: (c.flags.draft_load_format or c.flags.load_format) == "dummy",
         "dummy loads random weights in the draft's place", "leave the load format out"),
    Rule("flags.quantization", "fault", "--speculative-draft-model-quantization", None, "{flags.quantization}",
         lambda c: _inherits(c) and _stored_quantized(c),
         "the draft inherits the target's --quantization, and its weights are not stored that way", _UNQUANT,
         since="0.5.7"),
    Rule("flags.quantization", "warning", "--speculative-draft-model-quantization", None, "{flags.quantization}",
         lambda c: _inherits(c) and not _stored_quantized(c),
         "the draft inherits the target's --quantization and is quantised when it is loaded", _UNQUANT, since="0.5.7"),
    Rule("flags.quantization", "fault", "--quantization", "{flags.quantization}", "{flags.quantization}", _inherits,
         "the draft inherits the target's --quantization, and this version has no flag to prevent it",
         "use sglang 0.5.7 or later, with --speculative-draft-model-quantization unquant", before="0.5.7"),
    Rule("flags.lossy", "fault", "--speculative-accept-threshold-single, -acc",
         lambda c: ", ".join(f"{t:g}" for t in _given_thresholds(c)), "not lossless", _thresholds,
         "below 1.0 drafts are accepted that the target would not have drawn: the text is not the target's, and the"
         " accept length says nothing of the draft", "leave both thresholds out"),
    Rule("flags.simulated", "fault", "SGLANG_SIMULATE_ACC_LEN", lambda c: simulated_length(c.flags), "simulated",
         lambda c: simulated_length(c.flags) is not None,
         "the accept length is made up, and so is the text", "unset SGLANG_SIMULATE_ACC_LEN"),
    Rule("flags.ignored", "warning", "--speculative-token-map", "{flags.token_map}", None,
         lambda c: bool(c.flags.token_map) and algorithm(c.flags) == "EAGLE3",
         "with EAGLE3 the token map is ignored: the draft's own d2t counts", "leave --speculative-token-map out"),
    Rule("flags.refused", "fault", "--speculative-use-rejection-sampling", True, None,
         lambda c: _samples(c) and (_tree(c) or _thresholds(c)),
         "rejection sampling needs topk 1 and thresholds of 1.0: {engine} does not start",
         "add --speculative-eagle-topk 1 and leave the thresholds out", since="0.5.14"),
    Rule("flags.refused", "fault", "--speculative-use-rejection-sampling", True, None,
         lambda c: _samples(c) and c.draft.reduced,
         "rejection sampling needs a draft with the target's whole vocabulary, and this one has"
         " {draft.draft_vocab_size} of {draft.vocab_size} tokens: {engine} does not start",
         "leave it out", since="0.5.14"),
    Rule("flags.refused", "fault", _ONE, "{flags.eagle_topk}", None,
         lambda c: _tree(c) and "trtllm_mha" in c.flags.backends,
         "the attention backend trtllm_mha runs chains only: {engine} does not start",
         "use --speculative-eagle-topk 1, or another --attention-backend"),
    Rule("flags.effective", "note", "--page-size", lambda c: c.flags.page_size, lambda c: c.page_size,
         lambda c: c.page_size != (c.flags.page_size or 1), "the attention backend sets the page size"),
    Rule("flags.refused", "fault", "--pp-size", "{flags.pp}", None,
         lambda c: (c.flags.pp or 1) > 1 and algorithm(c.flags) == "EAGLE3",
         "EAGLE3 does not run over pipeline stages: {engine} does not start", "use --tp-size instead"),
    Rule("flags.refused", "fault", "--enable-dp-attention", True, None,
         lambda c: c.flags.dp_attention and algorithm(c.flags) in ("STANDALONE", "NGRAM"),
         "this algorithm does not run with data-parallel attention", "leave it out"),
    Rule("flags.effective", "note", "--max-running-requests", None, 48,
         lambda c: bool(c.flags.algorithm) and c.flags.max_running_requests is None,
         "with speculation it is set to 48 where it is not given: more requests wait, and graphs are captured for the"
         " batch sizes chosen before", "add --max-running-requests N"),
    Rule("flags.context", "fault", "--context-length", lambda c: c.flags.context_length, None,
         lambda c: _too_long(c) and not _overwrites(c),
         "the draft declares {draft.max_positions} positions: {engine} stops with a ValueError on the context length",
         "lower --context-length, or train the draft on longer texts"),
    Rule("flags.context", "warning", "--context-length", lambda c: c.flags.context_length,
         lambda c: c.flags.context_length, lambda c: _too_long(c) and _overwrites(c),
         "the draft declares {draft.max_positions} positions and is stretched in silence: the accept length falls"
         " beyond them", "lower --context-length, or train the draft on longer texts"),
    Rule("flags.refused", "fault", _ONE, "{flags.eagle_topk}", None, lambda c: _tree(c) and _v2_asked(c),
         "SGLANG_ENABLE_SPEC_V2 runs chains only in this version: ValueError", "use --speculative-eagle-topk 1",
         since="0.5.7", before="0.5.11"),
    Rule("flags.slower", "warning", _ONE, "{flags.eagle_topk}", "{flags.eagle_topk}", _tree,
         "a tree falls back to the older worker, and the overlap of scheduling is switched off",
         "use --speculative-eagle-topk 1", since="0.5.11", before="0.5.13"),
    Rule("flags.ignored", "note", "--enable-mixed-chunk", True, False, lambda c: c.flags.mixed_chunk and _wants(c),
         "mixed chunks are switched off with speculation", before="0.5.19"),
    Rule("flags.ignored", "warning", "--speculative-adaptive", True, False,
         lambda c: c.flags.adaptive and not adapts(c),
         "adaptive steps need EAGLE or EAGLE3 with topk 1, without data-parallel attention: they are switched off",
         "use --speculative-eagle-topk 1", since="0.5.11"),
    Rule("flags.refused", "fault", "--speculative-num-steps", "{flags.num_steps}", None,
         lambda c: adapts(c) and not c.flags.adaptive_config and c.flags.num_steps not in (None, *ADAPTIVE_STEPS),
         "the adaptive mode takes steps from 0, 1, 3, 5 and 7 only: ValueError", "use one of them"),
    Rule("flags.effective", "note", "--speculative-adaptive", True, "0 to 7 steps", adapts,
         "steps follow the batch and the acceptance: the ceiling moves with them"),
    Rule("flags.half", "warning", "--dtype", "{flags.dtype}", "{flags.dtype}", half_precision,
         "drafts overflow in fp16, and NaN makes them propose the first tokens of the vocabulary",
         "use --dtype bfloat16"),
    Rule("flags.counting", "note", "--speculative-num-draft-tokens", lambda c: c.flags.num_draft_tokens,
         "{run.num_draft_tokens}", lambda c: c.resolution is not None and c.resolution.eagle_topk == 1,
         "it counts the root: vLLM's num_speculative_tokens for the same chain is {run.num_steps}"),
    *(
        Rule("flags.refused", "fault", flag, "given", None, _given(flag),
             "{engine} knows no such flag and does not start", f"leave it out, or use sglang {since} or later",
             before=since)
        for flag, since in FLAGS_SINCE.items()
    ),
)  # fmt: skip


def _known(case: Case) -> bool:
    name = algorithm(case.flags)
    return name in ALGORITHMS and case.engine.within(ALGORITHMS[name], None)


def ceiling(case: Case) -> int | None:
    """The greatest accept length that can be seen; None: not known."""
    if not case.flags.algorithm:
        return 1
    if adapts(case):
        return None if case.flags.adaptive_config else max(ADAPTIVE_STEPS) + 1
    return case.resolution.ceiling if case.resolution else None
