"""Capture writes the same bytes however it is interrupted, and says what stopped it."""

from __future__ import annotations

import errno
import threading
from pathlib import Path
from typing import Any

import pytest

from eyas.artifacts import hold_lock
from eyas.capture import plan_capture, run_capture
from eyas.capture import run as run_module
from eyas.corpus.feature_store import FeatureFolder, FeatureManifest
from eyas.errors import EyasError
from eyas.testing import load_tiny_target
from support.feature_rig import SHARD_TOKENS, bytes_of, capture_tiny, shared_target, tiny_samples, wanted

MADE = tiny_samples()


def test_two_captures_give_the_same_bytes_and_a_third_does_nothing(tmp_path: Path) -> None:
    capture_tiny(tmp_path / "a")
    report = capture_tiny(tmp_path / "b")
    assert bytes_of(tmp_path / "a") == bytes_of(tmp_path / "b")
    assert report.kept == 0
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "b").glob("shard-*")}
    again = capture_tiny(tmp_path / "b")
    assert (again.shards, again.tokens, again.kept) == (0, 0, report.shards)
    assert before == {path: path.stat().st_mtime_ns for path in (tmp_path / "b").glob("shard-*")}


def test_the_manifest_says_what_was_measured(tmp_path: Path) -> None:
    capture_tiny(tmp_path)
    facts = FeatureManifest.read(tmp_path).facts
    assert facts.identity_error is not None
    assert facts.identity_error <= 1e-5
    assert facts.model_copy(update={"identity_error": None}) == wanted(MADE)


def test_shards_of_any_size_hold_the_same_features(tmp_path: Path) -> None:
    capture_tiny(tmp_path / "small")
    run_capture(plan_capture(shared_target(), MADE, wanted(MADE), tmp_path / "one"))
    small, one = FeatureFolder(tmp_path / "small"), FeatureFolder(tmp_path / "one")
    assert len(one.manifest.shards) == 1
    for index in range(len(MADE.samples)):
        assert small.read(index).taps.equal(one.read(index).taps)


def test_progress_counts_the_positions(tmp_path: Path) -> None:
    seen: list[tuple[int, int]] = []
    job = plan_capture(shared_target(), MADE, wanted(MADE), tmp_path, SHARD_TOKENS)
    run_capture(job, lambda _, done, total: seen.append((done, total)))
    total = sum(len(sample.tokens) for sample in MADE.samples)
    assert [done for done, _ in seen] == sorted(done for done, _ in seen)
    assert seen[-1] == (total, total)


def test_a_disk_that_fills_up_is_named_and_the_rest_follows_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    capture_tiny(tmp_path / "whole")
    real, calls = run_module.write_safetensors, []

    def full(file: Path, *rest: Any) -> None:
        calls.append(file)
        real(file, *rest)
        if len(calls) == 3:
            file.write_bytes(file.read_bytes()[:50])
            raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(run_module, "write_safetensors", full)
    with pytest.raises(EyasError, match="became full") as refused:
        capture_tiny(tmp_path / "f")
    assert refused.value.code == "features.disk"
    assert len(FeatureManifest.read(tmp_path / "f").shards) == 2
    assert capture_tiny(tmp_path / "f").kept == 2
    assert bytes_of(tmp_path / "f") == bytes_of(tmp_path / "whole")
    assert not list((tmp_path / "f").glob(".*.partial"))


def test_a_folder_that_may_not_be_written_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def denied(file: Path, *_: Any) -> None:
        raise PermissionError(errno.EACCES, "Permission denied", str(file))

    monkeypatch.setattr(run_module, "write_safetensors", denied)
    with pytest.raises(EyasError) as refused:
        capture_tiny(tmp_path)
    assert refused.value.code == "artifact.not-writable"


def test_a_second_capture_waits_for_the_first_and_finds_its_shards(tmp_path: Path) -> None:
    jobs = [plan_capture(load_tiny_target(), MADE, wanted(MADE), tmp_path, SHARD_TOKENS) for _ in range(2)]
    waiting, kept = threading.Event(), []

    def second() -> None:
        report = run_capture(jobs[1], lambda what, *_: waiting.set() if "waiting" in what else None)
        kept.append(report.kept)

    with hold_lock(tmp_path, "capture"):
        thread = threading.Thread(target=second)
        thread.start()
        assert waiting.wait(30)
        # Without the lock, which this thread has: what the first process does meanwhile.
        capture_tiny(tmp_path / "elsewhere")
        for path in (tmp_path / "elsewhere").iterdir():
            if path.is_file():
                path.rename(tmp_path / path.name)
    thread.join(30)
    assert kept == [len(jobs[1].plan)]


def test_captures_at_the_same_time_share_the_shards(tmp_path: Path) -> None:
    capture_tiny(tmp_path / "alone")
    folder, reports = tmp_path / "together", []
    jobs = [plan_capture(load_tiny_target(), MADE, wanted(MADE), folder, SHARD_TOKENS) for _ in range(3)]
    threads = [threading.Thread(target=lambda job=job: reports.append(run_capture(job))) for job in jobs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert len(reports) == 3
    assert sum(report.shards for report in reports) == len(jobs[0].plan)
    assert all(report.shards + report.kept == len(jobs[0].plan) for report in reports)
    assert bytes_of(folder) == bytes_of(tmp_path / "alone")


def test_a_shard_whose_process_died_is_written_by_who_waited(tmp_path: Path) -> None:
    job = plan_capture(load_tiny_target(), MADE, wanted(MADE), tmp_path, SHARD_TOKENS)
    waiting, reports = threading.Event(), []

    def told(what: str, *_: int) -> None:
        if "waiting" in what:
            waiting.set()

    with hold_lock(tmp_path, f"capture-{job.plan[1].file}"):
        thread = threading.Thread(target=lambda: reports.append(run_capture(job, told)))
        thread.start()
        assert waiting.wait(60)
        written = {record.file for record in FeatureManifest.read(tmp_path).shards}
        assert written == {part.file for part in job.plan} - {job.plan[1].file}
    thread.join(60)
    assert reports[0].shards == len(job.plan)
    assert len(FeatureFolder(tmp_path).manifest.shards) == len(job.plan)


def test_a_feature_that_overflows_stops_the_capture_before_its_shard(tmp_path: Path) -> None:
    target = load_tiny_target()
    job = plan_capture(target, MADE, wanted(MADE), tmp_path, SHARD_TOKENS)
    forward, calls = target.forward, []

    def overflowing(rows: Any, cache: Any, out: Any) -> None:
        forward(rows, cache, out)
        calls.append(rows)
        if len(calls) == 3:
            out.taps[0, 0, 0] = float("inf")

    target.forward = overflowing  # type: ignore[method-assign]
    with pytest.raises(EyasError, match="sample s") as refused:
        run_capture(job)
    assert refused.value.code == "model.nonfinite"
    assert len(FeatureManifest.read(tmp_path).shards) == 2
