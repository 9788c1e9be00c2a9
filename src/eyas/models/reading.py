"""A target reads a finished text: the taps and the last state of every position."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from eyas.kernels import Part, Rows
from eyas.models.target import Outputs, Target


def read_text(target: Target, tokens: Sequence[int], taps: Sequence[int], chunk: int = 512) -> Outputs:
    """Run one text through the target, ``chunk`` rows at a time, and keep every position's taps and hidden state.

    Returns buffers of len(tokens) rows. Raises ``taps.range``.
    """
    n = len(tokens)
    cache, out = target.new_cache(n), target.new_outputs(n, taps)
    for start in range(0, n, chunk):
        rows = slice(start, min(start + chunk, n))
        part = Part.chain(tokens[rows], start, range(n)[rows], torch.arange(start))
        target.forward(Rows.build([part]), cache, Outputs(out.hidden[rows], out.taps[rows], out.tap_ids))
    return out
