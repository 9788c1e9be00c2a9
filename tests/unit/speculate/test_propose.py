"""The draft's proposals with its cache, against the draft run anew over the whole text without one."""

import math
import random
from collections.abc import Sequence
from itertools import accumulate

import pytest
import torch
from torch import Tensor

from eyas.config import SamplingSettings, SpeculativeSettings
from eyas.draft.model import DraftModel, Step
from eyas.errors import EyasError
from eyas.speculate import noise, propose
from eyas.speculate.confidence import EDGES, bin_of, sure_chain
from eyas.speculate.propose import DraftProposer, NgramProposer, NoProposer, fitting, scratch_slots
from eyas.speculate.sampling import process
from eyas.speculate.state import DecodeState
from eyas.speculate.tree import Tree, expand, rerank, sprout
from rigs import chain, random_draft, random_prompt, random_target, tree

VOCAB = 24


class Reference:
    """Row by row, each attending to all rows before it; no slots, tables or batches."""

    def __init__(self, draft: DraftModel, features: Tensor, tokens: list[int]) -> None:
        self.draft = draft
        self.keys: list[list[tuple[Tensor, Tensor]]] = [[] for _ in draft.layers]
        for t, feature in enumerate(features):
            self.step = self.row(tokens[t + 1], draft.combine(feature[None]), t)
        self.length = len(features)

    def row(self, token: int, hidden: Tensor, position: int) -> Step:
        with torch.no_grad():
            return self.draft.step(torch.tensor([token]), hidden, torch.tensor([position]), self.attend)

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        self.keys[layer].append((k, v))
        keys, values = (torch.cat(x) for x in zip(*self.keys[layer], strict=True))
        fold = q.shape[1] // keys.shape[1]
        scores = torch.einsum("qhd,khd->hqk", q, keys.repeat_interleave(fold, 1)) * q.shape[-1] ** -0.5
        return torch.einsum("hqk,khd->qhd", scores.softmax(-1), values.repeat_interleave(fold, 1)).flatten(1)

    def log_q(self, path: list[int]) -> Tensor:
        """[D] after the committed text and a path below it."""
        step, lengths = self.step, [len(layer) for layer in self.keys]
        for depth, token in enumerate(path):
            step = self.row(token, step.carried, self.length + depth)
        for layer, length in zip(self.keys, lengths, strict=True):
            del layer[length:]
        return self.draft.logits(step.normed)[0].log_softmax(-1)

    def tree(self, root: int, settings: SpeculativeSettings) -> Tree:
        growth = sprout(root)
        for _ in range(settings.num_steps):
            drafted = [self.log_q(path_to(growth.tokens, growth.parents, node)) for node in growth.frontier]
            best = [log_q.topk(settings.eagle_topk) for log_q in drafted]
            tokens = [self.draft.to_target_ids(b.indices).tolist() for b in best]
            growth = expand(growth, tokens, [b.values.tolist() for b in best], settings.eagle_topk)
        return rerank(growth, settings.num_draft_tokens)


def path_to(tokens: tuple[int, ...], parents: tuple[int, ...], node: int) -> list[int]:
    path = []
    while node > 0:
        path.append(tokens[node])
        node = parents[node]
    return path[::-1]


class Text:
    """A request whose target is made up: random features, and rounds that accept what the test says."""

    def __init__(self, seed: int, draft: DraftModel, slots: list[int], prompt_length: int) -> None:
        self.generator, self.size = torch.Generator().manual_seed(seed), draft.config.feature_size
        tokens = list(random_prompt(seed, prompt_length, VOCAB))
        self.state = DecodeState(tokens, prompt_length, SamplingSettings(seed=seed, temperature=1.0), slots)
        self.features = torch.empty(0, self.size)
        self.commit([seed % VOCAB], self.state.spare[:prompt_length])

    def commit(self, tokens: list[int], slots: list[int]) -> None:
        features = torch.randn(len(slots), self.size, generator=self.generator)
        self.features = torch.cat([self.features, features])
        self.state.take(slots, features)
        self.state.tokens += tokens

    def accept(self, tree: Tree, draw: random.Random) -> None:
        """A round's end: any path of the tree, then a token of the target's own."""
        path = tree.path(draw.randrange(len(tree)))
        kept = [self.state.spare[node] for node in [0, *path]]
        self.commit([*(tree.tokens[node] for node in path), draw.randrange(VOCAB)], kept)

    def expected(self, draft: DraftModel, settings: SpeculativeSettings) -> Tree:
        reference = Reference(draft, self.features, self.state.tokens)
        return reference.tree(self.state.tokens[-1], settings)


