import math

import pytest
import torch

from eyas.config import SamplingSettings
from eyas.engine.exactness import ROUNDING, Divergence, cost_to_win, first_divergence
from eyas.models.llama import LlamaTarget
from eyas.speculate.sampling import History, target_tokens
from rigs import plain_answers, random_prompt, random_target

SAMPLINGS = [
    SamplingSettings(),
    SamplingSettings(temperature=0.7, seed=1),
    SamplingSettings(temperature=1.3, seed=2, top_k=4),
    SamplingSettings(temperature=1.0, seed=3, top_p=0.7),
    SamplingSettings(temperature=1.5, seed=4, min_p=0.2),
    SamplingSettings(temperature=2.0, seed=5, top_k=8, top_p=0.8, min_p=0.05),
]


@pytest.fixture(scope="module")
def target() -> LlamaTarget:
    return random_target(layers=2)


def chosen(logits_V: torch.Tensor, sampling: SamplingSettings, position: int) -> int:
    return int(target_tokens(logits_V[None], [sampling], [position], [History([], [])])[0])


@pytest.mark.parametrize("sampling", SAMPLINGS, ids=str)
def test_the_cost_to_win_is_zero_for_the_winner_alone(sampling: SamplingSettings) -> None:
    generator = torch.Generator().manual_seed(0)
    for position in range(10):
        logits = 2 * torch.randn(30, generator=generator)
        winner = chosen(logits, sampling, position)
        costs = [cost_to_win(logits, token, sampling, position) for token in range(30)]
        assert costs[winner] == 0
        assert min(costs[:winner] + costs[winner + 1 :]) > 0
        assert max(costs) > 0.5


@pytest.mark.parametrize("sampling", SAMPLINGS, ids=str)
def test_whatever_a_small_move_of_logits_brings_about_costs_no_more_than_that_move(sampling: SamplingSettings) -> None:
    generator = torch.Generator().manual_seed(1)
    move, flips = 0.15, 0
    for position in range(300):
        logits = torch.randn(30, generator=generator)
        noise = torch.empty(30).uniform_(-move / 2, move / 2, generator=generator)
        after = chosen(logits + noise, sampling, position)
        flips += after != chosen(logits, sampling, position)
        assert cost_to_win(logits, after, sampling, position) <= move
    assert flips >= 3, "the move must be large enough to test anything"


def test_equal_answers_do_not_diverge(target: LlamaTarget) -> None:
    assert first_divergence(target, [1, 2], [3, 4], [3, 4], SamplingSettings()) is None


@pytest.mark.parametrize("sampling", [SAMPLINGS[0], SAMPLINGS[1], SAMPLINGS[5]], ids=str)
def test_a_wrong_token_is_no_tie(target: LlamaTarget, sampling: SamplingSettings) -> None:
    prompt = random_prompt(1, 7)
    sampling = sampling.model_copy(update={"max_new_tokens": 6, "repetition_penalty": 1.2})
    plain = plain_answers(target, [prompt], [sampling])[0]
    for index in (0, 3, 5):
        wrong = [*plain[:index], (plain[index] + 1) % 128, *plain[index + 1 :]]
        divergence = first_divergence(target, prompt, plain, wrong, sampling)
        assert divergence is not None
        assert (divergence.index, divergence.plain, divergence.other) == (index, plain[index], wrong[index])
        assert not divergence.is_tie
        assert "NOT a tie" in str(divergence)


def test_an_answer_that_ends_early_is_no_tie(target: LlamaTarget) -> None:
    divergence = first_divergence(target, [1, 2], [3, 4], [3, 4, 5], SamplingSettings())
    assert divergence is not None
    assert (divergence.index, divergence.plain, divergence.other) == (2, None, 5)
    assert math.isinf(divergence.gap)


def test_two_tokens_with_the_same_logit_are_a_tie() -> None:
    target = random_target(layers=2)
    prompt = random_prompt(3, 5)
    token = plain_answers(target, [prompt], [SamplingSettings(max_new_tokens=1)])[0][0]
    twin = (token + 1) % 128
    # A twin head row, apart by less than rounding.
    out = target._head_weight.clone()
    out[twin] = out[token] * (1 - 1e-6)
    target._head.weight = torch.nn.Parameter(out, requires_grad=False)
    target._head.pack(target.backend)
    divergence = first_divergence(target, prompt, [token], [twin], SamplingSettings())
    assert divergence is not None
    assert 0 < divergence.gap < divergence.bound
    assert divergence.is_tie


def test_the_bound_is_of_this_row_and_grows_with_a_repetition_penalty(target: LlamaTarget) -> None:
    def bound(**sampling: float) -> float:
        divergence = first_divergence(target, [1, 2], [3], [4], SamplingSettings(**sampling))
        assert divergence is not None
        return divergence.bound

    cache, prompt_bound = target.new_cache(2), bound()
    assert cache.num_slots == 2
    assert 0 < prompt_bound < 2 * ROUNDING[torch.float32] * 100
    assert bound(repetition_penalty=2.0) == pytest.approx(2 * prompt_bound)
    assert bound(repetition_penalty=0.5) == pytest.approx(2 * prompt_bound)


def test_the_bound_decides() -> None:
    assert Divergence(0, 1, 2, gap=0.1, bound=0.1).is_tie
    assert not Divergence(0, 1, 2, gap=0.11, bound=0.1).is_tie
