import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from eyas.speculate import noise

U64 = (1 << 64) - 1


def split_mix(k: int, n: int) -> int:
    """Output ``n`` of SplitMix64, in plain integers."""
    x = (k + (n + 1) * 0x9E3779B97F4A7C15) & U64
    x = ((x ^ x >> 30) * 0xBF58476D1CE4E5B9) & U64
    x = ((x ^ x >> 27) * 0x94D049BB133111EB) & U64
    return x ^ x >> 31


def test_bits_are_those_of_splitmix64() -> None:
    # The first outputs for seed 1234567 are the generator's published test vector.
    published = [6457827717110365317, 3203168211198807973, 9817491932198370423, 4593380528125082431]
    assert [split_mix(1234567, n) for n in range(4)] == published
    bits = noise._bits52(torch.tensor(1234567), torch.arange(4))
    assert bits.tolist() == [h >> 12 for h in published]


@given(st.integers(-(2**70), 2**70), st.integers(0, 2**40), st.integers(0, 9), st.integers(0, 2**31))
def test_torch_and_plain_integers_agree(seed: int, position: int, stream: int, token: int) -> None:
    k = noise.key(seed, position, stream)
    w = ((split_mix(k, token) >> 12) + 0.5) * 2.0**-52
    g = noise.gumbel(seed, [position], torch.tensor([token]), stream)
    assert g.dtype == torch.float64
    assert g.item() == pytest.approx(-math.log(-math.log1p(-w)), rel=1e-13, abs=1e-13)
    assert 0.0 < noise.uniform(seed, position, stream) < 1.0


def test_pinned_values() -> None:
    # Other engines reproduce these; a change here changes every user's sampled text.
    assert noise.key(0, 0, 0) == 0x238275BC38FCBE91
    assert noise.uniform(42, 7, noise.ACCEPT).hex() == "0x1.b1fde90f70b89p-1"
    g = noise.gumbel(42, [7], torch.tensor([0, 1, 49151]))[0].tolist()
    assert [x.hex() for x in g] == ["0x1.a7f683d568418p+0", "0x1.58ed992b5b0f0p+0", "0x1.271794497e283p-3"]


def test_extremes_are_finite_and_in_order() -> None:
    bits = torch.tensor([0, 1, (1 << 51), (1 << 52) - 2, (1 << 52) - 1])
    g = noise._gumbel_of(bits)
    assert torch.isfinite(g).all()
    assert (g.diff() < 0).all()
    assert g[0].item() == pytest.approx(53 * math.log(2))
    assert g[-1].item() == pytest.approx(-math.log(53 * math.log(2)))


@given(st.floats(1e-300, 1e300) | st.floats(0.5, 2.0))
def test_log(x: float) -> None:
    ours = noise._log_of_one(x)
    assert ours == pytest.approx(math.log(x), rel=4e-15, abs=2e-16)
    assert noise._log(torch.tensor([x], dtype=torch.float64)).item() == ours


@given(st.lists(st.integers(0, (1 << 52) - 1), min_size=1, max_size=20))
def test_one_and_many_agree_to_the_bit(bits: list[int]) -> None:
    assert noise._gumbel_of(torch.tensor(bits)).tolist() == [noise._gumbel_of_one(b) for b in bits]


@settings(max_examples=30)
@given(st.integers(0, U64), st.lists(st.integers(0, 5000), min_size=1, max_size=9), st.data())
def test_noise_depends_on_its_key_alone(seed: int, positions: list[int], data: st.DataObject) -> None:
    full = noise.gumbel(seed, positions, torch.arange(300))
    ids = torch.tensor(data.draw(st.lists(st.integers(0, 299), min_size=1, max_size=40)))
    some = noise.gumbel(seed, positions, ids)
    assert torch.equal(some, full[:, ids])
    for r, position in enumerate(positions):
        assert torch.equal(noise.gumbel(seed, [position], ids)[0], some[r])