OPTIONS = [
    {},
    {"kept": (0, 3, 4, 7, 9, 10, 15, 19, 22)},
    {"norm_output": True, "fc_norm": True, "num_layers": 2},
    {"norm_before_residual": True, "attention_bias": False, "taps": (2, 0)},
]


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_proposals_are_those_of_the_draft_without_a_cache(options: dict) -> None:
    """Requests of unequal length and settings, all accepted counts, and rounds with K = 0 in between."""
    draft = random_draft(random_target(vocab=VOCAB, layers=2), seed=3, **options)
    proposer = DraftProposer(draft, draft.new_cache(300))
    texts = [
        Text(seed, draft, list(range(100 * seed, 100 * seed + 90)), length) for seed, length in enumerate((1, 7, 4))
    ]
    choices = [None, chain(1), chain(4), tree(3, 3, 8), tree(2, 4, 12), tree(4, 2, 7)]
    draw = random.Random(5)
    longest = 0
    for _ in range(9):
        settings = [draw.choice(choices) for _ in texts]
        proposals = proposer.propose([text.state for text in texts], settings)
        for text, wanted, proposal in zip(texts, settings, proposals, strict=True):
            if wanted is None:
                assert proposal.tree == Tree.chain(text.state.tokens[-1:])
            else:
                same_tree(proposal.tree, text.expected(draft, wanted))
                assert text.state.absorbed == text.state.cached
                longest = max(longest, proposal.tree.depth())
            text.accept(proposal.tree, draw)
    assert longest == 4


def test_a_long_prompt_is_absorbed_in_pieces_to_the_same_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    whole, pieces = (_absorbed(monkeypatch, rows) for rows in (512, 3))
    assert torch.equal(whole.carried, pieces.carried)
    assert torch.equal(whole.normed, pieces.normed)


def _absorbed(monkeypatch: pytest.MonkeyPatch, rows: int) -> Step:
    """The first step of two requests, of 11 and 2 rows, with so many rows a forward."""
    monkeypatch.setattr(propose, "ABSORB_ROWS", rows)
    target = random_target()
    draft = random_draft(target)
    proposer = DraftProposer(draft, draft.new_cache(64))
    generator, states = torch.Generator().manual_seed(7), []
    for number, count in enumerate((11, 2)):
        tokens = list(range(5, 6 + count))
        state = DecodeState(tokens, len(tokens), SamplingSettings(), list(range(32 * number, 32 * number + 32)))
        features = torch.randn(count, draft.config.feature_size, generator=generator)
        state.take(state.spare[:count], features)
        states.append(state)
    step = proposer.absorb(states)
    assert [state.absorbed for state in states] == [11, 2]
    assert all(not state.pending for state in states)
    return step


def same_tree(tree: Tree, expected: Tree) -> None:
    assert (tree.tokens, tree.parents) == (expected.tokens, expected.parents)
    assert tree.log_q == pytest.approx(expected.log_q, abs=1e-3)


def test_a_shared_prefix_gives_the_same_proposals() -> None:
    draft = random_draft(random_target(vocab=VOCAB, layers=2), seed=3)
    proposer = DraftProposer(draft, draft.new_cache(80))
    first = Text(1, draft, list(range(40)), 12)
    proposer.absorb([first.state])
    # The second text leaves the first after 8 tokens: rows 0 … 6 depend on common tokens only.
    second = Text(1, draft, list(range(40, 80)), 12)
    tokens, features = second.state.tokens, second.features
    tokens[8:] = [(token + 1) % VOCAB for token in tokens[8:]]
    state = DecodeState(tokens, 12, second.state.params, list(range(40, 80)))
    state.share(first.state.table[:7].tolist())
    state.take(range(40, 45), features[7:12])
    wanted = tree(3, 3, 8)
    same_tree(proposer.propose([state], [wanted])[0].tree, second.expected(draft, wanted))


def test_probabilistic_proposals_are_drawn_from_q() -> None:
    draft = random_draft(random_target(vocab=VOCAB, layers=2), seed=3, kept=(0, 3, 4, 7, 9, 10, 15, 19, 22))
    proposer = DraftProposer(draft, draft.new_cache(100))
    text = Text(4, draft, list(range(90)), 5)
    state = text.state
    reference = Reference(draft, text.features, state.tokens)
    proposal = proposer.propose([state], [chain(4, draft_sampling="probabilistic")])[0]
    assert proposal.q is not None
    for i, token in enumerate(proposal.tree.tokens[1:]):
        path = list(proposal.tree.tokens[1 : i + 1])
        logits = torch.full((VOCAB,), -torch.inf)
        logits[draft.to_target_ids(torch.arange(9))] = reference.log_q(path)
        position = len(state.tokens) + i
        log_q = process(logits, state.params, state.history(path), position)
        torch.testing.assert_close(proposal.q[i], log_q.exp(), atol=1e-4, rtol=1e-4)
        g = noise.gumbel(state.params.seed, [position], torch.arange(VOCAB), noise.PROPOSAL)[0]
        assert token == int((log_q + g).argmax())


