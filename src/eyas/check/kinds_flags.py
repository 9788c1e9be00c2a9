"""Kinds that the flags of a launch show: what the engine makes of them."""

from __future__ import annotations

from eyas.check.kind import Kind

_FOUND = "flags: the launch command is resolved as that engine version would, by a table of rules."

FLAG_KINDS: dict[str, Kind] = {
    "flags.clamped": Kind(
        "A speculative flag is overridden in silence",
        "The accept length never passes a low ceiling: asked for 16 draft tokens, 2 run.",
        "With topk 1, SGLang sets draft tokens to steps + 1; old versions also set topk to 1 on larger pages.",
        _FOUND,
        "Set the steps to the draft tokens minus 1. Read an accept length against the ceiling that really runs.",
    ),
    "flags.counting": Kind(
        "Draft tokens are counted with the root in one engine and without it in the other",
        "One draft fewer or more than believed; K = 2 where 3 was meant.",
        "vLLM's num_speculative_tokens is K; SGLang's draft tokens are K + 1.",
        _FOUND,
        "num_speculative_tokens 3 is --speculative-num-steps 3 --speculative-num-draft-tokens 4.",
    ),
    "flags.effective": Kind(
        "The engine fills in or adjusts a flag",
        "Nothing, or fewer requests at a time than expected.",
        "Defaults depend on the architecture, the attention backend and whether speculation is on.",
        _FOUND,
        "Write the value out where another one is wanted.",
    ),
    "flags.algorithm": Kind(
        "The algorithm or method is not the draft's",
        "Accept length about 1.0; the text is right. An EAGLE-3 draft run as EAGLE has its fc skipped.",
        "--speculative-algorithm EAGLE, or no method in vLLM, which then goes by the spelling of the draft's path.",
        _FOUND,
        'SGLang: --speculative-algorithm EAGLE3. vLLM: "method": "eagle3".',
    ),
    "flags.inferred": Kind(
        "The method is right only by the spelling of a path",
        "It works until the draft's folder is renamed.",
        "vLLM infers a method that is not given from the path: eagle- before eagle3, else a stand-alone model.",
        _FOUND,
        'Add "method": "eagle3" to the speculative configuration.',
    ),
    "flags.off": Kind(
        "Speculation is not switched on",
        "The server runs at the speed of plain decoding and reports no accept length.",
        "The flag that switches it on is missing; the other speculative flags alone do nothing and are not refused.",
        _FOUND,
        "SGLang: --speculative-algorithm EAGLE3. vLLM: --speculative-config.",
    ),
    "flags.no-draft": Kind(
        "No draft is named",
        "Accept length exactly 1.00, or the start fails on missing tensors.",
        "Without a draft path the engine takes the target's own checkpoint for the draft.",
        _FOUND,
        'SGLang: --speculative-draft-model-path DRAFT. vLLM: "model": "DRAFT".',
    ),
    "flags.quantization": Kind(
        "The draft inherits the target's quantisation",
        "The start fails, or the accept length is lower than measured elsewhere.",
        "SGLang copies --quantization to the draft unless it is told otherwise.",
        _FOUND,
        "Add --speculative-draft-model-quantization unquant.",
    ),
    "flags.lossy": Kind(
        "Verification is not lossless",
        "A fine accept length, and text that differs from the target's.",
        "Accept thresholds below 1 accept drafts that the target would not have drawn.",
        _FOUND,
        "Leave --speculative-accept-threshold-single and -acc out.",
    ),
    "flags.simulated": Kind(
        "The acceptance is simulated",
        "Exactly the accept length that was set, whatever the draft; the text is nonsense.",
        "SGLANG_SIMULATE_ACC_LEN or vLLM's synthetic rejection sampling is left over from a benchmark.",
        _FOUND,
        "Unset it, and measure again.",
    ),
    "flags.dummy": Kind(
        "The draft's weights are random by order",
        "Accept length exactly 1.00.",
        "The load format dummy, for the draft or for both models.",
        _FOUND,
        "Leave the load format out.",
    ),
    "flags.refused": Kind(
        "The engine would not start with these flags",
        "An exception at the start, at times without a message.",
        "A flag or combination that this version does not know or refuses.",
        _FOUND,
        "Follow the fix of the row: each names the flag or the version that goes.",
    ),
    "flags.ignored": Kind(
        "A flag has no effect",
        "The engine runs as if the flag had not been given.",
        "This version reads it nowhere, or switches it off beside another flag.",
        _FOUND,
        "Leave it out, or use what takes its place.",
    ),
    "flags.repeated": Kind(
        "A flag is given twice with different values",
        "Another value runs than the one that is read first.",
        "The last value counts.",
        _FOUND,
        "Give it once.",
    ),
    "flags.context": Kind(
        "The context is longer than the draft declares",
        "A ValueError at the start; or accept length 2.3 in short texts, 1.1 in long ones.",
        "The engine refuses, stops speculating beyond the draft's positions, or stretches them, by version.",
        _FOUND,
        "Limit the context to the draft's, or train the draft on longer texts.",
    ),
    "flags.slower": Kind(
        "These flags lose the overlap of scheduling",
        "The accept length is as promised, and tokens per second are not.",
        "Some versions run trees only on an older worker.",
        _FOUND,
        "Use topk 1, or another version.",
    ),
    "flags.half": Kind(
        "A draft is run in fp16 that was not trained in it",
        "Acceptance exactly 0 on some texts: proposals are the first tokens of the vocabulary.",
        "The residual stream overflows, NaN follows, and the largest of NaN is index 0.",
        _FOUND,
        "Use --dtype bfloat16.",
    ),
    "flags.renamed": Kind(
        "vLLM takes the draft for an MTP module",
        "The start fails: the architecture is not registered.",
        "It rewrites a draft whose model_type is deepseek_v3, deepseek_v32 or glm_moe_dsa.",
        _FOUND,
        "Write model_type kimi_k2 or deepseek_v2 into the draft's config.json.",
    ),
    "flags.parallel": Kind(
        "Parallel drafting with a draft that was not trained for it",
        "The start fails for want of mask_hidden, or later positions are never accepted.",
        "parallel_drafting fills later positions with a trained mask state.",
        _FOUND,
        "Leave parallel_drafting out.",
    ),
}
