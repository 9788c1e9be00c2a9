"""Several ranks are one: states, logits, texts; and none outlives the others."""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from eyas.config import SamplingSettings
from eyas.engine.exactness import first_divergence
from eyas.engine.session import builtin_draft_folder
from eyas.errors import EyasError
from eyas.models.ranks import Ranks
from eyas.models.registry import load_target
from eyas.testing import tiny_pair, tiny_prompts
from rigs import random_prompt
from support.rank_rig import (
    BIASED,
    NORMED,
    PLANS,
    UNEVEN,
    VOCAB,
    answers,
    draft_of,
    finish,
    read_batches,
    start,
    write_random_target,
)

PROMPTS = [list(random_prompt(seed, length, VOCAB)) for seed, length in enumerate((3, 20, 9, 17))]
CASES = {"uneven": (UNEVEN, "onednn"), "biased": (BIASED, "eager"), "normed": (NORMED, "onednn")}

Found = tuple[dict[str, Any], list[dict[str, Any]], Path]
"""What was asked, what each rank found, and where its tensors lie."""


def ask(folder: Path, target: Path, draft: Path | None, prompts: list[list[int]], **more: Any) -> Found:
    """What two ranks find."""
    job = {"job": "target", "target": str(target), "draft": draft and str(draft), "prompts": prompts} | more
    finish(start(folder, 2, job))
    return job, [json.loads((folder / f"{rank}.json").read_text()) for rank in range(2)], folder


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Found]:
    """Each case's two ranks, run once."""
    kept: dict[str, Found] = {}

    def run(case: str) -> Found:
        if case not in kept:
            config, backend = CASES[case]
            target = write_random_target(tmp_path_factory.mktemp("target") / case, config)
            options = {"plans": [*PLANS], "length": 20, "read": True, "backend": backend, "choose": case == "uneven"}
            kept[case] = ask(tmp_path_factory.mktemp("ranks"), target, None, PROMPTS, **options)
        return kept[case]

    return run


def check_texts(job: dict[str, Any], ranks: list[dict[str, Any]]) -> None:
    """Every plan's greedy text is one process's plain one, up to proven ties."""
    alone = load_target(Path(job["target"]), backend=job["backend"])
    draft = draft_of(alone, job["draft"])
    plain = answers(alone, draft, job["prompts"], None, job["length"])
    greedy = SamplingSettings(max_new_tokens=job["length"])
    for name in [*job["plans"], *(["choose"] if job.get("choose") else [])]:
        assert ranks[0][name] == ranks[1][name]
        for prompt, one, several in zip(job["prompts"], plain, ranks[0][name], strict=True):
            parted = first_divergence(alone, prompt, one["answer"], several["answer"], greedy)
            assert parted is None or parted.is_tie, parted


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_states_and_logits_are_those_of_one_process(two: Callable[[str], Found], case: str) -> None:
    job, ranks, folder = two(case)
    whole = read_batches(load_target(Path(job["target"]), backend=job["backend"]))
    for rank in range(2):
        shared = load_file(folder / f"{rank}.safetensors")
        assert shared.keys() == whole.keys()
        for name, expected in whole.items():
            error = float((shared[name] - expected).abs().max() / expected.abs().max())
            assert error <= 1e-5, (name, error)
    assert ranks[0]["digest"] == ranks[1]["digest"], "all ranks hold the same bits"


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_texts_are_those_of_one_process(two: Callable[[str], Found], case: str) -> None:
    job, ranks, _ = two(case)
    check_texts(job, ranks)
    accepted = [n for name in ("chain", "tree") for answer in ranks[0][name] for n in answer["accepted"]]
    assert max(accepted) >= 1, "or no round was worth testing"


@pytest.mark.slow
def test_each_rank_holds_its_share_alone(two: Callable[[str], Found]) -> None:
    job, ranks, _ = two("uneven")
    assert [rank["kv_heads"] for rank in ranks] == [2, 1]
    assert sum(rank["weight_bytes"] for rank in ranks) == load_target(Path(job["target"])).weight_bytes()


