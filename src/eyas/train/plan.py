"""``eyas train --plan``: what a training will take, and whether it fits, before anything starts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from eyas.artifacts import human_bytes
from eyas.draft.config import DraftConfig
from eyas.errors import EyasError
from eyas.models.size import TargetSize, target_size
from eyas.train import costs
from eyas.train.amounts import DataCounts, FeatureChoice, Machine
from eyas.train.settings import TrainSettings
from eyas.train.start import draft_config

EFFICIENCY = 0.5
"""The share of the measured rate of products that a whole training step reaches."""
TIGHT = 0.8
"""Warn from this share of what is free."""
FEW_STEPS = 100
_FIGURES = (
    *("trained_parameters", "total_parameters", "steps_per_epoch", "optimizer_steps", "tokens_seen"),
    *("answer_tokens_seen", "feature_bytes", "checkpoint_bytes", "disk_bytes", "peak_memory", "seconds"),
)


@dataclass(frozen=True)
class TrainingPlan:
    """Bytes, seconds, floating-point operations. ``memory``: of one process at its fullest moment, by part.
    ``operations``: of the whole run over all processes, by part. ``refusals``: why it cannot start here.
    """

    config: DraftConfig
    settings: TrainSettings
    features: FeatureChoice
    data: DataCounts
    target: TargetSize
    machine: Machine
    trained_parameters: int
    total_parameters: int
    steps_per_epoch: int
    optimizer_steps: int
    tokens_seen: int
    answer_tokens_seen: int
    feature_bytes: int
    checkpoint_bytes: int
    memory: Mapping[str, int]
    operations: Mapping[str, float]
    seconds: float
    assumptions: tuple[str, ...]
    warnings: tuple[str, ...]
    refusals: tuple[EyasError, ...]

    @property
    def peak_memory(self) -> int:
        """Bytes of one process."""
        return sum(self.memory.values())

    @property
    def disk_bytes(self) -> int:
        """Bytes that are still to be written."""
        return self.checkpoint_bytes + (0 if self.features.captured else self.feature_bytes)

    def require(self) -> None:
        """Raise the first refusal: ``train.memory``, ``features.disk`` or ``pull.disk-full``."""
        if self.refusals:
            raise self.refusals[0]

    def to_json(self) -> dict[str, Any]:
        """Plain values for ``--json``."""
        return {
            **{name: getattr(self, name) for name in _FIGURES},
            "memory": dict(self.memory),
            "operations": dict(self.operations),
            "draft": self.config.model_dump(mode="json"),
            "settings": self.settings.model_dump(mode="json"),
            "features": self.features.model_dump(mode="json"),
            "data": asdict(self.data),
            "target": asdict(self.target),
            "machine": asdict(self.machine),
            "assumptions": list(self.assumptions),
            "warnings": list(self.warnings),
            "refusals": [{"code": e.code, "cause": e.cause, "fix": e.fix} for e in self.refusals],
        }


def plan_training(
    settings: TrainSettings,
    target_document: Mapping[str, Any],
    data: DataCounts,
    features: FeatureChoice,
    machine: Machine,
) -> TrainingPlan:
    """Plan a run from the target's config.json and counts; nothing is loaded, run or written.

    Raises ``model.config``, ``taps.…``, ``draft.config`` for settings that no run could have.
    """
    config, target = draft_config(target_document, settings.draft), target_size(target_document)
    per_epoch, steps, epochs = costs.step_counts(settings, data)
    operations = costs.operation_parts(config, target, settings, data, features)
    seconds = sum(operations.values()) / (machine.flops * EFFICIENCY * machine.processes)
    memory = costs.memory_parts(config, target, settings, data, features, machine)
    stored = costs.feature_bytes(config, features, data.all) if features.mode == "stored" else 0
    kept, missing = costs.checkpoint_bytes(config, settings), 0 if features.captured else stored
    return TrainingPlan(
        config=config,
        settings=settings,
        features=features,
        data=data,
        target=target,
        machine=machine,
        trained_parameters=costs.trained_parameters(config),
        total_parameters=costs.total_parameters(config),
        steps_per_epoch=per_epoch,
        optimizer_steps=steps,
        tokens_seen=round(data.trained.tokens * epochs),
        answer_tokens_seen=round(data.trained.answer_tokens * epochs),
        feature_bytes=stored,
        checkpoint_bytes=kept,
        memory=memory,
        operations=operations,
        seconds=seconds,
        assumptions=_assumptions(settings, data, features, target, machine),
        warnings=_warnings(sum(memory.values()), missing + kept, steps, machine),
        refusals=_refusals(config, settings, features, memory, (missing, kept), machine),
    )


def _assumptions(
    settings: TrainSettings, data: DataCounts, features: FeatureChoice, target: TargetSize, machine: Machine
) -> tuple[str, ...]:
    said = [
        f"time: a step reaches {EFFICIENCY:.0%} of the {machine.flops / 1e9:,.0f} GFLOP/s measured in products of the"
        " draft's own shapes, the target too",
        "memory: the largest piece has the data's mean share of answers; activations are counted as fp32",
    ]
    if not data.measured:
        said.append("data: estimated from averages, not counted in samples")
    if not target.exact:
        said.append("target: its parameters are estimated from the keys of its config.json")
    if features.target_in_process:
        said.append(f"target: its weights are in the same process, as {features.target_dtype}")
    if features.mode == "stored":
        said.append("features: captured before, for which this time and memory do not count")
    if settings.patience is not None:
        said.append("time: patience may stop the run earlier")
    return tuple(said)


def _warnings(peak: int, disk: int, steps: int, machine: Machine) -> tuple[str, ...]:
    said = []
    for what, needed, free in (("memory", peak, machine.free_memory), ("disk", disk, machine.free_disk)):
        if TIGHT * free < needed <= free:
            said.append(f"{what} is tight: about {human_bytes(needed)} of {human_bytes(free)} free")
    if steps < FEW_STEPS:
        said.append(f"only {steps} optimizer steps: lower samples_per_step, or give more conversations or epochs")
    return tuple(said)


def _refusals(
    config: DraftConfig,
    settings: TrainSettings,
    features: FeatureChoice,
    memory: Mapping[str, int],
    disk: tuple[int, int],
    machine: Machine,
) -> tuple[EyasError, ...]:
    found, peak, (stored, kept) = [], sum(memory.values()), disk
    if peak > machine.free_memory:
        most = max(memory, key=lambda part: memory[part])
        cause = (
            f"training needs about {human_bytes(peak)} a process, and {human_bytes(machine.free_memory)} are free; the"
            f" most is for {most} ({human_bytes(memory[most])})"
        )
        found.append(EyasError("train.memory", cause, _smaller(settings, features, most)))
    if stored + kept > machine.free_disk:
        free = f"and {human_bytes(machine.free_disk)} are free"
        if stored > kept:
            cause = f"features need {human_bytes(stored)} and states {human_bytes(kept)} on disk, {free}"
            fix = _narrower(config, features)
            found.append(EyasError("features.disk", cause, f"{fix}, or name a folder on a larger disk"))
        else:
            cause = f"states to go on from need {human_bytes(kept)} on disk, {free}"
            found.append(EyasError("pull.disk-full", cause, "free some space, or name a folder on a larger disk"))
    return tuple(found)


def _smaller(settings: TrainSettings, features: FeatureChoice, part: str) -> str:
    """What makes the largest part of memory smaller."""
    if part == "target weights":
        smaller = "" if features.target_dtype == "bf16" else "--dtype bf16, or "
        return (
            f"{smaller}capture features first (`eyas capture`) on a machine that holds the target, and train without it"
        )
    if part in ("activations", "workspace", "teacher", "features", "making a batch"):
        recompute = "" if settings.recompute else "recompute: true, or "
        return f"{recompute}lower micro_batch_tokens and max_length, or draft_vocab_size"
    return "use a smaller draft (draft_vocab_size, intermediate_size), several processes with FSDP, or a larger machine"


def _narrower(config: DraftConfig, features: FeatureChoice) -> str:
    """Ways to store less."""
    ways = ["train online, which stores nothing"]
    if features.top_k is None:
        ways.append("top_k: 64")
    if features.storage != "fp8":
        ways.append("storage: fp8")
    if len(ways) == 1:
        ways.append(f"fewer taps than {len(config.taps)}")
    return ", or ".join(ways)
