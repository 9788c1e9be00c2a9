"""Features: what the target makes of a sample, and where training gets it from.

A source is either the target itself (online) or a folder of shards that ``eyas capture`` wrote; training does not know
which.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from eyas.contract.schema import FeatureFormat, Strict, TargetIdentity
from eyas.corpus.samples import Sample, SampleFacts
from eyas.models.reading import read_text
from eyas.models.target import Target


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
    """What all features of a source share: who made them, of which text, and how."""

    target: TargetIdentity
    taps: tuple[int, ...]
    samples: SampleFacts
    format: FeatureFormat


class FeatureSource(ABC):
    """Samples with their features, by index; reading an index twice gives the same."""

    facts: FeatureFacts
    samples: Sequence[Sample]

    @abstractmethod
    def read(self, index: int) -> Features:
        """The features of ``samples[index]``; raises ``features.…`` for what is damaged."""


class OnlineFeatures(FeatureSource):
    """The target computes them when they are asked for. Nothing is stored, so any number of samples fits."""

    def __init__(self, target: Target, samples: Sequence[Sample], facts: FeatureFacts) -> None:
        self.target, self.samples, self.facts = target, samples, facts

    def read(self, index: int) -> Features:
        out = read_text(self.target, self.samples[index].tokens.tolist(), self.facts.taps)
        return Features(out.taps, out.hidden)
