"""A round: propose, verify, commit. The heart of Eyas.

Leviathan et al. 2023 and Chen et al. 2023 for chains; Li et al. (EAGLE-2, EAGLE-3) for trees and the draft's cache.
With one-hot drafts the target's token at every node is known (greedy, or drawn with keyed noise), and the text is that
of plain decoding, whatever was proposed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from eyas import metrics
from eyas.config import SpeculativeSettings
from eyas.kernels import KVCache, Part, Rows
from eyas.models.target import Target
from eyas.speculate.accept import Uniforms, speculative_sample, walk
from eyas.speculate.propose import Proposal, Proposer
from eyas.speculate.sampling import (
    History,
    SamplingParams,
    TokenLogprobs,
    edits_logits,
    process,
    target_tokens,
    token_logprobs,
)
from eyas.speculate.state import DecodeState
from eyas.speculate.tree import Tree

NO_HISTORY = History((), ())


@dataclass(frozen=True)
class Outcome:
    """What one round gave one request, before any stop or limit."""

    tree: Tree
    accepted: tuple[int, ...]
    """Nodes of the tree, in order."""
    tokens: tuple[int, ...]
    """Committed: the accepted drafts, then the target's own token; a + 1 of them."""
    logprobs: tuple[TokenLogprobs, ...] = ()
    """Per committed token, where the request asks for them."""
    dropped: float | None = None
    """As the proposal says."""

    def counted(self, kept: int) -> metrics.Round:
        """As the figures count it when a stop or a limit leaves the first ``kept`` tokens."""
        assert 1 <= kept <= len(self.tokens)
        cut = kept < len(self.tokens)
        depth = None if self.tree.is_chain else self.tree.depth()
        return metrics.Round(kept if cut else len(self.accepted), len(self.tree) - 1, cut, depth)


@dataclass(frozen=True)
class Turn:
    """One request's part in a round: rows of its text that the caches lack, then the tree on the last token."""

    state: DecodeState
    count: int
    """Rows read before the tree."""
    proposal: Proposal | None
    """None: the reading does not come to the last token yet."""

    def part(self) -> Part:
        """The rows, the tree's on the last one read."""
        state, n = self.state, self.count
        first, tree = state.cached, self.proposal.tree if self.proposal else None
        tokens, positions, parents = (
            state.tokens[first : first + n],
            list(range(first, first + n)),
            list(range(-1, n - 1)),
        )
        if tree is not None:
            tokens = [*tokens, *tree.tokens]
            positions += [state.root_position + depth for depth in tree.depths]
            parents += [n + parent if parent >= 0 else n - 1 for parent in tree.parents]
        return Part(tokens, positions, parents, state.spare[: len(tokens)], state.table)


def speculative_round(
    target: Target,
    cache: KVCache,
    proposer: Proposer,
    states: Sequence[DecodeState],
    settings: Sequence[SpeculativeSettings | None],
    reads: Sequence[int] | None = None,
) -> list[Outcome | None]:
    """Propose, verify and commit once for every request, which accept different lengths; in the same forward, read on.

    ``reads[i]``, where not 0: the rows of a text that the caches lack to read instead. If its last token is among them,
    the next one is drawn and committed, which belongs to no round (its outcome has the root alone); else the outcome is
    None. Raises ``model.nonfinite`` if the target gives NaN.
    """
    turns = _turns(proposer, states, settings, reads or [0] * len(states))
    rows = Rows.build([turn.part() for turn in turns])
    out = target.new_outputs(len(rows), proposer.taps)
    target.forward(rows, cache, out)
    outcomes = decide(target, out.hidden, turns)
    start, slots, features = 0, rows.slots.tolist(), out.features if proposer.taps else None
    for turn, outcome in zip(turns, outcomes, strict=True):
        root = start + turn.count
        kept = list(range(start, root))
        start = root
        if outcome is not None:
            kept += [root, *(root + node for node in outcome.accepted)]
            start += len(outcome.tree)
        turn.state.take([slots[row] for row in kept], None if features is None else _copied(features, kept))
        turn.state.tokens += outcome.tokens if outcome is not None else ()
    return outcomes


