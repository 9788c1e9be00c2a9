import json

import pytest
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
from transformers import AutoTokenizer
from transformers.integrations.gguf.gguf_tokenizer_mapping import GGUF_PRE_TOKENIZER_SPLITS
from transformers.models.qwen2.tokenization_qwen2 import PRETOKENIZE_REGEX

from eyas.errors import EyasError
from eyas.models.weights.gguf_tokenizer import build_tokenizer, merges_from_scores, write_tokenizer

CORPUS = [
    "The quick brown fox jumps over 12345 lazy dogs; don't they've I'LL WE'RE?",
    "def f(x):\n    return x ** 2  # naïve café Ünïcode 漢字\r\n\r\n\tend 2024-01-31",
    "tokens, tokens and more tokens: the the the quick quick 999 1000000",
]
TEXTS = [*CORPUS, "", " ", "  two  spaces ", "½ ٣٤ 7", "🦅\n\n\n  x", "e\u0301 ends", "<|end|>a<|im|> b"]


def train_bpe(splitter, normalizer=None):
    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizer
    tokenizer.pre_tokenizer = splitter
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    special = ["<|unk|>", "<|im|>", "<|end|>"]
    trainer = trainers.BpeTrainer(
        vocab_size=320, special_tokens=special, initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator(CORPUS * 3, trainer)
    return tokenizer


def byte_level_metadata(tokenizer, pre, arch="llama"):
    raw = json.loads(tokenizer.to_str())["model"]
    tokens = sorted(raw["vocab"], key=raw["vocab"].get)
    return {
        "general.architecture": arch,
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": pre,
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [3 if token.startswith("<|") else 1 for token in tokens],
        "tokenizer.ggml.merges": [" ".join(merge) for merge in raw["merges"]],
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.add_bos_token": False,
    }


def digits_splitter():
    return pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )


def reference_splitters():
    splits = {pre: GGUF_PRE_TOKENIZER_SPLITS[pre] for pre in ("llama-bpe", "tekken")} | {"qwen2": PRETOKENIZE_REGEX}
    last = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    made = {
        pre: pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(split), behavior="isolated"), last])
        for pre, split in splits.items()
    }
    return {**made, "smollm": digits_splitter(), "gpt-2": pre_tokenizers.ByteLevel(add_prefix_space=False)}


@pytest.mark.parametrize("pre", ["smollm", "gpt-2", "llama-bpe", "qwen2", "tekken"])
def test_each_named_pre_tokenizer_gives_the_ids_of_its_family(pre):
    original = train_bpe(reference_splitters()[pre], normalizers.NFC() if pre == "qwen2" else None)
    rebuilt = build_tokenizer(byte_level_metadata(original, pre))
    for text in TEXTS:
        assert rebuilt.encode(text).ids == original.encode(text).ids, text
        if pre != "qwen2":
            assert rebuilt.decode(rebuilt.encode(text).ids, skip_special_tokens=False) == text


def test_a_qwen_file_without_a_name_splits_as_qwen_does():
    original = train_bpe(reference_splitters()["qwen2"], normalizers.NFC())
    metadata = byte_level_metadata(original, "default", arch="qwen2")
    rebuilt = build_tokenizer(metadata)
    assert all(rebuilt.encode(text).ids == original.encode(text).ids for text in TEXTS)


@pytest.mark.parametrize(("pre", "bos"), [("llama-bpe", True), ("smollm", False), ("qwen2", False)])
def test_the_first_token_follows_the_file_or_the_family(pre, bos):
    metadata = byte_level_metadata(train_bpe(digits_splitter()), pre)
    assert build_tokenizer(metadata | {"tokenizer.ggml.add_bos_token": True}).encode("a").ids[0] == 1
    del metadata["tokenizer.ggml.add_bos_token"]
    assert (build_tokenizer(metadata).encode("a").ids[0] == 1) == bos
    assert build_tokenizer(metadata).encode("a", add_special_tokens=False).ids[0] != 1


def sentencepiece_reference():
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    special = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    trainer = trainers.BpeTrainer(vocab_size=420, special_tokens=special, show_progress=False)
    tokenizer.train_from_iterator(CORPUS * 3, trainer)
    return tokenizer


def test_sentencepiece_scores_give_back_the_merges():
    original = sentencepiece_reference()
    raw = json.loads(original.to_str())["model"]
    tokens = sorted(raw["vocab"], key=raw["vocab"].get)
    ranks = {"".join(pair): -float(rank) for rank, pair in enumerate(raw["merges"])}
    types = [2, 3, 3] + [6] * 256 + [1] * (len(tokens) - 259)
    metadata = {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.scores": [ranks.get(token, -1e6) for token in tokens],
        "tokenizer.ggml.token_type": types,
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
    }
    rebuilt = build_tokenizer(metadata)
    for text in [*TEXTS, "a<s>b"]:
        assert rebuilt.encode(text).ids[1:] == original.encode(text).ids, text
        assert rebuilt.encode(text).ids[0] == 1
        if "<s>" not in text:
            assert rebuilt.decode(rebuilt.encode(text).ids) == text
    bare = build_tokenizer(metadata | {"tokenizer.ggml.add_space_prefix": False, "tokenizer.ggml.add_bos_token": False})
    assert bare.decode(bare.encode(" the fox").ids) == " the fox"


def test_merges_are_ordered_by_score_and_use_only_normal_tokens():
    tokens, scores = ["a", "b", "ab", "ba", "abb", "c", "bc"], [-9, -9, -2, -1, -3, -9, -0.5]
    types = [1, 1, 1, 1, 1, 3, 1]
    assert merges_from_scores(tokens, scores, types) == [("b", "a"), ("a", "b"), ("ab", "b")]


def test_user_defined_tokens_stay_whole_without_being_special():
    metadata = byte_level_metadata(train_bpe(digits_splitter()), "smollm")
    types = list(metadata["tokenizer.ggml.token_type"])
    types[0] = 4
    tokenizer = build_tokenizer(metadata | {"tokenizer.ggml.token_type": types})
    ids = tokenizer.encode("x<|unk|>y<|end|>").ids
    assert 0 in ids
    assert tokenizer.decode(ids, skip_special_tokens=True) == "x<|unk|>y"


def test_the_files_load_through_transformers_as_they_are(tmp_path):
    original = train_bpe(digits_splitter())
    template = {"tokenizer.chat_template": "{{ messages[0].content }}"}
    metadata = byte_level_metadata(original, "smollm") | template
    write_tokenizer(metadata, tmp_path, 320, 128)
    loaded = AutoTokenizer.from_pretrained(tmp_path)
    for text in TEXTS:
        assert loaded(text).input_ids == original.encode(text).ids
    named = (loaded.bos_token, loaded.eos_token, loaded.model_max_length)
    assert named == ("<|im|>", "<|end|>", 128)
    message = [{"role": "user", "content": "a 12"}]
    assert loaded.apply_chat_template(message, tokenize=False) == "a 12"


def test_more_tokens_than_embeddings_are_refused(tmp_path):
    metadata = byte_level_metadata(train_bpe(digits_splitter()), "smollm")
    with pytest.raises(EyasError, match=r"artifact.corrupt.*embeddings for 300"):
        write_tokenizer(metadata, tmp_path, 300, 128)
