"""Planted faults of tensors and files: weights, the vocabulary map, and what lies on disk."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from eyas.testing import tiny_pair
from eyas.testing.planting import (
    CONFIG,
    WEIGHTS,
    Edit,
    Planted,
    both,
    config,
    drop,
    noise_like,
    one,
    put,
    rename,
    weights,
)

LAYER = "midlayer."


def ids_of(d2t: Tensor) -> Tensor:
    """Offsets to target ids, or a map to what it is when ids are stored."""
    return d2t + torch.arange(len(d2t))


def map_faults() -> list[Planted]:
    """The map missing, in another form, or another one."""
    alone = drop("t2d")
    return [
        one("map absent", "map.absent", drop("d2t", "t2d"), everywhere=True),
        one("map absent, mask there", "map.absent", drop("d2t")),
        one("map of ids", "map.absolute", put("d2t", ids_of), everywhere=True),
        one("map of ids, alone", "map.absolute", both(put("d2t", ids_of), alone)),
        one("map 0, 1, 2", "map.wrong", both(put("d2t", lambda t: torch.arange(len(t))), alone)),
        one("map zero", "map.wrong", both(put("d2t", torch.zeros_like), alone), everywhere=True),
        one("map too short", "map.short", put("d2t", lambda t: t[:-1])),
        one("map unordered", "map.wrong", both(put("d2t", _exchanged), alone)),
        one("map out of range", "map.wrong", put("d2t", lambda t: t + 10**6)),
        one("map of floats", "map.wrong", put("d2t", lambda t: t.float())),
        one("mask of another map", "map.wrong", put("t2d", lambda t: ~t)),
        one("map rebuilt", "map.wrong", weights(_rebuilt)),
        one("map at full vocabulary", "map.wrong", both(weights(_full), config({"draft_vocab_size": 512}))),
    ]


def _exchanged(d2t: Tensor) -> Tensor:
    kept = ids_of(d2t)
    return torch.cat([kept[1:2], kept[:1], kept[2:]]) - torch.arange(len(d2t))


def _rebuilt(tensors: dict[str, Tensor]) -> None:
    """A twentieth of the kept tokens are others, and the mask fits: ids in between move along."""
    kept, size = set(ids_of(tensors["d2t"]).tolist()), len(tensors["t2d"])
    spare = [token for token in range(size) if token not in kept]
    count = len(kept) // 20
    chosen = sorted((kept - set(sorted(kept)[::20][:count])) | set(spare[::7][:count]))
    tensors["d2t"] = torch.tensor(chosen) - torch.arange(len(chosen))
    tensors["t2d"] = torch.zeros(size, dtype=torch.bool).index_fill(0, torch.tensor(chosen), True)


def _full(tensors: dict[str, Tensor]) -> None:
    """A head of the whole vocabulary beside the old map."""
    head, rows = tensors["lm_head.weight"], ids_of(tensors["d2t"])
    whole = head[torch.randint(len(head), (512,), generator=torch.Generator().manual_seed(0))].clone()
    whole[rows] = head
    missing = torch.zeros(512 - len(rows), dtype=torch.int64)
    tensors.update({"lm_head.weight": whole, "d2t": torch.cat([tensors["d2t"], missing])})


def weight_faults() -> list[Planted]:
    """Tensors missing, never trained, replaced, renamed, or of another shape or kind."""
    large = put("lm_head.weight", lambda t: t * 1e6)
    nan, inf = torch.tensor([3]), torch.inf
    everything = weights(lambda t: t.update({n: noise_like(v) for n, v in t.items() if v.dim() == 2}))
    return [
        one("head absent", "weights.missing", drop("lm_head.weight"), everywhere=True),
        one("fc absent", "weights.missing", drop("fc.weight")),
        one("norm absent", "weights.missing", drop("hidden_norm.weight")),
        one("MLP absent", "weights.missing", drop("down_proj.weight")),
        one("head random", "weights.random", put("lm_head.weight", noise_like), everywhere=True),
        one("fc random", "weights.random", put("fc.weight", noise_like)),
        one("fc zero", "weights.random", put("fc.weight", torch.zeros_like)),
        one("down_proj random", "weights.random", put("down_proj.weight", noise_like)),
        one("o_proj random", "weights.random", put("o_proj.weight", noise_like)),
        one("all random", "weights.random", everything, everywhere=True),
        one("head of the target", "weights.replaced", _target_head),
        one("embedding random", "weights.random weights.replaced", _embedding(noise_like), "engine.limit"),
        one("embedding of another", "weights.replaced", _embedding(lambda t: t.flip(0)), "engine.limit"),
        one("layer renamed", "weights.unknown", rename(LAYER, "decoder.block."), everywhere=True),
        one("head renamed", "weights.unknown", rename("lm_head.weight", "output.weight")),
        one("model. before the names", "engine.limit", rename(LAYER, "model." + LAYER), engines=("vllm",)),
        one("layers.0 for an old SGLang", "engine.limit", rename(LAYER, "layers.0."), engines=("sglang==0.5.9",)),
        one("a stranger", "weights.unknown", weights(lambda t: t.update(mask_hidden=torch.ones(3)))),
        one("fc of two taps", "weights.shape config.dialect", put("fc.weight", lambda t: t[:, : t.shape[1] * 2 // 3]),
            "taps.wrong"),
        one("head too narrow", "weights.shape", put("lm_head.weight", lambda t: t[:, :32])),
        one("k of fewer heads", "weights.shape", put("k_proj.weight", lambda t: t[: len(t) // 2])),
        one("NaN", "weights.nonfinite", put("fc.weight", lambda t: t.index_fill(0, nan, torch.nan)), everywhere=True),
        one("infinity", "weights.nonfinite", put("layernorm.weight", lambda t: t.index_fill(0, nan, inf))),
        one("beyond fp16", "weights.nonfinite", both(large, config({"torch_dtype": "float16"}))),
        one("quantised", "weights.dtype", put("fc.weight", lambda t: t.to(torch.float8_e4m3fn))),
        one("declared quantised", "weights.dtype", config({"quantization_config": {"quant_method": "awq"}})),
    ]  # fmt: skip


def stored_embedding() -> Tensor:
    """The tiny target's, [V, H] bf16."""
    return load_file(tiny_pair()[0] / WEIGHTS)["model.embed_tokens.weight"]