def _copied(features: Tensor, rows: Sequence[int]) -> Tensor:
    """A copy of these rows, rising; most are consecutive, and a slice is cheaper than a choice."""
    first, last = rows[0], rows[-1]
    return features[first : last + 1].clone() if last - first + 1 == len(rows) else features[rows]


def _turns(
    proposer: Proposer,
    states: Sequence[DecodeState],
    settings: Sequence[SpeculativeSettings | None],
    reads: Sequence[int],
) -> list[Turn]:
    decoding = [i for i, count in enumerate(reads) if not count]
    given = proposer.propose([states[i] for i in decoding], [settings[i] for i in decoding]) if decoding else []
    proposals = iter(given)
    turns = []
    for state, count in zip(states, reads, strict=True):
        if not count:
            turns.append(Turn(state, 0, next(proposals)))
        elif state.cached + count == len(state.tokens):
            turns.append(Turn(state, count - 1, Proposal(Tree.chain(state.tokens[-1:]))))
        else:
            turns.append(Turn(state, count, None))
    return turns


def decide(target: Target, hidden_RH: Tensor, turns: Sequence[Turn]) -> list[Outcome | None]:
    """What each turn accepts, from the states of all rows; only the trees' rows are asked for logits."""
    asked: list[int] = []
    starts, states, proposals, row = [], [], [], 0
    for turn in turns:
        row += turn.count
        if turn.proposal is not None:
            starts.append(len(asked))
            asked += range(row, row + len(turn.proposal.tree))
            row += len(turn.proposal.tree)
            states.append(turn.state)
            proposals.append(turn.proposal)
    if not asked:
        return [None] * len(turns)
    logits_RV = target.logits(hidden_RH if len(asked) == row else hidden_RH[asked])
    choices = accept(logits_RV, states, proposals, starts)
    outcomes = []
    for state, proposal, start, (path, last) in zip(states, proposals, starts, choices, strict=True):
        tokens = (*(proposal.tree.tokens[node] for node in path), last)
        logprobs: tuple[TokenLogprobs, ...] = ()
        if state.top_logprobs is not None:
            rows = logits_RV[[start, *(start + node for node in path)]]
            logprobs = token_logprobs(rows, tokens, state.top_logprobs)
        outcomes.append(Outcome(proposal.tree, tuple(path), tokens, logprobs, proposal.dropped))
    decided = iter(outcomes)
    return [None if turn.proposal is None else next(decided) for turn in turns]


def accept(
    logits_RV: Tensor, states: Sequence[DecodeState], proposals: Sequence[Proposal], starts: Sequence[int]
) -> list[tuple[list[int], int]]:
    """Per request (accepted nodes, the target's own token after them), from the logits of all verified rows."""
    params: list[SamplingParams] = []
    positions, histories, one_hot = [], [], []
    for state, proposal in zip(states, proposals, strict=True):
        edited = edits_logits(state.params) or state.constraint is not None
        for node, depth in enumerate(proposal.tree.depths):
            if proposal.q is None:
                one_hot.append(len(params))
            params.append(state.params)
            positions.append(len(state.tokens) + depth)
            path = [proposal.tree.tokens[i] for i in proposal.tree.path(node)] if edited else ()
            histories.append(state.history(path) if edited else NO_HISTORY)
    known = logits_RV if len(one_hot) == len(params) else logits_RV[one_hot]
    wanted = [params[r] for r in one_hot], [positions[r] for r in one_hot], [histories[r] for r in one_hot]
    tokens = dict(zip(one_hot, target_tokens(known, *wanted).tolist(), strict=True)) if one_hot else {}
    choices = []
    for state, proposal, start in zip(states, proposals, starts, strict=True):
        nodes = range(start, start + len(proposal.tree))
        if proposal.q is None:
            choices.append(walk(proposal.tree, [tokens[r] for r in nodes]))
            continue
        log_p = [process(logits_RV[r], params[r], histories[r], positions[r]) for r in nodes]
        drafted = proposal.tree.tokens[1:]
        uniforms = Uniforms.keyed(state.params.seed, len(state.tokens), len(drafted))
        a, last = speculative_sample(torch.stack(log_p).exp(), proposal.q, drafted, uniforms)
        choices.append((list(range(1, a + 1)), last))
    return choices
