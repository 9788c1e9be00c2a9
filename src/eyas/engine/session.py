"""A target with its tokenizer and draft, checked against each other before anything runs."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path

from transformers import AutoTokenizer, PreTrainedTokenizerBase

from eyas.contract import ContractFacts, tokenizer_sha256
from eyas.draft.checkpoint import load_draft
from eyas.draft.model import DraftModel
from eyas.engine.engine import Engine
from eyas.errors import EyasError
from eyas.models.ranks import Ranks
from eyas.models.registry import load_target, parse_numerics
from eyas.models.target import Target
from eyas.models.weights.safetensors import open_checkpoint, weight_fingerprint
from eyas.speculate.propose import Proposer

BUILTIN_DRAFTS = {"builtin:smollm2-135m": "smollm2-135m"}
"""Built-in target → folder of its draft in the package's data."""


@dataclass
class Session:
    """What one run of ``generate`` or ``demo`` works with."""

    target: Target
    draft: DraftModel | None
    tokenizer: PreTrainedTokenizerBase
    eos_ids: tuple[int, ...]

    def engine(self, proposer: Proposer | DraftModel | None, num_slots: int) -> Engine:
        """An engine over this target with ``num_slots`` cache slots."""
        return Engine(self.target, proposer, eos_ids=self.eos_ids, num_slots=num_slots)

    def encode_chat(self, turns: Sequence[tuple[str, str]]) -> list[int]:
        """Token ids of a conversation of (role, content), opened for the answer.

        Raises ``tokenizer.chat-template`` if the tokenizer has none.
        """
        if not self.tokenizer.chat_template:
            raise EyasError(
                "tokenizer.chat-template",
                "the tokenizer has no chat template",
                "use --raw to continue the text as it is, or a model that has one",
            )
        messages = [{"role": role, "content": content} for role, content in turns]
        text = self.tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
        # The template writes the special tokens itself.
        return list(self.tokenizer(str(text), add_special_tokens=False)["input_ids"])

    def encode(self, text: str) -> list[int]:
        """Token ids of a plain text."""
        return list(self.tokenizer(text)["input_ids"])


def open_session(
    folder: Path,
    draft: Path | None,
    dtype: str = "fp32",
    backend: str = "auto",
    device: str = "cpu",
    tokenizer_folder: Path | None = None,
    chat_template: str | None = None,
    ranks: Ranks | None = None,
) -> Session:
    """Load a target folder and, if given, a draft folder; the draft's contract is enforced.

    ``dtype``: ``fp32``, ``bf16`` or ``int8``. ``tokenizer_folder``, ``chat_template``: in place of the target's own.
    ``ranks``: who shares the target; the draft is whole on each, as it is small beside its target. Raises
    ``model.…``, ``draft.…``, ``contract.…``, ``artifact.…``.
    """
    tokenizer = AutoTokenizer.from_pretrained(tokenizer_folder or folder, trust_remote_code=False)
    if chat_template is not None:
        tokenizer.chat_template = chat_template
    weights, quantization = parse_numerics(dtype)
    target = load_target(folder, weights, backend, device, ranks, quantization)
    loaded = None
    if draft is not None:
        loaded = load_draft(draft, target, backend, known=facts_of(folder, tokenizer))
    return Session(target, loaded, tokenizer, eos_ids_of(folder))


def facts_of(folder: Path, tokenizer: PreTrainedTokenizerBase) -> ContractFacts:
    """What a draft's contract is compared with: fingerprints of the weights, the tokenizer and its template."""
    weights = {"weights_sha256": weight_fingerprint(open_checkpoint(folder))}
    return ContractFacts.model_validate(text_facts_of(tokenizer).model_dump(exclude_unset=True) | weights)


def text_facts_of(tokenizer: PreTrainedTokenizerBase) -> ContractFacts:
    """The same of the tokenizer and its template alone; the weights need not be read."""
    template = tokenizer.chat_template
    known = {
        "tokenizer_sha256": tokenizer_sha256(
            tokenizer.get_vocab(), lambda text: tokenizer(text, add_special_tokens=False)["input_ids"]
        ),
        "chat_template_sha256": hashlib.sha256(template.encode()).hexdigest() if isinstance(template, str) else None,
    }
    return ContractFacts.model_validate(known)


def builtin_draft_folder(model: str) -> Path | None:
    """The draft that the package brings for a built-in target, or None."""
    name = BUILTIN_DRAFTS.get(model)
    if name is None:
        return None
    folder = Path(str(files("eyas") / "assets" / "drafts" / name))
    return folder if folder.is_dir() else None


def eos_ids_of(folder: Path) -> tuple[int, ...]:
    """Tokens that end an answer, by generation_config.json, else config.json."""
    for name in ("generation_config.json", "config.json"):
        path = folder / name
        if path.is_file():
            value = json.loads(path.read_text(encoding="utf-8")).get("eos_token_id")
            if value is not None:
                return tuple(value) if isinstance(value, list) else (value,)
    return ()
