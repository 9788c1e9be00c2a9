"""Who runs, in which slots: admission, growth, preemption, and what is kept of a text that ended."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

import numpy as np

from eyas.engine.queue import FairQueue
from eyas.engine.radix import PrefixCache, common, pairs_of
from eyas.engine.request import Request
from eyas.engine.slots import SlotPool
from eyas.speculate.propose import scratch_slots
from eyas.speculate.state import DecodeState

GROWTH = 32
"""Slots that a text takes at a time: attention reads consecutive ones without gathering."""
FORESIGHT = 64
"""Tokens of each answer that admission leaves room for; more would waste slots, fewer would preempt too often."""
EVICTED_PART = 128
"""The part of all slots that is won back at a time, if as much is kept that nobody uses."""
WORTH_WAITING = 64
"""Rows that a prompt which is being read must save another one, for that to wait for them."""


class Scheduler:
    """Owner of the slots, the prefix cache, and the requests that wait and run."""

    def __init__(
        self,
        num_slots: int,
        max_running: int,
        prefix_cache: bool,
        reads_along: Callable[[Request, int], bool] | None = None,
    ) -> None:
        """``reads_along``: whether a draft reads the prompt of a request that begins beside so many others; then its
        rows count only where the draft has them too. None: there is no draft that reads."""
        self.pool, self.max_running, self.reads_along = SlotPool(num_slots), max_running, reads_along
        self.prefixes = PrefixCache(self.pool) if prefix_cache else None
        self.waiting = FairQueue()
        self.running: list[Request] = []
        """In the order of their admission."""
        self.preemptions = 0

    def drafted(self, request: Request) -> bool:
        """Whether a draft reads along with the request; decided once, when its turn comes."""
        if self.reads_along is None:
            return False
        if request.drafted is None:
            request.drafted = self.reads_along(request, len(self.running))
        return request.drafted if request.state is None else request.state.drafted

    def admit(self) -> None:
        """Let requests begin, in the queue's order, while there is room for what they soon need."""
        while len(self.running) < self.max_running and (request := self.waiting.peek()) is not None:
            if self._soon_shared(request) or not self._begin(request):
                return
            assert self.waiting.pop() is request
            self.running.append(request)

    def make_room(self, needs: Mapping[Request, int]) -> None:
        """See that each request has as many spare slots as it is going to write, first come first served.

        Who came last of the lowest priority gives its slots up where there are too few, and waits again.
        """
        for request in sorted(needs, key=self._rank):
            while request in self.running and not self._grow(request, needs[request]):
                self.preempt(max(self.running, key=self._rank))

    def preempt(self, request: Request) -> None:
        """Back to the queue; its rows stay known until their slots are needed."""
        assert request.state is not None
        self.running.remove(request)
        self._let_go(request)
        request.state.forget_rows()
        request.shared, request.preemptions = [], request.preemptions + 1
        self.preemptions += 1
        self.waiting.put_back(request)

    def retire(self, request: Request) -> None:
        """Give the slots back, or keep the rows that another prompt may share."""
        self.running.remove(request)
        self._let_go(request)
        if request.state is not None:
            # The caller may hold the request for long; its features are of no more use.
            request.state.pending = []

    def keep_prompt(self, request: Request) -> None:
        """What was read of a prompt may be shared from now on, while its answer goes on."""
        state = request.state
        if self.prefixes is None or state is None:
            return
        rows = state.table[: len(request.prompt)].tolist()
        self.pool.share(rows)
        self.prefixes.keep(state.tokens[: len(rows) + 1], rows, state.absorbed if self.drafted(request) else 0)

    def check_integrity(self) -> None:
        """Every slot is held by exactly those who are said to hold it; raises AssertionError."""
        held = np.zeros_like(self.pool.references)
        for slots in self._holders():
            np.add.at(held, slots, 1)
        wrong = np.flatnonzero(held != self.pool.references)
        assert not len(wrong), (
            f"slots {wrong[:5].tolist()}: held {held[wrong[:5]]}, counted {self.pool.references[wrong[:5]]}"
        )

    # ----------------------------------------------------------------------------------------------------------------

    def _rank(self, request: Request) -> tuple[int, int]:
        return -request.priority, self.running.index(request) if request in self.running else len(self.running)

    def _holders(self) -> Iterator[np.ndarray]:
        for request in self.running:
            assert request.state is not None
            yield request.state.table.numpy()
            yield np.asarray(request.state.spare, np.int64)
        if self.prefixes is not None:
            for node in self.prefixes.nodes():
                yield node.slots

    def _begin(self, request: Request) -> bool:
        """Give a request the slots of its text and a little more; False if it has to wait."""
        again = request.state is not None
        text = request.state.tokens if request.state is not None else list(request.prompt)
        # A text that was preempted reads at least one row again: the draft goes on from its feature.
        known, drafted = text[:-1] if again else text, self.drafted(request)
        shared = self.prefixes.match(known, drafted) if self.prefixes is not None else []
        needed = len(text) - len(shared) + scratch_slots(request.speculation)
        foresight = sum(_foresight(other) for other in (*self.running, request))
        slots = self._allocate(needed) if not self.running or self._available >= needed + foresight else None
        if slots is None:
            assert self.running, "a request alone fits: submit() checks it"
            self.pool.release(shared)
            return False
        if request.state is None:
            request.state = DecodeState(text, len(text), request.sampling, slots)
            request.state.drafted = drafted or self.reads_along is None
            request.state.constraint, request.state.top_logprobs = (
                request.extras.constraint,
                request.extras.top_logprobs,
            )
            request.cached_prompt = len(shared)
        request.state.spare = slots
        request.state.share(shared, drafted)
        request.shared = shared
        return True

    def _soon_shared(self, request: Request) -> bool:
        """Whether a prompt that is being read will save this one enough rows to wait for it."""
        if self.prefixes is None or request.state is not None:
            return False
        drafted, pairs = self.drafted(request), pairs_of(request.prompt)
        known: int | None = None
        for other in self.running:
            if other.num_answered or (drafted and not self.drafted(other)):
                continue
            same = common(pairs, pairs_of(other.prompt[: len(pairs) + 1]))
            if known is None:
                known = self.prefixes.length(request.prompt, drafted)
            if same - known >= min(WORTH_WAITING, max(len(pairs), 1)):
                return True
        return False

    def _grow(self, request: Request, need: int) -> bool:
        state = request.state
        assert state is not None
        missing = need - len(state.spare)
        if missing <= 0:
            return True
        slots = self._allocate(max(missing, GROWTH)) or self._allocate(missing)
        if slots is None:
            return False
        state.spare += slots
        return True

    @property
    def _available(self) -> int:
        return self.pool.num_free + (self.prefixes.num_evictable if self.prefixes is not None else 0)

    def _allocate(self, count: int) -> list[int] | None:
        """``count`` slots, giving up kept prefixes as needed."""
        missing = count - self.pool.num_free
        if missing > 0:
            if self._available < count:
                return None
            assert self.prefixes is not None
            # More at once than is missing: each time costs a walk through all that is kept.
            self.prefixes.evict(max(missing, len(self.pool.references) // EVICTED_PART))
        return self.pool.allocate(count)

    def _let_go(self, request: Request) -> None:
        state = request.state
        assert state is not None
        self.pool.release(state.spare)
        table = state.table.tolist()
        if self.prefixes is None:
            self.pool.release(table)
            return
        # Rows that the draft has not absorbed count as absent for it, or its proposals would depend on the cache.
        rows = min(len(table), len(state.tokens) - 1)
        self.pool.release(table[rows:])
        self.prefixes.keep(
            state.tokens[: rows + 1], table[:rows], state.absorbed if self.reads_along is not None else 0
        )
        state.spare = []


def _foresight(request: Request) -> int:
    return min(request.max_tokens - request.num_answered, FORESIGHT)
