import math
from dataclasses import dataclass, field, replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from eyas.errors import EyasError
from eyas.speculate import noise
from eyas.speculate.sampling import History, keep, process, target_tokens


@dataclass(frozen=True)
class Params:
    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    seed: int = 0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: dict[int, float] = field(default_factory=dict)


EMPTY = History([], [])


def logits_of(seed: int, *shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)) * 3


PARAMS = st.builds(
    Params,
    temperature=st.sampled_from([0.0, 0.3, 1.0, 2.0]),
    top_k=st.sampled_from([0, 1, 5, 40, 1000]),
    top_p=st.sampled_from([1e-6, 0.3, 0.9, 1.0]),
    min_p=st.sampled_from([0.0, 0.05, 1.0]),
    seed=st.integers(0, 2**63 - 1),
    repetition_penalty=st.sampled_from([1.0, 1.3, 0.7]),
    presence_penalty=st.sampled_from([0.0, 0.5]),
    frequency_penalty=st.sampled_from([0.0, -0.5]),
    logit_bias=st.dictionaries(st.integers(0, 49), st.floats(-9, 9), max_size=3),
)
HISTORY = st.builds(History, st.lists(st.integers(0, 49), max_size=8), st.lists(st.integers(0, 49), max_size=8))


@settings(max_examples=80)
@given(st.lists(st.tuples(PARAMS, HISTORY, st.integers(0, 999)), min_size=1, max_size=6), st.integers(0, 99))
def test_a_row_does_not_depend_on_its_batch(rows: list[tuple[Params, History, int]], seed: int) -> None:
    logits = logits_of(seed, len(rows), 50)
    params, histories, positions = [r[0] for r in rows], [r[1] for r in rows], [r[2] for r in rows]
    before = logits.clone()
    tokens = target_tokens(logits, params, positions, histories)
    assert tokens.dtype == torch.int64
    assert torch.equal(logits, before)
    for r, token in enumerate(tokens.tolist()):
        one = slice(r, r + 1)
        assert target_tokens(logits[one], params[one], positions[one], histories[one]).tolist() == [token]


@settings(max_examples=80)
@given(PARAMS, HISTORY, st.integers(0, 999), st.integers(0, 99))
def test_tokens_come_from_the_processed_distribution(p: Params, h: History, position: int, seed: int) -> None:
    logits = logits_of(seed, 50)
    log_p = process(logits, p, h, position)
    assert log_p.exp().sum().item() == pytest.approx(1.0, abs=1e-5)
    token = int(target_tokens(logits[None], [p], [position], [h])[0])
    g = noise.gumbel(p.seed, [position], torch.arange(50))[0]
    expected = log_p.argmax() if p.temperature == 0 else (log_p.double() + g).argmax()
    assert token == expected


@given(st.integers(0, 10**6), st.integers(1, 60), st.integers(1, 60))
def test_top_k_keeps_the_most_likely(seed: int, V: int, k: int) -> None:
    logits = logits_of(seed, V).round()  # rounded, so that there are equals
    kept = keep(logits, Params(temperature=1.0, top_k=k)).ids.tolist()
    kth = logits.sort(descending=True).values[min(k, V) - 1]
    assert kept == (logits >= kth).nonzero()[:, 0].tolist()


@given(st.integers(0, 10**6), st.sampled_from([3, 70, 700]), st.floats(1e-9, 1.0, exclude_max=True))
def test_top_p_keeps_the_fewest_that_reach_it(seed: int, V: int, top_p: float) -> None:
    logits = logits_of(seed, V).mul(2).round().div(2)
    kept = keep(logits, Params(temperature=1.0, top_p=top_p)).ids
    p = logits.double().softmax(0)
    ids_by_p = sorted(range(V), key=lambda i: (-logits[i].item(), i))
    assert kept.tolist() == sorted(ids_by_p[: len(kept)])
    assert p[kept].sum() >= top_p - 1e-9
    assert len(kept) == 1 or p[ids_by_p[: len(kept) - 1]].sum() < top_p + 1e-9


def test_flat_distribution_needs_a_wide_nucleus() -> None:
    kept = keep(torch.zeros(5000), Params(temperature=1.0, top_p=0.5)).ids
    assert abs(len(kept) - 2500) <= 1
    assert kept.tolist() == list(range(len(kept)))


@given(st.integers(0, 10**6), st.floats(1e-6, 1.0))
def test_min_p_is_relative_to_the_best(seed: int, min_p: float) -> None:
    logits = logits_of(seed, 40)
    p = logits.double().softmax(0)
    kept = set(keep(logits, Params(temperature=1.0, min_p=min_p)).ids.tolist())
    assert all(
        (p[i] >= min_p * p.max() * (1 - 1e-5)) if i in kept else (p[i] < min_p * p.max() * (1 + 1e-5))
        for i in range(40)
    )


