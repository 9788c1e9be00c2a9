"""A target's own answers at temperature 0, many prompts at once."""

from __future__ import annotations

from collections.abc import Sequence

from eyas.config import SamplingSettings
from eyas.engine.engine import Engine
from eyas.models.target import Target


def greedy_answers(
    target: Target, prompts: Sequence[Sequence[int]], eos_ids: Sequence[int], max_new_tokens: int
) -> list[list[int]]:
    """The answer to each prompt, as token ids, the end token included where it came."""
    slots = sum(len(prompt) + max_new_tokens + 1 for prompt in prompts) + 1
    engine = Engine(target, None, eos_ids=eos_ids, num_slots=slots)
    requests = [engine.submit(prompt, SamplingSettings(max_new_tokens=max_new_tokens)) for prompt in prompts]
    engine.run()
    return [list(request.answer) for request in requests]
