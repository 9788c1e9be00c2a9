"""Planted faults change what they say and nothing else; healthy drafts can be loaded; outcomes are judged by kind."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from eyas.check.catalogue import KINDS
from eyas.check.findings import Answer, Finding, Verdict, Weight
from eyas.contract import TargetSizes
from eyas.dialects.checkpoint import captured_by
from eyas.dialects.engines import Engine
from eyas.draft.checkpoint import load_draft
from eyas.draft.vocab import check_kept
from eyas.testing import load_tiny_target
from eyas.testing.planted import doubles, healthy, singles
from eyas.testing.planting import Pair, Planted, halves, outcome, smollm2, tiny

TINY = tiny()
ALL = [*singles(TINY), *doubles(TINY), *healthy(TINY)]
IN_FILES = [one for one in ALL if one.flags is None]
BY_NAME = {one.name: one for one in ALL}


def made(name: str, folder: Path) -> Path:
    return BY_NAME[name].make(TINY, folder)


def content(folder: Path) -> dict[str, object]:
    """Every file's bytes, a link's target."""
    return {p.name: p.readlink() if p.is_symlink() else p.read_bytes() for p in folder.iterdir()}


def document(folder: Path) -> dict[str, object]:
    loaded = json.loads((folder / "config.json").read_text())
    assert isinstance(loaded, dict)
    return loaded


def tensors(folder: Path) -> dict[str, torch.Tensor]:
    return load_file(folder / "model.safetensors")


def test_there_are_enough_of_each() -> None:
    assert len(singles(TINY)) >= 60
    assert len(singles(smollm2())) >= 20
    assert len(doubles(TINY)) >= 10
    assert len([one for one in healthy(TINY) if one.flags is None]) >= 16
    assert len(healthy(smollm2())) == 4


@pytest.mark.parametrize("pair", [TINY, smollm2()], ids=["tiny", "smollm2"])
def test_names_are_unique_and_kinds_known(pair: Pair) -> None:
    every = [*singles(pair), *doubles(pair), *healthy(pair)]
    assert len({one.name for one in every}) == len(every)
    for one in every:
        assert frozenset(one.told).union(one.also, *one.expected) <= KINDS.keys(), one.name
        assert frozenset(one.told) <= frozenset().union(one.also, *one.expected), one.name
    assert all(len(one.expected) == 1 for one in singles(pair))
    assert all(len(one.expected) == 2 for one in doubles(pair))
    assert not any(one.expected for one in healthy(pair))


@pytest.mark.parametrize("planted", IN_FILES, ids=lambda one: one.name)
def test_every_fault_changes_the_draft(planted: Planted, tmp_path: Path) -> None:
    whole = Planted("whole", own=planted.own).make(TINY, tmp_path / "whole")
    changed = planted.make(TINY, tmp_path / "changed")
    assert (content(changed) != content(whole)) == (planted.name != "as published")
    assert (changed / "manifest.json").exists() == planted.own


@pytest.mark.parametrize("planted", [one for one in healthy(TINY) if one.flags is None], ids=lambda one: one.name)
def test_healthy_drafts_can_be_loaded(planted: Planted, tmp_path: Path) -> None:
    draft = load_draft(planted.make(TINY, tmp_path / "draft"), load_tiny_target())
    assert draft.config.taps == TINY.taps


def test_flags_are_launches() -> None:
    launches = [one for one in ALL if one.flags is not None]
    assert len({one.flags for one in launches}) == len(launches)


@pytest.mark.parametrize(
    ("name", "engine", "taps"),
    [
        ("all taps +1", "sglang", (3, 5, 6)),
        ("all taps +1", "vllm", (3, 5, 6)),
        ("last tap +1", "sglang", (2, 4, 6)),
        ("embedding first", "vllm", (0, 2, 4)),
        ("taps as ids", "sglang", (3, 5, 6)),
        ("ids as taps", "vllm", (1, 3, 4)),
        ("order reversed", "vllm", (2, 4, 5)),
        ("two taps off, map absent", "sglang", (1, 4, 6)),
    ],
)
def test_ids_mean_other_taps(name: str, engine: str, taps: tuple[int, ...], tmp_path: Path) -> None:
    folder = made(name, tmp_path / "draft")
    sizes = TargetSizes(architecture="LlamaForCausalLM", num_layers=8, hidden_size=64, vocab_size=512)
    assert captured_by(document(folder), sizes.num_layers, Engine.parse(engine), sizes.architecture) == taps


def test_blocks_in_another_order_are_those_of_other_taps(tmp_path: Path) -> None:
    right, wrong = tensors(TINY.draft)["fc.weight"].float(), tensors(made("order rotated", tmp_path / "d"))["fc.weight"]
    features = dict(zip(TINY.taps, torch.randn(3, 64), strict=True))
    told = BY_NAME["order rotated"].told["taps.order"]["taps"]
    assert isinstance(told, list)
    assert told == [4, 5, 2]
    expected = right @ torch.cat([features[tap] for tap in TINY.taps])
    torch.testing.assert_close(wrong.float() @ torch.cat([features[tap] for tap in told]), expected)


def test_halves_are_exchanged(tmp_path: Path) -> None:
    name = "midlayer.self_attn.q_proj.weight"
    right, wrong = tensors(TINY.draft)[name], tensors(made("halves of q, k, v", tmp_path / "d"))[name]
    assert torch.equal(halves(wrong), right)
    assert torch.equal(wrong[:, :64], right[:, 64:])


def test_a_rebuilt_map_is_sound_and_another(tmp_path: Path) -> None:
    right, wrong = tensors(TINY.draft), tensors(made("map rebuilt", tmp_path / "d"))
    check_kept(wrong["t2d"], wrong["d2t"], 512)
    assert not torch.equal(wrong["d2t"], right["d2t"])
    shared = (wrong["t2d"] & right["t2d"]).sum() / right["t2d"].sum()
    assert 0.9 < float(shared) < 1


@pytest.mark.parametrize("share", [0.05, 0.3])
def test_noise_is_as_large_as_said(share: float, tmp_path: Path) -> None:
    right, wrong = tensors(TINY.draft), tensors(made(f"noise {share:.0%}", tmp_path / "d"))
    for name, value in right.items():
        if value.dim() == 2:
            off = (wrong[name] - value.float()).std() / value.float().std()
            assert abs(float(off) / share - 1) < 0.1
        else:
            assert torch.equal(wrong[name], value.float() if value.is_floating_point() else value)


def verdict(answer: Answer, *findings: tuple[str, Weight, Mapping[str, object]]) -> Verdict:
    found = [Finding(kind, "static", weight, kind, data=data) for kind, weight, data in findings]
    return Verdict(answer, "", (), found)


TAPS = frozenset({"taps.wrong"})
ONE = Planted("one", (TAPS,), also=frozenset({"rope.base"}), told={"taps.wrong": {"taps": [2, 4, 5]}})
TWO = Planted("two", (TAPS, frozenset({"map.absent", "map.wrong"})))
RIGHT, OTHER = {"taps": [2, 4, 5]}, {"taps": [2, 4, 6]}


@pytest.mark.parametrize(
    ("planted", "said", "expected"),
    [
        (ONE, verdict("fault", ("taps.wrong", "fault", RIGHT)), "exact"),
        (ONE, verdict("fault", ("taps.wrong", "fault", RIGHT), ("rope.base", "fault", {})), "exact"),
        (ONE, verdict("no-fault-found", ("taps.wrong", "warning", RIGHT)), "exact"),
        (ONE, verdict("fault", ("taps.wrong", "fault", OTHER)), "wrong"),
        (ONE, verdict("fault", ("taps.wrong", "fault", RIGHT), ("map.absent", "fault", {})), "wrong"),
        (ONE, verdict("undecided", ("taps.wrong", "warning", OTHER)), "undecided"),
        (ONE, verdict("undecided", ("map.absent", "fault", {})), "wrong"),
        (ONE, verdict("no-fault-found", ("taps.wrong", "note", RIGHT)), "missed"),
        (ONE, verdict("fault", ("rope.base", "fault", {})), "missed"),
        (TWO, verdict("fault", ("taps.wrong", "fault", {})), "part"),
        (TWO, verdict("fault", ("taps.wrong", "fault", {}), ("map.wrong", "fault", {})), "exact"),
        (Planted("healthy"), verdict("undertrained", ("engine.limit", "warning", {})), "clear"),
        (Planted("healthy"), verdict("fault", ("map.wrong", "fault", {})), "false alarm"),
        (Planted("healthy"), verdict("undecided", ("taps.wrong", "warning", {})), "undecided"),
    ],
)
def test_outcomes(planted: Planted, said: Verdict, expected: str) -> None:
    assert outcome(planted, said) == expected
