"""From a folder to a target: what is accepted, what is refused, and with which code."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import AutoModelForCausalLM, GPTNeoXConfig, LlamaConfig

from eyas.errors import EyasError
from eyas.kernels import Rows
from eyas.models.registry import load_target, parse_numerics
from eyas.models.target import Target

TIED = LlamaConfig(
    vocab_size=50,
    hidden_size=32,
    intermediate_size=48,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    max_position_embeddings=32,
    tie_word_embeddings=True,
)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    torch.manual_seed(0)
    AutoModelForCausalLM.from_config(TIED).save_pretrained(tmp_path)
    return tmp_path


def change(folder: Path, edit: Callable[[dict[str, Tensor]], object]) -> None:
    tensors = load_file(folder / "model.safetensors")
    edit(tensors)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})


def change_config(folder: Path, **values: object) -> None:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, **values}))


def logits(target: Target) -> Tensor:
    n = torch.arange(6)
    rows = Rows(n, n, torch.zeros_like(n), n - 1, n, [n[:0]])
    out = target.new_outputs(6)
    target.forward(rows, target.new_cache(6), out)
    return target.logits(out.hidden)


def test_a_tied_checkpoint_may_hold_its_head_again_if_bit_equal(folder: Path) -> None:
    before = logits(load_target(folder))
    change(folder, lambda t: t.update({"lm_head.weight": t["model.embed_tokens.weight"].clone()}))
    assert torch.equal(logits(load_target(folder)), before)


def test_a_tied_checkpoint_with_another_head_is_an_error(folder: Path) -> None:
    change(folder, lambda t: t.update({"lm_head.weight": t["model.embed_tokens.weight"] + 1e-6}))
    with pytest.raises(EyasError, match="tie_word_embeddings") as caught:
        load_target(folder)
    assert caught.value.code == "model.tensor-unknown"
    change_config(folder, tie_word_embeddings=False)
    load_target(folder)


def test_rotary_buffers_of_old_checkpoints_are_left_aside(folder: Path) -> None:
    before = logits(load_target(folder))
    change(folder, lambda t: t.update({"model.layers.0.self_attn.rotary_emb.inv_freq": torch.ones(4)}))
    assert torch.equal(logits(load_target(folder)), before)


def test_any_other_extra_tensor_is_an_error(folder: Path) -> None:
    change(folder, lambda t: t.update({"model.layers.0.self_attn.q_proj.bias": torch.ones(32)}))
    with pytest.raises(EyasError, match=r"q_proj\.bias") as caught:
        load_target(folder)
    assert caught.value.code == "model.tensor-unknown"


def test_a_missing_tensor_is_an_error(folder: Path) -> None:
    change(folder, lambda t: t.pop("model.layers.1.mlp.up_proj.weight"))
    with pytest.raises(EyasError, match=r"layers\.1\.mlp\.up_proj") as caught:
        load_target(folder)
    assert caught.value.code == "model.tensor-missing"


def test_a_config_of_another_shape_is_an_error(folder: Path) -> None:
    change_config(folder, intermediate_size=40)
    with pytest.raises(EyasError, match=r"config\.json says") as caught:
        load_target(folder)
    assert caught.value.code == "model.tensor-shape"


def test_fp16_weights_are_converted(folder: Path) -> None:
    change(folder, lambda t: t.update({name: tensor.half() for name, tensor in t.items()}))
    stored = load_file(folder / "model.safetensors")["model.embed_tokens.weight"]
    target = load_target(folder, torch.float32)
    assert target.dtype == torch.float32
    assert torch.equal(target.embedding(), stored.float())
    assert load_target(folder, torch.bfloat16, "eager").dtype == torch.bfloat16


def test_integer_weights_are_refused(folder: Path) -> None:
    change(folder, lambda t: t.update({"model.norm.weight": torch.ones(32, dtype=torch.int8)}))
    with pytest.raises(EyasError, match="I8") as caught:
        load_target(folder)
    assert caught.value.code == "model.config"


def test_a_quantised_checkpoint_is_refused(folder: Path) -> None:
    change_config(folder, quantization_config={"quant_method": "awq"})
    with pytest.raises(EyasError, match="awq") as caught:
        load_target(folder)
    assert caught.value.code == "model.config"


def test_a_cut_checkpoint_is_an_error(folder: Path) -> None:
    file = folder / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-10])
    with pytest.raises(EyasError) as caught:
        load_target(folder)
    assert caught.value.code == "artifact.corrupt"


def test_an_empty_folder_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(EyasError) as caught:
        load_target(tmp_path)
    assert caught.value.code == "artifact.missing"


@pytest.mark.parametrize("architecture", ["NoSuchForCausalLM", "LlamaModel", "BertForMaskedLM"])
def test_an_architecture_that_is_no_causal_model_is_refused(folder: Path, architecture: str) -> None:
    change_config(folder, architectures=[architecture])
    with pytest.raises(EyasError, match=architecture) as caught:
        load_target(folder)
    assert caught.value.code == "model.unknown-architecture"


def test_code_in_the_folder_is_never_run(folder: Path) -> None:
    (folder / "modeling_own.py").write_text("raise SystemExit('was run')\n")
    auto_map = {"AutoConfig": "modeling_own.Config", "AutoModelForCausalLM": "modeling_own.Model"}
    change_config(folder, architectures=["OwnForCausalLM"], model_type="own", auto_map=auto_map)
    with pytest.raises(EyasError) as caught:
        load_target(folder)
    assert caught.value.code == "model.unknown-architecture"


def test_the_fallback_names_tensors_too(tmp_path: Path) -> None:
    config = GPTNeoXConfig(
        vocab_size=50, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4
    )
    AutoModelForCausalLM.from_config(config).save_pretrained(tmp_path)
    name = "gpt_neox.layers.1.mlp.dense_h_to_4h.bias"
    whole = load_file(tmp_path / "model.safetensors")
    for code, edit in (
        ("missing", lambda t: t.pop(name)),
        ("unknown", lambda t: t.update({"gpt_neox.extra.weight": torch.ones(1)})),
        ("shape", lambda t: t.update({name: torch.ones(47)})),
    ):
        save_file(whole, tmp_path / "model.safetensors", metadata={"format": "pt"})
        change(tmp_path, edit)
        with pytest.raises(EyasError, match="gpt_neox") as caught:
            load_target(tmp_path)
        assert caught.value.code == f"model.tensor-{code}"


def test_the_fallback_refuses_a_config_that_contradicts_itself(tmp_path: Path) -> None:
    config = GPTNeoXConfig(hidden_size=32, intermediate_size=48, num_hidden_layers=1, num_attention_heads=4)
    AutoModelForCausalLM.from_config(config).save_pretrained(tmp_path)
    change_config(tmp_path, num_attention_heads=5)
    with pytest.raises(EyasError, match="divisible") as caught:
        load_target(tmp_path)
    assert caught.value.code == "model.config"


def test_dtype_and_backend_are_among_the_known(folder: Path) -> None:
    assert parse_numerics("fp32") == (torch.float32, "none")
    assert parse_numerics("bf16") == (torch.bfloat16, "none")
    assert parse_numerics("int8") == (torch.float32, "int8")
    for call in (
        lambda: parse_numerics("int3"),
        lambda: load_target(folder, torch.float16),
        lambda: load_target(folder, backend="abacus"),
    ):
        with pytest.raises(EyasError) as caught:
            call()
        assert caught.value.code == "flags.range"


def test_taps_outside_the_target_are_an_error(folder: Path) -> None:
    target = load_target(folder)
    target.new_outputs(1, (0, 2))
    for tap in (-1, 3):
        with pytest.raises(EyasError) as caught:
            target.new_outputs(1, (tap,))
        assert caught.value.code == "taps.range"
