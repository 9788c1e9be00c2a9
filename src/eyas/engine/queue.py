"""Who goes next: the higher priority, then the client that had least, then who came first.

Start-time fair queueing (Goyal et al. 1996): a request's tag is the virtual time at which its client's earlier requests
are through, at a cost of its tokens; the virtual time is the tag of the last request that was let go.
"""

from __future__ import annotations

from collections.abc import Iterator
from heapq import heapify, heappop, heappush, nlargest
from itertools import count
from operator import itemgetter

from eyas.engine.request import Request

MOST_CLIENTS = 1024
"""Of whom it is known what they had; up to twice as many for a while."""


class FairQueue:
    """Requests that wait. One that comes back (preempted) goes before all others of its priority."""

    def __init__(self) -> None:
        self._heap: list[tuple[int, float, int, Request]] = []
        self._gone: set[Request] = set()
        self._through: dict[str, float] = {}
        self._now, self._order = 0.0, count()

    def push(self, request: Request) -> None:
        """To its place."""
        tag = max(self._now, self._through.get(request.client, 0.0))
        self._through[request.client] = tag + len(request.prompt) + request.max_tokens
        heappush(self._heap, (-request.priority, tag, next(self._order), request))

    def put_back(self, request: Request) -> None:
        """Before the others of its priority."""
        # Who came first is preempted last, and so comes back before the others.
        order = next(self._order)
        heappush(self._heap, (-request.priority, -1.0 - order, order, request))

    def peek(self) -> Request | None:
        """The next one, which stays."""
        self._sweep()
        return self._heap[0][-1] if self._heap else None

    def pop(self) -> Request:
        """The next one."""
        self._sweep()
        _, tag, _, request = heappop(self._heap)
        self._now = max(self._now, tag)
        if not self._heap:
            # Nobody waits: what each had before does not count any more.
            self._through.clear()
            self._now = 0.0
        elif len(self._through) > 2 * MOST_CLIENTS:
            # Who is through by now stands as one that never came; so does, of too many, who is nearest to it.
            self._through = dict(nlargest(MOST_CLIENTS, self._through.items(), key=itemgetter(1)))
        return request

    def remove(self, request: Request) -> None:
        """It is not wanted any more."""
        assert request in self
        self._gone.add(request)
        self._sweep()
        if 2 * len(self._gone) > len(self._heap):
            # One far behind may never come to its turn.
            self._heap = [entry for entry in self._heap if entry[-1] not in self._gone]
            self._gone.clear()
            heapify(self._heap)

    def __contains__(self, request: Request) -> bool:
        return any(entry[-1] is request for entry in self._heap) and request not in self._gone

    def __iter__(self) -> Iterator[Request]:
        return (entry[-1] for entry in sorted(self._heap, key=lambda entry: entry[:3]) if entry[-1] not in self._gone)

    def __len__(self) -> int:
        return len(self._heap) - len(self._gone)

    def _sweep(self) -> None:
        while self._heap and self._heap[0][-1] in self._gone:
            self._gone.discard(heappop(self._heap)[-1])