def _embedding(change: Callable[[Tensor], Tensor]) -> Edit:
    return weights(lambda t: t.update({"embed_tokens.weight": change(stored_embedding())}))


def _target_head(folder: Path) -> None:
    """The tiny target's head is its embedding."""
    tensors = load_file(folder / WEIGHTS)
    tensors["lm_head.weight"] = stored_embedding()[ids_of(tensors["d2t"])].clone()
    save_file(tensors, folder / WEIGHTS)


def file_faults() -> list[Planted]:
    """Files missing, cut, or not to be trusted."""
    huge = (1 << 60).to_bytes(8, "little") + bytes(64)
    pointer = b"version https://git-lfs.github.com/spec/v1\n"
    return [
        one("no config", "file.missing", lambda folder: (folder / CONFIG).unlink()),
        one("no weights", "file.missing", lambda folder: (folder / WEIGHTS).unlink()),
        one("a shard is missing", "file.missing", _index("model-2.safetensors")),
        one("weights cut", "file.cut", _cut(WEIGHTS, 0.5), everywhere=True),
        one("weights cut in the header", "file.cut", _cut(WEIGHTS, 0.001)),
        one("config cut", "file.cut", _cut(CONFIG, 0.5)),
        one("config is a list", "file.cut", _write(CONFIG, b"[]")),
        one("weights are a pointer", "file.cut", _write(WEIGHTS, pointer)),
        one("huge header", "file.hostile", _write(WEIGHTS, huge)),
        one("pickle", "file.hostile", _pickled),
        one("weights are a link", "file.hostile", _linked),
        one("index leaves the folder", "file.hostile", _index("../model-1.safetensors")),
    ]


def _cut(name: str, share: float) -> Edit:
    def edit(folder: Path) -> None:
        data = (folder / name).read_bytes()
        (folder / name).write_bytes(data[: int(len(data) * share)])

    return edit


def _write(name: str, data: bytes) -> Edit:
    return lambda folder: (folder / name).write_bytes(data)


def _pickled(folder: Path) -> None:
    (folder / WEIGHTS).unlink()
    (folder / "pytorch_model.bin").write_bytes(b"\x80\x04N.")


def _linked(folder: Path) -> None:
    beside = folder.parent / f"{folder.name}.{WEIGHTS}"
    (folder / WEIGHTS).rename(beside)
    (folder / WEIGHTS).symlink_to(beside)


def _index(shard: str) -> Edit:
    """Two shards, of which the second is called so and is not there."""

    def edit(folder: Path) -> None:
        tensors = load_file(folder / WEIGHTS)
        (folder / WEIGHTS).unlink()
        here = {name: value for name, value in tensors.items() if name != "norm.weight"}
        save_file(here, folder / "model-1.safetensors")
        named = {**dict.fromkeys(here, "model-1.safetensors"), "norm.weight": shard}
        (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": named}))

    return edit
