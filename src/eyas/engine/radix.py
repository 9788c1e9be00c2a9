"""The prefix cache: rows of finished texts, kept in a radix tree until slots run short.

Draft row t depends on the tokens 0 … t + 1, so the tree's edges are pairs of neighbouring tokens: a path of n − 1 pairs
names rows 0 … n − 2 of a text of n tokens, for the target and for the draft alike.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from eyas.engine.slots import SlotPool

Pairs = NDArray[np.int64]


@dataclass(eq=False)
class Node:
    """A run of rows without a fork."""

    pairs: Pairs
    """[n] which pair of tokens each row stands for."""
    slots: NDArray[np.int64]
    """[n]"""
    parent: Node | None
    drafted: bool
    """Whether the draft's rows are there too; else they count as absent."""
    used: int = 0
    """When it was last part of a match, by the tree's own clock."""
    children: dict[int, Node] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.pairs)


class PrefixCache:
    """Rows that several texts may share. It holds one reference of each of its slots."""

    def __init__(self, pool: SlotPool) -> None:
        self.pool, self.clock = pool, 0
        self.root = Node(np.empty(0, np.int64), np.empty(0, np.int64), None, drafted=True)
        self._kept = np.zeros(len(pool.references), dtype=np.bool_)
        """Which slots the tree holds: to count them by a walk through it would be a good part of a step."""

    def match(self, tokens: Sequence[int], drafted: bool) -> list[int]:
        """Slots of the rows that ``tokens`` has in common with kept texts, from the first on, shared with the caller,
        who releases them. At most len(tokens) − 1: the last row gives the next token, and is computed anew.

        ``drafted``: only rows that the draft has too.
        """
        self.clock += 1
        found: list[int] = []
        for node, count in list(self._walk(pairs_of(tokens))):
            if drafted and not node.drafted:
                break
            # Cut where the texts part, so that the rest can be given up by itself.
            shared = node if count == len(node) else self._split(node, count)
            shared.used = self.clock
            found += shared.slots.tolist()
        self.pool.share(found)
        return found

    def length(self, tokens: Sequence[int], drafted: bool) -> int:
        """How many rows :meth:`match` would give; changes nothing."""
        total = 0
        for node, count in self._walk(pairs_of(tokens)):
            if drafted and not node.drafted:
                break
            total += count
        return total

    def keep(self, tokens: Sequence[int], slots: Sequence[int], drafted: int) -> None:
        """Take over the caller's hold on ``slots``, the rows 0 … len(slots) − 1 of ``tokens``, of which the draft has
        the first ``drafted``. Rows that the tree has already are given back."""
        assert len(slots) < len(tokens), "a row is known by its own token and the next"
        self.clock += 1
        drafted = min(drafted, len(slots))
        pairs, given = pairs_of(tokens[: len(slots) + 1]), np.asarray(slots, np.int64)
        node, at = self.root, 0
        while at < len(pairs):
            child = node.children.get(int(pairs[at]))
            if child is None:
                node = self._append(node, pairs[at:], given[at:], drafted - at)
                break
            count = common(child.pairs, pairs[at:])
            if count < len(child):
                child = self._split(child, count)
            self._merge(child, given[at : at + count], drafted - at)
            node, at = child, at + count

    def evict(self, count: int) -> int:
        """Give up least recently used ends of texts until ``count`` slots came free; returns how many did."""
        leaves = [(leaf.used, id(leaf), leaf) for leaf in self._leaves()]
        heapq.heapify(leaves)
        freed = 0
        while leaves and freed < count:
            _, _, leaf = heapq.heappop(leaves)
            # Rows that a running request shares would not come free; they stay known.
            if _held(self.pool, leaf):
                continue
            freed += len(leaf)
            self._give_up(leaf.slots)
            parent = leaf.parent
            assert parent is not None
            del parent.children[int(leaf.pairs[0])]
            if not parent.children and parent is not self.root:
                heapq.heappush(leaves, (parent.used, id(parent), parent))
        return freed

    def clear(self) -> None:
        """Forget everything; rows that requests share stay theirs."""
        self._give_up(np.flatnonzero(self._kept))
        self.root.children.clear()

    def nodes(self) -> Iterator[Node]:
        """All nodes but the root."""
        stack = list(self.root.children.values())
        while stack:
            node = stack.pop()
            yield node
            stack += node.children.values()

    @property
    def num_rows(self) -> int:
        return int(np.count_nonzero(self._kept))

    @property
    def num_evictable(self) -> int:
        """Slots that nobody else holds."""
        return int(np.count_nonzero(self._kept & (self.pool.references == 1)))

    # ----------------------------------------------------------------------------------------------------------------

    def _walk(self, pairs: Pairs) -> Iterator[tuple[Node, int]]:
        """The nodes along ``pairs`` and how many rows of each are common."""
        node, at = self.root, 0
        while at < len(pairs):
            child = node.children.get(int(pairs[at]))
            if child is None:
                return
            count = common(child.pairs, pairs[at:])
            yield child, count
            if count < len(child):
                return
            node, at = child, at + count

    def _leaves(self) -> Iterator[Node]:
        return (node for node in self.nodes() if not node.children)

    def _append(self, node: Node, pairs: Pairs, slots: NDArray[np.int64], drafted: int) -> Node:
        """Hang new rows on ``node``: those that the draft has, then the others."""
        self._kept[slots] = True
        for first, stop, has in ((0, max(drafted, 0), True), (max(drafted, 0), len(pairs), False)):
            if first < stop:
                new = Node(pairs[first:stop], slots[first:stop], node, has, self.clock)
                node.children[int(new.pairs[0])] = new
                node = new
        return node

    def _merge(self, node: Node, given: NDArray[np.int64], drafted: int) -> None:
        """The same rows again: the caller's are given back, unless only they hold the draft's."""
        node.used = self.clock
        if drafted >= len(node) and not node.drafted:
            self._kept[node.slots], self._kept[given] = False, True
            node.slots, given, node.drafted = given, node.slots, True
        self.pool.release(given.tolist())

    def _give_up(self, slots: NDArray[np.int64]) -> None:
        self._kept[slots] = False
        self.pool.release(slots.tolist())

    def _split(self, node: Node, count: int) -> Node:
        """Cut a node in two after ``count`` rows; returns the upper part."""
        assert node.parent is not None
        upper = Node(node.pairs[:count], node.slots[:count], node.parent, node.drafted, node.used)
        node.parent.children[int(upper.pairs[0])] = upper
        node.pairs, node.slots, node.parent = node.pairs[count:], node.slots[count:], upper
        upper.children[int(node.pairs[0])] = node
        return upper


def _held(pool: SlotPool, node: Node) -> bool:
    """Whether anyone but the tree holds the node's rows: all of them, or none."""
    return bool((pool.references[node.slots] > 1).any())


def pairs_of(tokens: Sequence[int]) -> Pairs:
    """[n − 1] each token with its successor, as one number."""
    ids = np.asarray(tokens, np.int64)
    return (ids[:-1] << 32) | ids[1:]


def common(a: Pairs, b: Pairs) -> int:
    """How many rows two texts share from the first on."""
    n = min(len(a), len(b))
    different = np.flatnonzero(a[:n] != b[:n])
    return int(different[0]) if len(different) else n
