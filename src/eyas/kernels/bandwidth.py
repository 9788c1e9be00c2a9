"""The memory bandwidth of this machine, the ceiling of decoding: every token reads all weights once."""

from __future__ import annotations

import statistics
import time

import torch


def read_bandwidth(num_bytes: int = 1 << 28, repeats: int = 7) -> float:
    """Bytes per second at which all of torch's threads together read ``num_bytes`` once; the median."""
    data = torch.ones(num_bytes // 8, dtype=torch.int64)
    rates = []
    for _ in range(repeats):
        start = time.perf_counter()
        data.sum()
        rates.append(num_bytes / (time.perf_counter() - start))
    return statistics.median(rates)
