"""Faults to plant in a copy of a healthy draft, and how to tell whether a check named them.

This module has the nouns and the single edits; :mod:`eyas.testing.planted` has the faults made of them.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from eyas.check.findings import Finding, Verdict
from eyas.dialects.engines import Engine
from eyas.draft.layout import rope_entries
from eyas.engine.session import builtin_draft_folder
from eyas.testing import tiny_pair

Edit = Callable[[Path], object]
Tensors = dict[str, Tensor]
CONFIG, WEIGHTS = "config.json", "model.safetensors"
IDS, NESTED = "eagle_aux_hidden_state_layer_ids", "eagle_config"
BESIDE = ("contract.json", "witness.safetensors", "manifest.json")
EVERYWHERE = ("tiny", "smollm2")
Outcome = Literal["exact", "part", "undecided", "missed", "wrong", "clear", "false alarm"]


@dataclass(frozen=True)
class Pair:
    """A healthy draft: ``taps`` and RoPE that it was trained with, ``target`` a folder or a model's name."""

    name: str
    target: str
    draft: Path
    taps: tuple[int, ...]
    layers: int
    rope_theta: float
    head_dim: int


def tiny() -> Pair:
    """The tiny trained pair."""
    target, draft = tiny_pair()
    return Pair("tiny", str(target), draft, (2, 4, 5), 8, 10_000.0, 16)


def smollm2() -> Pair:
    """The built-in target and the draft that comes with Eyas."""
    name = "builtin:smollm2-135m"
    draft = builtin_draft_folder(name)
    assert draft is not None
    return Pair("smollm2", name, draft, (2, 15, 27), 30, 100_000.0, 64)


@dataclass(frozen=True)
class Planted:
    """One thing to check.

    ``expected``: for each fault the kinds of which any names it; none for a healthy draft · ``also``: kinds that
    follow from it and may be named beside it · ``told``: kind → what its finding's data must hold to be right, such as
    the taps · ``flags``: a launch command, checked without the target · ``own``: contract and own entry are kept.
    """

    name: str
    expected: tuple[frozenset[str], ...] = ()
    plant: Edit = lambda folder: None
    also: frozenset[str] = frozenset()
    told: Mapping[str, Mapping[str, object]] = field(default_factory=dict)
    flags: str | None = None
    engines: tuple[str, ...] = ()
    own: bool = False
    pairs: tuple[str, ...] = ("tiny",)

    def make(self, pair: Pair, folder: Path) -> Path:
        """The draft with this fault, in ``folder``, which must not exist."""
        shutil.copytree(pair.draft, folder)
        if not self.own:
            foreign(folder)
        self.plant(folder)
        return folder

    @property
    def parsed_engines(self) -> tuple[Engine, ...]:
        """Engines that are to serve it; none: the check's own choice."""
        return tuple(Engine.parse(name) for name in self.engines)


def one(
    name: str,
    kinds: str,
    plant: Edit,
    also: str = "",
    everywhere: bool = False,
    told: Mapping[str, Mapping[str, object]] | None = None,
    engines: tuple[str, ...] = (),
    own: bool = False,
) -> Planted:
    """A single fault: ``kinds`` and ``also`` are kinds with spaces between; ``everywhere``: for both pairs."""
    return Planted(
        name,
        (frozenset(kinds.split()),),
        plant,
        frozenset(also.split()),
        told=told or {},
        engines=engines,
        own=own,
        pairs=EVERYWHERE if everywhere else ("tiny",),
    )


def outcome(planted: Planted, verdict: Verdict) -> Outcome:
    """``exact``: every planted fault is named, with what was told of it, and nothing else is called a fault · ``part``:
    some are, and nothing else is · ``wrong``: something else is.
    """
    faults = [finding for finding in verdict.findings if finding.weight == "fault"]
    allowed = frozenset().union(planted.also, *planted.expected)
    strangers = [f for f in faults if f.kind not in allowed or not _as_told(planted, f)]
    if not planted.expected:
        if verdict.answer == "undecided":
            return "undecided"
        return "false alarm" if strangers else "clear"
    if strangers:
        return "wrong"
    if verdict.answer == "undecided" or verdict.between:
        return "undecided"
    named = {f.kind for f in verdict.findings if f.weight != "note" and _as_told(planted, f)}
    found = [bool(kinds & named) for kinds in planted.expected]
    return "exact" if all(found) else "part" if any(found) else "missed"


def _as_told(planted: Planted, finding: Finding) -> bool:
    """Right, or open between what is right and others."""
    told, others = planted.told.get(finding.kind, {}), finding.data.get("as_good") or ()
    return all(finding.data.get(key) == value or value in others for key, value in told.items())


def foreign(folder: Path) -> None:
    """Take away what Eyas adds: no contract, no own entry, no manifest."""
    for name in BESIDE:
        (folder / name).unlink(missing_ok=True)
    config(remove=("eyas",))(folder)


def both(*edits: Edit) -> Edit:
    """One after the other."""

    def edit(folder: Path) -> None:
        for one in edits:
            one(folder)

    return edit


