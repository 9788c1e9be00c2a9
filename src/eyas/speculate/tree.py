"""Draft trees, and how EAGLE-2 grows them (Li et al. 2024, section 4). A chain is a tree with topk = 1.

Shape legend: F frontier nodes, k children drafted per node.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Self

import torch
from torch import Tensor


@dataclass(frozen=True)
class Tree:
    """Proposed tokens and what each hangs on. Node 0 is the root: the last committed token.

    ``parents[i] < i``, and -1 for the root. Siblings have different tokens. ``log_q``, if known, is the
    draft's log-probability of each node given its parent (0 for the root).
    """

    tokens: tuple[int, ...]
    parents: tuple[int, ...]
    log_q: tuple[float, ...] | None = None

    def __post_init__(self) -> None:
        assert len(self.tokens) == len(self.parents) > 0, "a tree has a root, and a parent per node"
        assert self.parents[0] == -1, "node 0 is the root"
        assert all(0 <= p < i for i, p in enumerate(self.parents) if i), "a parent comes before its children"
        edges = set(zip(self.parents, self.tokens, strict=True))
        assert len(edges) == len(self), "siblings have different tokens"
        assert self.log_q is None or len(self.log_q) == len(self), "one log_q per node"

    @classmethod
    def chain(cls, tokens: Sequence[int], log_q: Sequence[float] | None = None) -> Self:
        """``tokens`` [K + 1], the root first, each hanging on the one before."""
        return cls(tuple(tokens), tuple(range(-1, len(tokens) - 1)), None if log_q is None else tuple(log_q))

    def __len__(self) -> int:
        """Nodes, the root included: num_draft_tokens."""
        return len(self.tokens)

    @property
    def is_chain(self) -> bool:
        return self.parents == tuple(range(-1, len(self) - 1))

    @cached_property
    def depths(self) -> tuple[int, ...]:
        """Edges from the root; a node's position is the root's plus this."""
        depths = [0]
        for p in self.parents[1:]:
            depths.append(depths[p] + 1)
        return tuple(depths)

    def depth(self) -> int:
        """Of the deepest node: the most drafts that one round can accept."""
        return max(self.depths)

    @cached_property
    def children(self) -> tuple[tuple[int, ...], ...]:
        """Per node its children, in order."""
        children: list[list[int]] = [[] for _ in self.tokens]
        for i, p in enumerate(self.parents[1:], start=1):
            children[p].append(i)
        return tuple(map(tuple, children))

    def path(self, node: int) -> list[int]:
        """Nodes from the root's child down to ``node``, both included; empty for the root."""
        path: list[int] = []
        while node > 0:
            path.append(node)
            node = self.parents[node]
        return path[::-1]

    def ancestors(self) -> Tensor:
        """[n, n] bool: node i attends to node j iff j is on i's path from the root; both ends included."""
        seen = torch.eye(len(self), dtype=torch.bool)
        for i, p in enumerate(self.parents[1:], start=1):
            seen[i] |= seen[p]
        return seen


@dataclass(frozen=True)
class Growth:
    """Everything drafted so far in one round, before the final choice. Node 0 is the root.

    ``scores`` are cumulative: the sum of the draft's log-probabilities along the path, EAGLE-2's estimate
    of the log-probability that the whole path is accepted. ``frontier`` are the nodes to draft from next,
    best first.
    """

    tokens: tuple[int, ...]
    parents: tuple[int, ...]
    scores: tuple[float, ...]
    frontier: tuple[int, ...]


def sprout(root: int) -> Growth:
    """Before the first step: the root alone."""
    return Growth((root,), (-1,), (0.0,), (0,))


def expand(
    growth: Growth, tokens_Fk: Sequence[Sequence[int]], log_q_Fk: Sequence[Sequence[float]], topk: int
) -> Growth:
    """One step: hang on each frontier node its drafted children; the ``topk`` best are the next frontier.

    Row f of ``tokens_Fk`` and ``log_q_Fk`` are the draft's most likely tokens after ``growth.frontier[f]``
    and their log-probabilities. Tokens of probability 0 are left out: they can be asked for when the
    draft's vocabulary is smaller than topk. Equal scores go to the node drafted first.
    """
    assert len(tokens_Fk) == len(log_q_Fk) == len(growth.frontier)
    tokens, parents, scores = list(growth.tokens), list(growth.parents), list(growth.scores)
    first = len(tokens)
    for node, row, log_q in zip(growth.frontier, tokens_Fk, log_q_Fk, strict=True):
        for token, lq in zip(row, log_q, strict=True):
            assert not math.isnan(lq)
            if lq > -math.inf:
                tokens.append(token)
                parents.append(node)
                # A logarithm rounded to above 0 would put a child before its parent.
                scores.append(growth.scores[node] + min(lq, 0.0))
    frontier = _best(scores, range(first, len(scores)), topk)
    return Growth(tuple(tokens), tuple(parents), tuple(scores), tuple(frontier))


def rerank(growth: Growth, num_draft_tokens: int) -> Tree:
    """The final tree: the root and the best ``num_draft_tokens - 1`` nodes of all steps, or all if fewer.

    A child never scores above its parent and is drafted after it, so the best nodes always include the
    parents of each. Nodes keep the order in which they were drafted.
    """
    assert num_draft_tokens >= 1
    chosen = [0, *sorted(_best(growth.scores, range(1, len(growth.scores)), num_draft_tokens - 1))]
    new = {old: i for i, old in enumerate(chosen)}
    parents = [growth.parents[old] for old in chosen[1:]]
    log_q = [growth.scores[old] - growth.scores[p] for old, p in zip(chosen[1:], parents, strict=True)]
    return Tree(tuple(growth.tokens[old] for old in chosen), (-1, *(new[p] for p in parents)), (0.0, *log_q))


def _best(scores: Sequence[float], nodes: range, n: int) -> list[int]:
    return sorted(nodes, key=lambda i: (-scores[i], i))[:n]
