from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console
from torch.utils.flop_counter import FlopCounterMode

from eyas.corpus.feature_store import FeatureManifest
from eyas.corpus.samples import Sample, trained_slots
from eyas.draft.model import DraftModel
from eyas.errors import EyasError
from eyas.models.size import target_size
from eyas.train import costs
from eyas.train.amounts import Amount, DataCounts, FeatureChoice, Machine, machine_facts, measure_flops
from eyas.train.optimizer import make_optimizer
from eyas.train.parallel import whole_state
from eyas.train.plan import TrainingPlan, plan_training
from eyas.train.plan_table import human_time, print_plan
from eyas.train.settings import DraftOptions, TrainSettings
from eyas.train.start import draft_config
from eyas.train.ttt import unroll
from support.configs import KIMI_K25, SMOLLM2_135M
from support.feature_rig import capture_tiny, tiny_samples
from support.train_piece import ANSWER, LENGTH, random_objective, random_piece, tiny_document

MACHINE = Machine("cpu", free_memory=1 << 50, free_disk=1 << 50, flops=1e12)
STORED = FeatureChoice(mode="stored", target_in_process=False)
MEMORY_FACTOR = 1.25
"""How near the planned peak is to a real one."""
PIECE_FACTOR = 1.5


def conversations(count: int) -> DataCounts:
    """As train_piece makes them."""
    one = Amount(count, count * LENGTH, count * ANSWER, count, LENGTH, count * LENGTH**2)
    return DataCounts(one, one, one, measured=True)


def tiny_plan(count: int = 8, machine: Machine = MACHINE, features: FeatureChoice = STORED, **options) -> TrainingPlan:
    options.setdefault("draft", DraftOptions(taps=(2, 4, 5), draft_vocab_size=256))
    return plan_training(TrainSettings(**options), tiny_document(), conversations(count), features, machine)


# Parameters ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("document", [tiny_document(), SMOLLM2_135M], ids=["tiny", "smollm2"])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"num_layers": 2, "fc_norm": True},
        {"own_embedding": True, "draft_vocab_size": None},
        {"hidden_size": 96, "num_heads": 4, "num_kv_heads": 2, "head_dim": 16},
    ],
    ids=str,
)
def test_parameters_are_those_of_the_draft(document, options):
    config = draft_config(document, DraftOptions(**{"taps": (2, 4, 5), "draft_vocab_size": 256, **options}))
    model = DraftModel(config, num_positions=8)
    assert costs.trained_parameters(config) == sum(p.numel() for p in model.parameters() if p.requires_grad)
    assert costs.total_parameters(config) == sum(p.numel() for p in model.parameters())


# Data and steps -----------------------------------------------------------------------------------------------------


@given(st.lists(st.tuples(st.integers(1, 9), st.integers(8, 40)), min_size=1, max_size=6), st.integers(0, 6))
def test_slots_are_those_of_the_mask(spans, step):
    samples = [
        Sample(str(i), str(i), "", np.zeros(begin + n, np.int32), ((begin, begin + n),), 0.0)
        for i, (begin, n) in enumerate(spans)
    ]
    assert Amount.of(samples).slots(step) == sum(trained_slots(s.segments(), step).sum() for s in samples)


def test_samples_are_counted_split_and_cut():
    made = tiny_samples().samples
    data = DataCounts.of(made, TrainSettings(max_length=12, held_out_share=0.5))
    assert data.all.tokens == sum(len(s.tokens) for s in made)
    assert data.all.answer_tokens == sum(s.answer_tokens for s in made)
    assert data.trained.conversations + data.held.conversations == len(made)
    assert data.trained.conversations > 0 < data.held.conversations
    assert data.trained.longest == 12
    assert data.trained.tokens + data.held.tokens == sum(min(len(s.tokens), 12) for s in made)
    assert data.measured


def test_averages_are_split_and_cut_too():
    data = DataCounts.estimated(100, 50, 30, TrainSettings(max_length=40, held_out_share=0.1), answers=2)
    assert (data.all.tokens, data.all.answer_tokens, data.all.answers) == (5000, 3000, 200)
    assert (data.trained.conversations, data.trained.tokens, data.trained.answer_tokens) == (90, 3600, 1800)
    assert data.held.conversations == 10
    assert not data.measured


