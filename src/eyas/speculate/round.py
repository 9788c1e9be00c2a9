"""A round: propose, verify, commit. The heart of Eyas.

Leviathan et al. 2023 and Chen et al. 2023 for chains; Li et al. (EAGLE-2, EAGLE-3) for trees and the draft's cache.
With one-hot drafts the target's token at every node is known (greedy, or drawn with keyed noise), and the text is that
of plain decoding, whatever was proposed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

import torch
from torch import Tensor

from eyas import metrics
from eyas.config import SpeculativeSettings
from eyas.kernels import KVCache, Part, Rows
from eyas.models.target import Outputs, Target
from eyas.speculate.accept import Uniforms, speculative_sample, walk
from eyas.speculate.propose import Proposal, Proposer
from eyas.speculate.sampling import History, SamplingParams, edits_logits, process, target_tokens
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

    def counted(self, kept: int) -> metrics.Round:
        """As the figures count it when a stop or a limit leaves the first ``kept`` tokens."""
        assert 1 <= kept <= len(self.tokens)
        cut = kept < len(self.tokens)
        depth = None if self.tree.is_chain else self.tree.depth()
        return metrics.Round(kept if cut else len(self.accepted), len(self.tree) - 1, cut, depth)


def speculative_round(
    target: Target,
    cache: KVCache,
    proposer: Proposer,
    states: Sequence[DecodeState],
    settings: Sequence[SpeculativeSettings | None],
) -> list[Outcome]:
    """Propose, verify and commit once for every request. Requests accept different lengths.

    Raises ``model.nonfinite`` if the target gives NaN.
    """
    proposals = proposer.propose(states, settings)
    rows, starts = verification_rows(states, [proposal.tree for proposal in proposals])
    out = target.new_outputs(len(rows), proposer.taps)
    target.forward(rows, cache, out)
    choices = accept(target.logits(out.hidden), states, proposals, starts)
    outcomes = []
    for state, proposal, start, (path, last) in zip(states, proposals, starts, choices, strict=True):
        kept = [start, *(start + node for node in path)]
        state.take(rows.slots[kept].tolist(), out.features[kept] if proposer.taps else None)
        tokens = (*(proposal.tree.tokens[node] for node in path), last)
        state.tokens += tokens
        outcomes.append(Outcome(proposal.tree, tuple(path), tokens))
    return outcomes


def verification_rows(states: Sequence[DecodeState], trees: Sequence[Tree]) -> tuple[Rows, list[int]]:
    """All trees as one flat ragged batch, and the row of each tree's root."""
    parts, starts, start = [], [], 0
    for state, tree in zip(states, trees, strict=True):
        positions = [state.root_position + depth for depth in tree.depths]
        parts.append(Part(tree.tokens, positions, tree.parents, state.spare[: len(tree)], state.table))
        starts.append(start)
        start += len(tree)
    return Rows.build(parts), starts


def accept(
    logits_RV: Tensor, states: Sequence[DecodeState], proposals: Sequence[Proposal], starts: Sequence[int]
) -> list[tuple[list[int], int]]:
    """Per request (accepted nodes, the target's own token after them), from the logits of all verified rows."""
    params: list[SamplingParams] = []
    positions, histories, one_hot = [], [], []
    for state, proposal in zip(states, proposals, strict=True):
        edited = edits_logits(state.params)
        for node, depth in enumerate(proposal.tree.depths):
            if proposal.q is None:
                one_hot.append(len(params))
            params.append(state.params)
            positions.append(len(state.tokens) + depth)
            path = [proposal.tree.tokens[i] for i in proposal.tree.path(node)]
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


def prefill(
    target: Target,
    cache: KVCache,
    taps: tuple[int, ...],
    states: Sequence[DecodeState],
    counts: Sequence[int],
) -> list[int | None]:
    """Run the next ``counts[i]`` prompt tokens of each request; where a prompt ends, draw and commit the next token.

    That token belongs to no round. Returns it, or None while the prompt goes on.
    """
    rows = Rows.build(
        [
            Part.chain(state.tokens[state.cached :][:count], state.cached, state.spare[:count], state.table)
            for state, count in zip(states, counts, strict=True)
        ]
    )
    out = target.new_outputs(len(rows), taps)
    target.forward(rows, cache, out)
    stops = list(accumulate(counts))
    ends = {i: stop - 1 for i, (s, stop) in enumerate(zip(states, stops, strict=True)) if _completes(s, counts[i])}
    drawn = _first_tokens(target, out, [states[i] for i in ends], list(ends.values()))
    for state, count, stop in zip(states, counts, stops, strict=True):
        features = out.features[stop - count : stop] if taps else None
        state.take(rows.slots[stop - count : stop].tolist(), features)
    first: list[int | None] = [None] * len(states)
    for i, token in zip(ends, drawn, strict=True):
        states[i].tokens.append(token)
        first[i] = token
    return first


def _completes(state: DecodeState, count: int) -> bool:
    return state.cached + count == len(state.tokens)


def _first_tokens(target: Target, out: Outputs, states: Sequence[DecodeState], rows: Sequence[int]) -> list[int]:
    """The token after each prompt, from the row at its end."""
    if not states:
        return []
    return target_tokens(
        target.logits(out.hidden[rows]),
        [state.params for state in states],
        [len(state.tokens) for state in states],
        [state.history() for state in states],
    ).tolist()
