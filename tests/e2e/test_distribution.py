"""What the engine writes with probabilistic drafts is distributed as the target's own text.

Chi-square over whole answers of many seeds, so that proposals, acceptance, residuals, caches and positions of several
rounds are all in it. Seeds are fixed; the level is shared among the settings (Bonferroni).
"""

import itertools
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
import torch
from torch import Tensor

from eyas.config import SamplingSettings, SpeculativeSettings
from eyas.draft.model import DraftModel
from eyas.engine.engine import Engine
from eyas.kernels import Part, Rows
from eyas.models.registry import load_target
from eyas.models.target import Target
from eyas.speculate import noise
from eyas.speculate.accept import Uniforms, speculative_sample
from eyas.speculate.propose import Proposal, Proposer
from eyas.speculate.state import DecodeState
from eyas.speculate.tree import Tree
from rigs import Oracle, chain, random_draft, random_prompt, random_target

Fit = Callable[[Sequence[int], Sequence[float]], float]
Cells = dict[tuple[int, ...], float]

ALPHA = 0.01
VOCAB, LENGTH = 5, 3
TEXTS = 400

SAMPLINGS: dict[str, dict[str, float]] = {
    "plain": {"temperature": 1.0},
    "cool, top-k": {"temperature": 0.7, "top_k": 3},
    "hot, penalised": {"temperature": 1.6, "presence_penalty": 0.8},
}
SETTINGS = [
    (None, "plain"),
    (chain(1, draft_sampling="probabilistic"), "plain"),
    (chain(3, draft_sampling="probabilistic"), "plain"),
    (chain(3, draft_sampling="probabilistic"), "cool, top-k"),
    (chain(2, draft_sampling="probabilistic"), "hot, penalised"),
]


@pytest.fixture(scope="module")
def target() -> Target:
    return random_target(8, vocab=VOCAB, layers=2)


def logits_after(target: Target, text: Sequence[int]) -> Tensor:
    cache, out = target.new_cache(len(text)), target.new_outputs(len(text))
    target.forward(Rows.build([Part.chain(text, 0, range(len(text)), torch.arange(0))]), cache, out)
    return target.logits(out.hidden[-1:])[0]


def exact(target: Target, prompt: Sequence[int], sampling: dict[str, float]) -> Cells:
    """Answer of LENGTH tokens → its probability, by the definitions alone."""

    def following(answer: tuple[int, ...]) -> Tensor:
        logits = logits_after(target, [*prompt, *answer])
        for token in set(answer):
            logits[token] -= sampling.get("presence_penalty", 0.0)
        logits /= sampling["temperature"]
        if "top_k" in sampling:
            logits[logits.argsort(descending=True)[int(sampling["top_k"]) :]] = -torch.inf
        return logits.softmax(-1)

    cells: Cells = {(): 1.0}
    for _ in range(LENGTH):
        cells = {
            (*answer, token): probability * float(p)
            for answer, probability in cells.items()
            for token, p in enumerate(following(answer))
        }
    return cells


def texts(
    target: Target,
    proposer: Proposer | DraftModel | None,
    prompt: Sequence[int],
    settings: SpeculativeSettings | None,
    seeds: range,
    **sampling: float,
) -> tuple[Counter[tuple[int, ...]], float]:
    """Answers of many seeds and how often each came, and the mean of accepted drafts per round."""
    length = int(sampling.pop("max_new_tokens", LENGTH))
    engine = Engine(target, proposer, num_slots=64 * (len(prompt) + 24))
    requests = []
    for seed in seeds:
        wanted = SamplingSettings(max_new_tokens=length, seed=seed, **sampling)  # type: ignore[arg-type]
        requests.append(engine.submit(prompt, wanted, settings))
    engine.run()
    rounds = [r.accepted for request in requests for r in request.rounds]
    return Counter(tuple(request.answer) for request in requests), sum(rounds) / len(rounds)


def p_value(fit: Fit, counts: Counter[tuple[int, ...]], cells: Cells) -> float:
    """Chi-square; texts expected fewer than 10 times are one cell."""
    assert counts.keys() <= cells.keys()
    n = counts.total()
    often = [text for text, p in cells.items() if p * n >= 10]
    rest = [text for text, p in cells.items() if p * n < 10]
    seen, expected = [counts[text] for text in often], [cells[text] for text in often]
    missing = sum(cells[text] for text in rest)
    if missing * n >= 5:
        seen.append(sum(counts[text] for text in rest))
        expected.append(missing)
    total = sum(expected)
    return fit(seen, [e / total for e in expected])


PROMPT = random_prompt(3, 6, VOCAB)


@pytest.mark.parametrize(("settings", "kind"), SETTINGS, ids=lambda value: str(value))
def test_texts_are_distributed_as_the_targets(
    target: Target, goodness_of_fit: Fit, settings: SpeculativeSettings | None, kind: str
) -> None:
    draft = random_draft(target, seed=7)
    counts, accepted = texts(target, draft, PROMPT, settings, range(TEXTS), **SAMPLINGS[kind])
    assert p_value(goodness_of_fit, counts, exact(target, PROMPT, SAMPLINGS[kind])) > ALPHA / len(SETTINGS)
    if settings is not None:
        assert 0.1 < accepted < settings.num_steps, "both outcomes must be common"


