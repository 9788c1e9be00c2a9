"""What samples hold, and each fault of data, template and mask, planted and named."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from safetensors.torch import load_file

from eyas.contract import ContractFacts
from eyas.corpus.samples import Sample, SampleSet, is_held_out, trained_slots
from eyas.data.faults import find_faults
from eyas.data.report import data_report, draft_tokens, frequent_tokens
from eyas.data.samples import build_samples
from eyas.errors import EyasError
from eyas.testing import tiny_pair
from support.chats import tiny_chat, tiny_renderer

KNOWN = ContractFacts(weights_sha256="a" * 64, tokenizer_sha256="b" * 64, chat_template_sha256=None)
VOCAB = 512
HELD = 0.3


@pytest.fixture(scope="module")
def renderer():
    return tiny_renderer()


@pytest.fixture(scope="module")
def built(renderer):
    chats = [tiny_chat(i, domain=("animals", "food")[i % 2], temperature=(0.0, 0.8)[i % 2]) for i in range(26)]
    return build_samples(chats, renderer, KNOWN, 512)


def report(made, account=None, renderer=None, held=HELD):
    return data_report(made, VOCAB, held, account, renderer)


def codes(made, account=None, renderer=None, held=HELD):
    return [fault.code for fault in report(made, account, renderer, held).faults]


def changed(made: SampleSet, change) -> SampleSet:
    """``change`` of every sample."""
    return SampleSet(made.facts, tuple(change(sample) for sample in made.samples))


def with_answers(shift_begin: int, shift_end: int):
    return lambda s: replace(s, answers=tuple((b + shift_begin, e + shift_end) for b, e in s.answers))


# Sound samples


def test_sound_samples_have_no_fault(built, renderer):
    assert codes(*built, renderer) == []


def test_counts_add_up(built):
    made, account = built
    r = report(made, account)
    assert (r.all.samples, r.all.prompts) == (26, 26)
    for parts in ((r.trained_on, r.held_out), r.domains, r.temperatures):
        assert sum(p.samples for p in parts) == 26
        assert sum(p.tokens for p in parts) == r.all.tokens == sum(len(s.tokens) for s in made.samples)
        assert sum(p.answer_tokens for p in parts) == r.all.answer_tokens
    assert r.held_out.samples == sum(is_held_out(s.prompt_id, HELD) for s in made.samples)
    assert [d.name for d in r.domains] == ["animals", "food"]
    assert [t.name for t in r.temperatures] == ["0", "0.8"]
    assert r.sources == (("made", "Apache-2.0"),)
    lengths = sorted(len(s.tokens) for s in made.samples)
    assert (r.lengths["min"], r.lengths["max"]) == (lengths[0], lengths[-1])
    assert r.lengths["median"] in lengths[12:14]


def test_mask_coverage_is_the_rule_counted(built):
    made, _ = built
    r = report(made)
    slots = sum(len(s.tokens) for s in made.samples)
    for step in range(7):
        # An answer of n tokens trains n − 1 − i slots of step i.
        expected = sum(max(e - b - 1 - step, 0) for s in made.samples for b, e in s.answers)
        assert r.mask_coverage[step] == pytest.approx(expected / slots)
    assert r.mask_coverage[0] == sum(trained_slots(s.segments(), 0).sum() for s in made.samples) / slots


def sample(name: str, answer: list[int], prompt: list[int] | None = None) -> Sample:
    prompt = [*map(ord, name)] if prompt is None else prompt
    tokens = np.array([*prompt, *answer], dtype=np.int32)
    return Sample(name, name, "d", tokens, ((len(prompt), len(tokens)),), 0.0)


def test_vocabulary_coverage_is_chosen_on_one_side_and_measured_on_the_other(built):
    facts = built[0].facts
    names = [f"q{i}" for i in range(40)]
    held = [name for name in names if is_held_out(name, HELD)]
    assert 0 < len(held) < 40
    # Where trained: tokens 0 … 4095; held out: a quarter of the tokens is never seen in training.
    samples = [sample(n, [5000, 1, 2, 3] * 30 if n in held else [0, 1, 2, 3, *range(4096)]) for n in names]
    r = data_report(SampleSet(facts, tuple(samples)), 10_000, HELD)
    assert [(v.size, v.trained, v.held_out) for v in r.vocabularies] == [(4096, 1.0, 0.75), (8192, 1.0, 1.0)]
    assert r.distinct == 4096
    assert frequent_tokens(samples, 3, 10_000) == {1, 2, 3}


def test_the_tokens_of_a_draft():
    target, draft = tiny_pair()
    kept = draft_tokens(draft, VOCAB)
    d2t = load_file(draft / "model.safetensors")["d2t"]
    assert kept == {i + int(offset) for i, offset in enumerate(d2t)}
    assert draft_tokens(target, VOCAB) is None, "a checkpoint without a map"


# Faults, each planted


def test_a_mask_that_is_zero_everywhere(built):
    assert codes(changed(built[0], lambda s: replace(s, answers=()))) == ["samples.no-answers"]
    one_token = changed(built[0], lambda s: replace(s, answers=tuple((b, b + 1) for b, _ in s.answers)))
    assert codes(one_token) == ["samples.no-answers"]


def test_a_mask_that_is_one_everywhere(built, renderer):
    assert "samples.mask" in codes(changed(built[0], lambda s: replace(s, answers=((1, len(s.tokens)),))), built[1])


@pytest.mark.parametrize("shift", [-1, 1, -3])
def test_a_first_answer_off_by_some_tokens(built, renderer, shift):
    assert codes(changed(built[0], with_answers(shift, 0)), built[1], renderer) == ["samples.mask"]


def test_a_wrong_separator(built, renderer):
    """The mask begins at the user's turn, so it reaches over an end of turn."""

    def from_user(s: Sample) -> Sample:
        return replace(s, answers=((2, s.answers[0][1]),))

    assert codes(changed(built[0], from_user), built[1]) == ["samples.mask"]