@pytest.mark.parametrize(
    ("options", "steps", "tokens"),
    [
        # The last, smaller window of an epoch counts too.
        ({"samples_per_step": 2, "epochs": 2}, 6, 10 * LENGTH),
        ({"samples_per_step": 2, "epochs": 2, "max_steps": 3}, 3, 5 * LENGTH),
        ({"samples_per_step": 64}, 1, 5 * LENGTH),
    ],
)
def test_steps_and_tokens(options, steps, tokens):
    plan = tiny_plan(5, **options)
    assert (plan.optimizer_steps, plan.tokens_seen) == (steps, tokens)
    assert plan.answer_tokens_seen == tokens * ANSWER // LENGTH


# Disk ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", [{}, {"storage": "fp32"}, {"storage": "fp8"}, {"storage": "bf16", "top_k": 5}], ids=str)
def test_feature_bytes_are_those_that_capture_writes(tmp_path, how):
    made = tiny_samples()
    capture_tiny(tmp_path, made, **how)
    config = draft_config(tiny_document(), DraftOptions(taps=(2, 4, 5)))
    tokens = sum(len(s.tokens) for s in made.samples)
    planned = costs.feature_bytes(config, FeatureChoice(mode="stored", **how), Amount.of(made.samples))
    written = FeatureManifest.read(tmp_path).shards
    headers = sum(8 + int.from_bytes((tmp_path / s.file).read_bytes()[:8], "little") for s in written)
    tensors = sum(shard.bytes for shard in written) - headers
    assert planned == tensors + costs.TOKEN_BYTES * tokens + costs.SHARD_OVERHEAD


@pytest.mark.parametrize("ema", [0.0, 0.9])
def test_checkpoint_bytes_hold_two_states(ema):
    settings = TrainSettings(draft=DraftOptions(taps=(2, 4, 5), draft_vocab_size=256), ema_decay=ema)
    config = draft_config(tiny_document(), settings.draft)
    model = random_objective(config, settings)
    optimizer = make_optimizer(model, settings)
    model(*random_piece(2, config, settings))[0].backward()
    optimizer.step()
    weights = costs.trained_parameters(config)
    # Without the vocabulary map and the steps' numbers.
    tensors = [t for t in whole_state(model, optimizer).values() if t.dim() and t.is_floating_point()]
    state = sum(t.nbytes for t in tensors) + (4 * weights if ema else 0)
    assert costs.checkpoint_bytes(config, settings) == 2 * state + 4 * weights + 2 * weights


# Memory -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "options", [{}, {"num_layers": 2}, {"fc_norm": True, "norm_output": True}, {"num_kv_heads": 4}], ids=str
)
def test_activations_are_what_autograd_keeps(options):
    settings = TrainSettings(draft=DraftOptions(taps=(2, 4, 5), **options))
    config = draft_config(tiny_document(), settings.draft)
    model = random_objective(config, settings).model
    batch, slots, _ = random_piece(4, config, settings)
    own = {t.untyped_storage().data_ptr() for t in (*model.parameters(), batch.features)}
    kept: dict[int, torch.Tensor] = {}

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        if tensor.untyped_storage().data_ptr() not in own:
            kept.setdefault(tensor.untyped_storage().data_ptr(), tensor)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        states = [normed for _, _, normed in unroll(model, batch, slots)]
    assert len(states) == settings.ttt_steps
    head = 4 * (sum(map(len, slots)) * config.hidden_size + len(slots) * config.draft_vocab_size * config.hidden_size)
    real = sum(tensor.untyped_storage().nbytes() for tensor in kept.values()) + head
    planned = costs.activation_bytes(config, settings, len(batch.tokens), [len(rows) for rows in slots])
    assert planned == pytest.approx(real, rel=0.03)


