"""What a capture will do, and whether it can: samples, target, folder and disk are checked before anything is written.

Shape legend: H hidden.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from eyas.artifacts import human_bytes
from eyas.corpus.feature_store import MANIFEST, FeatureManifest, ShardPlan, plan_shards, samples_sha256
from eyas.corpus.features import FeatureFacts, make_features, require_same
from eyas.corpus.identity import IdentityResult, check_batch, check_identity
from eyas.corpus.samples import Sample, SampleSet
from eyas.corpus.storage import TAP_DTYPES, Layout
from eyas.errors import EyasError
from eyas.models.target import Target

SHARD_BYTES = 256 << 20
"""A shard's size where the user names none: what is in memory, and what a kill can cost."""
BATCH_SAMPLES = 3
"""Samples with which it is checked that a batch gives what each gives alone."""
OFFERED_TOP_K = 64
"""Or fewer, where these would be more than half of the state that they replace."""
_OTHER_FOLDER = "name another --out, or delete this folder to capture anew"


@dataclass(frozen=True)
class Estimate:
    """What is still to be done: positions, bytes on disk, and seconds at the rate measured on the first sample."""

    tokens: int
    bytes: int
    seconds: float
    tokens_per_second: float
    free_bytes: int
    shards: int
    shard_bytes: int
    """The greatest shard: what capture holds in memory beside the target and one batch."""


@dataclass(frozen=True)
class CaptureJob:
    """A checked capture, ready to run."""

    target: Target
    made: SampleSet
    out: Path
    manifest: FeatureManifest
    """As it is to be; ``shards`` holds those that an earlier run recorded."""
    plan: tuple[ShardPlan, ...]
    identity: IdentityResult
    estimate: Estimate

    @property
    def layout(self) -> Layout:
        """What a shard holds of a position."""
        return Layout.of(self.manifest.facts)


