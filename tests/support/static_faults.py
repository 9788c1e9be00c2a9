"""Faults that a draft's files show, each planted in a copy of the tiny draft with contract and witness."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from support.drafts import edit_config, edit_tensors
from support.planted import noise, tiny_contract, tiny_witness

Edit = Callable[[Path], object]


def config(remove: tuple[str, ...] = (), **changes: object) -> Edit:
    return lambda folder: edit_config(folder, remove, **changes)


def tensors(edit: Callable[[dict[str, Tensor]], object]) -> Edit:
    return lambda folder: edit_tensors(folder, edit)


def put(name: str, make: Callable[[Tensor], Tensor]) -> Edit:
    return tensors(lambda t: t.__setitem__(name, make(t[name]).contiguous()))


def drop(*names: str) -> Edit:
    return tensors(lambda t: [t.pop(name) for name in names])


def rename(old: str, new: str) -> Edit:
    def edit(t: dict[str, Tensor]) -> None:
        for name in [name for name in t if name.startswith(old)]:
            t[new + name.removeprefix(old)] = t.pop(name)

    return tensors(edit)


def ids(sglang: list[int] | None, vllm: list[int] | None) -> Edit:
    def edit(folder: Path) -> None:
        nested = {"use_aux_hidden_state": True}
        if sglang is not None:
            nested |= {"eagle_aux_hidden_state_layer_ids": sglang}
        edit_config(folder, ("eagle_aux_hidden_state_layer_ids",), eagle_config=nested)
        if vllm is not None:
            edit_config(folder, eagle_aux_hidden_state_layer_ids=vllm)

    return edit


def trained_on(*taps: int) -> Edit:
    """Another draft, as far as contract and own entry say."""

    def edit(folder: Path) -> None:
        (folder / "contract.json").write_text(tiny_contract(taps=taps).to_json())
        own = json.loads((folder / "config.json").read_text())["eyas"]
        edit_config(folder, eyas=own | {"taps": list(taps)})

    return edit


def both(*edits: Edit) -> Edit:
    return lambda folder: [edit(folder) for edit in edits]


def write(name: str, data: bytes) -> Edit:
    return lambda folder: (folder / name).write_bytes(data)


def cut(name: str, share: float = 0.5) -> Edit:
    return lambda folder: (folder / name).write_bytes(
        (folder / name).read_bytes()[: int((folder / name).stat().st_size * share)]
    )


def index(shard: str) -> Edit:
    def edit(folder: Path) -> None:
        (folder / "model.safetensors").rename(folder / "model-1.safetensors")
        names = load_file(folder / "model-1.safetensors")
        save_file(
            {name: value for name, value in names.items() if name != "norm.weight"}, folder / "model-1.safetensors"
        )
        weight_map = {**dict.fromkeys(names, "model-1.safetensors"), "norm.weight": shard}
        (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))

    return edit


def pickled(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    (folder / "pytorch_model.bin").write_bytes(b"\x80\x04N.")


def linked(name: str) -> Edit:
    def edit(folder: Path) -> None:
        (folder / name).rename(folder.parent / name)
        (folder / name).symlink_to(folder.parent / name)

    return edit


def swap(t: Tensor) -> Tensor:
    return torch.cat([t[1:2], t[:1], t[2:]])


def ids_of(t: Tensor) -> Tensor:
    return t + torch.arange(len(t))


def other_map(t: Tensor) -> Tensor:
    kept = set(ids_of(t).tolist())
    spare = max(set(range(512)) - kept)
    chosen = torch.tensor(sorted(kept - {min(kept)} | {spare}))
    return chosen - torch.arange(len(chosen))


LAYER = "midlayer."
THETA = {"rope_theta": 50000.0, "rope_parameters": {"rope_theta": 50000.0, "rope_type": "default"}}
PLANTED: dict[str, tuple[Edit, str]] = {
    "no config": (lambda folder: (folder / "config.json").unlink(), "file.missing"),
    "no weights": (lambda folder: (folder / "model.safetensors").unlink(), "file.missing"),
    "a shard is missing": (index("model-2.safetensors"), "file.missing"),
    "weights cut": (cut("model.safetensors"), "file.cut"),
    "weights cut in the header": (cut("model.safetensors", 0.001), "file.cut"),
    "weights are a pointer": (write("model.safetensors", b"version https://git-lfs.github.com/spec/v1\n"), "file.cut"),
    "config cut": (cut("config.json"), "file.cut"),
    "config without end": (write("config.json", b"[" * 200_000), "file.cut"),
    "config is a list": (write("config.json", b"[]"), "file.cut"),
    "config is huge": (write("config.json", b" " * (1 << 24) + b"{}"), "file.hostile"),
    "contract cut": (cut("contract.json"), "file.cut"),
    "witness cut": (cut("witness.safetensors"), "file.cut"),
    "huge header": (write("model.safetensors", (1 << 60).to_bytes(8, "little") + bytes(64)), "file.hostile"),
    "index leaves the folder": (index("../model-1.safetensors"), "file.hostile"),
    "pickle": (pickled, "file.hostile"),
    "weights are a link": (linked("model.safetensors"), "file.hostile"),
    "contract is a link": (linked("contract.json"), "file.hostile"),
    "head missing": (drop("lm_head.weight"), "weights.missing"),
    "fc missing": (drop("fc.weight"), "weights.missing"),
    "norm missing": (drop("midlayer.hidden_norm.weight"), "weights.missing"),
    "layer missing": (tensors(lambda t: [t.pop(n) for n in list(t) if n.startswith(LAYER)]), "weights.missing"),
    "layer renamed": (rename(LAYER, "decoder.block."), "weights.unknown"),
    "head renamed": (rename("lm_head.weight", "output.weight"), "weights.unknown"),
    "fc renamed": (rename("fc.weight", "feature_proj.kernel"), "weights.unknown"),
    "a stranger": (tensors(lambda t: t.update(mask_hidden=torch.ones(3))), "weights.unknown"),
    "two names": (tensors(lambda t: t.update({"model.norm.weight": t["norm.weight"].clone()})), "weights.unknown"),
    "fc of two taps": (put("fc.weight", lambda t: t[:, :128]), "weights.shape"),
    "head of another width": (put("lm_head.weight", lambda t: t[:, :32]), "weights.shape"),
    "k of other heads": (put(LAYER + "self_attn.k_proj.weight", lambda t: t[:16]), "weights.shape"),
    "quantised tensor": (put("fc.weight", lambda t: t.to(torch.float8_e4m3fn)), "weights.dtype"),
    "quantised config": (config(quantization_config={"quant_method": "awq"}), "weights.dtype"),
    "NaN": (put("fc.weight", lambda t: t.index_fill(0, torch.tensor([3]), torch.nan)), "weights.nonfinite"),
    "infinity": (put("norm.weight", lambda t: t.index_fill(0, torch.tensor([3]), torch.inf)), "weights.nonfinite"),
    "beyond fp16": (both(put("lm_head.weight", lambda t: t * 1e6), config(torch_dtype="float16")), "weights.nonfinite"),
    "fc random": (put("fc.weight", lambda t: noise(t.shape)), "weights.random"),
    "head random": (put("lm_head.weight", lambda t: noise(t.shape)), "weights.random"),
    "down random": (put(LAYER + "mlp.down_proj.weight", lambda t: noise(t.shape)), "weights.random"),
    "o random": (put(LAYER + "self_attn.o_proj.weight", lambda t: noise(t.shape)), "weights.random"),
    "fc zero": (put("fc.weight", torch.zeros_like), "weights.random"),
    "head uniform": (put("lm_head.weight", torch.rand_like), "weights.random"),
    "all random": (
        tensors(lambda t: t.update({n: noise(v.shape) for n, v in t.items() if v.dim() == 2})),
        "weights.random",
    ),
    "map absent": (drop("d2t"), "map.absent"),
    "both maps absent": (drop("d2t", "t2d"), "map.absent"),
    "map absolute": (put("d2t", ids_of), "map.absolute"),
    "map absolute, alone": (both(put("d2t", ids_of), drop("t2d")), "map.absolute"),
    "map zero": (put("d2t", torch.zeros_like), "map.wrong"),
    "map is arange": (put("d2t", lambda t: torch.arange(len(t))), "map.wrong"),
    "map unordered": (put("d2t", lambda t: swap(ids_of(t)) - torch.arange(len(t))), "map.wrong"),
    "map out of range": (put("d2t", lambda t: t + 400), "map.wrong"),
    "map of other data": (both(put("d2t", other_map), drop("t2d")), "map.wrong"),
    "masks contradict": (put("t2d", lambda t: ~t), "map.wrong"),
    "map of floats": (put("d2t", lambda t: t.float()), "map.wrong"),
    "map too short": (put("d2t", lambda t: t[:-1]), "map.short"),
    "head too short": (
        both(put("lm_head.weight", lambda t: t[:-4]), config(draft_vocab_size=188)),
        "map.short",
    ),
    "SGLang ids are taps": (ids([2, 4, 5], [2, 4, 5]), "config.dialect"),
    "vLLM ids are layers": (ids([1, 3, 4], [1, 3, 4]), "config.dialect"),
    "ids shifted in both": (ids([2, 4, 5], [3, 5, 6]), "config.dialect"),
    "ids too large": (ids([1, 3, 9], [2, 4, 5]), "config.dialect"),
    "ids are text": (ids(["1"], [2, 4, 5]), "config.dialect"),  # type: ignore[list-item]
    "an id is missing": (ids([1, 3], [2, 4]), "config.dialect"),
    "aux switched off": (config(eagle_config={"use_aux_hidden_state": False}), "config.dialect"),
    "aux count": (config(num_aux_hidden_states=4), "config.dialect"),
    "architecture unknown": (config(architectures=["LlamaForCausalLM"]), "config.dialect"),
    "architecture of one engine": (config(architectures=["Eagle3LlamaForCausalLM"]), "config.dialect"),
    "model type": (config(model_type="deepseek_v3"), "config.dialect"),
    "own entry broken": (config(eyas={"taps": "2,4,5"}), "config.dialect"),
    "default taps instead": (both(trained_on(1, 3, 6), ids(None, None)), "taps.default"),
    "default taps in vLLM": (both(trained_on(1, 3, 6), ids([0, 2, 5], None)), "taps.default"),
    "taps unordered": (trained_on(5, 2, 4), "taps.order"),
    "tap 0": (both(trained_on(0, 3, 5), ids([2, 4], [0, 3, 5])), "engine.limit"),
    "no draft_vocab_size": (config(("draft_vocab_size",)), "config.missing-key"),
    "draft_vocab_size null": (config(draft_vocab_size=None), "config.missing-key"),
    "target_hidden_size null": (config(target_hidden_size=None), "config.missing-key"),
    "no architectures": (config(("architectures",)), "config.missing-key"),
    "no sizes": (config(("intermediate_size", "num_attention_heads", "num_key_value_heads")), "config.missing-key"),
    "no context": (config(("max_position_embeddings",)), "config.missing-key"),
    "no vocabulary": (config(("vocab_size",)), "config.missing-key"),
    "RoPE contradicts": (config(rope_theta=50000.0), "config.rope"),
    "RoPE of another draft": (config(**THETA), "config.rope"),
    "RoPE is text": (config(rope_scaling="yarn"), "config.rope"),
    "tied": (config(tie_word_embeddings=True), "config.tied"),
    "norm flag": (config(norm_output=True), "config.norms"),
    "norm flag is text": (config(norm_output="yes"), "config.norms"),
    "bias without flag": (tensors(lambda t: t.update({"fc.bias": torch.ones(64)})), "config.norms"),
    "prefix": (rename("midlayer.", "model.midlayer."), "engine.limit"),
    "another target": (config(hidden_size=64, vocab_size=640), "target.other"),
    "another depth": (
        lambda folder: edit_config(
            folder, eyas=json.loads((folder / "config.json").read_text())["eyas"] | {"target_num_layers": 9}
        ),
        "target.other",
    ),
    "contract of another target": (
        lambda folder: (folder / "contract.json").write_text(
            tiny_contract(target={**tiny_contract().target.model_dump(), "num_layers": 9}).to_json()
        ),
        "contract.other",
    ),
    "contract of other taps": (
        lambda folder: (folder / "contract.json").write_text(tiny_contract(taps=[1, 4, 5]).to_json()),
        "contract.other",
    ),
    "witness of another contract": (
        lambda folder: (folder / "witness.safetensors").write_bytes(
            tiny_witness(tiny_contract(), contract_sha256="d" * 64).to_bytes()
        ),
        "witness.other",
    ),
    "witness of other taps": (
        lambda folder: (folder / "witness.safetensors").write_bytes(
            tiny_witness(tiny_contract(), taps=(1, 4, 5)).to_bytes()
        ),
        "witness.other",
    ),
}
ALLOWED_TOO = {
    # One edit, two truths: what is said of the file, and what follows for an engine.
    "contract of another target": {"witness.other"},
    "another target": {"map.wrong"},
    "contract of other taps": {"witness.other", "config.dialect"},
    "default taps instead": {"witness.other"},
    "default taps in vLLM": {"witness.other"},
    "taps unordered": {"witness.other"},
    "tap 0": {"witness.other"},
    "contract cut": {"witness.other"},
    "contract is a link": {"witness.other"},
    "bias without flag": {"engine.limit", "weights.missing"},
}
