"""Every setting of a training run: strict, frozen, each default written once. A recipe is a YAML file of them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import Field, model_validator

from eyas.artifacts import load_yaml, read_yaml
from eyas.config import Settings
from eyas.errors import EyasError
from eyas.train.losses import LossName

Count = Annotated[int, Field(ge=1)]
Share = Annotated[float, Field(ge=0, lt=1)]
Positive = Annotated[float, Field(gt=0)]

MAX_TTT_STEPS = 16
USUAL_DRAFT_VOCABULARY = 32_000


class DraftOptions(Settings):
    """The draft's shape and options; what is None follows the target."""

    taps: tuple[int, ...] | None = None
    """None: (2, L // 2, L − 3)."""
    num_layers: Count = 1
    draft_vocab_size: Count | None = None
    """None: 32,000, or the target's whole vocabulary if it has fewer."""
    hidden_size: Count | None = None
    """Another than the target's needs an embedding of the draft's own."""
    intermediate_size: Count | None = None
    num_heads: Count | None = None
    num_kv_heads: Count | None = None
    head_dim: Count | None = None
    norm_output: bool = False
    """EAGLE-3.1: the next step takes the state after the final norm."""
    fc_norm: bool = False
    """EAGLE-3.1: an RMS norm on each tap before fc."""
    norm_before_residual: bool = False
    own_embedding: bool = False
    """Train an embedding of the draft's own, which starts as the target's."""


class TrainSettings(Settings):
    """How a draft is trained. Token counts include prompts."""

    draft: DraftOptions = DraftOptions()
    ttt_steps: Annotated[int, Field(ge=1, le=MAX_TTT_STEPS)] = 4
    """Steps that training-time test unrolls."""
    step_decay: Annotated[float, Field(gt=0, le=1)] = 0.8
    """Step i's loss has weight step_decay ** i."""
    later_share: Annotated[float, Field(gt=0, le=1)] = 1.0
    """The share of slots, drawn anew each time, that is unrolled beyond the first step."""
    loss: LossName = "soft-cross-entropy"
    epochs: Count = 1
    max_steps: Count | None = None
    """Optimizer steps at most; the schedule then ends there."""
    samples_per_step: Count = 8
    """Conversations per optimizer step, over all processes: the global batch."""
    micro_batch_tokens: Count = 4096
    """Tokens that one process holds at once; a step's conversations are cut into pieces of at most so many."""
    max_length: Annotated[int, Field(ge=8)] = 2048
    """Longer conversations are cut there."""
    learning_rate: Positive = 1e-3
    schedule: Literal["cosine", "linear", "constant"] = "cosine"
    warmup_share: Share = 0.02
    final_share: Annotated[float, Field(ge=0, le=1)] = 0.02
    """The learning rate at the end, as a share of learning_rate."""
    weight_decay: Annotated[float, Field(ge=0)] = 0.01
    betas: tuple[Share, Share] = (0.9, 0.95)
    clip_norm: Positive | None = 1.0
    ema_decay: Share = 0.0
    """0 is off; else the weights that are evaluated and written are an exponential mean."""
    precision: Literal["fp32", "bf16"] = "fp32"
    """bf16: autocast over fp32 masters."""
    feature_memory_gb: Annotated[float, Field(ge=0)] = 2.0
    """Features of online training that are kept in memory once computed; the others are computed every epoch."""
    attention: Literal["merged", "flex"] = "merged"
    """flex: PyTorch's flex attention, for GPUs alone, and not run on one yet."""
    recompute: bool = False
    """Gradient checkpointing: less memory, about a third more time."""
    seed: Annotated[int, Field(ge=0)] = 0
    held_out_share: Annotated[float, Field(gt=0, lt=1)] = 0.05
    """Of the prompts, by their ids."""
    evaluate_every: Count = 200
    """Optimizer steps."""
    evaluate_samples: Count = 64
    """Held-out conversations per domain at most."""
    save_every: Count = 50
    """Optimizer steps between two states to go on from."""
    patience: Count | None = None
    """Stop after so many evaluations without a better accept length."""

    @model_validator(mode="after")
    def _consistent(self) -> TrainSettings:
        if self.micro_batch_tokens < self.max_length:
            raise EyasError(
                "flags.contradiction",
                f"micro_batch_tokens {self.micro_batch_tokens} is less than max_length {self.max_length}",
                "raise micro_batch_tokens, or lower max_length",
            )
        return self

    def to_yaml(self) -> str:
        """As a recipe; :meth:`from_yaml` reads it back."""
        return yaml.safe_dump(self.model_dump(mode="json"), sort_keys=False, allow_unicode=True)

    @classmethod
    def from_yaml(cls, path: Path) -> TrainSettings:
        """Read a recipe's ``train`` part or a file of settings. Raises ``artifact.missing``, ``flags.…``."""
        return parse_settings(read_yaml(path), path)


def parse_settings(document: dict[str, Any], path: Path) -> TrainSettings:
    """Settings out of YAML's types: lists become tuples, whole numbers stand for floats; nothing else is converted."""
    values = dict(document)
    draft = values.pop("draft", {})
    if not isinstance(draft, dict):
        raise EyasError("artifact.corrupt", f"{path}: draft is no mapping", "write draft: with indented lines below")
    return TrainSettings(**_plain(values), draft=DraftOptions(**_plain(draft)))


def _plain(values: dict[str, Any]) -> dict[str, Any]:
    return {name: tuple(value) if isinstance(value, list) else value for name, value in values.items()}


def override(settings: TrainSettings, changes: Sequence[str]) -> TrainSettings:
    """Settings with ``NAME=VALUE`` laid over them; VALUE is YAML, and names of the draft's part begin with ``draft.``.

    Raises ``flags.unknown``, ``flags.range``.
    """
    document = settings.model_dump(mode="json")
    for change in changes:
        name, equals, value = change.partition("=")
        part, key = (document["draft"], name[6:]) if name.startswith("draft.") else (document, name)
        if not equals:
            raise EyasError("flags.range", f"--set {change} is not NAME=VALUE", "write e.g. --set epochs=3")
        if key not in part or key == "draft":
            raise EyasError("flags.unknown", f"{name} is no setting", f"use one of: {', '.join(part)}")
        try:
            part[key] = load_yaml(value)
        except yaml.YAMLError as error:
            raise EyasError("flags.range", f"--set {change}: {error}", "write the value as in YAML") from error
    return parse_settings(document, Path("--set"))