def resample_from_p(p: Tensor, q: Tensor, proposals: Sequence[int], u: Uniforms) -> tuple[int, int]:
    """Biased: after a rejection it draws from p instead of the residual."""
    a, token = speculative_sample(p, q, proposals, u)
    return (a, token) if a == len(proposals) else (a, int((p[a].cumsum(0) > u.residual[a]).nonzero()[0]))


def accept_too_often(p: Tensor, q: Tensor, proposals: Sequence[int], u: Uniforms) -> tuple[int, int]:
    """Biased: it accepts with min(1, 3 p / q)."""
    easier = Uniforms(tuple(x / 3 for x in u.accept), u.residual)
    return speculative_sample(p, q, proposals, easier)


def one_position_late(p: Tensor, q: Tensor, proposals: Sequence[int], u: Uniforms) -> tuple[int, int]:
    """Biased: the target's rows are those of the place after."""
    return speculative_sample(torch.cat([p[1:], p[-1:]]), q, proposals, u)


@pytest.mark.parametrize("sampler", [resample_from_p, accept_too_often, one_position_late], ids=lambda f: f.__name__)
def test_a_biased_sampler_is_caught(
    target: Target, goodness_of_fit: Fit, monkeypatch: pytest.MonkeyPatch, sampler: Callable[..., tuple[int, int]]
) -> None:
    monkeypatch.setattr("eyas.speculate.round.speculative_sample", sampler)
    settings = chain(3, draft_sampling="probabilistic")
    counts, _ = texts(target, random_draft(target, seed=7), PROMPT, settings, range(TEXTS), **SAMPLINGS["plain"])
    assert p_value(goodness_of_fit, counts, exact(target, PROMPT, SAMPLINGS["plain"])) < 1e-6


def test_the_exact_distribution_sums_to_one(target: Target) -> None:
    for sampling in SAMPLINGS.values():
        cells = exact(target, PROMPT, sampling)
        assert len(cells) == VOCAB**LENGTH
        assert sum(cells.values()) == pytest.approx(1, abs=1e-5)


# The built-in target --------------------------------------------------------------------------------------------

CAPITAL = (504, 3575, 282, 4649, 314)  # The capital of France is
BUILTIN_TEXTS = 500


class OneGuess:
    """Draws every proposal from the same distribution q [V]."""

    taps: tuple[int, ...] = ()

    def __init__(self, q: Tensor) -> None:
        self.q, self.ids = q, torch.arange(len(q))

    def propose(self, states: Sequence[DecodeState], settings: Sequence[SpeculativeSettings | None]) -> list[Proposal]:
        proposals = []
        for state in states:
            token = noise.draw(self.q.log(), self.ids, state.params.seed, len(state.tokens), noise.PROPOSAL)
            proposals.append(Proposal(Tree.chain([state.tokens[-1], token]), self.q[None]))
        return proposals


@pytest.fixture(scope="module")
def builtin(builtin_target_folder: Path) -> Target:
    return load_target(builtin_target_folder)


@pytest.mark.builtin
@pytest.mark.slow
def test_the_builtin_targets_first_two_tokens_at_temperature_1(builtin: Target, goodness_of_fit: Fit) -> None:
    """The first comes from plain sampling, the second from a round with a guess that is right half the time."""
    first = logits_after(builtin, CAPITAL).softmax(-1)
    likely = first.topk(3).indices.tolist()
    second = {token: logits_after(builtin, [*CAPITAL, token]).softmax(-1) for token in likely}
    noisy = second[likely[0]].log() + torch.randn(len(first), generator=torch.Generator().manual_seed(0))
    proposer = OneGuess(noisy.softmax(-1))
    settings = chain(1, draft_sampling="probabilistic")
    counts, accepted = texts(
        builtin, proposer, CAPITAL, settings, range(BUILTIN_TEXTS), temperature=1.0, max_new_tokens=2
    )
    assert 0.2 < accepted < 0.9
    named = [(a, b) for a in likely for b in second[a].topk(4).indices.tolist()]
    named = [(a, b) for a, b in named if float(first[a] * second[a][b]) * BUILTIN_TEXTS >= 5]
    cells = {text: float(first[text[0]] * second[text[0]][text[1]]) for text in named}
    for a in likely:
        cells[a, -1] = float(first[a]) - sum(p for text, p in cells.items() if text[0] == a)
    cells[-1, -1] = 1 - sum(cells.values())
    binned = Counter[tuple[int, ...]]()
    for (a, b), n in counts.items():
        binned[(a, b) if (a, b) in cells else (a, -1) if a in second else (-1, -1)] += n
    assert len(named) >= 4
    assert p_value(goodness_of_fit, binned, cells) > ALPHA


@pytest.mark.builtin
@pytest.mark.slow
def test_keyed_sampling_of_the_builtin_target_writes_the_same_text_with_speculation(builtin: Target) -> None:
    samplings = [
        SamplingSettings(temperature=t, seed=seed, max_new_tokens=16)
        for t, seed in itertools.product((0.0, 1.0), range(2))
    ]
    answers = []
    for sampling in samplings:
        engine = Engine(builtin, num_slots=64)
        request = engine.submit(CAPITAL, sampling)
        engine.run()
        answers.append(request.answer)
    for sampling, answer in zip(samplings, answers, strict=True):
        engine = Engine(builtin, Oracle({CAPITAL: answer}, builtin.vocab_size), num_slots=64)
        request = engine.submit(CAPITAL, sampling, chain(5))
        engine.run()
        assert request.answer == answer
        assert max(r.accepted for r in request.rounds) >= 2
    assert len({tuple(answer) for answer in answers}) == 3
