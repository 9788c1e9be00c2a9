"""What samples hold: counts, lengths, the share that is trained, what a draft vocabulary covers, and what is wrong."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from eyas.corpus.rendering import Renderer
from eyas.corpus.samples import Sample, SampleSet, split, trained_slots
from eyas.data.faults import find_faults
from eyas.data.samples import BuildAccount
from eyas.draft.names import OFFSETS
from eyas.draft.vocab import check_offsets, choose_vocabulary
from eyas.errors import EyasError
from eyas.models.weights.safetensors import open_checkpoint

STEPS = 7
VOCABULARIES = (4096, 8192, 16384, 32768)
QUANTILES = {"min": 0.0, "5 %": 0.05, "25 %": 0.25, "median": 0.5, "75 %": 0.75, "95 %": 0.95, "max": 1.0}


@dataclass(frozen=True)
class Share:
    """One part of the samples, by a name: samples, prompts, tokens, tokens of answers."""

    name: str
    samples: int
    prompts: int
    tokens: int
    answer_tokens: int


@dataclass(frozen=True)
class Coverage:
    """A draft vocabulary of the ``size`` tokens most frequent in the answers trained on: the share of all answer tokens
    that it holds, there and in the held-out answers; None without any. Tokens outside are misses.
    """

    size: int
    trained: float | None
    held_out: float | None


@dataclass(frozen=True)
class Fault:
    """What is wrong: an error code, the evidence, and what to do."""

    code: str
    cause: str
    fix: str


@dataclass(frozen=True)
class DataReport:
    """Everything that ``eyas data report`` prints.

    ``lengths``, ``answer_lengths``: tokens by quantile. ``mask_coverage``: by step 1 … 7, the trained share of all
    slots. ``distinct``: different tokens in the answers trained on. ``account``: None where none lies beside them.
    """

    all: Share
    trained_on: Share
    held_out: Share
    lengths: dict[str, int]
    answer_lengths: dict[str, int]
    mask_coverage: tuple[float, ...]
    distinct: int
    vocabularies: tuple[Coverage, ...]
    temperatures: tuple[Share, ...]
    domains: tuple[Share, ...]
    sources: tuple[tuple[str, str], ...]
    account: BuildAccount | None
    faults: tuple[Fault, ...]


def data_report(
    made: SampleSet,
    vocab_size: int,
    held_out: float,
    account: BuildAccount | None = None,
    renderer: Renderer | None = None,
) -> DataReport:
    """Count ``made``, ``held_out`` of whose prompts are set apart; ``vocab_size``: the target's.

    ``renderer``: of the target, lets the masks be compared with its template.
    """
    samples = made.samples
    sides = split(samples, held_out)
    counts = [_answer_counts(side, vocab_size) for side in sides]
    coverages = tuple(_coverage(size, counts) for size in VOCABULARIES if size <= vocab_size)
    distinct = int((counts[0] > 0).sum())
    faults = find_faults(made, sides, account, renderer) + _too_few(distinct, coverages)
    return DataReport(
        all=_share("all", samples),
        trained_on=_share("trained on", sides[0]),
        held_out=_share("held out", sides[1]),
        lengths=_quantiles([len(sample.tokens) for sample in samples]),
        answer_lengths=_quantiles([end - begin for sample in samples for begin, end in sample.answers]),
        mask_coverage=_mask_coverage(samples),
        distinct=distinct,
        vocabularies=coverages,
        temperatures=_shares(samples, lambda s: "mixed" if math.isnan(s.temperature) else f"{s.temperature:g}"),
        domains=_shares(samples, lambda s: s.domain),
        sources=tuple((source.name, source.licence) for source in made.facts.sources),
        account=account,
        faults=tuple(Fault(fault.code, fault.cause, fault.fix) for fault in faults),
    )


def frequent_tokens(samples: Sequence[Sample], size: int, vocab_size: int) -> frozenset[int]:
    """The ``size`` tokens most frequent in the answers; raises ``draft.vocab-map`` for sizes outside 1 … V."""
    kept, _ = choose_vocabulary(_answer_counts(samples, vocab_size), size)
    return frozenset(kept.tolist())


def draft_tokens(folder: Path, vocab_size: int) -> frozenset[int] | None:
    """The target ids that the draft in ``folder`` can propose; None if it can propose all.

    Raises ``artifact.missing``, ``draft.vocab-map``.
    """
    checkpoint = open_checkpoint(folder)
    if OFFSETS not in checkpoint.infos:
        return None
    offsets = checkpoint.load([OFFSETS])[OFFSETS]
    check_offsets(offsets, vocab_size)
    return frozenset((offsets + torch.arange(len(offsets))).tolist())


def _share(name: str, samples: Sequence[Sample]) -> Share:
    prompts = len({sample.prompt_id for sample in samples})
    tokens = sum(len(sample.tokens) for sample in samples)
    return Share(name, len(samples), prompts, tokens, sum(sample.answer_tokens for sample in samples))


def _shares(samples: Sequence[Sample], name: Callable[[Sample], str]) -> tuple[Share, ...]:
    """One part for each name, the largest first."""
    groups: dict[str, list[Sample]] = {}
    for sample in samples:
        groups.setdefault(name(sample), []).append(sample)
    parts = [_share(key, group) for key, group in groups.items()]
    return tuple(sorted(parts, key=lambda part: (-part.samples, part.name)))


def _quantiles(lengths: Sequence[int]) -> dict[str, int]:
    if not lengths:
        return dict.fromkeys(QUANTILES, 0)
    values = np.quantile(lengths, list(QUANTILES.values()), method="nearest")
    return {name: int(value) for name, value in zip(QUANTILES, values, strict=True)}


def _mask_coverage(samples: Sequence[Sample]) -> tuple[float, ...]:
    trained, slots = Counter[int](), sum(len(sample.tokens) for sample in samples)
    for sample in samples:
        segments = sample.segments()
        for step in range(STEPS):
            trained[step] += int(trained_slots(segments, step).sum())
    return tuple(trained[step] / max(slots, 1) for step in range(STEPS))


def _answer_counts(samples: Sequence[Sample], vocab_size: int) -> torch.Tensor:
    """How often each token [V] stands in an answer."""
    answers = [sample.tokens[begin:end] for sample in samples for begin, end in sample.answers]
    flat = np.concatenate([*answers, np.zeros(0, dtype=np.int32)])
    if flat.max(initial=0) >= vocab_size:
        cause = f"the samples hold token {flat.max()}, and the vocabulary has {vocab_size}"
        raise EyasError("samples.vocabulary", cause, "name the target that the samples were made for")
    return torch.from_numpy(np.bincount(flat, minlength=vocab_size))


def _coverage(size: int, counts: Sequence[torch.Tensor]) -> Coverage:
    kept, _ = choose_vocabulary(counts[0], size)
    totals = [int(count.sum()) for count in counts]
    shares = [float(c[kept].sum()) / n if n else None for c, n in zip(counts, totals, strict=True)]
    return Coverage(size, *shares)


def _too_few(distinct: int, coverages: Sequence[Coverage]) -> list[EyasError]:
    smallest = min((coverage.size for coverage in coverages), default=0)
    if distinct >= smallest:
        return []
    cause = f"the answers trained on hold {distinct} different tokens: a draft vocabulary of {smallest} or more would "
    cause += "be filled up with tokens that were never seen"
    return [EyasError("samples.vocabulary", cause, f"use a --draft-vocab of at most {distinct}, or more data")]