def test_answers_without_their_end_of_turn(built):
    assert codes(changed(built[0], with_answers(0, -1)), built[1]) == ["samples.end-of-turn"]


def test_all_answers_cut(renderer):
    made, account = build_samples([tiny_chat(i, finish="length") for i in range(26)], renderer, KNOWN, 512)
    assert codes(made, account, renderer) == ["samples.all-cut"]


def test_nearly_all_cut_at_the_limit(renderer):
    chats = [tiny_chat(i, "The fox is quick. " * (1 if i == 3 else 30)) for i in range(26)]
    made, account = build_samples(chats, renderer, KNOWN, 90)
    assert len(account.truncated) == 25
    assert codes(made, account, renderer) == ["samples.truncated"]


def test_held_out_prompts_under_another_name(built, renderer):
    made, account = built
    held = next(s for s in made.samples if is_held_out(s.prompt_id, HELD))
    other = next(f"x{i}" for i in range(100) if not is_held_out(f"x{i}", HELD))
    copy = SampleSet(made.facts, (*made.samples, replace(held, id="copy", prompt_id=other)))
    (fault,) = report(copy, account, renderer).faults
    assert fault.code == "samples.leak"
    assert held.id in fault.cause


def test_near_copies_leak_too_and_what_the_template_shares_does_not(built):
    rng = np.random.default_rng(0)
    system = rng.integers(0, 400, 100).tolist()
    texts = [rng.integers(0, 400, 60).tolist() for _ in range(8)]
    trained = [sample(f"t{i}", [1, 2, 3], system + text) for i, text in enumerate(texts[:4])]
    fresh = [sample(f"h{i}", [1, 2, 3], system + text) for i, text in enumerate(texts[4:])]
    near = [sample("near", [1, 2, 3], [*system, 7, *texts[0][1:]])]

    def found(*sides: list[Sample]) -> list[str]:
        made = SampleSet(built[0].facts, tuple(sides[0] + sides[1]))
        return [fault.code for fault in find_faults(made, sides)]

    assert found(trained, fresh) == []
    assert found(trained, fresh + near) == ["samples.leak"]


@pytest.mark.parametrize("held", [0.0, 1.0])
def test_a_side_with_nothing_on_it(built, renderer, held):
    assert "samples.split" in codes(built[0], built[1], renderer, held)


def test_ten_distinct_tokens_are_no_vocabulary_of_thousands(built):
    samples = tuple(sample(f"q{i}", [i % 10, 1, 2, 3]) for i in range(40))
    faults = data_report(SampleSet(built[0].facts, samples), 10_000, HELD).faults
    (fault,) = [f for f in faults if f.code == "samples.vocabulary"]
    assert "at most 10" in fault.fix


def test_tokens_beyond_the_vocabulary_are_refused(built):
    with pytest.raises(EyasError) as caught:
        data_report(built[0], 100, HELD)
    assert caught.value.code == "samples.vocabulary"
