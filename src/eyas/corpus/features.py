"""Features: what the target makes of a sample, and where training gets it from.

A source is either the target itself (online) or a folder of shards that ``eyas capture`` wrote; training does not know
which.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import torch
from pydantic import Field, model_validator
from torch import Tensor

from eyas.contract import ContractFacts, validate_taps
from eyas.contract.schema import FeatureFormat, Sha256, Strict, TargetIdentity
from eyas.corpus.samples import Sample, SampleFacts
from eyas.draft.checkpoint import target_shape
from eyas.errors import EyasError
from eyas.models.reading import read_texts
from eyas.models.target import Outputs, Target

BATCH_ROWS = 2048
"""Rows of one forward at most, where samples share forwards."""
HEAD_ROWS = 256
"""Rows whose logits are in memory at a time."""

Storage = Literal["none", "fp32", "bf16", "fp8"]
"""How features are kept: ``none``, online; ``fp8``: the taps as float8 e4m3 with a scale per position and tap, the last
state as bf16, because the target's probabilities come from it."""

FORMATS: dict[torch.dtype, Literal["float32", "bfloat16", "float16"]] = {
    torch.float32: "float32",
    torch.bfloat16: "bfloat16",
    torch.float16: "float16",
}


@dataclass(frozen=True)
class TopTokens:
    """The target's likeliest tokens per position, in place of its last state: ``ids`` [n, k] int64, ``logprobs``
    [n, k] float32 over the whole vocabulary, falling. What is not among them has the mass that is left.
    """

    ids: Tensor
    logprobs: Tensor


@dataclass(frozen=True)
class Features:
    """One sample through the target: ``taps`` [n, taps, H] and either ``hidden`` [n, H], the state after the final
    norm, which the target's head reads, or ``top``.
    """

    taps: Tensor
    hidden: Tensor | None
    top: TopTokens | None = None

    def __post_init__(self) -> None:
        assert (self.hidden is None) != (self.top is None)


class FeatureFacts(Strict):
    """What all features of a source share: who made them, of which text, and how.

    ``top_k``: the number of likeliest tokens kept in place of the last state, None: the state is kept.
    ``identity_error``: what the identity check measured before the storage cast, in nats; None: not measured.
    """

    target: TargetIdentity
    taps: tuple[int, ...]
    samples: SampleFacts
    format: FeatureFormat
    storage: Storage = "none"
    top_k: Annotated[int, Field(ge=1)] | None = None
    identity_error: Annotated[float, Field(ge=0)] | None = None
    schema_version: Literal[1] = 1

    @model_validator(mode="after")
    def _fits_the_target(self) -> FeatureFacts:
        validate_taps(self.taps, self.target.num_layers)
        if self.top_k is not None and self.top_k > self.target.vocab_size:
            raise ValueError(f"top_k {self.top_k} of a vocabulary of {self.target.vocab_size}")
        return self


def facts_for(
    target: Target,
    weights_sha256: Sha256,
    samples: SampleFacts,
    taps: Sequence[int],
    storage: Storage = "none",
    top_k: int | None = None,
) -> FeatureFacts:
    """The facts of features that ``target`` will make of ``samples``.

    Raises ``taps.range``, ``taps.duplicate``, ``flags.range`` for a ``top_k`` outside 1 … vocabulary.
    """
    validate_taps(taps, target.num_layers)
    if top_k is not None and not 1 <= top_k <= target.vocab_size:
        raise EyasError("flags.range", f"--top-k {top_k}", f"use 1 … {target.vocab_size}, the target's vocabulary")
    identity = TargetIdentity(**target_shape(target).model_dump(), weights_sha256=weights_sha256)
    made_as = FeatureFormat(dtype=FORMATS[target.dtype], quantisation=target.backend.quantisation)
    return FeatureFacts(
        target=identity, taps=tuple(taps), samples=samples, format=made_as, storage=storage, top_k=top_k
    )


class FeatureSource(ABC):
    """Samples with their features, by index; reading an index twice gives the same."""

    facts: FeatureFacts
    samples: Sequence[Sample]

    @abstractmethod
    def read(self, index: int) -> Features:
        """The features of ``samples[index]``; raises ``features.…`` for what is damaged."""

    def read_batch(self, indices: Sequence[int]) -> list[Features]:
        """What :meth:`read` gives for each index, bit for bit, and where it can, faster."""
        return [self.read(index) for index in indices]


class OnlineFeatures(FeatureSource):
    """The target computes them when they are asked for. Nothing is stored, so any number of samples fits.

    Whoever opens it runs ``eyas.corpus.identity.check_identity`` first.
    """

    def __init__(
        self, target: Target, samples: Sequence[Sample], facts: FeatureFacts, batch_rows: int = BATCH_ROWS
    ) -> None:
        """``batch_rows``: rows of one forward at most, where samples share forwards."""
        self.target, self.samples, self.facts, self.batch_rows = target, samples, facts, batch_rows

    def read(self, index: int) -> Features:
        return self.read_batch([index])[0]

    def read_batch(self, indices: Sequence[int]) -> list[Features]:
        chosen = [self.samples[index] for index in indices]
        return list(make_features(self.target, chosen, self.facts.taps, self.facts.top_k, self.batch_rows))