def config(changes: Mapping[str, Any] | None = None, remove: Sequence[str] = ()) -> Edit:
    """Keys of config.json removed and set."""

    def edit(folder: Path) -> None:
        document = json.loads((folder / CONFIG).read_text())
        kept = {key: value for key, value in document.items() if key not in remove}
        (folder / CONFIG).write_text(json.dumps(kept | dict(changes or {}), indent=2))

    return edit


def ids(sglang: Sequence[int] | None, vllm: Sequence[int] | None) -> Edit:
    """Layer ids for either engine, in its own convention; None: no such key."""
    nested = {"use_aux_hidden_state": True, **({} if sglang is None else {IDS: list(sglang)})}
    top = {} if vllm is None else {IDS: list(vllm)}
    return config({NESTED: nested, **top}, remove=(IDS, NESTED))


def taps(*named: int) -> Edit:
    """Layer ids of both engines that mean these taps."""
    return ids([tap - 1 for tap in named], named)


def rope(theta: float, scaling: Mapping[str, Any] | None = None) -> Edit:
    """Another RoPE base and scaling, at every place."""
    return config(rope_entries(theta, scaling))


def half_rotated(head_dim: int) -> Edit:
    """What a draft that was trained with half of each head rotated looks like: rotations at every other frequency of a
    whole head are those of the first half, and the dimensions of the other frequencies are not rotated.
    """
    even, half = torch.arange(0, head_dim // 2, 2), head_dim // 2
    odd = even + 1
    rows = torch.cat([even, even + half, odd, odd + half])

    def edit(weight: Tensor) -> Tensor:
        return weight.unflatten(0, (-1, head_dim))[:, rows].flatten(0, 1)

    return both(put("q_proj.weight", edit), put("k_proj.weight", edit))


def weights(change: Callable[[Tensors], object]) -> Edit:
    """The stored tensors changed in place."""

    def edit(folder: Path) -> None:
        tensors = load_file(folder / WEIGHTS)
        change(tensors)
        save_file({name: value.contiguous() for name, value in tensors.items()}, folder / WEIGHTS)

    return edit


def put(ending: str, change: Callable[[Tensor], Tensor]) -> Edit:
    """Tensors whose names end so, each replaced by what ``change`` makes of it. Raises ``AssertionError`` for none."""

    def edit(tensors: Tensors) -> None:
        names = [name for name in tensors if name.endswith(ending)]
        assert names, ending
        tensors.update({name: change(tensors[name]) for name in names})

    return weights(edit)


def drop(*endings: str) -> Edit:
    """Tensors whose names end so are taken out."""

    def edit(tensors: Tensors) -> None:
        names = [name for name in tensors if name.endswith(endings)]
        assert names, endings
        for name in names:
            del tensors[name]

    return weights(edit)


def rename(old: str, new: str) -> Edit:
    """Names that start with ``old`` start with ``new``."""

    def edit(tensors: Tensors) -> None:
        names = [name for name in tensors if name.startswith(old)]
        assert names, old
        tensors.update({new + name.removeprefix(old): tensors.pop(name) for name in names})

    return weights(edit)


def noise_like(tensor: Tensor) -> Tensor:
    """What an initialisation leaves: normal, deviation .02."""
    generator = torch.Generator().manual_seed(tensor.numel())
    return (0.02 * torch.randn(tensor.shape, generator=generator)).to(tensor.dtype)


def blocks(order: Sequence[int]) -> Edit:
    """The column blocks of fc.weight in another order: block j becomes the one that was ``order[j]``."""
    return put("fc.weight", lambda w: torch.cat([w.chunk(len(order), 1)[i] for i in order], 1))


def halves(tensor: Tensor) -> Tensor:
    """The column halves exchanged."""
    return torch.cat(tensor.chunk(2, 1)[::-1], 1)


def perturbed(relative: float, shrink: float = 0.0, only: str = "", seed: int = 0) -> Edit:
    """A draft of another quality: every matrix (or those with ``only`` in the name) mixed with ``shrink`` of noise of
    its own deviation and then disturbed by ``relative`` of it. Stored as fp32.
    """
    generator = torch.Generator().manual_seed(seed)

    def disturb(tensors: Tensors) -> None:
        for name, value in tensors.items():
            if value.dim() == 2 and only in name:
                one, two = (torch.randn(value.shape, generator=generator) * value.float().std() for _ in range(2))
                tensors[name] = (1 - shrink) * value.float() + shrink * one + relative * two
            elif value.is_floating_point():
                tensors[name] = value.float()

    return both(weights(disturb), config({"torch_dtype": "float32"}))


def rounded(levels: int) -> Edit:
    """Every matrix rounded to so many levels a row, as a poor quantisation leaves it."""

    def coarse(tensors: Tensors) -> None:
        for name, value in tensors.items():
            if value.dim() == 2:
                step = value.float().abs().amax(1, keepdim=True) / (levels // 2)
                tensors[name] = ((value.float() / step).round() * step).to(value.dtype)

    return weights(coarse)
