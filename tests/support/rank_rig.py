"""What ranks are asked to do, and what one process alone gives for the same."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from eyas.config import SamplingSettings, SpeculativeSettings
from eyas.draft.checkpoint import load_draft
from eyas.draft.model import DraftModel
from eyas.engine.choosing import Chooser
from eyas.engine.engine import Engine
from eyas.kernels import Part, Rows
from eyas.models.config import parse_llama_config
from eyas.models.llama import expected_shapes
from eyas.models.target import Target
from rigs import chain, random_draft, tree

CHILD = Path(__file__).parents[1] / "rank_worker.py"
VOCAB = 17
"""Small, so that a draft that has learnt nothing is right now and then."""
UNEVEN = {
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": VOCAB,
    "hidden_size": 72,
    "intermediate_size": 101,
    "num_hidden_layers": 2,
    "num_attention_heads": 9,
    "num_key_value_heads": 3,
    "max_position_embeddings": 128,
}
BIASED = {**UNEVEN, "attention_bias": True, "mlp_bias": True}
NORMED = {**UNEVEN, "architectures": ["Qwen3ForCausalLM"], "head_dim": 16, "tie_word_embeddings": True}
PLANS = {"plain": None, "chain": chain(3), "tree": tree(3, 2, 6)}


def write_random_target(folder: Path, config: dict[str, Any], seed: int = 5) -> Path:
    """A model folder with this config and random weights whose greedy text is no loop."""
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config))
    generator, tensors = torch.Generator().manual_seed(seed), {}
    for name, dims in expected_shapes(parse_llama_config(config)).items():
        noise = torch.randn(dims, generator=generator)
        fan_in = 1.0 if "embed" in name else dims[-1] ** 0.5
        plain = 0.1 * noise + (not name.endswith("bias"))
        tensors[name] = plain if len(dims) == 1 else noise * (2.0 / fan_in)
    save_file(tensors, folder / "model.safetensors")
    return folder


def start(
    meeting: Path, size: int, job: dict[str, Any], device: str = "cpu", patience: float = 120.0
) -> list[subprocess.Popen[str]]:
    """``size`` processes that meet and do the job; what they find is in ``meeting``."""
    asked = json.dumps({"size": size, "device": device, "patience": patience, **job})
    command = [sys.executable, str(CHILD), str(meeting), asked]
    pipe = subprocess.PIPE
    return [subprocess.Popen([*command, str(rank)], stdout=pipe, stderr=pipe, text=True) for rank in range(size)]


def finish(processes: Sequence[subprocess.Popen[str]], seconds: float = 200.0) -> None:
    """Wait for all, which have to succeed."""
    try:
        for process in processes:
            _, said = process.communicate(timeout=seconds)
            assert process.returncode == 0, said[-3000:]
    finally:
        for process in processes:
            process.kill()


def read_batches(target: Target) -> dict[str, Tensor]:
    """A long and a short prompt in one forward, then a row of one and a tree of the other: logits and taps."""
    cache, taps, found = target.new_cache(64), tuple(range(target.num_layers + 1)), {}
    long, short = [i * 7 % VOCAB for i in range(20)], [3, 1, 4, 1, 5]
    none = torch.arange(0)
    parts = [Part.chain(long, 0, range(20), none), Part.chain(short, 0, range(20, 25), none)]
    again = [
        Part.chain([9], 20, [25], torch.arange(20)),
        Part([2, 7, 8, 6], [5, 6, 6, 7], [-1, 0, 0, 2], range(26, 30), torch.arange(20, 25)),
    ]
    for name, batch in (("prompts", parts), ("tree", again)):
        rows = Rows.build(batch)
        out = target.new_outputs(len(rows), taps)
        target.forward(rows, cache, out)
        found |= {f"{name}.taps": out.taps, f"{name}.logits": target.logits(out.hidden)}
    return {**found, "head": target.head().clone(), "embedding": target.embedding().clone()}


def digest(tensors: dict[str, Tensor]) -> str:
    """Of all bits."""
    whole = hashlib.sha256()
    for name in sorted(tensors):
        whole.update(tensors[name].contiguous().numpy().tobytes())
    return whole.hexdigest()


def draft_of(target: Target, folder: str | None) -> DraftModel:
    """The draft in ``folder``, or one that has learnt nothing."""
    return random_draft(target, seed=1) if folder is None else load_draft(Path(folder), target)


def answers(
    target: Target,
    draft: DraftModel,
    prompts: Sequence[Sequence[int]],
    plan: SpeculativeSettings | None,
    length: int,
    chooser: Chooser | None = None,
) -> list[dict[str, list[Any]]]:
    """Greedy answers of one batch, with who proposed what. The cache is small, so that requests are preempted."""
    engine = Engine(target, draft, num_slots=3 * (max(map(len, prompts)) + length), prefill_tokens=16)
    if chooser is not None:
        engine.chooser = chooser
    greedy = SamplingSettings(max_new_tokens=length)
    requests = [engine.submit(prompt, greedy, plan) for prompt in prompts]
    engine.run()
    engine.check_integrity()
    return [{"answer": r.answer, "origins": r.origins, "accepted": [x.accepted for x in r.rounds]} for r in requests]
