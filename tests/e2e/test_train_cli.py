"""`eyas train` as a user gives it: killed again and again with SIGKILL, it ends with the same bits."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
from transformers import AutoTokenizer
from typer.testing import CliRunner

from eyas.cli import app
from eyas.config import SpeculativeSettings
from eyas.contract import Contract
from eyas.corpus.samples import SampleSet, split, write_samples
from eyas.draft.checkpoint import load_draft
from eyas.engine.session import facts_of
from eyas.errors import EyasError
from eyas.metrics import Acceptance
from eyas.speculate.walk import walk_text
from eyas.testing import tiny_pair
from train_rig import FACTS, tiny_samples, tiny_target

SETTINGS = (
    *("draft.taps=[2,4,5]", "draft.draft_vocab_size=256", "ttt_steps=3", "samples_per_step=4", "epochs=3"),
    *("micro_batch_tokens=400", "max_length=200", "learning_rate=0.003", "evaluate_every=5", "save_every=2"),
    *("held_out_share=0.3", "later_share=0.7", "ema_decay=0.9"),
)
KILLS = 3
REPRODUCED = ("metrics.jsonl", "evaluations.jsonl", "draft/model.safetensors", "draft/contract.json")


@pytest.fixture(scope="module")
def samples(tmp_path_factory) -> Path:
    folder = tiny_pair()[0]
    known = facts_of(folder, AutoTokenizer.from_pretrained(folder, trust_remote_code=False))
    facts = FACTS.model_copy(
        update={
            "tokenizer_sha256": known.tokenizer_sha256,
            "chat_template_sha256": known.chat_template_sha256,
            "target_weights_sha256": known.weights_sha256,
        }
    )
    path = tmp_path_factory.mktemp("samples") / "samples.npz"
    write_samples(path, SampleSet(facts, tiny_samples()))
    return path


def command(samples: Path, out: Path, *more: str) -> list[str]:
    asked = [part for setting in SETTINGS for part in ("--set", setting)]
    target = str(tiny_pair()[0])
    base = [sys.executable, "-m", "eyas", "train", str(samples), "--out", str(out), "--model", target]
    return [*base, "--json", "--threads", "1", *asked, *more]


def run(*args: object, **how: object) -> tuple[int, dict]:
    done = subprocess.run(command(*args), capture_output=True, text=True, check=False, timeout=300)  # type: ignore[arg-type]
    assert done.stdout, done.stderr[-2000:]
    return done.returncode, json.loads(done.stdout)


@pytest.fixture(scope="module")
def whole(samples, tmp_path_factory):
    out = tmp_path_factory.mktemp("whole") / "run"
    code, result = run(samples, out)
    assert code == 0, result
    return out, result


@pytest.mark.slow
def test_a_run_ends_in_a_draft_that_serves(whole):
    out, result = whole
    contract = Contract.read(out / "draft" / "contract.json")
    assert contract.taps == (2, 4, 5)
    assert contract.loss_mask_rule == "one-answer"
    assert [r.model_dump(mode="json") for r in contract.expected] == result["expected"]
    assert {r.num_steps for r in contract.expected} == set(range(1, 8))
    assert load_draft(out / "draft", tiny_target()).config.draft_vocab_size == 256
    assert {"settings.yaml", "environment.json", "curves.png", "origin.json"} <= {p.name for p in out.iterdir()}


@pytest.mark.slow
def test_what_the_contract_expects_is_what_the_engine_shows(whole):
    """The written draft, by the engine's own proposals over the same held-out greedy texts: the same rounds."""
    out, _ = whole
    target, contract = tiny_target(), Contract.read(out / "draft" / "contract.json")
    served = load_draft(out / "draft", target, "eager")
    held = [s for s in split(tiny_samples(), 0.3)[1] if s.temperature == 0]
    assert len(held) >= 2
    for num_steps in (1, 3, 5):
        acceptance = Acceptance()
        for sample in held:
            (begin, end), tokens = sample.answers[0], sample.tokens.tolist()
            settings = SpeculativeSettings.resolve(num_steps)
            for one in walk_text(target, served, tokens[:begin], tokens[begin:end], settings):
                acceptance.add(sample.prompt_id, one)
        told = [r for r in contract.expected if (r.prompt_set, r.temperature, r.num_steps) == ("all", 0.0, num_steps)]
        assert [r.accept_length for r in told] == [acceptance.accept_length]