def test_filters_apply_in_order() -> None:
    logits = torch.tensor([0.4, 0.3, 0.2, 0.1]).log()
    # top-k 2 leaves 4/7 and 3/7: the first alone reaches .5; over all four it would not.
    assert keep(logits, Params(temperature=1.0, top_k=2, top_p=0.5)).ids.tolist() == [0]
    assert keep(logits, Params(temperature=1.0, top_p=0.5)).ids.tolist() == [0, 1]
    assert keep(logits, Params(temperature=1.0, top_p=0.8, min_p=0.6)).ids.tolist() == [0, 1]


def test_penalties_by_hand() -> None:
    logits = torch.tensor([2.0, -2.0, 1.0, 0.5])
    history = History(prompt=[0, 1], output=[2, 2])
    p = Params(
        temperature=1.0,
        repetition_penalty=2.0,
        presence_penalty=0.1,
        frequency_penalty=0.2,
        logit_bias={3: 4.0, 0: 1.0},
    )
    expected = torch.tensor([1.5, -4.0, 0.5 - 0.1 - 0.4, 4.5])
    torch.testing.assert_close(process(logits, p, history, 4), expected.log_softmax(0))
    assert target_tokens(logits[None], [replace(p, temperature=0.0)], [4], [history]).tolist() == [3]


def test_greedy_takes_the_lowest_of_equals() -> None:
    logits = torch.zeros(3, 1000)
    logits[1, [17, 900]] = 1.0
    for p in (Params(), Params(presence_penalty=1.0)):
        assert target_tokens(logits, [p] * 3, [1, 2, 3], [EMPTY] * 3).tolist() == [0, 17, 0]
    assert process(logits[1], Params(), EMPTY, 1).exp().nonzero()[:, 0].tolist() == [17]


@pytest.mark.parametrize("temperature", [1e-30, 1e-3, 100.0])
def test_extreme_temperatures_stay_finite(temperature: float) -> None:
    logits = torch.tensor([3e4, -3e4, 2.9e4])
    p = Params(temperature=temperature)
    log_p = process(logits, p, EMPTY, 1)
    assert not log_p.isnan().any()
    assert target_tokens(logits[None], [p], [1], [EMPTY]).item() in (0, 2)


def test_masked_tokens_are_never_drawn() -> None:
    logits = torch.full((200, 5), -math.inf)
    logits[:, 3] = 0.0
    rows = range(200)
    assert target_tokens(logits, [Params(temperature=1.0)] * 200, rows, [EMPTY] * 200).unique().tolist() == [3]


@pytest.mark.parametrize("bad", [math.nan, math.inf, "row"])
@pytest.mark.parametrize("p", [Params(), Params(temperature=1.0), Params(temperature=1.0, repetition_penalty=1.1)])
def test_nonfinite_logits_name_their_position(bad: float | str, p: Params) -> None:
    logits = torch.zeros(3, 5)
    if isinstance(bad, str):
        logits[1] = -math.inf
    else:
        logits[1, 2] = bad
    with pytest.raises(EyasError, match="position 41 ") as e:
        target_tokens(logits, [p] * 3, [40, 41, 42], [EMPTY] * 3)
    assert e.value.code == "model.nonfinite"
    with pytest.raises(EyasError, match="position 41 "):
        process(logits[1], p, EMPTY, 41)


@pytest.mark.parametrize("token", [-1, 5])
def test_logit_bias_outside_the_vocabulary(token: int) -> None:
    with pytest.raises(EyasError) as e:
        target_tokens(torch.zeros(1, 5), [Params(logit_bias={token: 1.0})], [0], [EMPTY])
    assert e.value.code == "request.sampling"


SETTINGS = [
    Params(temperature=1.0),
    Params(temperature=0.7, top_k=4),
    Params(temperature=1.5, top_p=0.8),
    Params(temperature=1.0, min_p=0.1),
    Params(temperature=1.2, top_k=5, top_p=0.9, min_p=0.02, repetition_penalty=1.2, frequency_penalty=0.3),
]


@pytest.mark.parametrize("p", SETTINGS, ids=str)
def test_drawn_tokens_follow_the_distribution(p: Params, goodness_of_fit) -> None:
    logits, history, n = logits_of(5, 8) / 2, History([1, 2], [3, 3]), 2000
    probabilities = process(logits, p, history, 0).double().exp().tolist()
    tokens = target_tokens(logits.expand(n, 8), [replace(p, seed=9)] * n, range(n), [history] * n)
    counts = torch.bincount(tokens, minlength=8).tolist()
    # Rare tokens share a cell with the most likely one.
    rare = [i for i in range(8) if probabilities[i] * n < 10]
    top = probabilities.index(max(probabilities))
    for i in rare:
        assert counts[i] == 0 or probabilities[i] > 0
        counts[top] += counts[i]
        probabilities[top] += probabilities[i]
        counts[i], probabilities[i] = 0, 0.0
    assert goodness_of_fit(counts, probabilities) > 0.01 / len(SETTINGS)
