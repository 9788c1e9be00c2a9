"""What quantization costs: the same texts read by the same target in other numerics, beside fp32.

    python benchmarks/bench_quality.py [--out FILE] [--prompts N] [--numerics bf16 int8]

The texts are what the target says in fp32, greedily, to chat and code prompts. At each of their positions: how often
the likeliest token is the same, the mean negative log-likelihood of what was said, and the divergence KL(fp32 ‖ other).
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from bench_decode import machine
from rich.console import Console
from rich.table import Table
from torch import Tensor

from eyas.artifacts import cache_root, write_json
from eyas.engine.greedy import greedy_answers
from eyas.engine.session import open_session
from eyas.models.reading import read_texts
from eyas.models.target import Target
from eyas.pull import load_prompts, resolve_model

MODEL = "builtin:smollm2-135m"
SETS = ("prompts:mt-bench", "prompts:humaneval")
ANSWER = 96
LONGEST_PROMPT = 300


def conversations(target: Target, encode: Any, eos_ids: Sequence[int], count: int) -> list[tuple[list[int], list[int]]]:
    """(prompt, answer), half of each set."""
    texts = [prompt.user_turns[0] for name in SETS for prompt in load_prompts(name, cache_root(), (count + 1) // 2)]
    prompts = [encode([("user", text)])[-LONGEST_PROMPT:] for text in texts[:count]]
    answers = greedy_answers(target, prompts, eos_ids, ANSWER)
    return [(prompt, answer) for prompt, answer in zip(prompts, answers, strict=True) if answer]


def log_probabilities(target: Target, said: Sequence[tuple[list[int], list[int]]]) -> list[Tensor]:
    """[answer, V] of each text, at the positions that its answer was said from."""
    found = []
    for prompt, answer in said:
        hidden = read_texts(target, [[*prompt, *answer]], ())[0].hidden
        found.append(target.logits(hidden[len(prompt) - 1 : -1]).log_softmax(-1))
    return found


def compared(truth: Sequence[Tensor], other: Sequence[Tensor], answers: Sequence[list[int]]) -> dict[str, float]:
    """Over all positions."""
    same = nats = kl = count = 0.0
    for p, q, answer in zip(truth, other, answers, strict=True):
        same += float((p.argmax(-1) == q.argmax(-1)).sum())
        nats -= float(q.gather(1, torch.tensor(answer)[:, None]).sum())
        kl += float((p.exp() * (p - q)).sum())
        count += len(answer)
    return {"positions": count, "top1": same / count, "nll": nats / count, "kl": kl / count}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path)
    parser.add_argument("--prompts", type=int, default=100)
    parser.add_argument("--numerics", nargs="+", default=["bf16", "int8"])
    args = parser.parse_args()
    folder = resolve_model(MODEL, cache_root())
    session = open_session(folder, None, "fp32")
    said = conversations(session.target, session.encode_chat, session.eos_ids, args.prompts)
    answers = [answer for _, answer in said]
    truth = log_probabilities(session.target, said)
    result: dict[str, Any] = {"machine": machine(), "conversations": len(said), "numerics": {}}
    rows = result["numerics"]
    rows["fp32"] = compared(truth, truth, answers) | {"weight_bytes": session.target.weight_bytes()}
    for name in args.numerics:
        target = open_session(folder, None, name).target
        rows[name] = compared(truth, log_probabilities(target, said), answers) | {"weight_bytes": target.weight_bytes()}
    table = Table("numerics", "MB of weights", "top-1 as fp32", "nll", "against fp32", "KL")
    for name, row in rows.items():
        cells = (f"{row['weight_bytes'] / 1e6:.0f}", f"{row['top1']:.4f}", f"{row['nll']:.4f}")
        table.add_row(name, *cells, f"{row['nll'] / rows['fp32']['nll'] - 1:+.2%}", f"{row['kl']:.5f}")
    Console().print(table, f"{rows['fp32']['positions']:.0f} positions of {len(said)} answers")
    if args.out:
        write_json(args.out, result)


if __name__ == "__main__":
    main()
