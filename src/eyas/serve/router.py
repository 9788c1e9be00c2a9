"""Several engines behind one: a request goes where its prompt's beginning is known, else where least is to be done."""

from __future__ import annotations

import asyncio
import hashlib
from collections import OrderedDict
from collections.abc import AsyncIterator, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any, cast

import numpy as np

from eyas.errors import EyasError
from eyas.serve.client import EngineClient
from eyas.serve.wire import Ask, Piece, Ready, Status

BLOCK = 64
"""Tokens of a prompt that are remembered together."""
MOST_BLOCKS = 1 << 16
PATIENCE = 4
"""Requests more than at the least busy replica that a known beginning is worth, beside half as many again."""


@dataclass(eq=False)
class _Replica:
    client: EngineClient
    in_flight: int = 0
    restarts: int = 0


class Router:
    """An :class:`eyas.serve.client.EngineClient` over replicas of one engine."""

    def __init__(self, clients: Sequence[EngineClient]) -> None:
        assert clients
        self._replicas = [_Replica(client) for client in clients]
        self._homes: OrderedDict[bytes, _Replica] = OrderedDict()
        """Who had a prompt with this beginning last; the least recently used are forgotten."""

    @property
    def ready(self) -> Ready | None:
        """Of the first replica that is ready; the slots are those of all that are."""
        found = [r.client.ready for r in self._replicas if r.client.ready is not None]
        if not found:
            return None
        first = found[0]
        facts: dict[str, Any] = {**first.facts, "replicas": len(self._replicas), "replicas_ready": len(found)}
        return Ready(first.model, first.vocab_size, first.context, sum(one.num_slots for one in found), facts)

    @property
    def status(self) -> Status | None:
        found = [r.client.status for r in self._replicas if r.client.status is not None]
        return together(found) if found else None

    @property
    def restarts(self) -> int:
        return sum(r.client.restarts for r in self._replicas)

    async def answer(self, ask: Ask) -> AsyncIterator[Piece]:
        """From the replica that :meth:`_choose` names; where it is full, from any other."""
        blocks = _blocks(ask.prompt)
        order = self._order(blocks)
        for left, replica in zip(reversed(range(len(order))), order, strict=True):
            # At once, so that what comes before its first answer goes to the same place.
            self._remember(blocks, replica)
            replica.in_flight += 1
            try:
                async with aclosing(cast("Any", replica.client.answer(ask))) as pieces:
                    async for piece in pieces:
                        yield piece
                return
            except EyasError as error:
                # Both are said before anything of an answer.
                if error.code not in ("server.busy", "server.loading") or not left:
                    raise
            finally:
                replica.in_flight -= 1

    async def flush(self) -> None:
        self._homes.clear()
        await asyncio.gather(*(r.client.flush() for r in self._replicas))

    async def close(self, now: bool = False) -> None:
        await asyncio.gather(*(r.client.close(now) for r in self._replicas))

    # ----------------------------------------------------------------------------------------------------------------

    def _order(self, blocks: Sequence[bytes]) -> list[_Replica]:
        """Whom to ask, first to last: the home of the longest known beginning unless it is much busier than others."""
        for replica in self._replicas:
            if replica.client.restarts != replica.restarts:
                replica.restarts = replica.client.restarts
                # Its cache went with it.
                for block in [block for block, home in self._homes.items() if home is replica]:
                    del self._homes[block]
        order = sorted(self._replicas, key=lambda r: (r.client.ready is None, r.in_flight))
        home = next((self._homes[block] for block in reversed(blocks) if block in self._homes), None)
        least = order[0].in_flight
        if home is not None and home.client.ready is not None and home.in_flight <= least + least // 2 + PATIENCE:
            order.remove(home)
            order.insert(0, home)
        return order

    def _remember(self, blocks: Sequence[bytes], replica: _Replica) -> None:
        for block in blocks:
            self._homes[block] = replica
            self._homes.move_to_end(block)
        while len(self._homes) > MOST_BLOCKS:
            self._homes.popitem(last=False)


def _blocks(prompt: Sequence[int]) -> list[bytes]:
    """A hash of each beginning of the prompt that is whole blocks long."""
    tokens, rolling, found = np.asarray(prompt, dtype=np.int64), hashlib.blake2b(digest_size=16), []
    for end in range(BLOCK, len(prompt) + 1, BLOCK):
        rolling.update(tokens[end - BLOCK : end].tobytes())
        found.append(rolling.digest())
    return found


def together(found: Sequence[Status]) -> Status:
    """The figures of all: sums, and the mean K over those that propose."""
    steps = [s.num_steps for s in found if s.num_steps is not None]
    plain = [s.plain_tokens_per_second for s in found if s.plain_tokens_per_second is not None]
    lists: dict[str, Any] = {
        name: [sum(column) for column in zip_longest(*(getattr(s, name) for s in found), fillvalue=0)]
        for name in ("accepted_histogram", "proposed_at_least")
    }
    sums: dict[str, Any] = {name: sum(getattr(s, name) for s in found) for name in SUMMED}
    return Status(
        **sums,
        **lists,
        plain_tokens_per_second=sum(plain) if len(plain) == len(found) else None,
        num_steps=sum(steps) / len(steps) if steps else None,
    )


SUMMED = tuple(
    name
    for name in Status.__struct_fields__
    if name not in ("accepted_histogram", "proposed_at_least", "plain_tokens_per_second", "num_steps")
)
