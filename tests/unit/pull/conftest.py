"""Packages without a network: wheels in a folder, which the real pip fetches."""

import hashlib
import zipfile

import gguf
import numpy as np
import pytest
from tokenizers import pre_tokenizers

from eyas.pull.packages import Package


@pytest.fixture
def index(tmp_path_factory, monkeypatch):
    """A folder of wheels that is all that pip can see."""
    folder = tmp_path_factory.mktemp("index")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    return folder


@pytest.fixture
def make_wheel(index):
    """Put a wheel with one data file (or several: name → data) into the index; returns it as a pinned Package."""

    def make(project, member, data, version="1.0"):
        name = project.replace("-", "_")
        info = f"{name}-{version}.dist-info"
        path = index / f"{name}-{version}-py3-none-any.whl"
        with zipfile.ZipFile(path, "w") as archive:
            for path_inside, content in ({member: data} if isinstance(member, str) else member).items():
                archive.writestr(path_inside, content)
            archive.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {project}\nVersion: {version}\n")
            archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
            archive.writestr(f"{info}/RECORD", "")
        content = path.read_bytes()
        return Package(project, version, hashlib.sha256(content).hexdigest(), len(content))

    return make


@pytest.fixture(scope="session")
def tiny_gguf(tmp_path_factory):
    """The bytes of a llama GGUF with one layer, random weights and a byte vocabulary."""
    path = tmp_path_factory.mktemp("gguf") / "tiny.gguf"
    tokens = ["<|im_start|>", "<|im_end|>", "ab", *sorted(pre_tokenizers.ByteLevel.alphabet())]
    writer = gguf.GGUFWriter(path, "llama")
    sizes = {"block_count": 1, "context_length": 64, "embedding_length": 8, "feed_forward_length": 16}
    for key, value in {**sizes, "attention.head_count": 2, "attention.head_count_kv": 1}.items():
        writer.add_uint32(f"llama.{key}", value)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list(tokens)
    writer.add_token_types([3, 3] + [1] * 257)
    writer.add_token_merges(["a b"])
    writer.add_bos_token_id(0)
    writer.add_eos_token_id(1)
    random = np.random.default_rng(0)
    layer = {"attn_q": (8, 8), "attn_k": (4, 8), "attn_v": (4, 8), "attn_output": (8, 8), "ffn_norm": (8,)}
    layer |= {"attn_norm": (8,), "ffn_gate": (16, 8), "ffn_up": (16, 8), "ffn_down": (8, 16)}
    shapes = {"token_embd": (259, 8), "output_norm": (8,)} | {f"blk.0.{name}": size for name, size in layer.items()}
    for name, shape in shapes.items():
        writer.add_tensor(f"{name}.weight", random.standard_normal(shape).astype(np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path.read_bytes()
