"""Every recipe of the package, dry-run: loaded, its draft resolved for its target, planned, fit for both engines."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from rich.console import Console

from eyas.contract import Contract
from eyas.dialects.checkpoint import captured_by
from eyas.dialects.engines import Engine
from eyas.draft.layout import refuse_for, to_json
from eyas.errors import EyasError
from eyas.models.config import architecture_of, read_config
from eyas.recipes import FOLDER, Measured, list_recipes, load_recipe, recipe_path
from eyas.train.amounts import Machine
from eyas.train.plan import plan_training
from eyas.train.plan_table import print_plan
from eyas.train.start import draft_config
from support.configs import KIMI_K25, LLAMA_31_8B, QWEN3_8B, SMOLLM2_135M

TARGETS = {"smollm2-135m": SMOLLM2_135M, "llama-3.1-8b": LLAMA_31_8B, "qwen3-8b": QWEN3_8B, "kimi-k2.5": KIMI_K25}
ENGINES = (Engine.parse("sglang"), Engine.parse("vllm"))
LARGE = Machine("cuda", free_memory=140 * 10**9, free_disk=16 * 10**12, flops=4e14, processes=8)


def target_of(name: str, folder: Path) -> dict:
    (folder / "config.json").write_text(json.dumps(TARGETS[name]))
    return read_config(folder)


def test_there_is_one_for_each_target():
    assert list_recipes() == sorted(TARGETS)


@pytest.mark.parametrize("name", TARGETS)
def test_its_draft_is_one_that_both_engines_run_as_trained(name, tmp_path):
    recipe, document = load_recipe(name), target_of(name, tmp_path)
    config = draft_config(document, recipe.train.draft)
    refuse_for(config, ENGINES)
    written = to_json(config, architecture_of(document), ENGINES, "bfloat16")
    for engine in ENGINES:
        assert captured_by(written, config.target_num_layers, engine, architecture_of(document)) == config.taps
    assert recipe.train.draft.taps == config.taps
    assert recipe.train.max_length <= config.max_position_embeddings


@pytest.mark.parametrize("name", TARGETS)
def test_it_can_be_planned_and_fits_a_large_machine(name, tmp_path):
    recipe, document = load_recipe(name), target_of(name, tmp_path)
    plan = plan_training(recipe.train, document, recipe.counts(), recipe.features, LARGE)
    plan.require()
    assert plan.optimizer_steps > 1000
    assert plan.warnings == ()
    print_plan(plan, Console(quiet=True))
    json.dumps(plan.to_json())


@pytest.mark.parametrize("name", TARGETS)
def test_it_says_whose_prompts_it_takes(name):
    recipe = load_recipe(name)
    assert recipe.name == name
    assert recipe.target.source
    # Sets that state no licence are for trials, and no recipe's draft may come of them.
    assert all("none" not in prompt.licence.lower() for prompt in recipe.prompts)
    assert {"prompts:mt-bench", "prompts:humaneval"}.isdisjoint(prompt.source for prompt in recipe.prompts)


def test_the_measured_header_is_what_the_shipped_draft_promises():
    contract = Contract.read(FOLDER.parent / "drafts" / "smollm2-135m" / "contract.json")
    run = load_recipe("smollm2-135m").run
    assert isinstance(run, Measured)
    assert run.accept_lengths == contract.expected
    assert (run.conversations, run.answer_tokens) == (contract.data.conversations, contract.data.answer_tokens)
    assert {load_recipe(name).run for name in TARGETS if name != "smollm2-135m"} == {"not run"}


GOOD = (FOLDER / "smollm2-135m.yaml").read_text(encoding="utf-8")


def test_a_file_of_the_user_is_read_as_well(tmp_path):
    path = tmp_path / "mine.yaml"
    path.write_text(GOOD)
    assert load_recipe(str(path)) == load_recipe("smollm2-135m")
    assert recipe_path(str(path)) == path


@pytest.mark.parametrize(
    ("old", "new", "code", "said"),
    [
        ("name: smollm2-135m", "name: smollm2-135m\nnam: x", "flags.unknown", "nam"),
        ("epochs: 3", "epoch: 3", "flags.unknown", "train: epoch"),
        ("draft_vocab_size: 8192", "vocab: 1", "flags.unknown", "train: vocab"),
        ("mode: online", "mode: offline", "flags.range", "features: mode"),
        ("mode: online", "mode: online\n  top_k: 5", "flags.contradiction", "features: "),
        ("temperatures: [0.0, 0.7, 1.0]", "temperatures: []", "flags.range", "regen: temperatures"),
        ("count: 1566", "count: many", "flags.range", "prompts: count"),
        ("count: 1566", "count: 1566\n    sauce: x", "flags.unknown", "prompts: sauce"),
        ("hours: 0.48", "hours: -1", "flags.range", "run: hours"),
        ("ceiling: 4", "ceiling: 9", "flags.range", "run: accept_lengths"),
        ("prompts:\n", "prompts: all\nnothing:\n", "artifact.corrupt", "prompts: 'all'"),
        ("expected:\n", "expected: 3\nrest:\n", "artifact.corrupt", "expected: 3"),
        ("run:\n", "run: maybe\nrest:\n", "flags.range", "run"),
    ],
)
def test_what_is_wrong_in_it_is_named(tmp_path, old, new, code, said):
    assert old in GOOD
    path = tmp_path / "mine.yaml"
    path.write_text(GOOD.replace(old, new))
    with pytest.raises(EyasError) as caught:
        load_recipe(str(path))
    assert caught.value.code == code
    assert "mine.yaml" in caught.value.cause
    assert said in caught.value.cause


def test_a_missing_recipe_names_those_there_are():
    with pytest.raises(EyasError) as caught:
        load_recipe("gpt-9")
    assert caught.value.code == "artifact.missing"
    assert "smollm2-135m" in caught.value.fix
