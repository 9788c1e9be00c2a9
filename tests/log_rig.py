"""Figures of a run that nobody computed, for the tests of what a run writes and shows."""

from __future__ import annotations

import math


def step_values(step: int, ttt_steps: int = 3) -> dict:
    """What the trainer reports after optimizer step ``step``."""
    accuracies = [0.7 * (1 - math.exp(-step / 20)) * 0.9**i for i in range(ttt_steps)]
    return {
        "step": step,
        "answer_tokens": 100 * step + step % 7,
        "loss": 4 * math.exp(-step / 30) + 1 / 3,
        "step_losses": [1 / (step + i) for i in range(ttt_steps)],
        "marginal_accuracies": accuracies,
        "gradient_norm": 1 / 7,
        "learning_rate": 1e-3 / step,
    }


def record(domain: str, num_steps: int, length: float, temperature: float = 0.0, sampling: str = "one-hot") -> dict:
    """One expected accept length, with an interval around it."""
    return {
        "prompt_set": domain,
        "num_steps": num_steps,
        "temperature": temperature,
        "draft_sampling": sampling,
        "accept_length": length,
        "low": length - 0.1,
        "high": length + 0.1,
        "ceiling": num_steps + 1,
    }


def evaluation(step: int, domains: tuple[str, ...] = ("chat", "code", "all"), first: float | None = None) -> dict:
    """An evaluation as the log keeps it."""
    level = math.log2(step + 1) / 10
    curve = {"temperature": 0.0, "draft_sampling": "one-hot", "rounds": 9, "conversations": 3}
    survival = [first if first is not None else level, level / 2]
    return {
        "step": step,
        "answer_tokens": 100 * step + step % 7,
        "expected": [record(d, k, 1 + k * level / 4) for d in domains for k in (3, 5, 7)],
        "curves": [{"prompt_set": d, "survival": survival, "conditional": [level, 0.5], **curve} for d in domains],
    }