@pytest.mark.slow
def test_killed_in_a_loop_it_ends_with_the_same_bits(whole, samples, tmp_path):
    out, kills = tmp_path / "run", 0
    state, metrics = out / "state.safetensors", out / "metrics.jsonl"
    while True:
        process = subprocess.Popen(command(samples, out), stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        lines, before = _lines(metrics), state.stat().st_mtime_ns if state.exists() else 0
        while process.poll() is None:
            moved = state.exists() and state.stat().st_mtime_ns != before
            if kills < KILLS and moved and _lines(metrics) > lines + kills % 3:
                os.kill(process.pid, signal.SIGKILL)
                kills += 1
            time.sleep(0.002)
        process.communicate()
        if process.returncode == 0:
            break
        assert process.returncode == -signal.SIGKILL, process.communicate()[1][-2000:]
    assert kills == KILLS
    for name in REPRODUCED:
        assert (out / name).read_bytes() == (whole[0] / name).read_bytes(), name


def _lines(path: Path) -> int:
    return path.read_bytes().count(b"\n") if path.exists() else 0


@pytest.mark.slow
def test_another_wish_in_the_same_folder_is_refused(whole, samples):
    code, result = run(samples, whole[0], "--set", "learning_rate=0.001")
    assert code == 1
    assert result["error"]["code"] == "train.resume-mismatch"
    assert "learning_rate" in result["error"]["cause"]


@pytest.mark.slow
def test_a_warm_start_keeps_the_map(whole, samples, tmp_path):
    out = tmp_path / "again"
    code, result = run(samples, out, "--draft", str(whole[0] / "draft"), "--set", "epochs=1")
    assert code == 0, result
    first, second = (Contract.read(folder / "draft" / "contract.json") for folder in (whole[0], out))
    assert first.vocab_map_sha256 == second.vocab_map_sha256
    assert "went on from an earlier draft" in (out / "draft" / "README.md").read_text()
    assert "went on from an earlier draft" not in (whole[0] / "draft" / "README.md").read_text()


@pytest.mark.slow
def test_a_warm_start_refuses_what_its_draft_is_not(whole, samples, tmp_path):
    code, result = run(samples, tmp_path, "--draft", str(whole[0] / "draft"), "--set", "draft.norm_output=true")
    assert code == 2
    assert result["error"]["code"] == "flags.contradiction"
    assert "norm_output" in result["error"]["cause"]


@pytest.mark.slow
def test_a_draft_is_not_measured_on_what_it_learns_from(samples, tmp_path):
    other = tmp_path / "other.npz"
    other.write_bytes(samples.read_bytes())
    code, result = run(samples, tmp_path / "run", "--evaluate", str(other))
    assert code == 1
    assert result["error"]["code"] == "train.leak"


@pytest.mark.slow
def test_samples_of_another_tokenizer_are_refused(samples, tmp_path):
    write_samples(tmp_path / "other.npz", SampleSet(FACTS, tiny_samples()))
    code, result = run(tmp_path / "other.npz", tmp_path / "run")
    assert code == 1
    assert result["error"]["code"] == "features.origin"


@pytest.mark.slow
def test_a_draft_that_one_engine_cannot_serve_is_written_for_the_other(samples, tmp_path):
    """Tap 0 is the embedding, which SGLang does not capture."""
    out = tmp_path / "run"
    code, result = run(samples, out, "--set", "draft.taps=[0,2,5]", "--set", "max_steps=1")
    assert code == 0, result
    assert result["served_by"] == ["vllm 0.32.0"]
    assert load_draft(out / "draft", tiny_target()).config.taps == (0, 2, 5)


@pytest.mark.slow
def test_a_draft_that_no_engine_can_serve_is_not_trained(samples, tmp_path):
    code, result = run(samples, tmp_path / "run", "--set", "draft.taps=[5,2,4]")
    assert code == 1
    assert result["error"]["code"] == "draft.dialect"
    assert not (tmp_path / "run" / "metrics.jsonl").exists()


@pytest.mark.slow
def test_a_plan_starts_nothing(samples, tmp_path):
    code, result = run(samples, tmp_path / "run", "--plan")
    assert code == 0
    assert result["trained_parameters"] > 0
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
def test_a_run_that_no_disk_can_hold_is_not_begun(samples, tmp_path, monkeypatch):
    monkeypatch.setattr("eyas.artifacts.shutil.disk_usage", lambda path: SimpleNamespace(free=100_000))
    done = CliRunner().invoke(app, command(samples, tmp_path / "run")[3:])
    assert isinstance(done.exception, EyasError)
    assert done.exception.code == "pull.disk-full"
    assert not (tmp_path / "run" / "settings.yaml").exists()


@pytest.mark.slow
def test_captured_features_train_without_the_target(samples, tmp_path):
    features = tmp_path / "features"
    capture = [sys.executable, "-m", "eyas", "capture", str(samples), "--out", str(features), "--taps", "2,4,5"]
    subprocess.run([*capture, "--model", str(tiny_pair()[0]), "--storage", "fp32", "--json"], check=True, timeout=200)
    results = {}
    for name, more in (("with", ()), ("without", ("--without-target",))):
        code, results[name] = run(features, tmp_path / name, "--set", "epochs=1", *more)
        assert code == 0, results[name]
    assert results["with"]["expected"] == results["without"]["expected"]
    assert results["with"]["witness"]["conversations"] > 1
    assert results["without"]["witness"] is None
    code, refused = run(samples, tmp_path / "online", "--without-target")
    assert code == 2
    assert refused["error"]["code"] == "flags.contradiction"
