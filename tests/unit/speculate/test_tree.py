import math
import random

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from eyas.speculate.tree import Growth, Tree, expand, rerank, sprout


@st.composite
def trees(draw: st.DrawFn) -> Tree:
    parents, tokens, edges = [-1], [draw(st.integers(0, 5))], set()
    for i in range(1, draw(st.integers(1, 12))):
        edge = draw(st.tuples(st.integers(0, i - 1), st.integers(0, 5)))
        if edge in edges:
            break
        edges.add(edge)
        parents.append(edge[0])
        tokens.append(edge[1])
    return Tree(tuple(tokens), tuple(parents))


@given(trees())
def test_views_of_a_tree_agree(tree: Tree) -> None:
    seen = tree.ancestors()
    assert torch.equal(seen, seen.tril())
    for i in range(len(tree)):
        path = tree.path(i)
        assert seen[i].nonzero()[:, 0].tolist() == [0, *path]
        assert tree.depths[i] == len(path)
        assert all(tree.parents[c] == i for c in tree.children[i])
    assert sum(map(len, tree.children)) == len(tree) - 1
    assert tree.depth() == max(tree.depths)


@given(st.lists(st.integers(0, 9), min_size=1, max_size=9))
def test_chain(tokens: list[int]) -> None:
    tree = Tree.chain(tokens)
    assert tree.is_chain
    assert tree.depths == tuple(range(len(tokens)))
    assert torch.equal(tree.ancestors(), torch.ones(len(tokens), len(tokens), dtype=torch.bool).tril())


@pytest.mark.parametrize(
    ("tokens", "parents"),
    [
        ((), ()),
        ((1, 2), (-1,)),
        ((1, 2), (0, 0)),
        ((1, 2, 3), (-1, 2, 0)),
        ((1, 2, 3), (-1, -1, 0)),
        ((1, 2, 2), (-1, 0, 0)),
    ],
)
def test_broken_trees_are_refused(tokens: tuple[int, ...], parents: tuple[int, ...]) -> None:
    with pytest.raises(AssertionError):
        Tree(tokens, parents)


def test_log_q_needs_one_value_a_node() -> None:
    with pytest.raises(AssertionError):
        Tree((1, 2), (-1, 0), (0.0,))


@st.composite
def drafted(draw: st.DrawFn) -> tuple[Growth, int, int]:
    """A growth of ``steps`` steps; coarse log-probabilities, so that ties are common."""
    topk, steps = draw(st.integers(1, 5)), draw(st.integers(1, 5))
    level = draw(st.sampled_from([1.0, 0.25, 1e-3]))
    rng = random.Random(draw(st.integers(0, 10**6)))
    growth = sprout(7)
    for _ in range(steps):
        rows = [sorted((-level * rng.randrange(6) for _ in range(topk)), reverse=True) for _ in growth.frontier]
        growth = expand(growth, [rng.sample(range(20), topk) for _ in growth.frontier], rows, topk)
        assert len(growth.frontier) == topk
    return growth, topk, steps


@given(drafted(), st.integers(1, 70))
def test_rerank(case: tuple[Growth, int, int], num_draft_tokens: int) -> None:
    growth, topk, steps = case
    capacity = topk + (steps - 1) * topk**2
    assert len(growth.tokens) == capacity + 1
    tree = rerank(growth, num_draft_tokens)
    assert len(tree) == min(num_draft_tokens, capacity + 1)
    assert tree.depth() <= min(steps, num_draft_tokens - 1)
    # The best are chosen, whatever the path: the multiset of scores is that of the best overall.
    assert tree.log_q is not None
    scores = [sum(tree.log_q[j] for j in tree.path(i)) for i in range(1, len(tree))]
    assert sorted(scores, reverse=True) == pytest.approx(sorted(growth.scores[1:], reverse=True)[: len(scores)])
    # No child scores above its parent, and every path of the tree was drafted as such.
    assert all(q <= 0 for q in tree.log_q)
    drafted_edges = {(path_tokens(growth, i)) for i in range(len(growth.tokens))}
    assert all(tuple(tree.tokens[j] for j in tree.path(i)) in drafted_edges for i in range(len(tree)))


def path_tokens(growth: Growth, node: int) -> tuple[int, ...]:
    path = []
    while node > 0:
        path.append(growth.tokens[node])
        node = growth.parents[node]
    return tuple(path[::-1])


@given(drafted())
def test_rerank_grows_by_one_node_at_a_time(case: tuple[Growth, int, int]) -> None:
    growth = case[0]
    before: set[tuple[int, ...]] = set()
    for n in range(1, len(growth.tokens) + 1):
        tree = rerank(growth, n)
        paths = {tuple(tree.tokens[j] for j in tree.path(i)) for i in range(len(tree))}
        assert before < paths
        before = paths


@given(st.lists(st.floats(-5, 0), min_size=1, max_size=8), st.integers(1, 12))
def test_topk_one_is_a_chain(log_q: list[float], num_draft_tokens: int) -> None:
    growth = sprout(3)
    for i, lq in enumerate(log_q):
        growth = expand(growth, [[i]], [[lq]], topk=1)
    n = min(num_draft_tokens, len(log_q) + 1)
    tree = rerank(growth, num_draft_tokens)
    assert (tree.tokens, tree.parents) == (
        Tree.chain([3, *range(n - 1)]).tokens,
        Tree.chain([3, *range(n - 1)]).parents,
    )
    assert tree.log_q == pytest.approx([0.0, *log_q[: n - 1]])


def test_expand_by_hand() -> None:
    growth = expand(sprout(0), [[1, 2]], [[math.log(0.6), math.log(0.3)]], topk=2)
    growth = expand(growth, [[3, 4], [5, 6]], [[math.log(0.5), math.log(0.4)], [math.log(0.9), math.log(0.05)]], topk=2)
    # 3: .30, 4: .24, 5: .27, 6: .015
    assert [growth.tokens[i] for i in growth.frontier] == [3, 5]
    tree = rerank(growth, num_draft_tokens=5)
    assert tree.tokens == (0, 1, 2, 3, 5)
    assert tree.parents == (-1, 0, 0, 1, 2)


def test_ties_go_to_the_node_drafted_first() -> None:
    growth = expand(sprout(0), [[9, 8, 7]], [[-1.0, -1.0, -1.0]], topk=2)
    assert [growth.tokens[i] for i in growth.frontier] == [9, 8]
    growth = expand(growth, [[5], [5]], [[0.0], [1e-7]], topk=2)
    assert rerank(growth, 2).tokens == (0, 9)
    assert rerank(growth, 4).tokens == (0, 9, 8, 7)
    assert rerank(growth, 5).parents == (-1, 0, 0, 0, 1)


def test_impossible_tokens_are_not_proposed() -> None:
    growth = expand(sprout(0), [[1, 2, 3]], [[0.0, -math.inf, -math.inf]], topk=3)
    assert growth.frontier == (1,)
    assert rerank(growth, 4).tokens == (0, 1)
