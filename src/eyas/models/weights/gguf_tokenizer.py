"""A Hugging Face tokenizer from GGUF metadata: byte-level BPE and SentencePiece BPE.

A GGUF names the pre-tokenizer instead of describing it. Each name known here stands for the split of the
family that the name comes from; a name that is not known is an error, because a near miss gives other ids
without a word.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, normalizers, pre_tokenizers, processors
from tokenizers.models import BPE

from eyas.artifacts import write_json
from eyas.errors import EyasError
from eyas.models.weights.gguf_config import unsupported

NORMAL, CONTROL, USER_DEFINED = 1, 3, 4
UNKNOWN_PRE = "no pre-tokenizer is named"

LLAMA3_SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
QWEN2_SPLIT = LLAMA3_SPLIT.replace(r"\p{N}{1,3}", r"\p{N}")
TEKKEN_SPLIT = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*"
    r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
GPT2_SPLIT = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
# What llama.cpp itself does with a file that says "default".
DEFAULT_SPLITS = (r"[\p{P}\$\+<=>\^~\|]+", GPT2_SPLIT, r"\p{N}+", r"[0-9][0-9][0-9]")
DEEPSEEK_CODER_SPLITS = (r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", r"[一-龥ࠀ-一가-퟿]+")

DIGITS = ("smollm", "starcoder", "refact", "codeshell")
GPT2 = ("gpt-2", "phi-2")
LLAMA3 = ("llama-bpe", "llama3", "llama-v3", "smaug-bpe")
QWEN2 = ("qwen2", "deepseek-r1-qwen", "megrez")
KNOWN = (*DIGITS, *GPT2, *LLAMA3, *QWEN2, "tekken", "deepseek-coder", "default")


def write_tokenizer(metadata: Mapping[str, Any], folder: Path, vocab_size: int, context: int) -> None:
    """Write tokenizer.json and tokenizer_config.json (special tokens, chat template) for GGUF metadata.

    ``context`` is the model's longest input in tokens. Raises ``gguf.unsupported`` or ``artifact.corrupt``.
    """
    tokenizer = build_tokenizer(metadata)
    tokens = metadata["tokenizer.ggml.tokens"]
    if len(tokens) > vocab_size:
        raise EyasError(
            "artifact.corrupt",
            f"the GGUF file has {len(tokens)} tokens but embeddings for {vocab_size}",
            "fetch it again",
        )
    config: dict[str, Any] = {
        # The one class that takes tokenizer.json as it is; the named ones rebuild the pre-tokenizer from
        # their own.
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": context,
        "clean_up_tokenization_spaces": False,
        **_special_tokens(metadata),
    }
    if "tokenizer.chat_template" in metadata:
        config["chat_template"] = metadata["tokenizer.chat_template"]
    tokenizer.save(str(folder / "tokenizer.json"))
    write_json(folder / "tokenizer_config.json", config)


def build_tokenizer(metadata: Mapping[str, Any]) -> Tokenizer:
    """The tokenizer that GGUF metadata describes; raises ``gguf.unsupported`` or ``artifact.corrupt``."""
    kind, tokens = metadata.get("tokenizer.ggml.model"), metadata.get("tokenizer.ggml.tokens")
    if not tokens or len(set(tokens)) != len(tokens):
        raise EyasError("artifact.corrupt", "the GGUF file's list of tokens is empty or repeats one", "fetch it again")
    if metadata.get("tokenizer.ggml.precompiled_charsmap"):
        raise unsupported("a tokenizer with a precompiled character map")
    if kind == "gpt2":
        tokenizer, bos_default = _byte_level(metadata, tokens)
    elif kind == "llama":
        tokenizer, bos_default = _sentencepiece(metadata, tokens), True
    else:
        raise unsupported(
            f"the tokenizer model {kind!r} is neither gpt2 (byte-level BPE) nor llama (SentencePiece BPE)"
        )
    _add_special(tokenizer, metadata, tokens)
    add_bos = metadata.get("tokenizer.ggml.add_bos_token", bos_default)
    ends = _ends(metadata, add_bos, metadata.get("tokenizer.ggml.add_eos_token", False))
    byte_level: list[Any] = [processors.ByteLevel(trim_offsets=False)] if kind == "gpt2" else []
    steps = byte_level + ends
    if steps:
        tokenizer.post_processor = steps[0] if len(steps) == 1 else processors.Sequence(steps)
    return tokenizer


def merges_from_scores(tokens: Sequence[str], scores: Sequence[float], types: Sequence[int]) -> list[tuple[str, str]]:
    """The BPE merges that SentencePiece scores imply: all splits of a token in two tokens, best first."""
    ids = {token: i for i, token in enumerate(tokens) if types[i] == NORMAL}
    merges: list[tuple[float, int, int, str, str]] = []
    for token, i in ids.items():
        for cut in range(1, len(token)):
            left, right = ids.get(token[:cut]), ids.get(token[cut:])
            if left is not None and right is not None:
                merges.append((-scores[i], left, right, token[:cut], token[cut:]))
    return [(left, right) for *_, left, right in sorted(merges)]


def _byte_level(metadata: Mapping[str, Any], tokens: Sequence[str]) -> tuple[Tokenizer, bool]:
    pre = metadata.get("tokenizer.ggml.pre")
    qwen = str(metadata.get("general.architecture")).startswith("qwen")
    # Files from before the key existed, and converters that did not know the model: the architecture still
    # tells.
    if pre in (None, "default") and qwen:
        pre = "qwen2"
    if pre not in KNOWN:
        raise unsupported(f"the pre-tokenizer {pre!r} is none of {', '.join(KNOWN)}" if pre else UNKNOWN_PRE)
    if "tokenizer.ggml.merges" not in metadata:
        raise EyasError("artifact.corrupt", "the GGUF file has a BPE vocabulary without merges", "fetch it again")
    vocab = {token: i for i, token in enumerate(tokens)}
    merges = _pairs(metadata["tokenizer.ggml.merges"], vocab)
    whole_words = pre in LLAMA3 or pre == "tekken"
    tokenizer = Tokenizer(BPE(vocab=vocab, merges=merges, ignore_merges=whole_words))
    if pre in QWEN2:
        tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = _splitter(pre)
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer, pre in LLAMA3 or pre in ("tekken", "deepseek-coder")


def _splitter(pre: str) -> pre_tokenizers.PreTokenizer:
    if pre in GPT2:
        return pre_tokenizers.ByteLevel(add_prefix_space=False)
    if pre in DIGITS:
        digits = pre_tokenizers.Digits(individual_digits=True)
        return pre_tokenizers.Sequence([digits, pre_tokenizers.ByteLevel(add_prefix_space=False)])
    splits: tuple[str, ...] = (QWEN2_SPLIT,)
    if pre in LLAMA3:
        splits = (LLAMA3_SPLIT,)
    elif pre == "tekken":
        splits = (TEKKEN_SPLIT,)
    elif pre == "deepseek-coder":
        splits = DEEPSEEK_CODER_SPLITS
    elif pre == "default":
        splits = DEFAULT_SPLITS
    steps: list[Any] = [pre_tokenizers.Split(Regex(split), behavior="isolated") for split in splits]
    if pre == "deepseek-coder":
        steps.append(pre_tokenizers.Digits(individual_digits=True))
    return pre_tokenizers.Sequence([*steps, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])


def _sentencepiece(metadata: Mapping[str, Any], tokens: Sequence[str]) -> Tokenizer:
    vocab = {token: i for i, token in enumerate(tokens)}
    types = metadata.get("tokenizer.ggml.token_type") or [NORMAL] * len(tokens)
    if "tokenizer.ggml.merges" in metadata:
        merges = _pairs(metadata["tokenizer.ggml.merges"], vocab)
    elif "tokenizer.ggml.scores" in metadata:
        merges = merges_from_scores(tokens, metadata["tokenizer.ggml.scores"], types)
    else:
        raise EyasError("artifact.corrupt", "the GGUF file's tokens have neither scores nor merges", "fetch it again")
    unknown = tokens[int(metadata.get("tokenizer.ggml.unknown_token_id", 0))]
    tokenizer = Tokenizer(BPE(vocab=vocab, merges=merges, unk_token=unknown, fuse_unk=True, byte_fallback=True))
    prefix = metadata.get("tokenizer.ggml.add_space_prefix", True)
    spaces: list[Any] = [normalizers.Prepend("▁")] if prefix else []
    tokenizer.normalizer = normalizers.Sequence([*spaces, normalizers.Replace(" ", "▁")])
    steps: list[Any] = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    tokenizer.decoder = decoders.Sequence([*steps, decoders.Strip(" ", 1, 0)] if prefix else steps)
    return tokenizer


def _add_special(tokenizer: Tokenizer, metadata: Mapping[str, Any], tokens: Sequence[str]) -> None:
    types = metadata.get("tokenizer.ggml.token_type") or [NORMAL] * len(tokens)
    if len(types) != len(tokens):
        raise EyasError("artifact.corrupt", "the GGUF file's token types do not match its tokens", "fetch it again")
    named = set(_special_tokens(metadata).values())
    for token, kind in zip(tokens, types, strict=True):
        if kind == CONTROL or token in named:
            tokenizer.add_special_tokens([AddedToken(token, normalized=False, special=True)])
        elif kind == USER_DEFINED:
            tokenizer.add_tokens([AddedToken(token, normalized=False, special=False)])


def _special_tokens(metadata: Mapping[str, Any]) -> dict[str, str]:
    tokens = metadata["tokenizer.ggml.tokens"]
    named: dict[str, str] = {}
    for name, key in (("bos", "bos"), ("eos", "eos"), ("unk", "unknown"), ("pad", "padding")):
        token_id = metadata.get(f"tokenizer.ggml.{key}_token_id")
        if token_id is None:
            continue
        if not 0 <= token_id < len(tokens):
            raise EyasError("artifact.corrupt", f"the GGUF file's {key} token is {token_id}", "fetch it again")
        named[f"{name}_token"] = tokens[token_id]
    return named


def _ends(metadata: Mapping[str, Any], add_bos: bool, add_eos: bool) -> list[Any]:
    """The step that puts the begin and end tokens around a text, if the file wants any."""
    special = _special_tokens(metadata)
    for wanted, name in ((add_bos, "bos_token"), (add_eos, "eos_token")):
        if wanted and name not in special:
            raise EyasError("artifact.corrupt", f"the GGUF file adds a {name} but names none", "fetch it again")
    if not add_bos and not add_eos:
        return []
    bos, eos = ([special["bos_token"]] if add_bos else []), ([special["eos_token"]] if add_eos else [])
    pair = [*bos, "$A", *eos, *(f"{token}:1" for token in bos), "$B:1", *(f"{token}:1" for token in eos)]
    ids = [(token, metadata["tokenizer.ggml.tokens"].index(token)) for token in dict.fromkeys(bos + eos)]
    return [processors.TemplateProcessing(single=[*bos, "$A", *eos], pair=pair, special_tokens=ids)]


def _pairs(merges: Sequence[str], vocab: Mapping[str, int]) -> list[tuple[str, str]]:
    pairs: list[tuple[str, str]] = []
    for merge in merges:
        left, _, right = merge.partition(" ")
        if left not in vocab or right not in vocab or left + right not in vocab:
            raise EyasError(
                "artifact.corrupt", f"the GGUF file's merge {merge!r} joins no two tokens", "fetch it again"
            )
        pairs.append((left, right))
    return pairs
