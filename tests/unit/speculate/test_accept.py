from collections.abc import Callable

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import binomtest

from eyas.speculate import noise
from eyas.speculate.accept import Uniforms, speculative_sample, walk
from eyas.speculate.tree import Tree

ALPHA = 0.01


def test_walk_by_hand() -> None:
    #        0:5
    #    1:7     2:8
    #  3:7 4:9    5:7
    tree = Tree((5, 7, 8, 7, 9, 7), (-1, 0, 0, 1, 1, 2))
    assert walk(tree, [7, 9, 0, 0, 3, 0]) == ([1, 4], 3)
    assert walk(tree, [8, 9, 7, 0, 3, 2]) == ([2, 5], 2)
    assert walk(tree, [1, 7, 7, 7, 7, 7]) == ([], 1)
    assert walk(Tree.chain([4]), [6]) == ([], 6)


@given(st.lists(st.integers(0, 2), min_size=1, max_size=8), st.data())
def test_walk_of_a_chain_is_the_common_prefix(tokens: list[int], data: st.DataObject) -> None:
    target = data.draw(st.lists(st.integers(0, 2), min_size=len(tokens), max_size=len(tokens)))
    accepted, bonus = walk(Tree.chain(tokens), target)
    a = next((i for i, (x, y) in enumerate(zip(tokens[1:], target, strict=False)) if x != y), len(tokens) - 1)
    assert accepted == list(range(1, a + 1))
    assert bonus == target[a]


Sampler = Callable[[torch.Tensor, torch.Tensor, list[int], Uniforms], tuple[int, int]]


def one_token(sampler: Sampler, p: list[float], q: list[float], n: int) -> tuple[list[int], int]:
    """Counts of the first committed token over n rounds, and how many rounds accepted."""
    p_2V, q_1V = torch.tensor([p, p]), torch.tensor([q])
    g = noise.gumbel(17, range(n), torch.arange(len(q)), noise.PROPOSAL)
    counts, accepted = [0] * len(p), 0
    for position, x in enumerate((q_1V.log() + g).argmax(-1).tolist()):
        a, following = sampler(p_2V, q_1V, [x], Uniforms.keyed(17, position, 1))
        counts[x if a else following] += 1
        accepted += a
    return counts, accepted


PAIRS = [
    ([0.8, 0.1, 0.1], [0.4, 0.3, 0.3]),
    ([0.4, 0.3, 0.3], [0.8, 0.1, 0.1]),
    ([0.2, 0.3, 0.5], [0.2, 0.3, 0.5]),
    ([0.5, 0.5, 0.0], [0.1, 0.2, 0.7]),
    ([0.7, 0.2, 0.1], [0.0, 1.0, 0.0]),  # one-hot: outside the draft's vocabulary
    ([0.05, 0.15, 0.3, 0.1, 0.4], [0.3, 0.3, 0.0, 0.4, 0.0]),
]


@pytest.mark.parametrize(("p", "q"), PAIRS, ids=str)
def test_output_is_distributed_as_the_target(p: list[float], q: list[float], goodness_of_fit) -> None:
    n = 2500
    counts, accepted = one_token(speculative_sample, p, q, n)
    assert goodness_of_fit(counts, p) > ALPHA / len(PAIRS)
    rate = sum(map(min, p, q))
    if 1 - rate < 1e-9:
        assert accepted == n
    else:
        assert binomtest(accepted, n, rate).pvalue > ALPHA / len(PAIRS)


def test_fault_15_one_hot_accepts_more_than_sampled(goodness_of_fit) -> None:
    p, q, n = torch.tensor([0.8, 0.1, 0.1]), torch.tensor([0.4, 0.3, 0.3]), 4000
    tokens = (p.log() + noise.gumbel(5, range(n), torch.arange(3))).argmax(-1).tolist()
    tree = Tree.chain([0, int(q.argmax())])
    rounds = [walk(tree, [t, 0]) for t in tokens]
    one_hot = sum(len(accepted) for accepted, _ in rounds)
    sampled = one_token(speculative_sample, p.tolist(), q.tolist(), n)[1]
    assert binomtest(one_hot, n, 0.8).pvalue > ALPHA
    assert binomtest(sampled, n, 0.6).pvalue > ALPHA
    committed = [tree.tokens[accepted[0]] if accepted else bonus for accepted, bonus in rounds]
    assert committed == tokens
    assert goodness_of_fit([committed.count(t) for t in range(3)], p.tolist()) > ALPHA