@settings(max_examples=200)
@given(
    st.integers(0, U64),
    st.integers(0, 10**6),
    st.sampled_from([0.0, 0.5, 3.0, 12.0, 60.0]),
    st.integers(1, 400),
)
def test_draw_is_the_plain_argmax(seed: int, position: int, spread: float, n: int) -> None:
    scores = torch.randn(n, generator=torch.Generator().manual_seed(seed & 0xFFFF)) * spread
    scores[torch.arange(n) % 7 == 3] = -math.inf
    ids = torch.arange(n) * 3 + 1
    plain = ids[(scores.double() + noise.gumbel(seed, [position], ids)[0]).argmax()]
    assert noise.draw(scores, ids, seed, position) == plain


def test_draw_is_the_plain_argmax_where_the_noise_is_extreme(monkeypatch: pytest.MonkeyPatch) -> None:
    # Both ends of w: the ratio of E to w is largest where w is nearest to 1.
    bits = torch.tensor([(1 << 52) - 1, (1 << 52) - 1 - (1 << 20), (1 << 51), (1 << 52) - 2])
    monkeypatch.setattr(noise, "_bits52", lambda k, ids: bits.clone())
    for s in torch.linspace(-6, 6, 97).tolist():
        scores = torch.tensor([0.0, s, -s, s / 2])
        plain = (scores.double() + noise._gumbel_of(bits)).argmax()
        assert noise.draw(scores, torch.arange(4), 0, 0) == plain


def keys_of_seeds(n: int) -> torch.Tensor:
    return torch.tensor([[noise._signed(noise.key(seed, 11, noise.TARGET))] for seed in range(n)])


P = [0.45, 0.25, 0.15, 0.08, 0.04, 0.02, 0.01]
KEYS = {
    "positions": lambda n: noise.gumbel(3, range(n), torch.arange(7)),
    "far positions": lambda n: noise.gumbel(3, range(0, n << 32, 1 << 32), torch.arange(7)),
    "seeds": lambda n: noise._gumbel_of(noise._bits52(keys_of_seeds(n), torch.arange(7))),
    "spread ids": lambda n: noise.gumbel(5, range(n), torch.arange(7) * 7001),
    "stream": lambda n: noise.gumbel(5, range(n), torch.arange(7), noise.PROPOSAL),
}


@pytest.mark.parametrize("which", KEYS)
def test_gumbel_max_draws_from_softmax(which: str, goodness_of_fit) -> None:
    n = 8000
    tokens = (torch.tensor(P).log() + KEYS[which](n)).argmax(-1)
    assert goodness_of_fit(torch.bincount(tokens, minlength=7).tolist(), P) > 0.01 / (2 * len(KEYS))
    # Neighbours in the key are independent.
    pairs = torch.bincount(tokens[:-1:2] * 7 + tokens[1::2], minlength=49)
    few = torch.tensor([i * 7 + j for i in range(7) for j in range(7) if P[i] * P[j] * n / 2 >= 5])
    rest = n // 2 - int(pairs[few].sum())
    joint = [P[i // 7] * P[i % 7] for i in few.tolist()]
    assert goodness_of_fit([*pairs[few].tolist(), rest], [*joint, 1 - sum(joint)]) > 0.01 / (2 * len(KEYS))


def test_streams_are_independent(goodness_of_fit) -> None:
    n = 6000
    cells = [0] * 16
    for position in range(n):
        a, b = noise.uniform(1, position, noise.ACCEPT), noise.uniform(1, position, noise.RESIDUAL)
        cells[int(a * 4) * 4 + int(b * 4)] += 1
    assert goodness_of_fit(cells, [1 / 16] * 16) > 0.01


def test_the_test_catches_noise_with_ten_bits_only(goodness_of_fit) -> None:
    ids = torch.arange(7)
    coarse = noise._bits52(torch.arange(8000)[:, None], ids) >> 47 << 47
    tokens = (torch.tensor(P).log() + noise._gumbel_of(coarse)).argmax(-1)
    assert goodness_of_fit(torch.bincount(tokens, minlength=7).tolist(), P) < 1e-6
