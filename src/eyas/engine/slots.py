"""Cache slots: who holds which."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

SEARCHED = 4096
"""Free slots among which a run is looked for: a large cache has one soon, or is too scattered for it to matter."""


class SlotPool:
    """Reference counts of all slots. One owner: the engine."""

    def __init__(self, num_slots: int) -> None:
        self.references = np.zeros(num_slots, dtype=np.int32)
        self.num_free = num_slots

    def allocate(self, count: int) -> list[int] | None:
        """``count`` free slots, ascending, consecutive where the lowest ones have such a run; None if there are too
        few."""
        if count > self.num_free:
            return None
        free = np.flatnonzero(self.references == 0)[: count + SEARCHED]
        # A run of consecutive slots lets attention read the cache without gathering.
        fits = np.flatnonzero(free[count - 1 :] - free[: len(free) - count + 1] == count - 1)
        first = int(fits[0]) if len(fits) else 0
        taken = free[first : first + count]
        self.references[taken] = 1
        self.num_free -= count
        return taken.tolist()

    def share(self, slots: Sequence[int]) -> None:
        """One more holder of each slot."""
        assert (self.references[list(slots)] > 0).all(), "a shared slot is held by someone"
        self.references[list(slots)] += 1

    def release(self, slots: Sequence[int]) -> None:
        """One holder fewer of each slot."""
        slots = list(slots)
        self.references[slots] -= 1
        left = self.references[slots]
        assert (left >= 0).all(), "a slot was released twice"
        self.num_free += len(slots) - int(np.count_nonzero(left))
