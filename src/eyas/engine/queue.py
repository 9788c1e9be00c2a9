"""Who goes next: the higher priority; then the client that had least, and of it the user that had least; then who came
first.

Start-time fair queueing (Goyal et al. 1996): a request's tag is the virtual time at which its client's earlier
requests are through, at a cost of its tokens; the virtual time is the tag of the last request that was let go. A
client's place is taken by whichever of its users is due, so that no client gains by naming many.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush, nlargest
from itertools import count
from operator import itemgetter

from eyas.engine.request import Request

MOST_NAMES = 1024
"""Clients, or users of one, of whom it is known what they had; up to twice as many for a while."""


@dataclass
class Tags:
    """The virtual time, and what each name had."""

    now: float = 0.0
    through: dict[str, float] = field(default_factory=dict)

    def next(self, name: str, cost: int) -> float:
        """The tag of the name's next request."""
        tag = max(self.now, self.through.get(name, 0.0))
        self.through[name] = tag + cost
        return tag

    def let_go(self, tag: float) -> None:
        """A request with this tag has its turn."""
        self.now = max(self.now, tag)
        if len(self.through) > 2 * MOST_NAMES:
            # Who is through by now stands as one that never came; so does, of too many, who is nearest to it.
            self.through = dict(nlargest(MOST_NAMES, self.through.items(), key=itemgetter(1)))


@dataclass
class Users:
    """A client's requests of one priority, by its users' turns."""

    tags: Tags = field(default_factory=Tags)
    heap: list[tuple[float, int, Request]] = field(default_factory=list)

    def remove(self, request: Request) -> None:
        self.heap = [entry for entry in self.heap if entry[-1] is not request]
        heapify(self.heap)


class FairQueue:
    """Requests that wait. One that comes back (preempted) goes before all others of its priority."""

    def __init__(self) -> None:
        self._places: list[tuple[int, float, int, str]] = []
        """Turns of clients: more than they have requests where some were given up; those are passed over."""
        self._users: dict[tuple[int, str], Users] = {}
        self._back: list[tuple[int, int, Request]] = []
        self._tags, self._order, self._count = Tags(), count(), 0

    def push(self, request: Request) -> None:
        """To its place."""
        cost, order = len(request.prompt) + request.max_tokens, next(self._order)
        heappush(self._places, (-request.priority, self._tags.next(request.client, cost), order, request.client))
        users = self._users.setdefault((request.priority, request.client), Users())
        heappush(users.heap, (users.tags.next(request.extras.user, cost), order, request))
        self._count += 1

    def put_back(self, request: Request) -> None:
        """Before the others of its priority."""
        # Who came first is preempted last, and so comes back before the others.
        heappush(self._back, (-request.priority, -next(self._order), request))
        self._count += 1

    def peek(self) -> Request | None:
        """The next one, which stays."""
        self._sweep()
        if self._back and (not self._places or self._back[0][0] <= self._places[0][0]):
            return self._back[0][-1]
        return self._due().heap[0][-1] if self._places else None

    def pop(self) -> Request:
        """The next one."""
        request = self.peek()
        assert request is not None
        self._count -= 1
        if self._back and self._back[0][-1] is request:
            heappop(self._back)
        else:
            users = self._due()
            _, tag, _, _ = heappop(self._places)
            self._tags.let_go(tag)
            users.tags.let_go(heappop(users.heap)[0])
        self._forget()
        return request

    def remove(self, request: Request) -> None:
        """It is not wanted any more."""
        assert request in self
        self._count -= 1
        if any(entry[-1] is request for entry in self._back):
            self._back = [entry for entry in self._back if entry[-1] is not request]
            heapify(self._back)
        else:
            self._users[request.priority, request.client].remove(request)
            if len(self._places) > 2 * self._count:
                self._drop_empty_places()
        self._forget()

    def __contains__(self, request: Request) -> bool:
        return any(waiting is request for waiting in self)

    def __iter__(self) -> Iterator[Request]:
        """In no order."""
        yield from (entry[-1] for entry in self._back)
        for users in self._users.values():
            yield from (entry[-1] for entry in users.heap)

    def __len__(self) -> int:
        return self._count

    def _due(self) -> Users:
        priority, _, _, client = self._places[0]
        return self._users[-priority, client]

    def _sweep(self) -> None:
        """Pass over turns of clients that have no request left."""
        while self._places and not self._due().heap:
            heappop(self._places)

    def _drop_empty_places(self) -> None:
        """As many turns as requests, the first ones of each client."""
        left = {key: len(users.heap) for key, users in self._users.items()}
        kept = []
        for place in sorted(self._places):
            key = -place[0], place[-1]
            if left[key]:
                left[key] -= 1
                kept.append(place)
        self._places = kept

    def _forget(self) -> None:
        """Where nobody waits, what each had before does not count any more."""
        if not self._count:
            self._places.clear()
            self._users.clear()
            self._tags = Tags()
        elif len(self._users) > 2 * MOST_NAMES:
            self._drop_empty_places()
            self._users = {key: users for key, users in self._users.items() if users.heap}
