"""Chats → samples: rendered, cut at a token limit, and an account of what was cut, dropped, and why."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal, cast

import numpy as np
from pydantic import Field, ValidationError

from eyas.artifacts import Progress, atomic_write, no_progress
from eyas.contract import ContractFacts, DataSource, Rendering, file_sha256
from eyas.contract.schema import Sha256, Strict, describe
from eyas.corpus.chats import Chat, read_chats
from eyas.corpus.features import short
from eyas.corpus.rendering import RenderedChat, Renderer
from eyas.corpus.samples import LOSS_MASK_RULE, Sample, SampleFacts, SampleSet
from eyas.data.regen.journal import NAME as JOURNAL
from eyas.data.regen.journal import Header
from eyas.data.regen.settings import Identity
from eyas.errors import EyasError

Number = Annotated[int, Field(ge=0)]

CHATS = "chats.jsonl"
"""The finished chats in a folder of `eyas regen`."""
UNKNOWN = "unknown"
"""A source or licence that the chats do not name."""
NOTHING_TO_TRAIN = "no-trained-slot"
"""Why a run is dropped that the loss would not see: no answer, or none of two tokens within the limit."""


class BuildAccount(Strict):
    """What became of the chats of a file. Kept beside the samples, which it names by their SHA-256.

    ``max_length``: tokens of a sample at most. ``eos_ids``: what ends the target's answers. ``rewritten``: chats that
    became several samples, because the template rewrites history. ``cut_answers``: answers without an end-of-turn
    token, ``truncated`` samples not counted. ``truncated``: ids of samples cut at the limit; the answer that was cut
    has no end. ``dropped``: by error code or reason; ``examples``: one cause for each.
    """

    schema_version: Literal[1] = 1
    samples_sha256: Sha256 | None
    max_length: Annotated[int, Field(ge=1)]
    eos_ids: tuple[int, ...]
    chats: Number
    rewritten: Number
    answers: Number
    cut_answers: Number
    truncated: tuple[str, ...]
    dropped: dict[str, Number]
    examples: dict[str, str]
    sources: dict[str, Number]


def build_samples(
    chats: Sequence[Chat],
    renderer: Renderer,
    known: ContractFacts,
    max_length: int,
    progress: Progress = no_progress,
) -> tuple[SampleSet, BuildAccount]:
    """Samples of at most ``max_length`` tokens, in the chats' order, and what became of each chat.

    ``known``: fingerprints of the target that answered. A chat that cannot be rendered faithfully is left out and
    counted; if that is all of them, the error is raised that most met. Raises ``samples.no-answers``, ``flags.range``,
    and what :meth:`Renderer.chat_tokens` raises.
    """
    if max_length < 3:
        raise EyasError("flags.range", f"--max-length {max_length}", "a slot that is trained needs 3 tokens")
    book = _Book(max_length)
    for number, chat in enumerate(chats, 1):
        book.add(chat, renderer)
        progress("rendering chats", number, len(chats))
    book.require_samples(len(chats))
    facts = SampleFacts(
        tokenizer_sha256=str(known.tokenizer_sha256),
        chat_template_sha256=known.chat_template_sha256,
        target_weights_sha256=known.weights_sha256,
        rendering=renderer.rendering,
        loss_mask_rule=LOSS_MASK_RULE,
        sources=tuple(DataSource(name=name, licence=licence) for name, licence in sorted(book.licences)),
    )
    return SampleSet(facts, tuple(book.samples)), book.account(len(chats), renderer.eos_ids)


@dataclass(frozen=True)
class ReadChats:
    """Chats, and where they come from a folder of `eyas regen`, under which settings which target answered."""

    chats: list[Chat]
    identity: Identity | None


def open_chats(path: Path) -> ReadChats:
    """The chats of a file, or of a folder of `eyas regen`. Raises ``artifact.missing``, ``artifact.corrupt``."""
    file = path / CHATS if path.is_dir() else path
    journal, identity = file.with_name(JOURNAL), None
    if file.name == CHATS and journal.is_file():
        with journal.open("rb") as lines:
            header = lines.readline()
        try:
            identity = Header.model_validate_json(header).identity
        except ValidationError as error:
            cause = f"{journal} does not begin as a journal does: {describe(error)}"
            raise EyasError(
                "artifact.corrupt", cause, "regenerate the chats, or move them to another folder"
            ) from error
    return ReadChats(list(read_chats(file)), identity)


def origin_facts(identity: Identity | None, model: ContractFacts) -> ContractFacts:
    """The facts of samples rendered with ``model``'s tokenizer: its weights are those that answered, None if unknown.

    Raises ``features.origin`` if a target with another tokenizer or template answered.
    """
    source = {} if identity is None else identity.source
    for what, field in (("tokenizer", "tokenizer_sha256"), ("chat template", "chat_template_sha256")):
        here, there = source.get(field), getattr(model, field)
        if field in source and here != there:
            cause = f"the answers were given with the {what} {short(here)}, and the model has {short(there)}"
            raise EyasError("features.origin", cause, "name the --model that answered")
    return ContractFacts(
        weights_sha256=cast("str | None", source.get("weights_sha256")),
        tokenizer_sha256=model.tokenizer_sha256,
        chat_template_sha256=model.chat_template_sha256,
    )


def rendering_for(chats: Sequence[Chat], thinking: str, system_prompt: str | None) -> Rendering:
    """The rendering of a file of chats: a system prompt that is given is fixed, else those of the chats count.

    Raises ``flags.range`` for another ``thinking`` than none, off, on, mixed.
    """
    own = any(chat.messages[:1] and chat.messages[0].get("role") in ("system", "developer") for chat in chats)
    kind = "fixed" if system_prompt is not None else "per-conversation" if own else "none"
    facts = {"thinking": thinking, "system_prompt": kind, "system_prompt_text": system_prompt}
    try:
        return Rendering.model_validate(facts)
    except ValidationError as error:
        raise EyasError("flags.range", describe(error), "use --thinking none, off, on or mixed") from error


def account_path(samples: Path) -> Path:
    """Where the account of a file of samples lies."""
    return samples.with_suffix(".account.json")


def write_account(samples: Path, account: BuildAccount) -> None:
    """Write the account beside the samples that it belongs to, which are there already."""
    named = account.model_copy(update={"samples_sha256": file_sha256(samples)})
    atomic_write(account_path(samples), named.model_dump_json(indent=2) + "\n")


def read_account(samples: Path) -> BuildAccount | None:
    """The account of a file of samples; None if there is none. Raises ``artifact.corrupt`` if it is another file's."""
    path, fix = account_path(samples), "make the samples again with `eyas data build`"
    if not path.is_file():
        return None
    try:
        account = BuildAccount.model_validate_json(path.read_bytes())
    except ValidationError as error:
        raise EyasError("artifact.corrupt", f"{path}: {describe(error)}", fix) from error
    if account.samples_sha256 != file_sha256(samples):
        raise EyasError("artifact.corrupt", f"{path} is the account of other samples than {samples}", fix)
    return account


