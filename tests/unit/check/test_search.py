"""The teacher-forced draft, the readings, and the search over them, on the tiny trained pair."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from eyas.check.evidence import NUM_PROMPTS, answered, further, packaged_prompts, prompt_ids, texts_of
from eyas.check.forced import UNSURE, Forced, Text, draft_ids_of, forced_steps, log_likelihoods
from eyas.check.hypotheses import Hypothesis, single_changes
from eyas.check.measure import Difference, Measure, Rig, accepted_counts, compare
from eyas.check.readings import Reading, Rope, arrange, declared, narrowed
from eyas.check.search import SURE, Search
from eyas.check.tapsearch import MOST_COMBINATIONS, _grid, search_taps
from eyas.config import SpeculativeSettings
from eyas.draft.checkpoint import read_draft
from eyas.draft.model import DraftModel
from eyas.engine.session import open_session
from eyas.errors import EyasError
from eyas.models.target import Target
from eyas.speculate.walk import rounds_of, walk_text
from eyas.testing import load_tiny_draft, load_tiny_target, tiny_eos_ids, tiny_pair, tiny_prompts
from eyas.testing.planting import Planted, perturbed, tiny

STEPS = 4


@pytest.fixture(scope="module")
def target() -> Target:
    return load_tiny_target()


@pytest.fixture(scope="module")
def model(target: Target) -> DraftModel:
    return read_draft(tiny_pair()[1], target)


@pytest.fixture(scope="module")
def texts(target: Target) -> list[Text]:
    return answered(target, tiny_prompts(), tiny_eos_ids(), 48)


@pytest.fixture(scope="module")
def rig(model: DraftModel, target: Target, texts: list[Text]) -> Rig:
    return Rig(model, target, texts)


def test_the_forced_draft_accepts_what_the_walk_accepts(rig: Rig, target: Target, texts: list[Text]) -> None:
    base = declared(rig.model.config)
    settings = SpeculativeSettings(num_steps=STEPS, num_draft_tokens=STEPS + 1)
    draft = load_tiny_draft(target, "eager")
    for text in texts:
        tokens = text.tokens.tolist()
        counts = accepted_counts(arrange(rig.model, base, target), base, text, STEPS)
        ours = list(rounds_of(counts, text.prompt, len(tokens), STEPS))
        walked = walk_text(target, draft, tokens[: text.prompt], tokens[text.prompt :], settings)
        assert [(one.accepted, one.cut) for one in ours] == [(one.accepted, one.cut) for one in walked]


def test_a_reading_is_a_view(rig: Rig, target: Target, texts: list[Text]) -> None:
    """Whatever is tried, the draft itself stays as it was."""
    base = declared(rig.model.config)
    before = rig.measure(base).nats.clone()
    other = Rope.of(123.0, {"rope_type": "linear", "factor": 3.0})
    for hypothesis in single_changes(base, rig.model.config, other, own_embedding=True):
        view = arrange(rig.model, hypothesis.reading, target)
        changed = forced_steps(view, hypothesis.reading, texts[0], 1)[0].logits
        assert changed.isfinite().all(), hypothesis.name
    fresh = Rig(rig.model, target, texts)
    assert torch.equal(fresh.measure(base).nats, before)


@pytest.mark.parametrize(
    "change",
    [
        lambda r: replace(r, norm_output=not r.norm_output),
        lambda r: replace(r, norm_before_residual=not r.norm_before_residual),
        lambda r: replace(r, swapped=True),
        lambda r: replace(r, token_shift=-1),
        lambda r: replace(r, feature_shift=-1),
        lambda r: replace(r, map="missing"),
        lambda r: replace(r, head="target"),
        lambda r: replace(r, taps=(r.taps[1], r.taps[0], r.taps[2])),
        lambda r: replace(r, rope=Rope.of(r.rope.theta, {"rope_type": "linear", "factor": 8.0})),
        lambda r: replace(r, rope=replace(r.rope, share=0.5)),
    ],
)
def test_every_wrong_reading_explains_the_text_worse(rig: Rig, change: Callable[[Reading], Reading]) -> None:
    base = declared(rig.model.config)
    found = compare(rig.measure(change(base)), rig.measure(base))
    assert found.gain < 0
    assert found.z < -2.5


def test_tokens_outside_the_map_are_misses(rig: Rig) -> None:
    logits, d2t = torch.zeros(2, 3), torch.tensor([0, 1, 2])  # keeps 0, 2, 4 of 6
    found = log_likelihoods(Forced(torch.arange(2), logits, torch.tensor([2, 3])), draft_ids_of(d2t, 6), (1.0,))
    assert found[0].exp().tolist() == pytest.approx([(1 - UNSURE) / 3 + UNSURE / 6, UNSURE / 6], rel=1e-5)


def test_differences_are_judged_over_conversations() -> None:
    owner, depth = torch.tensor([0] * 50 + [1] * 50), torch.zeros(100, dtype=torch.int64)
    zero = Measure(torch.zeros(100), owner, depth)
    every, one = torch.full((100,), 0.1), torch.zeros(100)
    every[::2] += 0.01
    one[:50] = 0.2
    assert compare(Measure(every, owner, depth), zero).z > 10
    assert compare(Measure(one, owner, depth), zero).z < 2, "one conversation alone says little"


def test_the_taps_are_found_from_wrong_ones(rig: Rig) -> None:
    base = declared(rig.model.config)
    found = search_taps(rig, replace(base, taps=(0, 1, 7)), everywhere=True)
    assert all(abs(a - b) <= 1 for a, b in zip(found.best, base.taps, strict=True))
    assert len(found.response) == 3
    assert {len(row) for row in found.response} == {rig.target.num_layers + 1}


@pytest.mark.parametrize(
    ("change", "kinds"),
    [
        (lambda r: r, []),
        (lambda r: replace(r, taps=(1, 3, 7)), ["taps.wrong"]),
        (lambda r: replace(r, taps=(4, 2, 5)), ["taps.order"]),
        (lambda r: replace(r, norm_output=True), ["norm.output"]),
        (lambda r: replace(r, rope=Rope.of(r.rope.theta, {"rope_type": "linear", "factor": 8.0})), ["rope.scaling"]),
    ],
)
def test_the_search_names_the_fault(rig: Rig, change: Callable[[Reading], Reading], kinds: list[str]) -> None:
    base = declared(rig.model.config)
    found = Search(Rig(rig.model, rig.target, rig.texts), None, lambda _: None).run(change(base))
    assert [kind for h in found.found for kind in h.kinds] == kinds
    assert not found.rivals
    assert found.reading == base


def test_more_text_is_read_where_some_leaves_doubt(rig: Rig) -> None:
    base, asked = declared(rig.model.config), []

    def more() -> list[Text]:
        asked.append(1)
        return rig.texts[3:] if len(asked) == 1 else []

    wrong = replace(base, taps=(*base.taps[:2], base.taps[2] + 1))
    search = Search(Rig(rig.model, rig.target, rig.texts[:3]), None, lambda _: None, more)
    found = search.run(wrong)
    assert len(asked) == 1, "the same texts twice would count as others"
    assert not search.more()
    assert found.found[0].reading == base
    assert max(one.z for one in found.ranking) >= 4


@pytest.mark.parametrize("slots", [1, 2, 3, 4, 5])
def test_the_coarse_grid_covers_any_number_of_taps(slots: int) -> None:
    for layers in (30, 61):
        grid = list(_grid(layers, slots))
        assert 10 <= len(grid) <= MOST_COMBINATIONS
        assert {min(taps) for taps in grid} >= {0}
        assert {max(taps) for taps in grid} >= {layers}


def test_a_noisy_draft_has_no_fault_of_the_carried_state(target: Target, tmp_path: Path) -> None:
    """Its second step is bad as well, and another norm mends a little of that."""
    folder = Planted("mixed", plant=perturbed(0, 0.2, seed=21)).make(tiny(), tmp_path / "mixed")
    texts = texts_of(open_session(tiny_pair()[0], None), None, 12)
    noisy = Rig(read_draft(folder, target), target, texts)
    base = declared(noisy.model.config)
    assert compare(noisy.measure(replace(base, norm_output=True)), noisy.measure(base)).z > SURE
    assert not Search(noisy, None, lambda _: None).run(base).found


def test_a_narrowed_head_says_the_same_of_its_rows(rig: Rig, target: Target) -> None:
    base = declared(rig.model.config)
    view, rows = arrange(rig.model, base, target), torch.tensor([3, 5, 11, 100])
    narrow = narrowed(view, rows)
    normed = torch.randn(2, rig.model.config.hidden_size)
    assert torch.equal(narrow.logits(normed), view.logits(normed)[:, rows])
    assert torch.equal(narrow.to_target_ids(torch.arange(4)), view.to_target_ids(rows))
    assert len(rig.model.head.weight) == rig.model.config.draft_vocab_size


def test_what_explains_more_but_less_surely_is_not_ruled_out(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    base = declared(rig.model.config)
    search = Search(rig, None, lambda _: None)
    monkeypatch.setattr(search, "_against", lambda better, worse: Difference(0.0, 0.0))

    def judged(name: str, kind: str, gain: float, z: float) -> tuple[Difference, Hypothesis]:
        return Difference(gain, z), Hypothesis(name, (kind,), base)

    surest, likelier = judged("linear 2", "rope.scaling", 0.03, 4.3), judged("none", "rope.scaling", 0.04, 3.4)
    other, doubtful = judged("taps", "taps.wrong", 0.05, 3.0), judged("noise", "taps.wrong", 0.06, 1.0)
    sure, rivals = search._sure(base, [surest])
    assert (sure, rivals) == ([surest], [])
    sure, rivals = search._sure(base, [doubtful, likelier, surest])
    assert ([h.name for _, h in sure], [h.name for h in rivals]) == (["none", "linear 2"], ["linear 2"])
    sure, rivals = search._sure(base, [doubtful, other, surest])
    assert ([h.name for _, h in sure], [h.name for h in rivals]) == (["linear 2"], ["taps"])
    assert search._sure(base, [other, likelier]) == ([], [])


def test_what_looks_ahead_explains_nothing(rig: Rig) -> None:
    base = declared(rig.model.config)
    ahead = [h for h in single_changes(base, rig.model.config, None, own_embedding=False) if h.looks_ahead]
    assert {h.reading.feature_shift for h in ahead} | {h.reading.token_shift for h in ahead} == {0, 1}


def test_too_few_answers_are_refused(tmp_path: Path) -> None:
    session, prompts = open_session(tiny_pair()[0], None), tmp_path / "two.jsonl"
    prompts.write_text("".join(json.dumps({"prompt": text}) + "\n" for text in ("one", "two")))
    with pytest.raises(EyasError) as error:
        texts_of(session, prompts, 24)
    assert error.value.code == "check.too-little"
    assert not further(session, prompts, 24)


def test_further_prompts_are_others() -> None:
    session = open_session(tiny_pair()[0], None)
    first, more = prompt_ids(session, None, 24), prompt_ids(session, None, 48, start=24)
    assert len(more) == 48
    assert not {tuple(ids) for ids in first} & {tuple(ids) for ids in more}


def test_the_packaged_prompts_are_distinct() -> None:
    prompts = packaged_prompts(100)
    assert len(prompts) == len(set(prompts)) >= 3 * NUM_PROMPTS
