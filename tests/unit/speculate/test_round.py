"""Rounds on small targets: what is verified, committed and left in the caches."""

from collections.abc import Sequence
from dataclasses import dataclass

import pytest
import torch

from eyas import metrics
from eyas.config import SamplingSettings, SpeculativeSettings
from eyas.errors import EyasError
from eyas.kernels import KVCache
from eyas.models.llama import LlamaTarget
from eyas.speculate.propose import NoProposer, Proposal
from eyas.speculate.round import Outcome, Turn, accept, speculative_round
from eyas.speculate.state import DecodeState
from eyas.speculate.tree import Tree
from rigs import Oracle, chain, plain_answers, random_prompt, random_target

TAPS = (1, 3)


@pytest.fixture(scope="module", params=["eager", "onednn"])
def target(request: pytest.FixtureRequest) -> LlamaTarget:
    return random_target(backend=request.param)


def state(prompt: Sequence[int], first_slot: int = 0, **sampling: float) -> DecodeState:
    slots = list(range(first_slot, first_slot + 100))
    return DecodeState(list(prompt), len(prompt), SamplingSettings(**sampling), slots)


def read(
    target: LlamaTarget, cache: KVCache, taps: tuple[int, ...], states: list[DecodeState], counts: list[int]
) -> list[int | None]:
    """Read on in each text; the token drawn where it ends."""
    outcomes = speculative_round(target, cache, Fixed([], taps), states, [None] * len(states), counts)
    return [outcome.tokens[0] if outcome else None for outcome in outcomes]


def ready(target: LlamaTarget, cache: KVCache, taps: tuple[int, ...], states: list[DecodeState]) -> None:
    read(target, cache, taps, states, [len(s.tokens) for s in states])


def anew(target: LlamaTarget, tokens: Sequence[int]) -> tuple[KVCache, torch.Tensor]:
    """Cache, slot = position, and features [n, …] of a text read in one forward."""
    cache, whole = target.new_cache(len(tokens) + 1), state([*tokens])
    read(target, cache, TAPS, [whole], [len(tokens)])
    return cache, torch.cat(whole.pending)