class Remembered(FeatureSource):
    """A source that keeps what it read until ``budget`` bytes are full; the rest is read again each time."""

    def __init__(self, source: FeatureSource, budget: int) -> None:
        self.source, self.samples, self.facts = source, source.samples, source.facts
        self.left, self._kept = budget, dict[int, Features]()

    def read(self, index: int) -> Features:
        return self.read_batch([index])[0]

    def read_batch(self, indices: Sequence[int]) -> list[Features]:
        missing = [index for index in indices if index not in self._kept]
        fresh = dict(zip(missing, self.source.read_batch(missing), strict=True)) if missing else {}
        for index, features in fresh.items():
            size = sum(t.nbytes for t in (features.taps, features.hidden) if t is not None)
            if features.top is None and size <= self.left:
                self._kept[index] = features
                self.left -= size
        return [fresh[index] if index in fresh else self._kept[index] for index in indices]


def make_features(
    target: Target, samples: Sequence[Sample], taps: Sequence[int], top_k: int | None, batch_rows: int = BATCH_ROWS
) -> Iterator[Features]:
    """The target's features of each sample, in its own dtype, several samples in a forward.

    Raises ``taps.range``, ``model.nonfinite`` naming sample, tap and position.
    """
    for group in batches([len(sample.tokens) for sample in samples], batch_rows):
        chosen = [samples[index] for index in group]
        outputs = read_texts(target, [sample.tokens.tolist() for sample in chosen], taps)
        for sample, out in zip(chosen, outputs, strict=True):
            _require_finite(sample, out)
            if top_k is None:
                yield Features(out.taps, out.hidden)
            else:
                yield Features(out.taps, None, top_tokens(target, out.hidden, top_k))


def batches(lengths: Sequence[int], budget: int) -> Iterator[range]:
    """Consecutive indices whose ``lengths`` add up to ``budget`` at most; one alone may be longer."""
    first, filled = 0, 0
    for index, length in enumerate(lengths):
        if index > first and filled + length > budget:
            yield range(first, index)
            first, filled = index, 0
        filled += length
    if first < len(lengths):
        yield range(first, len(lengths))


def top_tokens(target: Target, hidden_nH: Tensor, k: int) -> TopTokens:
    """The ``k`` likeliest tokens after each state, through the target's own head, in fp32."""
    parts = [target.logits(part).float().log_softmax(-1).topk(k) for part in hidden_nH.split(HEAD_ROWS)]
    return TopTokens(torch.cat([part.indices for part in parts]), torch.cat([part.values for part in parts]))


def _require_finite(sample: Sample, out: Outputs) -> None:
    names = [f"tap {tap}" for tap in out.tap_ids] + ["the last state"]
    for name, states in zip(names, [*out.taps.unbind(1), out.hidden], strict=True):
        bad = (~states.isfinite().all(-1)).nonzero()
        if len(bad):
            cause = f"sample {sample.id}: {name} at position {int(bad[0])} is not finite"
            raise EyasError("model.nonfinite", cause, "use --dtype fp32, or a checkpoint whose weights are sound")


def check_origin(samples: SampleFacts, known: ContractFacts, foreign_answers: bool = False) -> None:
    """Refuse samples that were not made for the target of ``known`` (``features.origin``, naming both sides).

    ``foreign_answers``: allow answers that a target with other weights gave.
    """
    theirs = {
        "tokenizer": (samples.tokenizer_sha256, known.tokenizer_sha256),
        "chat template": (samples.chat_template_sha256, known.chat_template_sha256),
    }
    for what, (here, there) in theirs.items():
        if here != there:
            cause = f"the samples were made with the {what} {short(here)}, the target has {short(there)}"
            raise EyasError("features.origin", cause, "make the samples again with `eyas data` from this target")
    gave, runs = samples.target_weights_sha256, known.weights_sha256
    if gave is not None and gave != runs and not foreign_answers:
        cause = f"the answers were given by a target with the weights {short(gave)}, not {short(runs)}"
        fix = "answer the prompts again with `eyas regen`, or give --foreign-answers if another target's text is meant"
        raise EyasError("features.origin", cause, fix)


def require_same(wanted: FeatureFacts, found: FeatureFacts, place: str, fix: str) -> None:
    """Refuse features that were made otherwise than ``wanted``: ``features.stale``, naming each difference.

    What the identity check measured is no difference.
    """
    pairs = (flatten(facts.model_dump(exclude={"identity_error"})) for facts in (wanted, found))
    want, have = pairs
    lines = [
        f"{name} is {short(have.get(name))} there, and {short(want.get(name))} is asked for"
        for name in {**have, **want}
        if have.get(name) != want.get(name)
    ]
    if lines:
        raise EyasError("features.stale", f"{place} holds features made otherwise: {'; '.join(lines)}", fix)


def flatten(document: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """A nested dictionary as one of dotted names."""
    flat: dict[str, Any] = {}
    for name, value in document.items():
        flat |= flatten(value, f"{prefix}{name}.") if isinstance(value, dict) else {prefix + name: value}
    return flat


def short(value: object) -> str:
    """A value for a message; of a hash, its beginning."""
    return f"{value[:12]}…" if isinstance(value, str) and len(value) == 64 else str(value)
