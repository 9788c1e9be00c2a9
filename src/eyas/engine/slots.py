"""Cache slots: who holds which, and which prefixes can be shared."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

import numpy as np


class SlotPool:
    """Reference counts of all slots. One owner: the engine."""

    def __init__(self, num_slots: int) -> None:
        self.references = np.zeros(num_slots, dtype=np.int32)

    @property
    def num_free(self) -> int:
        return int((self.references == 0).sum())

    def allocate(self, count: int) -> list[int] | None:
        """``count`` free slots, ascending, consecutive where there is such a run; None if there are too few."""
        free = np.flatnonzero(self.references == 0)
        if len(free) < count:
            return None
        # A run of consecutive slots lets attention read the cache without gathering.
        fits = np.flatnonzero(free[count - 1 :] - free[: len(free) - count + 1] == count - 1)
        first = int(fits[0]) if len(fits) else 0
        taken = free[first : first + count]
        self.references[taken] = 1
        return taken.tolist()

    def share(self, slots: Sequence[int]) -> None:
        """One more holder of each slot."""
        assert (self.references[list(slots)] > 0).all(), "a shared slot is held by someone"
        self.references[list(slots)] += 1

    def release(self, slots: Sequence[int]) -> None:
        """One holder fewer of each slot."""
        self.references[list(slots)] -= 1
        assert (self.references[list(slots)] >= 0).all(), "a slot was released twice"


class PrefixCache:
    """Finished texts whose rows are kept, so that a prompt with the same beginning does not compute them again.

    The least recently used are dropped first when slots run short.
    """

    def __init__(self, pool: SlotPool) -> None:
        self.pool = pool
        self._texts: OrderedDict[tuple[int, ...], list[int]] = OrderedDict()

    def match(self, tokens: Sequence[int]) -> list[int]:
        """Slots of the longest usable prefix of ``tokens``, shared with the caller, who releases them.

        Draft row t depends on token t + 1, and the next draft row needs the feature at its own position, so a
        common beginning of n tokens gives rows 0 … n − 2.
        """
        best: tuple[int, ...] | None = None
        most = 0
        for text, slots in self._texts.items():
            usable = min(_common(text, tokens) - 1, len(slots))
            if usable > most:
                best, most = text, usable
        if best is None:
            return []
        self._texts.move_to_end(best)
        shared = self._texts[best][:most]
        self.pool.share(shared)
        return shared

    def keep(self, tokens: Sequence[int], slots: Sequence[int]) -> None:
        """Take over the caller's hold on ``slots``, the rows 0 … len(slots) − 1 of ``tokens``."""
        text = tuple(tokens)
        if not slots or text in self._texts:
            self.pool.release(slots)
            return
        self._texts[text] = list(slots)

    def drop_oldest(self) -> bool:
        """Give up the least recently used text; False if there is none."""
        if not self._texts:
            return False
        _, slots = self._texts.popitem(last=False)
        self.pool.release(slots)
        return True


def allocate(pool: SlotPool, prefixes: PrefixCache | None, count: int) -> list[int] | None:
    """``count`` slots, dropping kept prefixes as needed; None to wait for running requests to end."""
    while (slots := pool.allocate(count)) is None:
        if prefixes is None or not prefixes.drop_oldest():
            return None
    return slots


def _common(a: Sequence[int], b: Sequence[int]) -> int:
    n = 0
    for x, y in zip(a, b, strict=False):
        if x != y:
            break
        n += 1
    return n