@pytest.mark.slow
@pytest.mark.parametrize("recompute", [False, True])
def test_peak_memory_is_near_a_real_one(tmp_path, recompute):
    count, path = 48, tmp_path / "settings.yaml"
    settings = TrainSettings(
        draft=DraftOptions(taps=(2, 4, 5), draft_vocab_size=256),
        micro_batch_tokens=count * LENGTH,
        samples_per_step=count,
        recompute=recompute,
    )
    path.write_text(settings.to_yaml())
    script = Path(__file__).parents[2] / "support" / "train_piece.py"
    done = subprocess.run([sys.executable, script, str(count), path], capture_output=True, text=True, check=True)
    plan = plan_training(settings, tiny_document(), conversations(count), STORED, MACHINE)
    before, peak = json.loads(done.stdout)
    assert 1 / MEMORY_FACTOR < plan.peak_memory / peak < MEMORY_FACTOR
    # The piece alone, which is less than the process here.
    piece = plan.peak_memory - costs.PROCESS_BYTES
    print(piece, peak - before, before)
    assert 1 / PIECE_FACTOR < piece / (peak - before) < PIECE_FACTOR


def test_memory_follows_what_is_asked():
    plain, online = tiny_plan(), tiny_plan(features=FeatureChoice())
    assert "target weights" not in plain.memory
    assert online.memory["target weights"] == 4 * target_size(tiny_document()).total
    half = tiny_plan(features=FeatureChoice(target_dtype="bf16"))
    assert tiny_plan(features=FeatureChoice(mode="stored")).memory["target weights"] == online.memory["target weights"]
    assert 2 * half.memory["target weights"] == online.memory["target weights"]
    shared = dataclasses.replace(MACHINE, processes=4, sharded=True)
    part = "draft: masters, gradients, moments"
    assert plain.memory[part] == 16 * plain.trained_parameters
    assert tiny_plan(machine=shared).memory[part] == 4 * plain.trained_parameters
    assert tiny_plan(64, recompute=True).memory["activations"] < tiny_plan(64).memory["activations"] / 2
    assert "mean of the weights" in tiny_plan(ema_decay=0.9).memory
    assert tiny_plan(precision="bf16").memory["weights as bf16"] == 2 * plain.trained_parameters


# Operations ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("options", [{}, {"num_layers": 2, "fc_norm": True}], ids=str)
def test_operations_are_those_that_torch_counts(options):
    settings = TrainSettings(draft=DraftOptions(taps=(2, 4, 5), draft_vocab_size=256, **options), samples_per_step=4)
    config = draft_config(tiny_document(), settings.draft)
    model = random_objective(config, settings)
    with FlopCounterMode(display=False) as counter:
        piece = random_piece(4, config, settings)
        model(*piece)[0].backward()
    counted = counter.get_flop_counts()["Global"]
    products = sum(n for name, n in counted.items() if "mm" in str(name))
    parts = plan_training(settings, tiny_document(), conversations(4), STORED, MACHINE).operations
    planned = parts["draft layers"] + parts["draft head"] + parts["target probabilities"]
    # The products with features have no gradient of their input, unless norms come before.
    assert planned == pytest.approx(products, rel=0.1)


def test_time_is_operations_over_the_rate():
    plan, faster = tiny_plan(), tiny_plan(machine=dataclasses.replace(MACHINE, flops=4e12, processes=2))
    assert plan.seconds == pytest.approx(8 * faster.seconds)
    assert plan.seconds == pytest.approx(sum(plan.operations.values()) / 0.5e12)
    assert plan.operations["target forward"] == 0 < tiny_plan(features=FeatureChoice()).operations["target forward"]
    assert tiny_plan(epochs=2).operations["draft layers"] == 2 * plan.operations["draft layers"]


def test_the_machine_is_measured(tmp_path):
    settings = TrainSettings(draft=DraftOptions(taps=(2, 4, 5), draft_vocab_size=256))
    config = draft_config(tiny_document(), settings.draft)
    machine = machine_facts(tmp_path / "not" / "there", config, settings)
    assert machine.free_disk > 0 < machine.free_memory
    assert machine.flops > 1e6 < measure_flops(config, dtype=torch.float64)


