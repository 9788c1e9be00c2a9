"""A folder of features on disk: its manifest, and reading it by memory map.

``features.json`` says what the features are and which shards count; ``samples.npz`` holds the samples;
``shard-00000.safetensors`` and so on hold the features of consecutive samples, concatenated (see ``storage``). A shard
counts only while the manifest records it, with the bytes that it has.
"""

from __future__ import annotations

import hashlib
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field, ValidationError
from safetensors import safe_open

from eyas.artifacts import atomic_write, sha256_file
from eyas.contract.schema import Count, Name, Sha256, Strict, describe
from eyas.corpus.features import FeatureFacts, Features, FeatureSource, require_same
from eyas.corpus.samples import Sample, SampleSet, read_samples
from eyas.corpus.storage import Layout
from eyas.errors import EyasError
from eyas.models.weights.safetensors import read_header

MANIFEST = "features.json"
SAMPLES = "samples.npz"
OPEN_SHARDS = 16
"""Shards that a reader holds mapped at a time."""
_AGAIN = "give the same `eyas capture` command again: it makes only what is missing or damaged"
_ANOTHER = "capture into another folder, or ask for what this one holds"


class ShardRecord(Strict):
    """One finished shard: samples ``first`` … ``first`` + ``samples`` − 1."""

    file: Name
    first: Annotated[int, Field(ge=0)]
    samples: Count
    tokens: Count
    bytes: Count
    sha256: Sha256


class FeatureManifest(Strict):
    """``features.json``. ``shards``: the finished ones, in order; all of ``num_shards`` when capture is through."""

    facts: FeatureFacts
    samples_sha256: Sha256
    shard_tokens: Count
    num_shards: Count
    shards: tuple[ShardRecord, ...]

    def write(self, folder: Path) -> None:
        """Replace the folder's manifest atomically."""
        atomic_write(folder / MANIFEST, self.model_dump_json(indent=2) + "\n")

    @classmethod
    def read(cls, folder: Path) -> FeatureManifest:
        """Raises ``artifact.missing`` and ``features.damaged``."""
        path = folder / MANIFEST
        if not path.is_file():
            raise EyasError("artifact.missing", f"{folder} has no {MANIFEST}", "write features with `eyas capture`")
        try:
            return cls.model_validate_json(path.read_bytes())
        except ValidationError as error:
            fix = "take it from its source again, or delete the folder and capture anew"
            raise EyasError("features.damaged", f"{path}: {describe(error)}", fix) from error


@dataclass(frozen=True)
class ShardPlan:
    """One shard to be: which samples, and how many positions they have."""

    file: str
    samples: range
    tokens: int


def plan_shards(lengths: Sequence[int], shard_tokens: int) -> list[ShardPlan]:
    """Consecutive samples, up to ``shard_tokens`` positions a shard; a longer sample has one of its own."""
    groups: list[range] = []
    filled = 0
    for index, length in enumerate(lengths):
        if groups and filled + length <= shard_tokens:
            groups[-1], filled = range(groups[-1].start, index + 1), filled + length
        else:
            groups.append(range(index, index + 1))
            filled = length
    return [
        ShardPlan(f"shard-{number:05d}.safetensors", group, sum(lengths[index] for index in group))
        for number, group in enumerate(groups)
    ]


def samples_sha256(made: SampleSet) -> str:
    """A hash of all that the samples say, whatever the file's compression."""
    digest = hashlib.sha256(made.facts.model_dump_json().encode())
    for sample in made.samples:
        texts = (sample.id, sample.prompt_id, sample.domain, repr(sample.answers), repr(float(sample.temperature)))
        for part in (*(text.encode() for text in texts), sample.tokens.astype("<i4").tobytes()):
            digest.update(len(part).to_bytes(8, "little") + part)
    return digest.hexdigest()


def check_shard(folder: Path, record: ShardRecord, layout: Layout, hashes: bool) -> None:
    """Raise ``features.damaged``, naming the shard, unless it is there as it was written."""
    path = folder / record.file
    if not path.is_file():
        raise _damaged(path, "it is not there")
    size = path.stat().st_size
    if size != record.bytes:
        raise _damaged(path, f"it has {size} bytes of {record.bytes}")
    if hashes and sha256_file(path) != record.sha256:
        raise _damaged(path, "its bytes are not those that were written")
    try:
        found = {name: (info.dtype, info.shape) for name, info in read_header(path).items()}
    except EyasError as error:
        raise _damaged(path, error.cause) from error
    if found != layout.specs(record.tokens):
        raise _damaged(path, f"it holds {found}, not {layout.specs(record.tokens)}")


