"""The losses against their definitions, and the chunked head against plain autograd."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from eyas.train import losses
from eyas.train.losses import LOSSES, Answers, acceptance, forward_kl, head_loss, lk, lk_hybrid, soft_cross_entropy


def case(seed: int, outside: float = 0.2, n: int = 5, d: int = 7):
    g = torch.Generator().manual_seed(seed)
    p = torch.randn(n, d, generator=g, dtype=torch.float64).softmax(-1) * (1 - outside)
    return torch.randn(n, d, generator=g, dtype=torch.float64), p


def test_values_by_hand():
    log_q = torch.tensor([[0.5, 0.25, 0.25]]).log()
    p = torch.tensor([[0.2, 0.6, 0.0]])  # a fifth lies outside
    assert acceptance(log_q, p).item() == pytest.approx(0.45)
    assert soft_cross_entropy(log_q, p).item() == pytest.approx(-(0.2 * math.log(0.5) + 0.6 * math.log(0.25)))
    assert forward_kl(log_q, p).item() == pytest.approx(0.2 * math.log(0.4) + 0.6 * math.log(2.4))
    assert lk(log_q, p).item() == pytest.approx(-math.log(0.45))
    share = math.exp(-3 * 0.45)
    expected = share * forward_kl(log_q, p).item() + (1 - share) * 0.55
    assert lk_hybrid(log_q, p).item() == pytest.approx(expected)


@given(st.integers(0, 1000), st.floats(0, 0.9))
def test_mass_outside_the_draft_vocabulary_is_never_accepted(seed, outside):
    logits, p = case(seed, outside)
    assert bool((acceptance(logits.log_softmax(-1), p) <= 1 - outside + 1e-9).all())


def test_forward_kl_has_the_gradients_of_soft_cross_entropy():
    logits, p = case(1)
    grads = []
    for loss in (soft_cross_entropy, forward_kl):
        leaf = logits.clone().requires_grad_()
        grads.append(torch.autograd.grad(loss(leaf.log_softmax(-1), p).sum(), leaf)[0])
    torch.testing.assert_close(*grads)


@pytest.mark.parametrize("name", sorted(LOSSES))
def test_following_the_gradient_raises_acceptance(name):
    logits, p = case(3, outside=0.1)
    leaf = logits.clone().requires_grad_()
    before = acceptance(leaf.log_softmax(-1), p).mean().item()
    for _ in range(300):
        (grad,) = torch.autograd.grad(LOSSES[name](leaf.log_softmax(-1), p).sum(), leaf)
        leaf = (leaf - 0.5 * grad).detach().requires_grad_()
    assert acceptance(leaf.log_softmax(-1), p).mean().item() > max(before + 0.1, 0.85)


@pytest.mark.parametrize("name", sorted(LOSSES))
def test_the_chunked_head_equals_plain_autograd(name, monkeypatch):
    monkeypatch.setattr(losses, "CHUNK", 5)
    monkeypatch.setattr(losses, "PIECE", 2)
    g = torch.Generator().manual_seed(5)
    normed = torch.randn(8, 6, generator=g, dtype=torch.float64, requires_grad=True)
    head = torch.randn(7, 6, generator=g, dtype=torch.float64, requires_grad=True)
    teacher, asked = case(2, n=5)[1], torch.tensor([0, 4, 4, 1, 2, 3, 0, 2])
    weights = torch.rand(8, generator=g, dtype=torch.float64)
    likeliest = (normed @ head.T).argmax(-1)
    truth = torch.where(torch.arange(8) < 4, likeliest, torch.tensor([0, 0, 0, 0, -1, -1, 0, 1]))
    made = head_loss(normed, head, Answers(teacher, asked, truth, weights), name)
    grads = torch.autograd.grad(0.7 * made.total, (normed, head))
    logits = normed @ head.T
    rows = LOSSES[name](logits.log_softmax(-1), teacher[asked])
    expected = torch.autograd.grad(0.7 * (rows * weights).sum(), (normed, head))
    torch.testing.assert_close(made.total, (rows * weights).sum())
    torch.testing.assert_close(made.losses, rows)
    assert made.hits.tolist() == (truth == likeliest).tolist()
    assert made.hits[:6].tolist() == 4 * [True] + 2 * [False]
    for grad, true in zip(grads, expected, strict=True):
        torch.testing.assert_close(grad, true)


def test_nothing_shared_gives_a_finite_loss():
    log_q = torch.tensor([[0.0, -200.0]]).log_softmax(-1)
    p = torch.tensor([[0.0, 0.9]])
    assert math.isfinite(lk(log_q, p).item())
