"""The walk from one unrolling equals the walk of the engine's own proposals, for every K."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from eyas.config import SpeculativeSettings
from eyas.draft.checkpoint import load_draft, read_draft
from eyas.metrics import Round
from eyas.speculate.walk import walk_text
from eyas.testing import tiny_pair
from eyas.train.batch import Collator
from eyas.train.evaluate import ALL, Evaluation, Group, accepted_counts, evaluate, walk_counts
from eyas.train.ttt import slots_of, unroll
from train_rig import source, tiny_samples, tiny_target, weights


@pytest.fixture(scope="module")
def trained():
    """(the tiny draft to train, a collator for it)."""
    model = read_draft(tiny_pair()[1], tiny_target())
    kept = model.d2t + torch.arange(len(model.d2t))
    return model, Collator(source(), weights().head, kept, torch.ones(3))


def rounds_of(trained, index: int, num_steps: int) -> list[Round]:
    model, collator = trained
    counts = accepted_counts(model, collator.batch([index]), collator.draft_ids, 0)["one-hot"]
    return list(walk_counts(counts, tiny_samples()[index], num_steps))


@pytest.mark.parametrize("num_steps", [1, 2, 3, 5, 7])
def test_one_unrolling_is_the_engines_walk(trained, num_steps):
    settings = SpeculativeSettings.resolve(num_steps)
    served = load_draft(tiny_pair()[1], tiny_target(), "eager")
    lengths = 0
    for index, sample in enumerate(tiny_samples()):
        (begin, end), tokens = sample.answers[0], sample.tokens.tolist()
        walked = walk_text(tiny_target(), served, tokens[:begin], tokens[begin:end], settings)
        mine = rounds_of(trained, index, num_steps)
        # The engine proposes fewer where its limit leaves no room; what is accepted is the same.
        assert [(r.accepted, r.cut) for r in mine] == [(r.accepted, r.cut) for r in walked]
        lengths += sum(r.accepted > 0 for r in mine)
    assert lengths > 20


def test_every_group_and_its_sum_are_told(trained):
    model, collator = trained
    result = evaluate(model, collator, range(len(tiny_samples())))
    groups = {group for group, _ in result.acceptance}
    ways = [(0.0, "one-hot"), (1.0, "one-hot"), (1.0, "probabilistic")]
    assert groups == {Group(domain, *way) for domain in ("fact", "story", ALL) for way in ways}
    for record in result.records():
        assert 1 <= record.low <= record.accept_length <= record.high <= record.num_steps + 1
    assert result.headline() == result.acceptance[Group(ALL, 0.0, "one-hot"), 5].accept_length
    lengths = [result.acceptance[Group(ALL, 0.0, "one-hot"), k].accept_length for k in range(1, 8)]
    assert lengths == sorted(lengths)
    assert lengths[2] > 2


def test_drawn_proposals_are_accepted_as_often_as_p_and_q_overlap(trained):
    """Over texts drawn from p, E[min(1, q / p)] = Σ min(p, q): the first position's mean agrees with the overlap."""
    model, collator = trained
    hits, overlap, count = 0.0, 0.0, 0
    for index, sample in enumerate(tiny_samples(8)):
        if sample.temperature != 1.0:
            continue
        online = source()
        online.samples = tiny_samples(8)
        batch = Collator(online, weights().head, collator.kept, torch.ones(3)).batch([index])
        rows = torch.tensor([begin - 1 for begin, _ in sample.answers])
        counts = accepted_counts(model, batch, collator.draft_ids, index)["probabilistic"]
        _, slots, normed = next(iter(unroll(model, batch, slots_of(batch.segments, 1))))
        p, q = batch.teacher[batch.teacher_rows[slots + 1]], model.logits(normed).softmax(-1)
        overlap += torch.minimum(p, q).sum().item()
        hits += sum(counts[row] > 0 for row in slots.tolist())
        count += len(slots)
        assert rows[0] in slots
    assert count > 700
    assert hits / count == pytest.approx(overlap / count, abs=4 * math.sqrt(0.25 / count))


def test_the_likeliest_tokens_alone_promise_nothing_of_drawn_proposals(trained):
    model, collator = trained
    facts = collator.source.facts.model_copy(update={"top_k": 4})
    source_of = type(
        "Few", (), {"samples": collator.source.samples, "facts": facts, "read_batch": collator.source.read_batch}
    )()
    result = evaluate(model, Collator(source_of, collator.head, collator.kept, collator.scales), range(6))
    assert {group.draft_sampling for group, _ in result.acceptance} == {"one-hot"}


def test_a_checkpoint_is_not_chosen_by_a_single_conversation():
    result = Evaluation()
    result.add(Group(ALL, 0.0, "one-hot"), 5, "alone", [Round(5, 5)])
    for number in range(8):
        result.add(Group(ALL, 1.0, "one-hot"), 5, f"p{number}", [Round(1, 5)])
    assert result.headline() == 2
    for number in range(7):
        result.add(Group(ALL, 0.0, "one-hot"), 5, f"more{number}", [Round(5, 5)])
    assert result.headline() == 6
    assert math.isnan(Evaluation().headline())


@given(st.lists(st.integers(0, 7), min_size=30, max_size=30), st.integers(1, 7))
def test_rounds_explain_the_answers_length(accepted, num_steps):
    sample = tiny_samples()[0]
    begin, end = 3, 28
    walked = list(walk_counts(accepted, replace(sample, answers=((begin, end),)), num_steps))
    assert 1 + sum(r.committed for r in walked) == end - begin
    assert all(r.accepted <= num_steps for r in walked)
    assert [r.cut for r in walked[:-1]] == [False] * (len(walked) - 1)
