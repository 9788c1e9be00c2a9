"""Planted faults of a launch command: the flags are wrong, or mean something else, and the draft is healthy."""

from __future__ import annotations

import json
from collections.abc import Mapping

from eyas.testing.planting import Planted

START = "python -m sglang.launch_server --model-path M"
DRAFT = "--speculative-draft-model-path D"
EAGLE3 = "--speculative-algorithm EAGLE3"


def _chain(steps: int, topk: int, tokens: int) -> str:
    return f"--speculative-num-steps {steps} --speculative-eagle-topk {topk} --speculative-num-draft-tokens {tokens}"


HEALTHY = f"{START} {EAGLE3} {DRAFT} {_chain(3, 1, 4)}"


def vllm(entries: Mapping[str, object]) -> str:
    """A launch of vLLM with this speculative configuration; None leaves an entry out."""
    whole = {"method": "eagle3", "model": "D", "num_speculative_tokens": 3} | dict(entries)
    kept = {key: value for key, value in whole.items() if value is not None}
    return f"vllm serve M --speculative-config '{json.dumps(kept)}'"


def healthy_flags() -> list[Planted]:
    """Launches of which nothing must be said."""
    launches = {
        "SGLang (3, 1, 4)": HEALTHY,
        "SGLang (15, 1, 16)": f"{START} {EAGLE3} {DRAFT} {_chain(15, 1, 16)}",
        "SGLang (5, 4, 8)": f"{START} {EAGLE3} {DRAFT} {_chain(5, 4, 8)}",
        "vLLM K 3": vllm({}),
    }
    return [Planted(f"flags {name}", flags=text) for name, text in launches.items()]


def flag_faults() -> list[Planted]:
    """Launches each with one fault."""
    sglang = f"{START} {EAGLE3} {DRAFT}"
    launches = {
        "SGLang (1, 1, 4)": ("flags.clamped", f"{sglang} {_chain(1, 1, 4)}"),
        "SGLang (4, 1, 24)": ("flags.clamped", f"{sglang} {_chain(4, 1, 24)}"),
        "SGLang (5, 1, 4)": ("flags.clamped", f"{sglang} {_chain(5, 1, 4)}"),
        "SGLang (1, 1, 16)": ("flags.clamped", f"{sglang} {_chain(1, 1, 16)}"),
        "vLLM's K as draft tokens": ("flags.clamped flags.counting", f"{sglang} {_chain(3, 1, 3)}"),
        "EAGLE for EAGLE-3": ("flags.algorithm", HEALTHY.replace("EAGLE3", "EAGLE")),
        "no algorithm": ("flags.off", HEALTHY.replace(EAGLE3, "")),
        "no draft path": ("flags.no-draft", HEALTHY.replace(DRAFT, "")),
        "quantisation inherited": ("flags.quantization", f"{HEALTHY} --quantization awq"),
        "thresholds": ("flags.lossy", f"{HEALTHY} --speculative-accept-threshold-single 0.9"),
        "simulated": ("flags.simulated", f"SGLANG_SIMULATE_ACC_LEN=3.2 {HEALTHY}"),
        "dummy weights": ("flags.dummy", f"{HEALTHY} --speculative-draft-load-format dummy"),
        "steps without topk": ("flags.refused", f"{sglang} --speculative-num-steps 3"),
        "half": ("flags.half", f"{HEALTHY} --dtype half"),
        "context too long": ("flags.context", f"{HEALTHY} --context-length 32768"),
        "flag given twice": ("flags.repeated", f"{HEALTHY} --tp 2 --tp 4"),
        "vLLM without method": ("flags.algorithm", vllm({"method": None})),
        "vLLM with EAGLE": ("flags.algorithm", vllm({"method": "eagle"})),
        "vLLM without draft": ("flags.no-draft", vllm({"model": None})),
        "vLLM without K": ("flags.refused", vllm({"num_speculative_tokens": None})),
        "vLLM synthetic": ("flags.simulated", vllm({"rejection_sample_method": "synthetic"})),
    }
    return [
        Planted(f"flags {name}", (frozenset(kinds.split()),), flags=text) for name, (kinds, text) in launches.items()
    ]
