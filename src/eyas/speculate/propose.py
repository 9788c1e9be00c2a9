"""Proposals for the next tokens, by a draft or by the text's own n-grams, through one interface.

EAGLE-3 (Li et al. 2025): the first step reads the target's features, each later one the draft's own state.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from eyas.config import SpeculativeSettings
from eyas.draft.model import DraftModel, Step
from eyas.errors import EyasError
from eyas.kernels import KVCache, Part, Rows
from eyas.speculate import noise
from eyas.speculate.confidence import SureChain, bin_of
from eyas.speculate.ngram import NgramIndex
from eyas.speculate.sampling import process
from eyas.speculate.state import DecodeState
from eyas.speculate.tree import Growth, Tree, expand, rerank, sprout

ABSORB_ROWS = 512
"""Rows of one request that a draft forward takes at most: a batch's memory grows with the square of a chain."""


@dataclass(frozen=True)
class Proposal:
    """A tree to verify; ``q`` [K, V] are the draft's probabilities when its chain was drawn from them. ``dropped``: the
    path probability of the draft that a :class:`SureChain` ended before."""

    tree: Tree
    q: Tensor | None = None
    dropped: float | None = None


class Proposer(Protocol):
    """Whoever proposes. ``taps`` are those it wants of the target; none for proposals from the text alone."""

    @property
    def taps(self) -> tuple[int, ...]: ...

    def propose(self, states: Sequence[DecodeState], settings: Sequence[SpeculativeSettings | None]) -> list[Proposal]:
        """One proposal per request; the root alone where the settings are None (K = 0)."""
        ...


def scratch_slots(settings: SpeculativeSettings | None) -> int:
    """Slots beyond the text that one round may write: a tree's rows, or the draft's rows while it grows."""
    if settings is None:
        return 1
    drafting = (settings.num_steps - 1) * settings.eagle_topk
    return max(settings.num_draft_tokens, drafting) + 1


def fitting(settings: SpeculativeSettings | None, state: DecodeState, max_positions: int) -> SpeculativeSettings | None:
    """The settings, or K = 0 where their longest path would leave a context of ``max_positions``."""
    if settings is None or state.root_position + settings.num_steps < max_positions:
        return settings
    return None


class NoProposer:
    """Plain decoding: every round verifies the root alone and commits one token."""

    taps: tuple[int, ...] = ()

    def propose(self, states: Sequence[DecodeState], settings: Sequence[SpeculativeSettings | None]) -> list[Proposal]:
        return [_root_alone(state) for state in states]


class NgramProposer:
    """Prompt lookup: what followed the last time that the text's end stood in it."""

    taps: tuple[int, ...] = ()

    def __init__(self, max_ngram: int = 4, min_ngram: int = 2) -> None:
        self.max_ngram, self.min_ngram = max_ngram, min_ngram
        self._indices: WeakKeyDictionary[DecodeState, NgramIndex] = WeakKeyDictionary()

    def propose(self, states: Sequence[DecodeState], settings: Sequence[SpeculativeSettings | None]) -> list[Proposal]:
        proposals = []
        for state, wanted in zip(states, settings, strict=True):
            index = self._indices.setdefault(state, NgramIndex(self.max_ngram, self.min_ngram))
            for token in state.tokens[len(index.tokens) :]:
                index.append(token)
            proposals.append(
                Proposal(_allowed(index.propose(wanted.num_steps), state)) if wanted else _root_alone(state)
            )
        return proposals


def _allowed(chain: Tree, state: DecodeState) -> Tree:
    """The chain up to the first token that the request's grammar forbids."""
    if state.constraint is None:
        return chain
    for i, token in enumerate(chain.tokens[1:], start=1):
        mask = state.constraint.mask(chain.tokens[1:i])
        if mask is not None and not bool(mask[token]):
            return Tree.chain(chain.tokens[:i])
    return chain


