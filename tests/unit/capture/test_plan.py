"""What a capture refuses before it writes anything."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

from eyas.capture import job as job_module
from eyas.capture import plan_capture
from eyas.capture.job import bytes_on_disk
from eyas.corpus.samples import SampleSet
from eyas.errors import EyasError
from eyas.testing import load_tiny_target
from support.feature_rig import SHARD_TOKENS, capture_tiny, shared_target, tiny_samples, wanted, with_sample

MADE = tiny_samples()
CONTEXT = 1024


class Usage(NamedTuple):
    total: int
    used: int
    free: int


def refusal(out: Path, made: SampleSet = MADE, shard_tokens: int | None = SHARD_TOKENS, **how: Any) -> EyasError:
    with pytest.raises(EyasError) as refused:
        plan_capture(shared_target(), made, wanted(made, **how), out, shard_tokens)
    return refused.value


def test_the_estimate_is_what_is_then_written(tmp_path: Path) -> None:
    out = tmp_path / "f"
    job = plan_capture(shared_target(), MADE, wanted(MADE), out, SHARD_TOKENS)
    assert not out.exists()
    assert job.estimate.tokens == sum(len(sample.tokens) for sample in MADE.samples)
    assert job.estimate.seconds > 0
    assert job.estimate.shards == len(job.plan)
    capture_tiny(out)
    written = sum(path.stat().st_size for path in out.iterdir() if path.is_file())
    assert written * 0.8 <= job.estimate.bytes
    assert written <= job.estimate.bytes
    assert plan_capture(shared_target(), MADE, wanted(MADE), out, SHARD_TOKENS).estimate.bytes == 0


def test_too_little_disk_is_refused_with_three_ways_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    needed = plan_capture(shared_target(), MADE, wanted(MADE, storage="fp32"), tmp_path / "f").estimate.bytes
    monkeypatch.setattr(job_module.shutil, "disk_usage", lambda _: Usage(0, 0, needed - 1))
    error = refusal(tmp_path / "f", shard_tokens=None, storage="fp32", top_k=None)
    assert error.code == "features.disk"
    for way in ("online", "--top-k", "--storage fp8", "larger disk"):
        assert way in error.fix
    assert "1,024 bytes a token" in error.cause
    assert not (tmp_path / "f").exists()
    monkeypatch.setattr(job_module.shutil, "disk_usage", lambda _: Usage(0, 0, needed))
    plan_capture(shared_target(), MADE, wanted(MADE, storage="fp32"), tmp_path / "f")


def test_a_way_that_would_not_help_is_not_offered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job_module.shutil, "disk_usage", lambda _: Usage(0, 0, 0))
    error = refusal(tmp_path / "f", storage="fp8", top_k=4)
    assert "--storage fp8" not in error.fix
    assert "--top-k" not in error.fix


def test_only_what_is_missing_counts_against_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    capture_tiny(tmp_path)
    (tmp_path / "shard-00001.safetensors").unlink()
    monkeypatch.setattr(job_module.shutil, "disk_usage", lambda _: Usage(0, 0, 1 << 20))
    job = plan_capture(shared_target(), MADE, wanted(MADE), tmp_path, SHARD_TOKENS)
    assert job.estimate.bytes == bytes_on_disk(job.plan[1:2], job.layout)


def with_tokens(tokens: list[int]) -> SampleSet:
    return with_sample(MADE, tokens=np.array(tokens, dtype=np.int32), answers=())


@pytest.mark.parametrize(
    ("made", "named"),
    [
        (replace(MADE, samples=()), "no samples"),
        (with_tokens([]), "sample s1 has no tokens"),
        (with_tokens([3] * (CONTEXT + 1)), "sample s1 has 1025 tokens"),
        (with_tokens([1, 512, 2]), "the token 512"),
        (with_tokens([1, -1, 2]), "the token -1"),
    ],
)
def test_samples_that_the_target_cannot_read_are_refused(tmp_path: Path, made: SampleSet, named: str) -> None:
    error = refusal(tmp_path / "f", made)
    assert error.code == "features.samples"
    assert named in error.cause
    assert not (tmp_path / "f").exists()


def test_a_sample_as_long_as_the_context_is_captured(tmp_path: Path) -> None:
    made = with_tokens([3, 4] * (CONTEXT // 2))
    assert capture_tiny(tmp_path / "f", made).tokens == sum(len(sample.tokens) for sample in made.samples)


@pytest.mark.parametrize(
    ("how", "named"),
    [
        ({"taps": (1, 4, 5)}, "taps is (2, 4, 5) there, and (1, 4, 5) is asked for"),
        ({"taps": (4, 2, 5)}, "taps"),
        ({"storage": "fp32"}, "storage is bf16 there"),
        ({"top_k": 8}, "top_k is None there, and 8"),
        ({"shard_tokens": 61}, "shards of 60 tokens, and 61"),
        ({"made": with_sample(MADE, answers=((1, 3),))}, "other samples"),
        ({"made": replace(MADE, samples=MADE.samples[:-1])}, "other samples"),
    ],
)
def test_a_folder_of_other_features_is_refused_and_both_sides_named(
    tmp_path: Path, how: dict[str, Any], named: str
) -> None:
    capture_tiny(tmp_path)
    error = refusal(tmp_path, **how)
    assert error.code == "features.stale"
    assert named in error.cause


@pytest.mark.parametrize(
    ("field", "value"),
    [("tokenizer_sha256", "e" * 64), ("chat_template_sha256", None), ("target_weights_sha256", None)],
)
def test_samples_rendered_otherwise_since_are_refused(tmp_path: Path, field: str, value: str | None) -> None:
    capture_tiny(tmp_path)
    made = replace(MADE, facts=MADE.facts.model_copy(update={field: value}))
    error = refusal(tmp_path, made)
    assert error.code == "features.stale"
    assert f"samples.{field}" in error.cause


def test_a_target_with_other_weights_is_refused(tmp_path: Path) -> None:
    capture_tiny(tmp_path)
    facts = wanted(MADE)
    other = facts.model_copy(update={"target": facts.target.model_copy(update={"weights_sha256": "d" * 64})})
    with pytest.raises(EyasError, match=r"target\.weights_sha256") as refused:
        plan_capture(shared_target(), MADE, other, tmp_path, SHARD_TOKENS)
    assert refused.value.code == "features.stale"


def test_a_folder_of_other_things_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "samples.npz").write_bytes(b"mine")
    error = refusal(tmp_path)
    assert error.code == "features.stale"
    assert "samples.npz" in error.cause
    assert (tmp_path / "samples.npz").read_bytes() == b"mine"


def test_a_file_in_the_folders_place_is_refused(tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(b"mine")
    assert refusal(tmp_path / "f").code == "artifact.not-writable"


def test_shards_of_nothing_are_refused(tmp_path: Path) -> None:
    assert refusal(tmp_path, shard_tokens=0).code == "flags.range"


def test_a_target_that_taps_wrongly_writes_nothing(tmp_path: Path) -> None:
    target = load_tiny_target()
    forward = target.forward

    def early(rows: Any, cache: Any, out: Any) -> None:
        forward(rows, cache, replace(out, tap_ids=tuple(max(tap - 1, 0) for tap in out.tap_ids)))

    target.forward = early  # type: ignore[method-assign]
    with pytest.raises(EyasError) as refused:
        plan_capture(target, MADE, wanted(MADE), tmp_path / "f", SHARD_TOKENS)
    assert refused.value.code == "features.identity"
    assert not (tmp_path / "f").exists()