def resample_from_p(p: torch.Tensor, q: torch.Tensor, x: list[int], u: Uniforms) -> tuple[int, int]:
    """Biased: after a rejection it draws from p instead of the residual."""
    a, following = speculative_sample(p, q, x, u)
    return (a, following) if a == len(x) else (a, int((p[a].cumsum(0) > u.residual[a]).nonzero()[0]))


def unnormalised_residual(p: torch.Tensor, q: torch.Tensor, x: list[int], u: Uniforms) -> tuple[int, int]:
    """Biased: it draws from max(p - q, 0) as if that summed to 1; what is missing goes to the last token."""
    a, following = speculative_sample(p, q, x, u)
    if a == len(x):
        return a, following
    above = ((p[a] - q[a]).clamp(min=0).cumsum(0) > u.residual[a]).nonzero()
    return a, int(above[0]) if len(above) else p.shape[1] - 1


def as_one_hot(p: torch.Tensor, q: torch.Tensor, x: list[int], u: Uniforms) -> tuple[int, int]:
    """Exact, though it accepts less: however a proposal came about, it may be taken as drawn from one-hot."""
    return speculative_sample(p, torch.nn.functional.one_hot(torch.tensor(x), p.shape[1]).float(), x, u)


def forgets_q(p: torch.Tensor, q: torch.Tensor, x: list[int], u: Uniforms) -> tuple[int, int]:
    """Biased: it accepts with probability p as if one-hot, but resamples by the sampled draft's q."""
    a, following = as_one_hot(p, q, x, u)
    return (a, following) if a == len(x) else (a, speculative_sample(p[a:], q[a:], x[a:], rejecting(u, a))[1])


def rejecting(u: Uniforms, i: int) -> Uniforms:
    return Uniforms((1 - 2.0**-53, *u.accept[i + 1 :]), u.residual[i:])


def reuses_the_number(p: torch.Tensor, q: torch.Tensor, x: list[int], u: Uniforms) -> tuple[int, int]:
    """Biased: the number that rejected also draws from the residual."""
    return speculative_sample(p, q, x, Uniforms(u.accept, (*u.accept, u.residual[-1])))


BIASED = [resample_from_p, unnormalised_residual, forgets_q, reuses_the_number]
UNEVEN = ([0.35, 0.3, 0.2, 0.1, 0.05], [0.1, 0.15, 0.05, 0.5, 0.2])


@pytest.mark.parametrize("sampler", [speculative_sample, as_one_hot, *BIASED], ids=lambda f: f.__name__)
def test_planted_bias_is_caught(sampler: Sampler, goodness_of_fit) -> None:
    p_value = goodness_of_fit(one_token(sampler, *UNEVEN, n=3000)[0], UNEVEN[0])
    assert p_value < 1e-6 if sampler in BIASED else p_value > ALPHA


STRIDE = 16  # positions between two texts


def language(name: int) -> torch.Tensor:
    """[STRIDE, 3, 3]: the distribution of the next token, by place and last token."""
    return (1.5 * torch.randn(STRIDE, 3, 3, generator=torch.Generator().manual_seed(name))).softmax(-1)


def generate(sampler: Sampler, K: int, p: torch.Tensor, q: torch.Tensor, draws: list, start: int) -> list[int]:
    """Three tokens by rounds of K proposals. ``draws[place][last token]`` are proposals drawn from q."""
    text = [0]
    while len(text) <= 3:
        root, last = len(text) - 1, text[-1:]
        for i in range(K):
            last.append(draws[root + i][last[-1]])
        places = torch.arange(root, root + K + 1)
        p_rows, q_rows = p[places, last], q[places[:K], last[:K]]
        a, following = sampler(p_rows, q_rows, last[1:], Uniforms.keyed(3, start + root, K))
        text += [*last[1 : a + 1], following]
    return text[1:4]


