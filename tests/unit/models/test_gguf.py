import gguf
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import pre_tokenizers
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from eyas.errors import EyasError
from eyas.models.weights.gguf import convert_gguf, hf_name, rotate_half_order
from eyas.models.weights.safetensors import open_checkpoint

SHAPE = dict(  # noqa: C408
    vocab_size=320,
    hidden_size=32,
    intermediate_size=64,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    max_position_embeddings=128,
)
TOKENS = ["<|unk|>", "<|im|>", "<|end|>", "ab", *sorted(pre_tokenizers.ByteLevel.alphabet())]
VOCABULARY = {
    "tokenizer.ggml.model": "gpt2",
    "tokenizer.ggml.pre": "smollm",
    "tokenizer.ggml.tokens": TOKENS,
    "tokenizer.ggml.token_type": [3, 3, 3] + [1] * 257,
    "tokenizer.ggml.merges": ["a b"],
    "tokenizer.ggml.bos_token_id": 1,
    "tokenizer.ggml.eos_token_id": 2,
    "tokenizer.ggml.eot_token_id": 0,
}
FAMILIES = {
    "llama": lambda: LlamaForCausalLM(LlamaConfig(**SHAPE, rms_norm_eps=1e-5, tie_word_embeddings=False)),
    "llama-tied": lambda: LlamaForCausalLM(LlamaConfig(**SHAPE, tie_word_embeddings=True)),
    "qwen2": lambda: Qwen2ForCausalLM(Qwen2Config(**SHAPE, tie_word_embeddings=False)),
    "qwen3": lambda: Qwen3ForCausalLM(Qwen3Config(**SHAPE, head_dim=16, tie_word_embeddings=True)),
}