@pytest.mark.slow
def test_the_tiny_pair_speculates_as_on_one_process(tmp_path: Path) -> None:
    target, draft = tiny_pair()
    options = {"plans": ["plain", "chain", "tree"], "length": 32, "backend": "auto"}
    job, ranks, _ = ask(tmp_path, target, draft, tiny_prompts()[:4], **options)
    check_texts(job, ranks)
    accepted = [n for answer in ranks[0]["chain"] for n in answer["accepted"]]
    assert sum(accepted) / len(accepted) > 0.5, "the draft reads whole taps and proposes well"


@pytest.mark.slow
@pytest.mark.builtin
def test_the_builtin_target_answers_as_on_one_process(tmp_path: Path, builtin_target_folder: Path) -> None:
    draft = builtin_draft_folder("builtin:smollm2-135m")
    prompts = [[1, 4093, 198, 1780, 314, 260, 3575, 282, 4649, 47, 2, 198, 1, 520, 9531, 198]]
    options = {"plans": ["chain"], "length": 12, "backend": "auto"}
    job, ranks, _ = ask(tmp_path, builtin_target_folder, draft, prompts, **options)
    check_texts(job, ranks)
    assert len(ranks[0]["chain"][0]["answer"]) == 12


@pytest.mark.slow
def test_what_ranks_tell_each_other(tmp_path: Path) -> None:
    """Three ranks. The parts' sum depends on the order: (1e8 + 1) − 1e8 is 0 in fp32, (1e8 − 1e8) + 1 is not."""
    parts = [[[1e8, 1.0], [2.0, 3.0]], [[1.0, 1e8], [4.0, 5.0]], [[-1e8, -1e8], [6.0, 7.0]]]
    finish(start(tmp_path, 3, {"job": "exchange", "parts": parts}))
    in_order = torch.tensor(parts[0]) + torch.tensor(parts[1]) + torch.tensor(parts[2])
    assert in_order[0].tolist() == [0.0, 0.0]
    for rank in range(3):
        found = json.loads((tmp_path / f"{rank}.json").read_text())
        assert found["sum"] == found["alone"] == in_order.tolist()
        assert found["join"] == [[0.0, 1.0, 1.0, 2.0, 2.0, 2.0]] * 2
        assert found["half"]
        assert found["told"]
        assert found["numbers"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("gone", "end", "patience"), [(1, "SIGKILL", 600.0), (0, "SIGKILL", 600.0), (1, "SIGSTOP", 4.0)]
)
def test_no_rank_outlives_another(tmp_path: Path, gone: int, end: str, patience: float) -> None:
    """One that died is noticed at once; one that hangs, when patience is out."""
    processes = start(tmp_path, 2, {"job": "loop"}, patience=patience)
    try:
        deadline = time.monotonic() + 120
        while not all((tmp_path / f"{rank}.looping").exists() for rank in range(2)):
            assert time.monotonic() < deadline, "the ranks do not meet"
            assert all(process.poll() is None for process in processes), processes[0].communicate()
            time.sleep(0.05)
        processes[gone].send_signal(getattr(signal, end))
        _, said = processes[1 - gone].communicate(timeout=100)
        assert processes[1 - gone].returncode == 3, said
        assert "engine.died" in said
    finally:
        for process in processes:
            process.kill()


def test_a_rank_that_nobody_meets_says_so(tmp_path: Path) -> None:
    with pytest.raises(EyasError, match="lost the others") as caught:
        Ranks(tmp_path, 0, 2, patience=1.0)
    assert caught.value.code == "engine.died"


def test_what_cannot_be_shared_is_refused(tmp_path: Path) -> None:
    folder = write_random_target(tmp_path / "target", UNEVEN)
    meeting = tmp_path / "meeting"
    meeting.mkdir()
    ranks = Ranks(meeting, 0, 1)
    try:
        assert load_target(folder, ranks=ranks).new_cache(1).kv_heads == 3
        config = json.loads((folder / "config.json").read_text()) | {"architectures": ["GPTNeoXForCausalLM"]}
        (folder / "config.json").write_text(json.dumps(config))
        with pytest.raises(EyasError, match="not shared between processes") as caught:
            load_target(folder, ranks=ranks)
        assert caught.value.code == "flags.unsupported"
    finally:
        ranks.close()
