"""`eyas capture` as a user types it, on the tiny target."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from eyas import cli
from eyas.corpus.feature_store import FeatureFolder
from eyas.corpus.samples import SampleSet, write_samples
from eyas.testing import tiny_pair
from support.feature_rig import tiny_samples

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Run:
    """Run ``eyas capture`` of the tiny samples, or of others, in this process → (exit code, stdout, stderr)."""
    monkeypatch.setenv("COLUMNS", "160")

    def call(*words: str, made: SampleSet | None = None) -> tuple[int, str, str]:
        write_samples(tmp_path / "samples.npz", made or tiny_samples())
        monkeypatch.chdir(tmp_path)
        model = str(tiny_pair()[0])
        monkeypatch.setattr(
            "sys.argv", ["eyas", "capture", "samples.npz", "--out", "features", "--model", model, *words]
        )
        with pytest.raises(SystemExit) as ended:
            cli.main()
        out, err = capsys.readouterr()
        return int(ended.value.code or 0), out, err

    return call


def test_capture_writes_a_folder_that_training_reads(run: Run, tmp_path: Path) -> None:
    code, out, err = run("--json", "--storage", "fp8", "--top-k", "16", "--shard-tokens", "90")
    assert code == 0, err
    result = json.loads(out)
    assert result["taps"] == [2, 4, 5]
    assert result["identity"]["error"] <= 1e-5
    assert result["written"]["kept"] == 0
    assert result["written"]["shards"] == result["estimate"]["shards"] > 1
    source = FeatureFolder(tmp_path / "features")
    assert len(source.samples) == result["samples"]
    assert source.read(1).top is not None


def test_a_second_run_keeps_what_is_there_and_says_so(run: Run, tmp_path: Path) -> None:
    code, out, err = run("--reference")
    assert code == 0
    assert "1 shards written" in out
    assert "identity of tap 8" in err
    assert "minutes" in err
    code, out, _ = run()
    assert code == 0
    assert "0 shards written, 1 were there" in out


def test_a_dry_run_writes_nothing(run: Run, tmp_path: Path) -> None:
    code, out, err = run("--dry-run", "--json", "--taps", "1,3,8")
    assert code == 0, err
    result = json.loads(out)
    assert result["written"] is None
    assert result["taps"] == [1, 3, 8]
    assert result["estimate"]["bytes"] > 0
    assert not (tmp_path / "features").exists()


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (("--taps", "2,2,5"), "taps.duplicate"),
        (("--taps", "2,9"), "taps.range"),
        (("--taps", "two"), "flags.range"),
        (("--storage", "int4"), "flags.range"),
        (("--top-k", "1000"), "flags.range"),
        (("--shard-tokens", "0"), "flags.range"),
    ],
)
def test_flags_that_mean_nothing_are_refused(run: Run, words: tuple[str, ...], code: str) -> None:
    status, _, err = run(*words)
    assert status == (2 if code.startswith("flags") else 1)
    assert f"[{code}]" in err


def test_samples_of_other_weights_need_a_word(run: Run) -> None:
    made = tiny_samples()
    foreign = replace(made, facts=made.facts.model_copy(update={"target_weights_sha256": "a" * 64}))
    status, _, err = run(made=foreign)
    assert status == 1
    assert "[features.origin]" in err
    assert "--foreign-answers" in err
    status, _, err = run("--foreign-answers", made=foreign)
    assert status == 0, err


def test_samples_of_another_tokenizer_or_template_are_refused(run: Run) -> None:
    made = tiny_samples()
    for field in ("tokenizer_sha256", "chat_template_sha256"):
        status, _, err = run(made=replace(made, facts=made.facts.model_copy(update={field: "a" * 64})))
        assert status == 1
        assert "[features.origin]" in err


def test_other_settings_for_the_same_folder_are_refused(run: Run) -> None:
    assert run()[0] == 0
    status, out, _ = run("--storage", "fp32", "--json")
    assert status == 1
    assert json.loads(out)["error"]["code"] == "features.stale"