class DraftProposer:
    """An EAGLE-3 draft with its cache, which shares the target's slot tables.

    Where its positions end before the target's, it proposes nothing (K = 0).
    """

    def __init__(self, draft: DraftModel, cache: KVCache) -> None:
        self.draft, self.cache = draft, cache
        self.taps = draft.config.taps

    def propose(self, states: Sequence[DecodeState], settings: Sequence[SpeculativeSettings | None]) -> list[Proposal]:
        # The row that drafts a token lies two positions before it.
        reach = self.draft.config.max_position_embeddings + 2
        settings = [fitting(wanted, state, reach) for state, wanted in zip(states, settings, strict=True)]
        sketches = [_Sketch(s, wanted) for s, wanted in zip(states, settings, strict=True) if wanted]
        if sketches:
            step = self.absorb([sketch.state for sketch in sketches])
            self._grow(sketches, step)
        depth = 2
        while active := [s for s in sketches if s.wanted.num_steps >= depth and s.growth.frontier]:
            self._grow(active, self._extend(active))
            depth += 1
        drafted = iter(sketches)
        return [
            next(drafted).proposal() if wanted else _root_alone(s) for s, wanted in zip(states, settings, strict=True)
        ]

    def absorb(self, states: Sequence[DecodeState]) -> Step:
        """The first step: compute the draft rows whose features came since the last round.

        Draft row t takes the feature at t and the embedding of token t + 1. Returns the last row's step of each
        request, [B, H] each.
        """
        for state in states:
            while state.cached - state.absorbed > ABSORB_ROWS:
                self._absorb([state])
        return self._absorb(states)

    def catch_up(self, states: Sequence[DecodeState]) -> None:
        """Absorb all rows but the last, which the next proposal takes: other prompts may share them from then on."""
        while behind := [state for state in states if state.cached - state.absorbed > 1]:
            self._absorb(behind, keep=1)

    def _absorb(self, states: Sequence[DecodeState], keep: int = 0) -> Step:
        """The next ABSORB_ROWS rows of each at most; the last ``keep`` ones wait."""
        parts, features = [], []
        for state in states:
            first, count = state.absorbed, min(state.cached - state.absorbed - keep, ABSORB_ROWS)
            assert count > 0, "every round leaves at least the root's feature"
            chunk, slots = state.tokens[first + 1 : first + count + 1], state.table[first : first + count].tolist()
            parts.append(Part.chain(chunk, first, slots, state.table[:first]))
            pending = torch.cat(list(state.pending))
            features.append(pending[:count])
            state.absorbed, state.pending = first + count, [pending[count:]] if count < len(pending) else []
        rows, combined = Rows.build(parts), self.draft.combine(torch.cat(features).to(self.draft.norm.dtype))
        step = self.draft(rows, combined, self.cache)
        last = torch.tensor([len(part.tokens) for part in parts]).cumsum(0) - 1
        return Step(step.carried[last], step.normed[last])

    def _extend(self, active: Sequence[_Sketch]) -> Step:
        """A later step over all frontier nodes; each attends along its own path, so each has its own table."""
        parts, hidden = [], []
        for sketch in active:
            growth, state = sketch.growth, sketch.state
            for node in growth.frontier:
                *path, slot = sketch.path_slots(node)
                table = torch.cat([state.table, torch.tensor(path, dtype=torch.int64)])
                parts.append(Part.chain([growth.tokens[node]], len(table), [slot], table))
                hidden.append(sketch.carried[growth.parents[node]])
        rows = Rows.build(parts)
        return self.draft(rows, torch.stack(hidden), self.cache)

    def _grow(self, active: Sequence[_Sketch], step: Step) -> None:
        """Hang the draft's best (or drawn) tokens on every frontier node."""
        logits = self.draft.logits(step.normed)
        log_q = logits.log_softmax(-1)
        # The softmax spreads a single NaN over its row.
        if bool(log_q[:, 0].isnan().any()):
            cause = "the draft's logits are NaN"
            raise EyasError(
                "model.nonfinite", cause, "run the draft in fp32; else its weights are damaged: fetch it anew"
            )
        first, choosing = 0, []
        for sketch in active:
            rows = slice(first, first + len(sketch.growth.frontier))
            first = rows.stop
            sketch.carried |= zip(sketch.growth.frontier, step.carried[rows], strict=True)
            if sketch.wanted.draft_sampling == "probabilistic":
                sketch.draw(self._over_target_vocabulary(logits[rows][0]))
                continue
            if sketch.state.constraint is not None:
                log_q[rows] = self._constrained(logits[rows], sketch)
            choosing.append((sketch, rows, min(sketch.wanted.eagle_topk, log_q.shape[-1])))
        # All rows at once, but each width by itself: among equals, topk's choice depends on it.
        best = {topk: self._best(log_q, topk) for topk in {topk for _, _, topk in choosing}}
        for sketch, rows, topk in choosing:
            values, tokens = best[topk]
            sketch.hang(tokens[rows], values[rows], topk)

    def _best(self, log_q: Tensor, topk: int) -> tuple[list[list[float]], list[list[int]]]:
        """Per row the highest log-probabilities, and the tokens that have them."""
        values, ids = log_q.topk(topk)
        return values.tolist(), self.draft.to_target_ids(ids).tolist()

    def _constrained(self, logits_FD: Tensor, sketch: _Sketch) -> Tensor:
        """Log-probabilities [F, D] of the frontier over what the grammar allows; all −inf where it allows no token."""
        constraint = sketch.state.constraint
        assert constraint is not None
        ids = self.draft.to_target_ids(torch.arange(logits_FD.shape[-1], device=logits_FD.device)).cpu()
        masked = logits_FD.clone()
        for row, node in zip(masked, sketch.growth.frontier, strict=True):
            mask = constraint.mask(sketch.path_tokens(node))
            if mask is not None:
                row[~mask[ids].to(row.device)] = -torch.inf
        return masked.log_softmax(-1).nan_to_num(nan=-torch.inf)

    def _over_target_vocabulary(self, logits_D: Tensor) -> Tensor:
        """Draft logits → [V], −inf for tokens that the draft cannot propose."""
        full = logits_D.new_full((self.draft.config.vocab_size,), -torch.inf)
        full[self.draft.to_target_ids(torch.arange(len(logits_D), device=logits_D.device))] = logits_D
        return full


