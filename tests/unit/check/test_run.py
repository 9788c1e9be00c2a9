"""The levels of a check together: which engines it is for."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from safetensors.torch import load_file, save_file

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


def test_other_numerics_are_not_another_target(tmp_path: Path) -> None:
    """The witness is of fp32; what int8 costs is told by the accept length. Other weights are still another target."""
    pair, mended = tiny(), tmp_path / "mended"
    run_check(CheckRequest(pair.draft, Path(pair.target), fix=mended))
    assert run_check(CheckRequest(mended, Path(pair.target))).answer == "proven"
    verdict = run_check(CheckRequest(mended, Path(pair.target), dtype="int8"))
    assert [f.kind for f in verdict.findings if f.weight == "fault"] == []
    assert verdict.survival is not None
    witness = next(link for link in verdict.links if link.name in ("witness", "target"))
    assert witness.state in ("skipped", "proven")
    other = tmp_path / "other"
    shutil.copytree(pair.target, other)
    weights = load_file(other / "model.safetensors")
    weights["model.norm.weight"] = weights["model.norm.weight"].roll(1)
    save_file(weights, other / "model.safetensors")
    changed = run_check(CheckRequest(mended, other, dtype="int8"))
    assert "target.other" in [f.kind for f in changed.findings if f.weight == "fault"]
