"""Measuring what rounds cost."""

from __future__ import annotations

import json

import pytest

from eyas.config import SamplingSettings, SpeculativeSettings
from eyas.engine.costs import LONGS, SHORT, Scene, Stage, measure_costs
from eyas.engine.engine import Engine
from eyas.speculate.costs import CostTable, StepShape
from eyas.speculate.policy import Controller
from eyas.speculate.propose import DraftProposer, NgramProposer, NoProposer
from eyas.testing import load_tiny_draft, load_tiny_target, tiny_eos_ids, tiny_prompts
from support.simulated import TABLE

SLOTS = 2048


@pytest.fixture(scope="module")
def target():
    return load_tiny_target()


@pytest.fixture(scope="module")
def draft(target):
    return load_tiny_draft(target)


def true_seconds(scene: Scene) -> float:
    """What a scene takes on a machine that is TABLE."""
    rows = scene.requests * (scene.drafts + 1)
    _, _, propose = TABLE.parts(
        StepShape(
            rows,
            scene.requests,
            0,
            scene.requests,
            scene.requests * scene.backlog,
            (scene.requests,) * (scene.drafts - 1),
            scene.requests * (scene.backlog + scene.drafts - 1) * scene.context,
        )
    )
    target, context, _ = TABLE.parts(StepShape(rows, scene.requests, rows * scene.context))
    return target + context if scene.kind == "verify" else propose


def test_a_known_machine_is_found_again(target, draft):
    noise = iter(range(10**6))

    def clock(scene: Scene) -> float:
        # The first performances, and every seventh one, are disturbed.
        i = next(noise)
        return true_seconds(scene) * (3 if i < 30 or i % 7 == 0 else 1)

    proposer = DraftProposer(draft, draft.new_cache(SLOTS))
    found = measure_costs(
        target, target.new_cache(SLOTS), proposer, max_requests=32, max_steps=5, seconds=60, clock=clock
    )
    for shape in (
        StepShape(1, 1, 100),
        StepShape(4, 1, 400, 1, 4, (1, 1), 500),
        StepShape(8, 8, 8 * 900),
        StepShape(16, 8, 1600, 8, 16, (), 1600),
        StepShape(64, 16, 64 * 200, 16, 16, (16, 16), 3 * 16 * 200),
    ):
        assert found.seconds(shape) == pytest.approx(TABLE.seconds(shape), rel=0.08), shape


def test_a_real_pair_is_measured_and_its_answers_stay_the_same(target, draft):
    sampling, speculation = SamplingSettings(max_new_tokens=24), SpeculativeSettings.resolve(3)

    def answers(measured: bool, controlled: bool) -> list[list[int]]:
        engine = Engine(target, draft, eos_ids=tiny_eos_ids(), num_slots=SLOTS)
        if measured:
            table = measure_costs(target, engine.cache, engine.proposer, max_requests=4, max_steps=3, seconds=0)
            assert table.verify.counts[:4] == (1, 2, 3, 4)
            assert min(table.verify.seconds) > 0
            assert table.absorb.seconds[0] > 0
            if controlled:
                engine = Engine(target, draft, eos_ids=tiny_eos_ids(), num_slots=SLOTS, controller=Controller(table, 3))
        requests = [engine.submit(prompt, sampling, speculation) for prompt in tiny_prompts()]
        engine.run()
        return [request.answer for request in requests]

    plain = answers(measured=False, controlled=False)
    assert answers(measured=True, controlled=False) == plain
    assert answers(measured=True, controlled=True) == plain


@pytest.mark.parametrize("proposer", [NoProposer(), NgramProposer()])
def test_without_a_draft_only_the_target_costs(target, proposer):
    table = measure_costs(target, target.new_cache(256), proposer, max_requests=2, max_steps=2, seconds=0)
    assert table.seconds(StepShape(1, 1, 0, proposing=1, absorbed=64, steps=(1, 1))) == table.seconds(
        StepShape(1, 1, 0)
    )
    assert table.verify.counts == (1, 2, 3, 6)


def test_a_small_cache_leaves_the_long_context_out(target, draft):
    proposer = DraftProposer(draft, draft.new_cache(SHORT + 64))
    stage = Stage(target, target.new_cache(SHORT + 64), proposer)
    assert stage.fits(Scene("verify", 1, 3))
    assert not stage.fits(Scene("verify", 1, 0, LONGS[-1]))
    assert not stage.fits(Scene("verify", 64, 1))
    table = measure_costs(target, stage.cache, proposer, max_requests=64, max_steps=3, seconds=0)
    assert table.attend == table.draft_attend == 0


def test_a_table_is_a_json_document():
    document = json.loads(json.dumps(TABLE.to_json()))
    assert document["verify"]["counts"] == list(TABLE.verify.counts)
    assert document["attend"] == TABLE.attend
    assert document.keys() == set(CostTable.__dataclass_fields__)