def joint_counts(sampler: Sampler, K: int, n: int) -> tuple[list[int], list[float]]:
    """Counts of the 27 texts of three tokens, and their probabilities under the target."""
    p, q = language(1), language(2)
    g = noise.gumbel(3, range(n * STRIDE), torch.arange(3), noise.PROPOSAL).view(n, STRIDE, 1, 3)
    draws = (q.log() + g).argmax(-1).tolist()
    counts = [0] * 27
    for text in range(n):
        x, y, z = generate(sampler, K, p, q, draws[text], text * STRIDE)
        counts[9 * x + 3 * y + z] += 1
    joint = [float(p[0, 0, x] * p[1, x, y] * p[2, y, z]) for x in range(3) for y in range(3) for z in range(3)]
    return counts, joint


@pytest.mark.parametrize("K", [1, 2, 3])
def test_rounds_keep_the_joint_distribution(K: int, goodness_of_fit) -> None:
    counts, joint = joint_counts(speculative_sample, K, 2500)
    assert goodness_of_fit(*merged(counts, joint)) > ALPHA / 3


def late_bias(p: torch.Tensor, q: torch.Tensor, x: list[int], u: Uniforms) -> tuple[int, int]:
    """Biased from the second proposal on: it uses the first place's p, the fault of a wrong row index."""
    return speculative_sample(torch.cat([p[:1], p[:1].expand(len(x) - 1, -1), p[-1:]]), q, x, u)


@pytest.mark.parametrize("sampler", [resample_from_p, forgets_q, late_bias], ids=lambda f: f.__name__)
def test_rounds_catch_planted_bias(sampler: Sampler, goodness_of_fit) -> None:
    counts, joint = joint_counts(sampler, 3, 1200)
    assert goodness_of_fit(*merged(counts, joint)) < 1e-6


def merged(counts: list[int], joint: list[float]) -> tuple[list[int], list[float]]:
    """Cells expected fewer than 10 times become one."""
    n = sum(counts)
    often = [i for i in range(len(joint)) if joint[i] * n >= 10]
    rest = [i for i in range(len(joint)) if joint[i] * n < 10]
    cells, expected = [counts[i] for i in often], [joint[i] for i in often]
    if rest:
        cells.append(sum(counts[i] for i in rest))
        expected.append(sum(joint[i] for i in rest))
    return cells, expected


def test_equal_distributions_but_for_rounding() -> None:
    p = torch.tensor([[0.5, 0.5], [0.5, 0.5]], dtype=torch.float64)
    q = p[:1].clone()
    assert speculative_sample(p, q, [1], Uniforms((1 - 2.0**-53,), (0.3, 0.7))) == (1, 1)
    q[0, 1] = 0.5 + 1e-16
    a, following = speculative_sample(p, q, [1], Uniforms((1 - 2.0**-53,), (0.3, 0.7)))
    assert (a, following) in [(0, 0), (1, 1)]


def test_numbers_at_the_ends_stay_inside() -> None:
    p = torch.tensor([[0.0, 0.3, 0.7, 0.0], [0.0, 0.3, 0.7, 0.0]])
    q = torch.tensor([[0.0, 0.0, 0.0, 1.0]])
    low, high = 2.0**-53, 1 - 2.0**-53
    assert speculative_sample(p, q, [3], Uniforms((low,), (low, 0.5))) == (0, 1)
    assert speculative_sample(p, q, [3], Uniforms((low,), (high, 0.5))) == (0, 2)


def test_uniforms_belong_to_their_position() -> None:
    long, late = Uniforms.keyed(4, 10, 5), Uniforms.keyed(4, 12, 2)
    assert late.accept == long.accept[2:4]
    assert late.residual == long.residual[2:5]
    assert len({*long.accept, *long.residual}) == 11


def test_no_proposals_is_plain_sampling(goodness_of_fit) -> None:
    p, counts = torch.tensor([[0.6, 0.3, 0.1]]), [0, 0, 0]
    for position in range(3000):
        counts[speculative_sample(p, p[:0], [], Uniforms.keyed(2, position, 0))[1]] += 1
    assert goodness_of_fit(counts, p[0].tolist()) > ALPHA
