"""Features of finished texts: the taps and the last state of every position."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from eyas.kernels import Rows
from eyas.kernels.rows import Part
from eyas.models.target import Outputs, Target


def extract_features(target: Target, tokens: Sequence[int], taps: Sequence[int], chunk: int = 512) -> Outputs:
    """Run one text through the target, ``chunk`` rows at a time, and keep every position's taps and hidden state.

    Returns buffers of len(tokens) rows. Raises ``taps.range``.
    """
    n = len(tokens)
    cache, out = target.new_cache(n), target.new_outputs(n, taps)
    for start in range(0, n, chunk):
        end = min(start + chunk, n)
        positions = range(start, end)
        parents = range(-1, end - start - 1)
        rows = Rows.build([Part(tokens[start:end], positions, parents, list(positions), torch.arange(start))])
        target.forward(rows, cache, Outputs(out.hidden[start:end], out.taps[start:end], out.tap_ids))
    return out
