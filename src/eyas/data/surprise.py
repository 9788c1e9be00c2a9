"""How unexpected a text is to the target that is going to see it."""

from __future__ import annotations

from collections.abc import Sequence

from eyas.models.reading import read_text
from eyas.models.target import Target


def mean_surprise(target: Target, before: Sequence[int], tokens: Sequence[int]) -> float:
    """Mean of −log p in nats over ``tokens``, each given ``before`` and the tokens before it; the logarithm of the
    perplexity. ``before`` and ``tokens``: at least one id each.
    """
    assert before, "the first token needs something before it"
    assert tokens
    hidden = read_text(target, [*before, *tokens], ()).hidden[len(before) - 1 : -1]
    logprobs = target.logits(hidden).float().log_softmax(-1)
    chosen = logprobs[range(len(tokens)), list(tokens)]
    return float(-chosen.mean())