def plan_capture(
    target: Target, made: SampleSet, facts: FeatureFacts, out: Path, shard_tokens: int | None = None
) -> CaptureJob:
    """Check the samples, what ``out`` holds already, the identity of the taps on the first sample, and the disk.

    ``facts``: as ``eyas.corpus.features.facts_for`` gives them, with a ``storage``. ``shard_tokens``: positions of a
    shard; None: as many as SHARD_BYTES hold. Writes nothing.

    Raises ``features.samples``, ``features.stale``, ``features.damaged``, ``features.identity``, ``features.taps``,
    ``features.batch``, ``features.disk``, ``model.nonfinite``, ``flags.range``.
    """
    samples, layout = made.samples, Layout.of(facts)
    check_samples(samples, target)
    if shard_tokens is not None and shard_tokens < 1:
        raise EyasError("flags.range", f"--shard-tokens {shard_tokens}", "use 1 or more")
    shard_tokens = shard_tokens or max(SHARD_BYTES // layout.bytes_per_token, 1)
    plan = plan_shards([len(sample.tokens) for sample in samples], shard_tokens)
    wanted = FeatureManifest(
        facts=facts,
        samples_sha256=samples_sha256(made),
        shard_tokens=shard_tokens,
        num_shards=len(plan),
        shards=(),
    )
    earlier = _earlier(out, wanted)
    identity, rate = _measure(target, samples, facts)
    known = facts.model_copy(update={"identity_error": identity.error})
    manifest = wanted.model_copy(update={"facts": earlier.facts if earlier else known})
    if earlier:
        manifest = manifest.model_copy(update={"shards": earlier.shards})
    missing = _missing(out, manifest, plan)
    estimate = _estimate(missing, layout, rate, out)
    _check_disk(estimate, layout, out)
    return CaptureJob(target, made, out, manifest, tuple(plan), identity, estimate)


def check_samples(samples: Sequence[Sample], target: Target) -> None:
    """Raise ``features.samples`` for what this target cannot read."""
    fix = "make the samples again with `eyas data` from this target, with a --max-length within its context"
    if not samples:
        raise EyasError("features.samples", "there are no samples", fix)
    for sample in samples:
        n = len(sample.tokens)
        if n == 0:
            raise EyasError("features.samples", f"sample {sample.id} has no tokens", fix)
        if n > target.max_positions:
            cause = f"sample {sample.id} has {n} tokens, the target's context {target.max_positions}"
            raise EyasError("features.samples", cause, fix)
        low, high = int(sample.tokens.min()), int(sample.tokens.max())
        if low < 0 or high >= target.vocab_size:
            wrong = low if low < 0 else high
            cause = (
                f"sample {sample.id} holds the token {wrong}, the target's vocabulary is 0 … {target.vocab_size - 1}"
            )
            raise EyasError("features.samples", cause, fix)


def _earlier(out: Path, wanted: FeatureManifest) -> FeatureManifest | None:
    """The manifest that ``out`` holds, if it belongs to the same capture; refuses any other content."""
    if out.exists() and not out.is_dir():
        raise EyasError("artifact.not-writable", f"{out} is no folder", "name another --out")
    if not (out / MANIFEST).is_file():
        others = sorted(path.name for path in out.iterdir() if path.name[0] != ".") if out.is_dir() else []
        if others:
            cause = f"{out} holds other things ({', '.join(others[:3])}) and no {MANIFEST}"
            raise EyasError("features.stale", cause, _OTHER_FOLDER)
        return None
    found = FeatureManifest.read(out)
    require_same(wanted.facts, found.facts, str(out), _OTHER_FOLDER)
    if found.samples_sha256 != wanted.samples_sha256:
        cause = f"{out} holds the features of other samples ({found.samples_sha256[:12]}…, not "
        raise EyasError("features.stale", f"{cause}{wanted.samples_sha256[:12]}…)", _OTHER_FOLDER)
    if found.shard_tokens != wanted.shard_tokens:
        cause = f"{out} has shards of {found.shard_tokens} tokens, and {wanted.shard_tokens} are asked for"
        raise EyasError("features.stale", cause, f"give --shard-tokens {found.shard_tokens}, or another --out")
    return found


def _measure(target: Target, samples: Sequence[Sample], facts: FeatureFacts) -> tuple[IdentityResult, float]:
    """(what the identity check found on the first sample, tokens a second on it)."""
    first = samples[0]
    identity = check_identity(target, first.tokens.tolist(), facts.taps)
    check_batch(target, [sample.tokens.tolist() for sample in samples[:BATCH_SAMPLES]], facts.taps)
    begun = time.perf_counter()
    list(make_features(target, [first], facts.taps, facts.top_k))
    return identity, len(first.tokens) / max(time.perf_counter() - begun, 1e-9)


def _missing(out: Path, manifest: FeatureManifest, plan: Sequence[ShardPlan]) -> list[ShardPlan]:
    """The shards that are not there at their full size."""
    sizes = {record.file: record.bytes for record in manifest.shards}
    there = {file for file, size in sizes.items() if (out / file).is_file() and (out / file).stat().st_size == size}
    return [part for part in plan if part.file not in there]


def _estimate(missing: Sequence[ShardPlan], layout: Layout, rate: float, out: Path) -> Estimate:
    place = out.absolute()
    while not place.exists():
        place = place.parent
    tokens = sum(part.tokens for part in missing)
    return Estimate(
        tokens=tokens,
        bytes=bytes_on_disk(missing, layout),
        seconds=tokens / rate,
        tokens_per_second=rate,
        free_bytes=shutil.disk_usage(place).free,
        shards=len(missing),
        shard_bytes=max((part.tokens for part in missing), default=0) * layout.bytes_per_token,
    )


def bytes_on_disk(shards: Sequence[ShardPlan], layout: Layout) -> int:
    """Bytes of these shards, with 4 for each token itself and 4 KiB a shard for its header and record."""
    return sum(part.tokens * (layout.bytes_per_token + 4) + 4096 for part in shards)


def _check_disk(estimate: Estimate, layout: Layout, out: Path) -> None:
    if estimate.bytes <= estimate.free_bytes:
        return
    cause = (
        f"the features of {estimate.tokens:,} tokens need {human_bytes(estimate.bytes)} at {layout.bytes_per_token:,}"
        f" bytes a token, and {out} has {human_bytes(estimate.free_bytes)} free"
    )
    ways = ["train online, which stores nothing (give `eyas train` the samples, not a folder of features)"]
    state = layout.hidden_size * TAP_DTYPES[layout.storage].itemsize
    k = max(min(OFFERED_TOP_K, state // 2 // 8), 1)
    others = {
        f"--top-k {k}": replace(layout, top_k=k),
        "--storage fp8": replace(layout, storage="fp8"),
    }
    for flag, other in others.items():
        if other.bytes_per_token < layout.bytes_per_token:
            size = estimate.bytes // layout.bytes_per_token * other.bytes_per_token
            ways.append(f"give {flag} ({human_bytes(size)})")
    raise EyasError("features.disk", cause, f"{', or '.join(ways)}, or name an --out on a larger disk")