@dataclass
class _Sketch:
    """One request's tree while it grows."""

    state: DecodeState
    wanted: SpeculativeSettings
    carried: dict[int, Tensor] = field(default_factory=dict)
    """Node → [H], the state that its children's steps take."""
    slots: dict[int, int] = field(default_factory=dict)
    """Node → the slot of its draft row, for nodes that have been drafted from."""
    q: list[Tensor] = field(default_factory=list)
    dropped: float | None = None

    def __post_init__(self) -> None:
        self.growth: Growth = sprout(self.state.tokens[-1])

    def path_slots(self, node: int) -> list[int]:
        """Slots of the draft rows from the root's child down to ``node``, which gets a spare one."""
        self.slots[node] = self.state.spare[len(self.slots)]
        path = []
        while node > 0:
            path.append(self.slots[node])
            node = self.growth.parents[node]
        return path[::-1]

    def path_tokens(self, node: int) -> list[int]:
        """Tokens from the root's child down to ``node``; none for the root."""
        path = []
        while node > 0:
            path.append(self.growth.tokens[node])
            node = self.growth.parents[node]
        return path[::-1]

    def hang(self, tokens_Fk: list[list[int]], log_q_Fk: list[list[float]], topk: int) -> None:
        """Expand the frontier; a sure chain ends where its last token is unlikely."""
        before, self.growth = self.growth, expand(self.growth, tokens_Fk, log_q_Fk, topk)
        if not isinstance(self.wanted, SureChain):
            return
        # A grammar may leave no token at all.
        path = math.exp(self.growth.scores[-1]) if self.growth.frontier else 0.0
        if not self.growth.frontier or bin_of(path) < self.wanted.keep:
            self.dropped, self.growth = path, replace(before, frontier=())
        elif bin_of(path) < self.wanted.extend:
            self.growth = replace(self.growth, frontier=())

    def draw(self, logits_V: Tensor) -> None:
        """Draw the chain's next token from the draft's distribution, shaped as the target's is."""
        state, path = self.state, list(self.growth.tokens[1:])
        position, history = len(state.tokens) + len(path), state.history(path)
        if history.allowed is not None and not bool((history.allowed.to(logits_V.device) & logits_V.isfinite()).any()):
            self.growth = replace(self.growth, frontier=())  # the grammar allows only what the draft cannot say
            return
        log_q = process(logits_V, state.params, history, position)
        kept = log_q.isfinite().nonzero()[:, 0]
        token = noise.draw(log_q[kept], kept, state.params.seed, position, noise.PROPOSAL)
        self.q.append(log_q.exp())
        self.growth = expand(self.growth, [[token]], [[float(log_q[token])]], 1)

    def proposal(self) -> Proposal:
        tree = rerank(self.growth, self.wanted.num_draft_tokens)
        return Proposal(tree, torch.stack(self.q) if self.q else None, self.dropped)


def _root_alone(state: DecodeState) -> Proposal:
    return Proposal(Tree.chain(state.tokens[-1:]))
