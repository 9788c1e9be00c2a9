"""Capture: the target reads all samples, and their features are written shard by shard.

A shard is written beside its name, flushed, renamed, and then recorded in the manifest, which is itself replaced
atomically. So a kill at any byte costs the shard in work, and nothing that is recorded is less than whole.

Any number of processes may capture into one folder: each takes a shard that nobody has in work. The system frees what a
killed one had taken.
"""

from __future__ import annotations

import errno
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from eyas.artifacts import Progress, hold_lock, no_progress, sha256_file, try_lock
from eyas.capture.job import CaptureJob
from eyas.corpus.feature_store import (
    MANIFEST,
    SAMPLES,
    FeatureManifest,
    ShardPlan,
    ShardRecord,
    check_shard,
    samples_sha256,
)
from eyas.corpus.features import make_features
from eyas.corpus.samples import read_samples, write_samples
from eyas.errors import EyasError
from eyas.models.weights.safetensors import write_safetensors

_MANIFEST_LOCK = "capture"


@dataclass(frozen=True)
class CaptureReport:
    """What a run did: shards, positions and bytes written, seconds; ``kept``: shards that another run wrote, before or
    meanwhile.
    """

    shards: int
    kept: int
    tokens: int
    bytes: int
    seconds: float


def run_capture(job: CaptureJob, progress: Progress = no_progress) -> CaptureReport:
    """Write what is missing; ``progress`` counts positions. Returns once everything is there, whoever wrote it.

    In memory: the target, one batch of features (BATCH_ROWS rows in the target's dtype), and one shard in its stored
    form (``job.estimate.shard_bytes``). The same command gives the same bytes, however often it was killed, and however
    many run at the same time.

    Raises ``features.disk`` if the disk fills up meanwhile, ``artifact.not-writable``, ``model.nonfinite``.
    """
    begun = time.monotonic()
    with _named_errors(job.out):
        job.out.mkdir(parents=True, exist_ok=True)
    with hold_lock(job.out, _MANIFEST_LOCK, progress), _named_errors(job.out):
        _clear_partials(job)
        kept = _intact(job)
        # The manifest first: it marks the folder as this capture's.
        _save(job, kept)
        _bring_samples(job)
    with _named_errors(job.out):
        written = _write_missing(job, [part for part in job.plan if part.file not in kept], progress)
    tokens, size = sum(record.tokens for record in written), sum(record.bytes for record in written)
    return CaptureReport(len(written), len(job.plan) - len(written), tokens, size, time.monotonic() - begun)


def _write_missing(job: CaptureJob, todo: list[ShardPlan], progress: Progress) -> list[ShardRecord]:
    """First the shards that nobody has in work, then, if their process ended without them, the others."""
    total, done, written = sum(part.tokens for part in todo), 0, []
    for patient in (False, True):
        left = []
        for part in todo:
            with _taken(job, part, patient, progress) as mine:
                if not mine:
                    left.append(part)
                    continue
                if not _is_recorded(job, part):
                    written.append(_write_shard(job, part, done, total, progress))
                    _record(job, written[-1])
            done += part.tokens
        todo = left
    return written


@contextmanager
def _taken(job: CaptureJob, part: ShardPlan, patient: bool, progress: Progress) -> Iterator[bool]:
    """Have a shard in work, alone; ``patient``: wait for who has it. Yields whether it is ours."""
    name = f"capture-{part.file}"
    if patient:
        with hold_lock(job.out, name, progress):
            yield True
        return
    with try_lock(job.out, name) as free:
        yield free


def _is_recorded(job: CaptureJob, part: ShardPlan) -> bool:
    return any(record.file == part.file for record in FeatureManifest.read(job.out).shards)


def _record(job: CaptureJob, record: ShardRecord) -> None:
    """Add a whole shard to the manifest, to which others add theirs."""
    with hold_lock(job.out, _MANIFEST_LOCK):
        records = {other.file: other for other in FeatureManifest.read(job.out).shards}
        _save(job, {**records, record.file: record})


def _intact(job: CaptureJob) -> dict[str, ShardRecord]:
    """File → record of the shards that are as an earlier run wrote them, to the hash."""
    found = {}
    planned = {(part.file, part.samples.start, len(part.samples), part.tokens) for part in job.plan}
    # Another run may have finished shards since this one was planned.
    earlier = FeatureManifest.read(job.out).shards if (job.out / MANIFEST).is_file() else ()
    for record in earlier:
        if (record.file, record.first, record.samples, record.tokens) not in planned:
            continue
        try:
            check_shard(job.out, record, job.layout, hashes=True)
        except EyasError as error:
            if error.code != "features.damaged":
                raise
        else:
            found[record.file] = record
    return found


def _save(job: CaptureJob, records: dict[str, ShardRecord]) -> None:
    shards = tuple(records[part.file] for part in job.plan if part.file in records)
    job.manifest.model_copy(update={"shards": shards}).write(job.out)


def _bring_samples(job: CaptureJob) -> None:
    path = job.out / SAMPLES
    if path.is_file():
        try:
            if samples_sha256(read_samples(path)) == job.manifest.samples_sha256:
                return
        except EyasError as error:
            if error.code != "artifact.corrupt":
                raise
    write_samples(path, job.made)


def _write_shard(job: CaptureJob, part: ShardPlan, done: int, total: int, progress: Progress) -> ShardRecord:
    layout, facts, at = job.layout, job.manifest.facts, 0
    shard = layout.new_shard(part.tokens)
    samples = [job.made.samples[index] for index in part.samples]
    for sample, features in zip(samples, make_features(job.target, samples, facts.taps, facts.top_k), strict=True):
        layout.store(features, shard, at)
        at += len(sample.tokens)
        progress("capturing", done + at, total)
    assert at == part.tokens
    path, partial = job.out / part.file, _partial(job, part)
    write_safetensors(partial, layout.specs(part.tokens), shard.items())
    record = ShardRecord(
        file=part.file,
        first=part.samples.start,
        samples=len(samples),
        tokens=part.tokens,
        bytes=partial.stat().st_size,
        sha256=sha256_file(partial),
    )
    # The manifest, written next into the same folder, makes the new name last.
    partial.replace(path)
    return record


def _clear_partials(job: CaptureJob) -> None:
    """What kills left beside the manifest and the samples; a shard's belongs to who has it in work."""
    shards = {_partial(job, part) for part in job.plan}
    for path in set(job.out.glob(".*.partial")) - shards:
        path.unlink()


def _partial(job: CaptureJob, part: ShardPlan) -> Path:
    return job.out / f".{part.file}.partial"


@contextmanager
def _named_errors(out: Path) -> Iterator[None]:
    """What the disk refuses while capturing → ``features.disk`` or ``artifact.not-writable``."""
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            fix = "free some space and give the same command again: it goes on with the shard that was in work"
            raise EyasError("features.disk", f"the disk of {out} became full", fix) from error
        if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR, errno.EEXIST):
            cause = f"{error.filename or out} may not be written ({error.strerror})"
            raise EyasError("artifact.not-writable", cause, "name another --out") from error
        raise
    except EyasError as error:
        if error.code == "pull.disk-full":
            raise EyasError("features.disk", error.cause, error.fix) from error
        raise
