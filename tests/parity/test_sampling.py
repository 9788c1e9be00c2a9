"""The steps from logits to a distribution, against the logits processors of transformers."""

import itertools
from dataclasses import dataclass, field

import pytest
import torch
from transformers import (
    LogitsProcessorList,
    MinPLogitsWarper,
    RepetitionPenaltyLogitsProcessor,
    SequenceBiasLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from eyas.speculate.sampling import History, process


@dataclass(frozen=True)
class Params:
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    seed: int = 0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: dict[int, float] = field(default_factory=dict)


def of_transformers(p: Params) -> LogitsProcessorList:
    steps = LogitsProcessorList()
    if p.logit_bias:
        steps.append(SequenceBiasLogitsProcessor([[[token], bias] for token, bias in p.logit_bias.items()]))
    if p.repetition_penalty != 1.0:
        steps.append(RepetitionPenaltyLogitsProcessor(p.repetition_penalty))
    steps.append(TemperatureLogitsWarper(p.temperature))
    if p.top_k:
        steps.append(TopKLogitsWarper(p.top_k))
    if p.top_p < 1.0:
        steps.append(TopPLogitsWarper(p.top_p))
    if p.min_p:
        steps.append(MinPLogitsWarper(p.min_p))
    return steps


GRID = [
    Params(t, k, top_p, min_p, repetition_penalty=r, logit_bias=bias)
    for t, k, top_p, min_p, r, bias in itertools.product(
        [0.6, 1.0, 1.7], [0, 1, 20], [0.1, 0.85, 1.0], [0.0, 0.08], [1.0, 1.3], [{}, {3: 2.5, 70: -4.0}]
    )
]


@pytest.mark.parametrize("V", [100, 2000])
def test_distribution_equals_that_of_transformers(V: int) -> None:
    generator = torch.Generator().manual_seed(V)
    for p in GRID:
        logits = 2.5 * torch.randn(V, generator=generator)
        context = torch.randint(0, V, (30,), generator=generator).tolist()
        theirs = of_transformers(p)(torch.tensor([context]), logits[None].clone())[0].log_softmax(-1)
        ours = process(logits, p, History(context[:20], context[20:]), position=30)
        assert torch.equal(ours.isinf(), theirs.isinf()), p
        torch.testing.assert_close(ours, theirs, atol=2e-5, rtol=2e-5, msg=lambda m, p=p: f"{p}: {m}")


@pytest.mark.parametrize(("presence", "frequency"), [(0.7, 0.0), (0.0, 0.4), (-0.5, 1.1)])
def test_presence_and_frequency_count_the_output_alone(presence: float, frequency: float) -> None:
    # transformers has no such processor; the formula is the one in the OpenAI API reference.
    logits = torch.randn(50, generator=torch.Generator().manual_seed(1))
    prompt, output = [1, 2, 3, 3], [3, 4, 4, 4, 9]
    count = torch.bincount(torch.tensor(output), minlength=50)
    expected = logits - count * frequency - (count > 0).float() * presence
    ours = process(logits, Params(presence_penalty=presence, frequency_penalty=frequency), History(prompt, output), 9)
    torch.testing.assert_close(ours, expected.log_softmax(-1))