@pytest.mark.parametrize(("keep", "extend"), [(0, 0), (2, 4), (1, 14), (5, 5), (14, 14)])
def test_a_sure_chain_is_the_chain_up_to_where_the_draft_is_unsure(keep: int, extend: int) -> None:
    draft = random_draft(random_target(vocab=VOCAB, layers=2), seed=3)
    dropped = 0
    for seed in range(4):
        proposals = []
        for wanted in chain(4), sure_chain(4, keep, extend):
            proposer = DraftProposer(draft, draft.new_cache(100))
            state = Text(seed, draft, list(range(90)), 7).state
            proposals += proposer.propose([state], [wanted])
        whole, sure = proposals
        assert whole.tree.log_q is not None
        paths = [math.exp(total) for total in accumulate(whole.tree.log_q[1:])]
        unsure = next((i for i, path in enumerate(paths) if bin_of(path) < keep), 4)
        short = next((i + 1 for i, path in enumerate(paths) if bin_of(path) < extend), 4)
        assert sure.tree.tokens == whole.tree.tokens[: 1 + min(unsure, short)]
        assert sure.dropped == (pytest.approx(paths[unsure]) if unsure < short else None)
        dropped += sure.dropped is not None
    if keep in (0, len(EDGES)):
        assert dropped == (0 if keep == 0 else 4)


def test_a_sure_chain_that_the_grammar_leaves_nothing_tells_so_at_any_price() -> None:
    draft = random_draft(random_target(vocab=VOCAB, layers=2), seed=3)
    proposer = DraftProposer(draft, draft.new_cache(100))
    state = Text(1, draft, list(range(90)), 7).state
    state.constraint = Nothing()
    proposal = proposer.propose([state], [sure_chain(3, 0, 0)])[0]
    assert len(proposal.tree) == 1
    assert proposal.dropped == 0.0


class Nothing:
    """A grammar that allows no token."""

    finished = False

    def mask(self, path: Sequence[int]) -> Tensor:
        return torch.zeros(VOCAB, dtype=torch.bool)

    def commit(self, tokens: Sequence[int]) -> None:
        raise AssertionError(tokens)


def test_a_chain_ends_where_the_drafts_positions_end() -> None:
    target = random_target(vocab=VOCAB, layers=2)
    draft = random_draft(target, length=16)
    proposer = DraftProposer(draft, draft.new_cache(60))
    text = Text(1, draft, list(range(60)), 14)
    # The root is at 14. With K = 3 the last row drafted from is at 15, the draft's last position.
    assert len(proposer.propose([text.state], [chain(3)])[0].tree) == 4
    text.accept(Tree.chain(text.state.tokens[-1:]), random.Random(0))
    assert len(proposer.propose([text.state], [chain(3)])[0].tree) == 1
    assert len(proposer.propose([text.state], [chain(2)])[0].tree) == 3


def test_a_damaged_draft_is_an_error() -> None:
    target = random_target(vocab=VOCAB, layers=2)
    draft = random_draft(target)
    draft.norm[3] = torch.nan
    proposer = DraftProposer(draft, draft.new_cache(60))
    with pytest.raises(EyasError) as error:
        proposer.propose([Text(1, draft, list(range(60)), 5).state], [chain(2)])
    assert error.value.code == "model.nonfinite"


def plain_state(tokens: list[int]) -> DecodeState:
    return DecodeState(tokens, 2, SamplingSettings(), list(range(40)))


def test_ngrams_follow_the_committed_text_round_by_round() -> None:
    proposer = NgramProposer(max_ngram=3, min_ngram=1)
    one, other = plain_state([1, 2, 3, 1]), plain_state([7, 7])
    trees = [p.tree.tokens for p in proposer.propose([one, other], [chain(2), chain(3)])]
    assert trees == [(1, 2, 3), (7, 7, 7, 7)]
    one.tokens += [2, 9, 1, 2]
    trees = [p.tree.tokens for p in proposer.propose([one, other], [chain(2), None])]
    assert trees == [(2, 9, 1), (7,)]
    assert proposer.propose([plain_state([1, 2])], [chain(2)])[0].tree.tokens == (2,), "nothing leaks between requests"


def test_no_proposer_proposes_the_root_alone() -> None:
    assert [p.tree.tokens for p in NoProposer().propose([plain_state([4, 5])], [None])] == [(5,)]


@pytest.mark.parametrize(
    ("settings", "slots"), [(None, 1), (chain(1), 3), (chain(5), 7), (tree(4, 8, 16), 25), (tree(2, 4, 20), 21)]
)
def test_scratch_slots(settings: SpeculativeSettings | None, slots: int) -> None:
    assert scratch_slots(settings) == slots


def test_fitting() -> None:
    state = plain_state([0] * 11)
    assert fitting(chain(5), state, 16) == chain(5)
    assert fitting(chain(5), state, 15) is None
    assert fitting(None, state, 99) is None