def interleave(weight, heads):
    """The order of q and k rows that llama.cpp's converter writes for the llama architecture."""
    return weight.reshape(heads, 2, weight.shape[0] // heads // 2, -1).swapaxes(1, 2).reshape(weight.shape)


def write_gguf(path, model, arch, changes=None, extra=None, kind=gguf.GGMLQuantizationType.F32):
    """Write a transformers model as llama.cpp does; ``changes`` replaces metadata (None removes a key)."""
    config = model.config
    metadata = {
        "general.architecture": arch,
        **VOCABULARY,
        f"{arch}.block_count": config.num_hidden_layers,
        f"{arch}.context_length": config.max_position_embeddings,
        f"{arch}.embedding_length": config.hidden_size,
        f"{arch}.feed_forward_length": config.intermediate_size,
        f"{arch}.attention.head_count": config.num_attention_heads,
        f"{arch}.attention.head_count_kv": config.num_key_value_heads,
        f"{arch}.attention.layer_norm_rms_epsilon": config.rms_norm_eps,
        f"{arch}.attention.key_length": config.head_dim if arch != "qwen2" else 8,
        f"{arch}.rope.freq_base": float(config.rope_parameters["rope_theta"]),
        **(changes or {}),
    }
    writer = gguf.GGUFWriter(path, metadata.pop("general.architecture"))
    for key, value in metadata.items():
        if value is not None:
            add(writer, key, value)
    names = gguf.get_tensor_name_map(getattr(gguf.MODEL_ARCH, arch.upper()), config.num_hidden_layers)
    heads = {"q_proj": config.num_attention_heads, "k_proj": config.num_key_value_heads}
    for name, tensor in model.state_dict().items():
        if name == "lm_head.weight" and config.tie_word_embeddings:
            continue
        values = tensor.numpy()
        if arch == "llama" and name.split(".")[-2] in heads:
            values = interleave(values, heads[name.split(".")[-2]])
        quantised = kind if values.ndim == 2 else gguf.GGMLQuantizationType.F32
        name = names.get_name(name, try_suffixes=(".weight", ".bias"))
        writer.add_tensor(name, gguf.quantize(np.ascontiguousarray(values), quantised), raw_dtype=quantised)
    for name, values in (extra or {}).items():
        writer.add_tensor(name, values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def add(writer, key, value):
    if isinstance(value, bool):
        writer.add_bool(key, value)
    elif isinstance(value, int):
        writer.add_uint32(key, value)
    elif isinstance(value, float):
        writer.add_float32(key, value)
    elif isinstance(value, str):
        writer.add_string(key, value)
    else:
        writer.add_array(key, value)


@pytest.fixture(scope="module")
def tiny():
    torch.manual_seed(0)
    return {family: make().eval() for family, make in FAMILIES.items()}


def converted(tmp_path, model, arch, **options):
    (tmp_path / "out").mkdir()
    provenance = convert_gguf(write_gguf(tmp_path / "m.gguf", model, arch, **options), tmp_path / "out")
    return tmp_path / "out", provenance


def refusal(tmp_path, model, arch="llama", **options):
    with pytest.raises(EyasError) as caught:
        converted(tmp_path, model, arch, **options)
    return caught.value


@pytest.mark.parametrize("family", FAMILIES)
def test_a_model_comes_back_bit_for_bit(tmp_path, tiny, family):
    folder, _ = converted(tmp_path, tiny[family], family.split("-")[0])
    loaded = AutoModelForCausalLM.from_pretrained(folder).eval()
    assert type(loaded) is type(tiny[family])
    state = tiny[family].state_dict()
    assert set(loaded.state_dict()) == set(state)
    assert all(torch.equal(tensor, state[name]) for name, tensor in loaded.state_dict().items())
    stored = set(open_checkpoint(folder).infos)
    assert ("lm_head.weight" in stored) != tiny[family].config.tie_word_embeddings
    assert loaded.generation_config.eos_token_id == [2, 0]
    tokens = torch.arange(20)[None]
    with torch.no_grad():
        assert torch.equal(loaded(tokens).logits, tiny[family](tokens).logits)


@pytest.mark.parametrize("kind", ["Q8_0", "Q4_1", "F16", "BF16"])
def test_quantised_tensors_are_what_the_blocks_say(tmp_path, tiny, kind):
    kind = gguf.GGMLQuantizationType[kind]
    folder, provenance = converted(tmp_path, tiny["qwen2"], "qwen2", kind=kind)
    name = "model.layers.1.mlp.up_proj.weight"
    values = tiny["qwen2"].state_dict()[name].numpy()
    expected = gguf.dequantize(gguf.quantize(values, kind), kind).reshape(values.shape)
    assert torch.equal(open_checkpoint(folder).load([name])[name], torch.from_numpy(expected.copy()))
    assert provenance["quantisation"] == sorted({"F32", kind.name})


def test_weights_can_be_stored_in_bfloat16(tmp_path, tiny):
    path = write_gguf(tmp_path / "m.gguf", tiny["llama"], "llama")
    convert_gguf(path, tmp_path, dtype="bfloat16")
    name = "model.norm.weight"
    assert torch.equal(open_checkpoint(tmp_path).load([name])[name], tiny["llama"].state_dict()[name].bfloat16())
    assert AutoConfig.from_pretrained(tmp_path).dtype == torch.bfloat16


@settings(max_examples=25, deadline=None)
@given(st.integers(1, 5), st.integers(1, 6), st.integers(0, 3))
def test_the_row_order_is_undone_for_weights_and_biases(heads, half, columns):
    shape = (heads * half * 2, columns) if columns else (heads * half * 2,)
    values = np.arange(int(np.prod(shape))).reshape(shape)
    mixed = interleave(values, heads) if columns else interleave(values[:, None], heads)[:, 0]
    assert np.array_equal(rotate_half_order(mixed, heads), values)


def llama3_factors(size, theta, factor):
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    scaling = {"rope_type": "llama3", "factor": factor, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
    scaling |= {"original_max_position_embeddings": 8192, "rope_theta": theta}
    config = LlamaConfig(hidden_size=size, num_attention_heads=1, rope_parameters=scaling)
    scaled, _ = ROPE_INIT_FUNCTIONS["llama3"](config, "cpu")
    return (theta ** (-torch.arange(0, size, 2) / size) / scaled).float().numpy()


def test_llama3_factors_become_the_llama3_scaling(tmp_path, tiny):
    changes = {"llama.rope.freq_base": 500000.0}
    extra = {"rope_freqs.weight": llama3_factors(8, 500000.0, 8.0)}
    folder, _ = converted(tmp_path, tiny["llama"], "llama", changes=changes, extra=extra)
    rope = AutoConfig.from_pretrained(folder).rope_parameters
    assert rope["rope_type"] == "llama3"
    assert (rope["factor"], rope["rope_theta"]) == (8.0, 500000.0)
    assert "rope_freqs" not in str(set(open_checkpoint(folder).infos))


def test_other_factors_per_dimension_are_refused(tmp_path, tiny):
    error = refusal(tmp_path, tiny["llama"], extra={"rope_freqs.weight": np.array([1, 2, 3, 9], dtype=np.float32)})
    assert error.code == "gguf.unsupported"


def test_linear_and_yarn_scaling_and_the_sliding_window_are_kept(tmp_path, tiny):
    changes = {
        "llama.rope.scaling.type": "yarn",
        "llama.rope.scaling.factor": 4.0,
        "llama.rope.scaling.original_context_length": 32,
        "llama.attention.sliding_window": 48,
    }
    folder, _ = converted(tmp_path, tiny["llama"], "llama", changes=changes)
    config = AutoConfig.from_pretrained(folder)
    assert (config.model_type, config.sliding_window) == ("mistral", 48)
    expected = {
        "rope_type": "yarn",
        "factor": 4.0,
        "original_max_position_embeddings": 32,
        "rope_theta": 10000.0,
    }
    assert expected.items() <= config.rope_parameters.items()


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({"llama.expert_count": 8}, "expert_count"),
        ({"llama.rope.dimension_count": 4}, "rope.dimension_count"),
        ({"llama.rope.scaling.type": "longrope"}, "longrope"),
        ({"llama.attention.head_count_kv": [2, 1]}, "differs by layer"),
        ({"tokenizer.ggml.pre": "made-up"}, "made-up"),
        ({"tokenizer.ggml.pre": None}, "no pre-tokenizer"),
        ({"tokenizer.ggml.model": "bert"}, "bert"),
    ],
)
def test_what_cannot_be_converted_is_named(tmp_path, tiny, changes, word):
    error = refusal(tmp_path, tiny["llama"], changes=changes)
    assert error.code == "gguf.unsupported"
    assert word in error.cause


def test_an_unknown_architecture_or_tensor_is_named(tmp_path, tiny):
    error = refusal(tmp_path, tiny["llama"], changes={"general.architecture": "mamba"})
    assert (error.code, "mamba" in error.cause) == ("gguf.unsupported", True)
    with pytest.raises(EyasError, match=r"gguf.unsupported.*blk.0.ffn_gate_exps.weight"):
        hf_name("blk.0.ffn_gate_exps.weight")


@pytest.mark.parametrize(
    "changes",
    [
        {"llama.block_count": None},
        {"tokenizer.ggml.merges": None},
        {"tokenizer.ggml.token_type": [1, 1]},
        {"tokenizer.ggml.eos_token_id": 9999},
        {"tokenizer.ggml.add_bos_token": True, "tokenizer.ggml.bos_token_id": None},
        {"tokenizer.ggml.tokens": ["a", "a"]},
        {"tokenizer.ggml.merges": ["nopair"]},
        {"tokenizer.ggml.merges": ["a 漢"]},
    ],
)
def test_missing_or_senseless_metadata_is_named(tmp_path, tiny, changes):
    assert refusal(tmp_path, tiny["llama"], changes=changes).code == "artifact.corrupt"


def test_a_cut_file_is_found(tmp_path, tiny):
    whole = write_gguf(tmp_path / "m.gguf", tiny["llama"], "llama").read_bytes()
    for size in (0, 3, 20, 300, len(whole) // 2, len(whole) - 64):
        (tmp_path / "cut.gguf").write_bytes(whole[:size])
        with pytest.raises(EyasError) as caught:
            convert_gguf(tmp_path / "cut.gguf", tmp_path)
        assert caught.value.code == "artifact.corrupt"
    with pytest.raises(EyasError, match=r"artifact.missing"):
        convert_gguf(tmp_path / "none.gguf", tmp_path)
