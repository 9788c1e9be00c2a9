"""What a plan of training starts from: how much data, where features come from, and what the machine can do."""

from __future__ import annotations

import math
import shutil
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import torch
from pydantic import Field, model_validator

from eyas.config import Settings
from eyas.corpus.samples import Sample, split
from eyas.draft.config import DraftConfig
from eyas.environment import free_memory
from eyas.errors import EyasError
from eyas.train.settings import TrainSettings


class FeatureChoice(Settings):
    """Where training takes features from: ``online``, the target computes them whenever they are needed; ``stored``,
    ``eyas capture`` wrote them once. ``target_dtype``: of the target's weights where it is in the same process.
    """

    mode: Literal["online", "stored"] = "online"
    storage: Literal["fp32", "bf16", "fp8"] = "bf16"
    top_k: Annotated[int, Field(ge=1)] | None = None
    """Keep the likeliest tokens in place of the last state."""
    target_dtype: Literal["fp32", "bf16"] = "fp32"
    target_in_process: bool = True
    """False: of the target only embedding, head and final norm are read, which needs stored features."""
    captured: bool = False
    """The features are on disk already."""

    @model_validator(mode="after")
    def _consistent(self) -> FeatureChoice:
        if self.mode == "online" and self.top_k is not None:
            raise EyasError(
                "flags.contradiction",
                f"features online and top_k {self.top_k}: nothing is stored that could be made smaller",
                "use mode: stored, or leave top_k out",
            )
        if self.mode == "online" and (self.captured or not self.target_in_process):
            raise EyasError(
                "flags.contradiction",
                "features online are computed by a target in the same process, and never captured",
                "use mode: stored, or leave captured and target_in_process out",
            )
        return self


@dataclass(frozen=True)
class Amount:
    """Some conversations, counted. ``answer_tokens`` are among ``tokens``; ``squares``: Σ length²."""

    conversations: int
    tokens: int
    answer_tokens: int
    answers: int
    longest: int
    squares: int

    @classmethod
    def of(cls, samples: Sequence[Sample], max_length: int | None = None) -> Amount:
        """Count samples, cut at ``max_length`` tokens."""
        lengths = [min(len(sample.tokens), max_length or len(sample.tokens)) for sample in samples]
        pairs = zip(samples, lengths, strict=True)
        answers = [min(end, n) - begin for sample, n in pairs for begin, end in sample.answers if begin < n]
        squares = sum(n * n for n in lengths)
        return cls(len(samples), sum(lengths), sum(answers), len(answers), max(lengths, default=0), squares)

    def slots(self, step: int) -> int:
        """Slots that the loss of an unrolled step sees: of an answer of n tokens, n − 1 − step."""
        return max(self.answer_tokens - self.answers * (1 + step), 0)


@dataclass(frozen=True)
class DataCounts:
    """``all``: what is captured, at full length · ``trained``: what is trained on, cut · ``held``: the rest, cut."""

    all: Amount
    trained: Amount
    held: Amount
    measured: bool
    """False: estimated from averages, every conversation of the same length."""

    @classmethod
    def of(cls, samples: Sequence[Sample], settings: TrainSettings) -> DataCounts:
        """Count the samples that there are."""
        trained, held = split(samples, settings.held_out_share)
        cut = settings.max_length
        return cls(Amount.of(samples), Amount.of(trained, cut), Amount.of(held, cut), measured=True)

    @classmethod
    def estimated(
        cls, conversations: int, tokens: int, answer_tokens: int, settings: TrainSettings, answers: int = 1
    ) -> DataCounts:
        """From what a conversation has on average: ``tokens``, of them ``answer_tokens`` in ``answers`` answers."""
        held = round(conversations * settings.held_out_share)
        length = min(tokens, settings.max_length)
        cut = max(answer_tokens - (tokens - length), 0)

        def amount(count: int, n: int, of_answers: int) -> Amount:
            return Amount(count, count * n, count * of_answers, count * answers, n, count * n * n)

        whole = amount(conversations, tokens, answer_tokens)
        return cls(whole, amount(conversations - held, length, cut), amount(held, length, cut), measured=False)


@dataclass(frozen=True)
class Machine:
    """What one process has. Bytes; ``flops``: multiplications and additions a second in the draft's own products.

    ``processes``: how many share the work. ``sharded``: the draft's weights and moments are shared out too (FSDP).
    """

    device: str
    free_memory: int
    free_disk: int
    flops: float
    processes: int = 1
    sharded: bool = False


def machine_facts(
    folder: Path, config: DraftConfig, settings: TrainSettings, device: str = "cpu", processes: int = 1
) -> Machine:
    """Measure this machine: the disk of ``folder`` (it need not exist), free memory, and the rate of products."""
    place = folder.absolute()
    while not place.exists():
        place = place.parent
    free = torch.cuda.mem_get_info(device)[0] if torch.device(device).type == "cuda" else free_memory()
    dtype = torch.bfloat16 if settings.precision == "bf16" else torch.float32
    return Machine(device, free, shutil.disk_usage(place).free, measure_flops(config, device, dtype), processes)


_ROWS = {"cuda": 8192}
_FEW_ROWS = 256
_MOST_WEIGHTS = {"cuda": 1 << 28}
_FEW_WEIGHTS = 1 << 20
_SECONDS = 0.1


def measure_flops(config: DraftConfig, device: str = "cpu", dtype: torch.dtype = torch.float32) -> float:
    """Floating-point operations a second in products of the draft's own matrices, or parts of them that a CPU does in
    milliseconds: the best time of each, over about 0.1 s.
    """
    H, heads, kind = config.hidden_size, config.num_heads + 2 * config.num_kv_heads, torch.device(device).type
    rows, most = _ROWS.get(kind, _FEW_ROWS), _MOST_WEIGHTS.get(kind, _FEW_WEIGHTS)
    operations = seconds = 0.0
    for width, size in (
        (2 * H, heads * config.head_dim),
        (H, 2 * config.intermediate_size),
        (H, config.draft_vocab_size),
    ):
        outputs = min(size, max(most // width, 1))
        x = torch.ones(rows, width, device=device, dtype=dtype)
        weight = torch.ones(outputs, width, device=device, dtype=dtype)
        operations += 2.0 * rows * width * outputs
        seconds += _best_time(x, weight)
    return operations / max(seconds, 1e-9)


def _best_time(x: torch.Tensor, weight: torch.Tensor) -> float:
    best, spent, times = math.inf, 0.0, 0
    # The first product also sets things up.
    while times < 2 or spent < _SECONDS:
        begun = time.perf_counter()
        y = torch.nn.functional.linear(x, weight)
        if y.is_cuda:
            torch.cuda.synchronize(y.device)
        seconds = time.perf_counter() - begun
        best, spent, times = min(best, seconds), spent + seconds, times + 1
    return best