def assert_caches_are_of_the_text(target: LlamaTarget, cache: KVCache, s: DecodeState) -> None:
    """Keys, values and features are those that reading the committed text anew gives."""
    fresh, features = anew(target, s.tokens[:-1])
    for layer in range(target.num_layers):
        for ours, theirs in zip((cache.k, cache.v), (fresh.k, fresh.v), strict=True):
            torch.testing.assert_close(ours(layer)[s.table], theirs(layer)[: s.cached], atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(torch.cat(s.pending), features, atol=1e-4, rtol=1e-4)


@dataclass
class Fixed:
    """Proposes the same trees whatever happens."""

    trees: list[Tree]
    taps: tuple[int, ...] = TAPS

    def propose(self, states: Sequence[DecodeState], settings: Sequence[SpeculativeSettings | None]) -> list[Proposal]:
        return [Proposal(tree) for tree in self.trees]


def test_prefill_in_chunks_gives_the_same_caches_and_token(target: LlamaTarget) -> None:
    prompts = [random_prompt(seed, 9 + 4 * seed) for seed in range(3)]
    truth = [answer[0] for answer in plain_answers(target, prompts, [SamplingSettings(max_new_tokens=1)] * 3)]
    cache, states = target.new_cache(300), [state(p, 100 * i) for i, p in enumerate(prompts)]
    given = read(target, cache, TAPS, states, [9, 5, 1])
    assert given == [truth[0], None, None]
    assert read(target, cache, TAPS, states[1:], [8, 3]) == [truth[1], None]
    assert read(target, cache, TAPS, states[2:], [13]) == [truth[2]]
    for s in states:
        assert s.cached == s.prompt_length == len(s.tokens) - 1
        assert_caches_are_of_the_text(target, cache, s)


def test_a_tree_is_verified_on_its_own_paths_and_the_accepted_one_committed(target: LlamaTarget) -> None:
    prompt = random_prompt(1, 6)
    t = plain_answers(target, [prompt], [SamplingSettings(max_new_tokens=6)])[0]
    x, y = (next(n for n in range(128) if n not in t and n != m) for m in (-1, 0))
    # Right tokens are nodes 2, 4 and 7; each has a wrong sibling, and wrong branches go on with right tokens.
    tree = Tree((t[0], x, t[1], y, t[2], t[1], t[2], t[3], x), (-1, 0, 0, 2, 2, 1, 3, 4, 7))
    cache, s, other = target.new_cache(200), state(prompt), state(random_prompt(2, 11), 100)
    ready(target, cache, TAPS, [other, s])
    outcomes = speculative_round(
        target, cache, Fixed([Tree.chain(other.tokens[-1:]), tree]), [other, s], [None, chain(3)]
    )
    assert outcomes[1] == Outcome(tree, (2, 4, 7), (t[1], t[2], t[3], t[4]))
    assert s.tokens == [*prompt, *t[:5]]
    assert s.table.tolist() == [*range(6), 6, 8, 10, 13]
    assert len(outcomes[0].tokens) == 1
    for each in (s, other):
        assert_caches_are_of_the_text(target, cache, each)
    again = speculative_round(target, cache, Fixed([Tree.chain([t[4], t[5], 5])]), [s], [chain(2)])[0]
    assert again.tokens[0] == t[5]
    assert_caches_are_of_the_text(target, cache, s)


def test_every_accepted_length_in_one_batch(target: LlamaTarget) -> None:
    K = 5
    prompts = [random_prompt(10 + i, 3 + 2 * i) for i in range(K + 1)]
    answers = plain_answers(target, prompts, [SamplingSettings(max_new_tokens=K + 2)] * (K + 1))
    cache, states = target.new_cache(100 * (K + 1)), [state(p, 100 * i) for i, p in enumerate(prompts)]
    ready(target, cache, TAPS, states)
    trees = []
    for a, answer in enumerate(answers):
        drafts = [*answer[: a + 1], *((token + 1) % 128 for token in answer[a + 1 : K + 1])]
        trees.append(Tree.chain(drafts))
    outcomes = speculative_round(target, cache, Fixed(trees), states, [chain(K)] * (K + 1))
    assert [len(outcome.accepted) for outcome in outcomes] == list(range(K + 1))
    for a, (s, answer) in enumerate(zip(states, answers, strict=True)):
        assert s.tokens[s.prompt_length :] == answer[: a + 2]
        assert_caches_are_of_the_text(target, cache, s)


def test_a_turns_rows() -> None:
    one, two = state([1, 2, 3]), state([4, 5, 6, 7], 100)
    one.take([0, 1], None)
    two.take([100], None)
    part = Turn(one, 0, Proposal(Tree((3, 7, 8), (-1, 0, 0)))).part()
    assert (list(part.tokens), list(part.positions), list(part.parents)) == ([3, 7, 8], [2, 3, 3], [-1, 0, 0])
    assert list(part.slots) == [2, 3, 4]
    whole = Turn(two, 2, Proposal(Tree((7, 8, 9), (-1, 0, 0)))).part()
    assert (list(whole.tokens), list(whole.positions)) == ([5, 6, 7, 8, 9], [1, 2, 3, 4, 4])
    assert (list(whole.parents), list(whole.slots)) == ([-1, 0, 1, 2, 2], [101, 102, 103, 104, 105])
    assert list(Turn(two, 2, None).part().tokens) == [5, 6]


def test_acceptance_draws_each_node_with_its_own_position_and_history() -> None:
    """Sibling nodes share a position and its noise; a repetition penalty sees a node's own path only."""
    s = state([1, 2], temperature=1.0, seed=3, repetition_penalty=5.0)
    tree = Tree((2, 5, 6, 7), (-1, 0, 0, 1))
    logits = torch.zeros(4, 128)
    logits[:, [5, 6, 7]] = 30.0
    # After node 1 (token 5) only 6 and 7 are unpenalised, after node 2 (token 6) only 5 and 7.
    (path, _) = accept(logits, [s], [Proposal(tree)], [0])[0]
    first = tree.tokens[path[0]] if path else 7
    assert first in (5, 6, 7)
    again = accept(logits[:1], [s], [Proposal(Tree.chain([2]))], [0])[0]
    assert again == ([], first)
    longer = DecodeState([1, 2, 5], 2, s.params, [])
    if path and path[0] == 1:
        expected = accept(logits[:1], [longer], [Proposal(Tree.chain([5]))], [0])[0][1]
        assert expected in (6, 7)


def test_nothing_is_committed_when_the_target_gives_nan() -> None:
    target = random_target(layers=2)
    good, s = target.new_cache(100), state(random_prompt(1, 5))
    ready(target, good, (), [s])
    before = (list(s.tokens), s.table.tolist(), list(s.spare))
    target._norm[0] = torch.nan
    with pytest.raises(EyasError) as error:
        speculative_round(target, good, NoProposer(), [s], [None])
    assert error.value.code == "model.nonfinite"
    assert (s.tokens, s.table.tolist(), s.spare) == before
    fresh = state(random_prompt(1, 5))
    with pytest.raises(EyasError) as error:
        ready(target, target.new_cache(100), (), [fresh])
    assert error.value.code == "model.nonfinite"
    assert fresh.cached == 0


def test_counted() -> None:
    whole = Outcome(Tree.chain([0, 1, 2, 3]), (1, 2), (1, 2, 9))
    assert whole.counted(3) == metrics.Round(2, 3)
    assert whole.counted(2) == metrics.Round(2, 3, cut=True)
    assert whole.counted(1) == metrics.Round(1, 3, cut=True)
    tree = Outcome(Tree((0, 1, 2, 3), (-1, 0, 0, 1)), (1,), (1, 9))
    assert tree.counted(2) == metrics.Round(1, 3, depth=2)


def test_the_oracle_plants_every_count() -> None:
    oracle = Oracle({(1, 2): list(range(3, 60))}, 128)
    s = state([1, 2])
    counts = set()
    for m in range(2, 40):
        s.tokens = list(range(1, m + 1))
        drafts = oracle.propose([s], [chain(4)])[0].tree.tokens[1:]
        counts.add(next((i for i, d in enumerate(drafts) if d != m + 1 + i), 4))
    assert counts == {0, 1, 2, 3, 4}