class FeatureFolder(FeatureSource):
    """The features that ``eyas capture`` wrote. A sample's part of its shard is read by memory map, so that memory
    holds what is asked for and no shard; the samples themselves are in memory.

    A folder may be read by several processes; each opens its own maps.
    """

    def __init__(self, folder: Path, expected: FeatureFacts | None = None, hashes: bool = True) -> None:
        """``expected``: refuse features made otherwise. ``hashes``: hash each shard when it is first used.

        Raises ``artifact.missing``, ``features.damaged`` (a shard is missing or has another size, or capture is not
        through), ``features.stale`` naming each difference from ``expected``.
        """
        self.folder, self.hashes = folder, hashes
        self.manifest = FeatureManifest.read(folder)
        self.facts = self.manifest.facts
        if expected is not None:
            require_same(expected, self.facts, str(folder), _ANOTHER)
        if len(self.manifest.shards) != self.manifest.num_shards:
            done = f"{len(self.manifest.shards)} of {self.manifest.num_shards} shards"
            raise EyasError("features.damaged", f"{folder} holds only {done}", _AGAIN)
        self.layout = Layout.of(self.facts)
        self.samples: tuple[Sample, ...] = self._read_samples()
        self._firsts = [record.first for record in self.manifest.shards]
        self._edges = [0, *accumulate(len(sample.tokens) for sample in self.samples)]
        self._check_plan()
        for record in self.manifest.shards:
            path = folder / record.file
            if not path.is_file() or path.stat().st_size != record.bytes:
                check_shard(folder, record, self.layout, hashes=False)
        self._open: OrderedDict[str, tuple[ExitStack, Any]] = OrderedDict()
        self._checked: set[str] = set()

    def read(self, index: int) -> Features:
        """The features of ``samples[index]``: taps and state in the stored dtype, fp8 as fp32.

        Raises ``features.damaged``, naming the shard, if it was cut, changed, or holds NaN.
        """
        index = range(len(self.samples))[index]
        record = self.manifest.shards[bisect_right(self._firsts, index) - 1]
        base = self._edges[record.first]
        place = slice(self._edges[index] - base, self._edges[index + 1] - base)
        shard = self._map(record)
        features = self.layout.load(lambda name: shard.get_slice(name)[place])
        states = features.hidden if features.top is None else features.top.logprobs
        assert states is not None
        if not (features.taps.isfinite().all() and states.isfinite().all()):
            raise _damaged(self.folder / record.file, f"sample {self.samples[index].id} has NaN or infinity")
        return features

    def verify(self) -> None:
        """Hash every shard; raises ``features.damaged`` for the first that is not as it was written."""
        for record in self.manifest.shards:
            check_shard(self.folder, record, self.layout, hashes=True)

    def close(self) -> None:
        """Let all maps go."""
        for stack, _ in self._open.values():
            stack.close()
        self._open.clear()

    def _read_samples(self) -> tuple[Sample, ...]:
        try:
            made = read_samples(self.folder / SAMPLES)
        except EyasError as error:
            raise _damaged(self.folder / SAMPLES, error.cause) from error
        if samples_sha256(made) != self.manifest.samples_sha256:
            raise _damaged(self.folder / SAMPLES, "its samples are not those that were captured")
        return made.samples

    def _check_plan(self) -> None:
        plan = plan_shards([len(sample.tokens) for sample in self.samples], self.manifest.shard_tokens)
        planned = [(part.file, part.samples.start, len(part.samples), part.tokens) for part in plan]
        if planned != [(r.file, r.first, r.samples, r.tokens) for r in self.manifest.shards]:
            raise _damaged(self.folder / MANIFEST, "its shards are not those of its samples")

    def _map(self, record: ShardRecord) -> Any:
        """The shard, mapped; the one used longest ago goes."""
        if record.file not in self._open:
            check_shard(self.folder, record, self.layout, self.hashes and record.file not in self._checked)
            self._checked.add(record.file)
            stack = ExitStack()
            shard = stack.enter_context(safe_open(self.folder / record.file, framework="pt"))
            self._open[record.file] = (stack, shard)
            if len(self._open) > OPEN_SHARDS:
                self._open.popitem(last=False)[1][0].close()
        self._open.move_to_end(record.file)
        return self._open[record.file][1]


def _damaged(path: Path, why: str) -> EyasError:
    return EyasError("features.damaged", f"{path}: {why}", _AGAIN)