class _Book:
    """Samples so far, and the counts about them."""

    def __init__(self, max_length: int) -> None:
        self.max_length = max_length
        self.samples: list[Sample] = []
        self.truncated: list[str] = []
        self.licences: set[tuple[str, str]] = set()
        self.dropped: Counter[str] = Counter()
        self.causes: dict[str, EyasError] = {}
        self.examples: dict[str, str] = {}
        self.sources: Counter[str] = Counter()
        self.rewritten = self.answers = self.cut_answers = 0

    def add(self, chat: Chat, renderer: Renderer) -> None:
        try:
            runs = renderer.chat_tokens(chat)
        except EyasError as error:
            if not error.code.startswith("rendering."):
                raise
            self.causes.setdefault(error.code, error)
            self._drop(error.code, error.cause)
            return
        self.rewritten += len(runs) > 1
        if not runs:
            self._drop(NOTHING_TO_TRAIN, f"chat {chat.id} has no answers")
        for run in runs:
            self._add_run(chat, run, chat.id if len(runs) == 1 else f"{chat.id}/{run.messages[0]}")

    def _add_run(self, chat: Chat, run: RenderedChat, name: str) -> None:
        limit = self.max_length
        spans = tuple((begin, min(end, limit)) for begin, end in run.answers if begin < limit)
        if all(end - begin < 2 for begin, end in spans):
            self._drop(NOTHING_TO_TRAIN, f"{name}: no answer has two tokens within {limit}")
            return
        by_message = {answer.message: answer.temperature for answer in chat.answers}
        drawn = {by_message[message] for message in run.messages[: len(spans)]}
        temperature = drawn.pop() if len(drawn) == 1 else float("nan")
        tokens = np.array(run.tokens[: spans[-1][1]], dtype=np.int32)
        self.samples.append(Sample(name, chat.prompt_id, chat.domain, tokens, spans, temperature))
        self.licences.add((chat.source or UNKNOWN, chat.licence or UNKNOWN))
        self.sources[chat.source or UNKNOWN] += 1
        self.answers += len(spans)
        whole = [cut for cut, (_, end) in zip(run.cut, run.answers, strict=True) if end <= limit]
        self.cut_answers += sum(whole)
        if len(whole) < len(run.answers):
            self.truncated.append(name)

    def _drop(self, why: str, example: str) -> None:
        self.dropped[why] += 1
        self.examples.setdefault(why, example)

    def require_samples(self, chats: int) -> None:
        if self.samples:
            return
        if self.causes:
            code = max(self.causes, key=lambda code: self.dropped[code])
            fault = self.causes[code]
            raise EyasError(code, f"none of {chats} chats can be rendered; {fault.cause}", fault.fix)
        cause = f"none of {chats} chats has an answer to train on within {self.max_length} tokens"
        raise EyasError("samples.no-answers", cause, "let the target answer with `eyas regen`, or raise --max-length")

    def account(self, chats: int, eos_ids: tuple[int, ...]) -> BuildAccount:
        return BuildAccount(
            samples_sha256=None,
            max_length=self.max_length,
            eos_ids=eos_ids,
            chats=chats,
            rewritten=self.rewritten,
            answers=self.answers,
            cut_answers=self.cut_answers,
            truncated=tuple(self.truncated),
            dropped=dict(self.dropped),
            examples=self.examples,
            sources=dict(self.sources),
        )
