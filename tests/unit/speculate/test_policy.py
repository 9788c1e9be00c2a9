"""The controller of K against simulated loads whose acceptance and costs are known."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import eyas
from eyas.config import SpeculativeSettings
from eyas.contract import Contract
from eyas.metrics import Round
from eyas.speculate.costs import StepShape
from eyas.speculate.policy import Controller, Prospect, expected_of, shape_of
from support.simulated import CHAT, CODE, TABLE, USELESS, Load, Text, best_fixed, noisy

PROMISED = {False: (0.385, 0.14, 0.066)}
CHAIN = SpeculativeSettings.resolve(5)
TREE = SpeculativeSettings.resolve(3, 4, 8)


def controller(promised=PROMISED, max_steps=5, table=TABLE) -> Controller:
    return Controller(table, max_steps, promised)


def taught(conditional: list[float], rounds: int = 400, max_steps: int = 5, table=TABLE) -> Controller:
    """A controller whose request 0 has shown these conditionals, to rounding."""
    made = controller(max_steps=max_steps, table=table)
    made.choose([prospect(0)])
    for i in range(rounds):
        accepted = 0
        while accepted < len(conditional) and (i * 0.6180339887 * (accepted + 1)) % 1 < conditional[accepted]:
            accepted += 1
        made.note(0, [Round(accepted, len(conditional))])
    return made


def prospect(key, context=200, backlog=1, remaining=100, asked=CHAIN, sampled=False) -> Prospect:
    return Prospect(key, context, backlog, remaining, asked, sampled)


# Never slower ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("conditional", "width", "share"), [(CODE, 1, 0.98), (CHAT, 1, 0.97), (CODE, 8, 0.97)])
def test_a_stationary_load_runs_as_with_its_best_fixed_k(conditional, width, share):
    load = Load([Text(conditional)], width, rounds=900 if width == 1 else 400)
    assert load.run(controller()) >= share * best_fixed(load)


@pytest.mark.parametrize(("width", "prompt"), [(1, 128), (1, 1000), (8, 128), (32, 128)])
def test_a_useless_draft_costs_hardly_anything(width, prompt):
    load = Load([Text(USELESS, prompt=prompt)], width, rounds=1200 // width)
    # What it costs to find out is paid once: two steps and the first looks.
    known = controller()
    load.run(known)
    assert load.run(known, seed=1) >= 0.99 * load.run(0, seed=1)
    assert load.run(controller()) >= 0.97 * load.run(0)


def test_on_a_mixed_load_no_fixed_k_is_as_fast():
    for width in (1, 8):
        load = Load([Text(CODE), Text(CHAT)], width, rounds=500)
        assert load.run(controller()) > best_fixed(load), width


@pytest.mark.parametrize(
    ("texts", "width", "gain"),
    [((CODE,), 1, 1.0), ((CHAT,), 1, 1.015), ((CODE, CHAT), 1, 1.07), ((CODE, CHAT), 8, 1.03), ((USELESS,), 1, 0.985)],
)
def test_a_draft_that_knows_when_it_is_unsure_beats_every_fixed_k(texts, width, gain):
    load = Load([Text(text, spread=True) for text in texts], width, rounds=1500 if width == 1 else 400)
    seeds = (0, 1, 2)
    ratio = sum(load.run(controller(), seed) for seed in seeds) / len(seeds) / best_fixed(load, seeds)
    assert ratio > gain, ratio


@pytest.mark.parametrize("width", [1, 8])
def test_a_draft_that_boasts_is_seen_through(width):
    load = Load([Text(CODE, spread=True, true=0.02)], width, rounds=1200 // width)
    known = controller()
    assert load.run(known) >= 0.96 * load.run(0)
    assert load.run(known, seed=1) >= 0.985 * load.run(0, seed=1)


def test_a_sure_chain_is_as_long_as_its_prices_allow():
    made = taught([0.7, 0.6, 0.5, 0.4, 0.3])
    lengths = []
    for width in (1, 8, 32):
        crowd = [prospect(i)._replace(sure=True) for i in range(width)]
        made.choose(crowd)
        lengths.append(made.sure_chain(crowd[0]))
    assert [chain.num_steps for chain in lengths] == [5, 5, 5]
    assert lengths[0].keep < lengths[1].keep < lengths[2].keep
    assert all(chain.keep <= chain.extend for chain in lengths)
    assert made.sure_chain(prospect(0, remaining=3)).num_steps == 2


def test_noise_and_pauses_do_not_turn_it():
    load = Load([Text(CODE), Text(CHAT)], 1, noise=noisy(0.3, 0.02), rounds=700)
    assert load.run(controller()) > best_fixed(load)


def test_where_verifying_is_not_free_nothing_is_proposed():
    load = Load([Text(CHAT)], 32, rounds=40)
    assert load.run(controller()) >= 0.97 * load.run(0)


def test_a_text_that_turns_easy_is_noticed():
    load = Load([Text(USELESS, 3000, switch=300, then=CODE)], 1, rounds=900)
    load.run(controller())
    assert sum(K for (K,) in load.chosen[200:280]) <= 12
    assert sum(K for (K,) in load.chosen[-100:]) / 100 > 3


def test_a_text_that_turns_hard_is_noticed():
    load = Load([Text(CODE, 3000, switch=600, then=USELESS)], 1, rounds=500)
    load.run(controller())
    assert sum(K for (K,) in load.chosen[-100:]) <= 12


def test_a_wrong_table_is_mended_by_what_steps_take():
    dearer = replace(TABLE.verify, seconds=(0.080, *(s + 0.035 for s in TABLE.verify.seconds[1:])))
    load = Load([Text(CHAT)], 1, truth=replace(TABLE, verify=dearer), noise=noisy(0.1, 0.01), rounds=600)
    assert load.run(0) > load.run(1)
    known = controller()
    load.run(known)
    assert load.run(known, seed=1) >= 0.97 * load.run(0, seed=1)


def test_the_same_observations_give_the_same_choices():
    loads = [Load([Text(CODE), Text(CHAT)], 4, noise=noisy(0.3, 0.02), rounds=60) for _ in range(2)]
    for load in loads:
        load.run(controller())
    assert loads[0].chosen == loads[1].chosen


# Rules -------------------------------------------------------------------------------------------------------------

requests = st.lists(
    st.tuples(
        st.integers(1, 8192), st.integers(1, 600), st.integers(1, 300), st.sampled_from([CHAIN, TREE]), st.booleans()
    ),
    min_size=1,
    max_size=40,
)


@settings(max_examples=40, deadline=None)
@given(requests=requests, other_rows=st.sampled_from([0, 1, 512]))
def test_never_more_than_allowed(requests, other_rows):
    prospects = [Prospect(i, *request) for i, request in enumerate(requests)]
    made = controller({False: (0.9, 0.85, 0.8)})
    for _ in range(3):
        steps = made.choose(prospects, other_rows)
        for p, K in zip(prospects, steps, strict=True):
            most = min(p.asked.num_steps, p.remaining - 1) if not p.asked.is_tree else p.asked.num_steps
            assert K in ({0, most} if p.asked.is_tree else range(most + 1))
            assert p.remaining > 1 or K == 0


@settings(max_examples=40, deadline=None)
@given(
    conditional=st.lists(st.floats(0.05, 0.9), min_size=5, max_size=5),
    better=st.lists(st.floats(0, 0.1), min_size=5, max_size=5),
)
def test_a_better_draft_is_never_given_less(conditional, better):
    other = [min(c + b, 1.0) for c, b in zip(conditional, better, strict=True)]
    # Trials come on top of what pays; a step with prompt rows has none.
    (low,), (high,) = (taught(c).choose([prospect(0)], 8) for c in (conditional, other))
    assert high >= low


def test_no_request_no_choice():
    assert controller().choose([]) == []


def test_the_last_token_needs_no_draft():
    made = taught([1.0] * 5)
    assert made.choose([prospect(0, remaining=1)]) == [0]
    assert made.choose([prospect(0, remaining=3)]) == [2]


def test_prompt_rows_of_the_same_step_do_not_make_drafts_look_free():
    made = taught([0.6, 0.5, 0.5, 0.5, 0.5])
    alone = made.choose([prospect(0)])
    assert made.choose([prospect(0)], 64)[0] <= alone[0]


def test_a_tree_is_taken_whole_or_not_at_all():
    made = controller({False: (0.9, 0.8, 0.7)}, max_steps=3)
    assert made.choose([prospect(0, asked=TREE)]) == [3]
    for _ in range(200):
        made.note(0, [Round(0, 7, depth=3)])
    assert made.choose([prospect(0, asked=TREE)], 1) == [0]


def test_trees_and_chains_greedy_and_sampled_learn_apart():
    made = controller()
    made.choose([prospect(0), prospect(1, sampled=True), prospect(2, asked=TREE)])
    for _ in range(60):
        made.note(0, [Round(5, 5)])
    conditionals = made.to_json()["conditionals"]
    assert conditionals["greedy chain"][0] > 0.7
    assert conditionals["sampled chain"][0] == conditionals["greedy tree"][0] == 0.385


def test_a_cut_round_teaches_nothing():
    made = controller()
    made.choose([prospect(0)])
    before = made.to_json()
    made.note(0, [Round(2, 5, cut=True)])
    assert made.to_json() == before


def test_a_large_batch_believes_the_contract_only_after_a_first_look():
    made = controller({False: (0.98, 0.98, 0.98)})
    cheap = [prospect(i, context=10) for i in range(16)]
    assert sum(K > 0 for K in made.choose(cheap)) <= 3
    for _ in range(12):
        made.note(0, [Round(3, 3)])
    assert sum(K > 0 for K in made.choose(cheap)) == 16


def test_it_forgets_who_has_ended():
    made = taught([1.0] * 5)
    made.forget(0)
    made.forget(0)
    with pytest.raises(AssertionError, match="chosen for before"):
        made.note(0, [Round(0, 1)])


def test_the_forecast_knows_what_the_batch_would_do_without_drafts():
    made = taught([0.9] * 5)
    made.choose([prospect(0)])
    assert made.forecast is not None
    assert made.forecast.plain_tokens_per_second == pytest.approx(1 / (0.080 + 0.0002 + 200 * 8e-6))
    assert made.forecast.tokens_per_second > 2 * made.forecast.plain_tokens_per_second


def test_a_steps_shape_counts_its_rows():
    prospects = [prospect(0, 100, 3), prospect(1, 50, 1), prospect(2, 10, 2, asked=TREE)]
    assert shape_of(prospects, [3, 0, 3], other_rows=20, other_attended=7) == StepShape(
        rows=20 + 4 + 1 + 8,
        requests=3,
        attended=7 + 4 * 100 + 50 + 8 * 10,
        proposing=2,
        absorbed=5,
        steps=(5, 5),
        draft_attended=3 * 98.5 + 2 * 100 + 2 * 9 + 2 * 4 * 10,
    )


def test_the_shipped_contract_says_what_to_expect():
    contract = Contract.read(Path(eyas.__file__).parent / "assets" / "drafts" / "smollm2-135m" / "contract.json")
    expected = expected_of(contract)
    assert expected.keys() == {False, True}
    deepest = [e.survival for e in contract.expected if e.temperature == 0 and e.num_steps == 7]
    assert len(expected[False]) == 7
    assert expected[False] == pytest.approx([sum(s[i] for s in deepest) / len(deepest) for i in range(7)])
