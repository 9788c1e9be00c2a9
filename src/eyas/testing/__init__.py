"""What tests share: the tiny trained pair, a target and its draft that are small enough to run in milliseconds.

Made by scripts/make_tiny_pair.py: 8 layers, hidden 64, vocabulary 512, taps (2, 4, 5), draft vocabulary 256, trained
on templated chats, so that the draft's proposals are accepted and its faults can be seen.
"""

from __future__ import annotations

from pathlib import Path

import torch
from tokenizers import Tokenizer

from eyas.draft.checkpoint import load_draft
from eyas.draft.model import DraftModel
from eyas.models.registry import load_target
from eyas.models.target import Target

TINY_PROMPTS: tuple[str, ...] = (
    "Tell me about the fox.",
    "How do I make pancakes?",
    "Write a story about Emma and a whale.",
    "Count from 3 to 9.",
    "Where does the camel live?",
    "Give me a recipe for soup.",
    "Tell a story about Ben and a horse.",
    "What is a penguin?",
)
"""What the pair was trained to be asked."""

END_OF_TURN = "<|im_end|>"


def tiny_pair() -> tuple[Path, Path]:
    """(target folder, draft folder), read-only package data."""
    data = Path(__file__).parent / "data"
    return data / "tiny-target", data / "tiny-draft"


def load_tiny_target(backend: str = "auto", dtype: torch.dtype = torch.float32) -> Target:
    """The tiny target, ready to run; weights are stored as bf16."""
    return load_target(tiny_pair()[0], dtype, backend)


def load_tiny_draft(target: Target, backend: str = "auto") -> DraftModel:
    """The tiny draft, packed to serve ``target``: the tiny one, or one of its shape."""
    return load_draft(tiny_pair()[1], target, backend)


def tiny_tokenizer() -> Tokenizer:
    """The tiny target's tokenizer: byte-level BPE, 512 tokens."""
    return Tokenizer.from_file(str(tiny_pair()[0] / "tokenizer.json"))


def tiny_prompts() -> list[list[int]]:
    """The token ids of TINY_PROMPTS, rendered as the tiny target's chat template does."""
    tokenizer = tiny_tokenizer()
    chats = [f"<|im_start|>user\n{text}{END_OF_TURN}\n<|im_start|>assistant\n" for text in TINY_PROMPTS]
    return [tokenizer.encode(chat).ids for chat in chats]


def tiny_eos_ids() -> list[int]:
    """The ids that end the tiny target's answers."""
    end = tiny_tokenizer().token_to_id(END_OF_TURN)
    assert end is not None
    return [end]