# What does not fit --------------------------------------------------------------------------------------------------


def refused(machine: Machine, features: FeatureChoice = STORED, count: int = 8, **options) -> EyasError:
    plan = tiny_plan(count, machine, features, **options)
    with pytest.raises(EyasError) as caught:
        plan.require()
    return caught.value


def test_too_little_memory_is_refused():
    small = dataclasses.replace(MACHINE, free_memory=costs.PROCESS_BYTES)
    error = refused(small)
    assert error.code == "train.memory"
    kimi = plan_training(
        TrainSettings(draft=DraftOptions(num_heads=64, num_kv_heads=8, head_dim=128, intermediate_size=18432)),
        KIMI_K25,
        conversations(8),
        FeatureChoice(),
        dataclasses.replace(MACHINE, free_memory=10**12),
    )
    assert "target weights" in kimi.refusals[0].cause
    assert "eyas capture" in kimi.refusals[0].fix
    wide = plan_training(TrainSettings(samples_per_step=64), SMOLLM2_135M, conversations(64), STORED, small)
    assert "activations" in wide.refusals[0].cause
    assert "recompute" in wide.refusals[0].fix


def test_too_little_disk_is_refused_by_what_fills_it():
    full = dataclasses.replace(MACHINE, free_disk=1000)
    states, features = refused(full), refused(full, count=100_000)
    assert (states.code, features.code) == ("pull.disk-full", "features.disk")
    assert "top_k: 64" in features.fix
    assert "fp8" in features.fix
    least = refused(full, FeatureChoice(mode="stored", storage="fp8", top_k=64), count=100_000)
    assert "fewer taps" in least.fix


def test_what_fits_is_not_refused_and_what_is_tight_is_said():
    plan = tiny_plan()
    plan.require()
    assert plan.warnings == ("only 1 optimizer steps: lower samples_per_step, or give more conversations or epochs",)
    tight = dataclasses.replace(MACHINE, free_memory=plan.peak_memory + 1, free_disk=plan.disk_bytes + 1)
    again = tiny_plan(machine=tight)
    again.require()
    assert [line.split()[0] for line in again.warnings] == ["memory", "disk", "only"]


def test_features_that_are_there_need_no_disk():
    there = STORED.model_copy(update={"captured": True})
    missing, present = tiny_plan(), tiny_plan(features=there)
    assert missing.feature_bytes == present.feature_bytes > 0
    assert missing.disk_bytes - present.disk_bytes == missing.feature_bytes
    room = dataclasses.replace(MACHINE, free_disk=present.disk_bytes)
    tiny_plan(machine=room, features=there).require()
    assert refused(room).code == "pull.disk-full"


@pytest.mark.parametrize("options", [{"top_k": 8}, {"captured": True}, {"target_in_process": False}], ids=str)
def test_online_features_are_not_stored(options):
    with pytest.raises(EyasError) as caught:
        FeatureChoice(**options)
    assert caught.value.code == "flags.contradiction"


# Telling ------------------------------------------------------------------------------------------------------------


def test_a_plan_is_told_to_people_and_programs():
    small = dataclasses.replace(MACHINE, free_memory=1)
    plan = tiny_plan(machine=small, features=FeatureChoice(), patience=2)
    console = Console(record=True, width=140, quiet=False, file=None)
    with console.capture() as caught:
        print_plan(plan, console)
    text = caught.get()
    for word in (f"{plan.trained_parameters:,}", "target weights", "draft head", "assumed", "[train.memory]", "fix:"):
        assert word in text, word
    document = json.loads(json.dumps(plan.to_json()))
    assert document["peak_memory"] == sum(document["memory"].values())
    assert document["refusals"][0]["code"] == "train.memory"
    assert document["draft"]["taps"] == [2, 4, 5]


@pytest.mark.parametrize(
    ("seconds", "text"), [(5, "5 seconds"), (100, "1.7 minutes"), (9000, "2.5 hours"), (864000, "10.0 days")]
)
def test_durations(seconds, text):
    assert human_time(seconds) == text
