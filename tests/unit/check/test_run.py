"""The levels of a check together: which engines it is for."""

from __future__ import annotations

from pathlib import Path

import pytest

from eyas.check.run import CheckRequest, run_check
from eyas.dialects.engines import Engine
from eyas.testing.planting import Planted, ids, tiny

SGLANG = "python -m sglang.launch_server --model-path t --speculative-algorithm EAGLE3 --speculative-draft-model-path d"
VLLM = """vllm serve t --speculative-config '{"method": "eagle3", "model": "d", "num_speculative_tokens": 3}'"""
STEPS = " --speculative-num-steps 3 --speculative-eagle-topk 1 --speculative-num-draft-tokens 4"


@pytest.mark.parametrize(
    ("flags", "engines", "faults"),
    [
        (SGLANG + STEPS, (), []),
        (VLLM, (), ["config.dialect"]),
        (None, (), ["config.dialect"]),
        (SGLANG + STEPS, ("sglang", "vllm"), ["config.dialect"]),
    ],
    ids=["SGLang is launched", "vLLM is launched", "not said", "both are asked for"],
)
def test_a_launch_command_says_which_engine_serves(
    flags: str | None, engines: tuple[str, ...], faults: list[str], tmp_path: Path
) -> None:
    """Ids that only SGLang reads as trained are a fault where vLLM serves."""
    pair = tiny()
    right = [tap - 1 for tap in pair.taps]
    wrong = [tap + 1 for tap in pair.taps]
    draft = Planted("x", plant=ids(right, wrong), own=True).make(pair, tmp_path / "draft")
    asked = tuple(Engine.parse(name) for name in engines)
    verdict = run_check(CheckRequest(draft, None, flags=flags, engines=asked))
    assert [f.kind for f in verdict.findings if f.weight == "fault"] == faults
