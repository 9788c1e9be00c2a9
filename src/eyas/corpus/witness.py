"""The witness: what must come out of target and draft for a few held-out conversations, to be replayed anywhere.

Made with the checkpoint as it will be served: read back from its folder, because a draft in bf16 proposes other tokens
than the fp32 weights that it was rounded from.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import torch

from eyas.config import SpeculativeSettings
from eyas.contract import (
    Contract,
    ContractFacts,
    DataSource,
    Witness,
    WitnessInfo,
    enforce,
    project,
    sha256_hex,
)
from eyas.corpus.samples import Sample, SampleSet
from eyas.draft.checkpoint import draft_facts
from eyas.draft.model import DraftModel
from eyas.engine.greedy import greedy_answers
from eyas.errors import EyasError
from eyas.metrics import Round
from eyas.models.reading import read_text
from eyas.models.target import Target
from eyas.speculate.walk import whole_rounds

SELF_SAMPLED = "self-sampled"
"""Sources whose name begins so are the target's own prompts."""

FREE_LICENCES = frozenset(
    {"apache-2.0", "mit", "bsd-2-clause", "bsd-3-clause", "cc0-1.0", "cc-by-4.0", "cc-by-sa-4.0", "odc-by", "unlicense"}
)
"""Licences (SPDX, lower case) under which prompts may be given away with a draft."""

TOLERANCES: dict[str, float] = {"float32": 1e-3, "float16": 1e-2, "bfloat16": 5e-2}
"""By the dtype of the target's activations: how far a right engine's fingerprints may lie from these."""


@dataclass(frozen=True)
class WitnessOptions:
    """``num_projections``: numbers per fingerprint; ``positions``: fingerprinted ones of each conversation."""

    num_projections: int = 8
    positions: int = 8
    relative_tolerance: float | None = None


def check_sources(sources: Sequence[DataSource]) -> None:
    """Raise ``witness.licence`` unless all prompts may be given away: self-sampled, or under a free licence."""
    kept = [
        s for s in sources if not s.name.lower().startswith(SELF_SAMPLED) and s.licence.lower() not in FREE_LICENCES
    ]
    if kept or not sources:
        named = "; ".join(f"{source.name} ({source.licence})" for source in kept) or "no source is named"
        raise EyasError(
            "witness.licence",
            f"a witness is given away with its draft, and its prompts come from {named}",
            "use self-sampled prompts, or sets under a licence that lets them be passed on",
        )


def answer_greedily(
    target: Target, samples: Sequence[Sample], eos_ids: Sequence[int], max_new_tokens: int = 64
) -> list[Sample]:
    """The samples' first prompts, answered by the target at temperature 0: what :func:`make_witness` takes.

    Answers without two tokens have no rounds and are left out.
    """
    prompts = [sample.tokens[: sample.answers[0][0]].tolist() for sample in samples]
    answered = []
    answers = greedy_answers(target, prompts, eos_ids, max_new_tokens)
    for sample, prompt, answer in zip(samples, prompts, answers, strict=True):
        if len(answer) > 1:
            tokens = np.array(prompt + answer, dtype=np.int32)
            answered.append(replace(sample, tokens=tokens, answers=((len(prompt), len(tokens)),), temperature=0.0))
    return answered


def make_witness(
    target: Target,
    draft: DraftModel,
    held_out: SampleSet,
    contract: Contract,
    num_steps: int,
    options: WitnessOptions | None = None,
) -> Witness:
    """The witness of this draft: tap fingerprints, and the rounds of chains of ``num_steps`` over each conversation.

    ``held_out``: one prompt and one answer each, the target's own at temperature 0 (:func:`answer_greedily`).
    ``contract``: the one that will stand beside it. Rounds that the text's end cut, or that proposed less than
    ``num_steps``, are left out. Raises ``witness.licence``, ``witness.not-greedy``, ``contract.mismatch``.
    """
    chosen = options or WitnessOptions()
    check_sources(held_out.facts.sources)
    _check_contract(target, draft, held_out, contract)
    settings = SpeculativeSettings(num_steps=num_steps, num_draft_tokens=num_steps + 1)
    made = _Arrays(chosen, contract.taps)
    for sample in held_out.samples:
        prompt, answer = _split(sample)
        _check_greedy(target, sample.id, prompt, answer)
        made.add_text(target, prompt, answer)
        made.add_rounds(*whole_rounds(target, draft, prompt, answer, settings), len(prompt))
    assert made.lengths, "a witness has at least one conversation"
    dtype = contract.features.dtype
    return made.witness(
        WitnessInfo(
            witness_version=1,
            contract_sha256=sha256_hex(contract.to_json().encode()),
            taps=contract.taps,
            hidden_size=target.hidden_size,
            num_projections=chosen.num_projections,
            num_steps=num_steps,
            dtype=dtype,
            temperature=0.0,
            seed=None,
            relative_tolerance=chosen.relative_tolerance or TOLERANCES[dtype],
        )
    )


def _check_contract(target: Target, draft: DraftModel, held_out: SampleSet, contract: Contract) -> None:
    """Target, draft and text must be those of the contract."""
    facts = held_out.facts
    known: dict[str, Any] = {
        "tokenizer_sha256": facts.tokenizer_sha256,
        "chat_template_sha256": facts.chat_template_sha256,
        "rendering": facts.rendering,
        "features": contract.features.model_copy(
            update={"dtype": _dtype_name(target), "quantisation": target.backend.quantisation}
        ),
    }
    if facts.target_weights_sha256 is not None:
        known["weights_sha256"] = facts.target_weights_sha256
    enforce(contract, draft_facts(draft, target, ContractFacts(**known)))


def _dtype_name(target: Target) -> Literal["float32", "bfloat16", "float16"]:
    names: dict[torch.dtype, Literal["float32", "bfloat16", "float16"]] = {
        torch.float32: "float32",
        torch.bfloat16: "bfloat16",
        torch.float16: "float16",
    }
    return names[target.dtype]


def _split(sample: Sample) -> tuple[list[int], list[int]]:
    ends = [end for _, end in sample.answers]
    assert len(ends) == 1, (sample.id, sample.answers)
    assert ends[0] == len(sample.tokens), (sample.id, sample.answers)
    begin = sample.answers[0][0]
    return sample.tokens[:begin].tolist(), sample.tokens[begin:].tolist()


def _check_greedy(target: Target, name: str, prompt: list[int], answer: list[int]) -> None:
    """The answer must be the target's likeliest token at every position."""
    out = read_text(target, [*prompt, *answer][:-1], ())
    said = target.logits(out.hidden[len(prompt) - 1 :]).argmax(-1).tolist()
    wrong = [i for i, (token, likeliest) in enumerate(zip(answer, said, strict=True)) if token != likeliest]
    if wrong:
        raise EyasError(
            "witness.not-greedy",
            f"token {wrong[0]} of the answer in conversation {name} is {answer[wrong[0]]}, and the target says"
            f" {said[wrong[0]]}",
            "let this target answer the prompts at temperature 0",
        )


@dataclass
class _Arrays:
    """The witness's arrays while they grow."""

    options: WitnessOptions
    taps: tuple[int, ...]
    tokens: list[int] = field(default_factory=list)
    lengths: list[int] = field(default_factory=list)
    prompts: list[int] = field(default_factory=list)
    rows: list[int] = field(default_factory=list)
    fingerprints: list[npt.NDArray[np.float32]] = field(default_factory=list)
    rounds: list[tuple[int, int, int]] = field(default_factory=list)
    """(conversation, committed before, accepted)."""
    chains: list[tuple[int, ...]] = field(default_factory=list)

    def add_text(self, target: Target, prompt: list[int], answer: list[int]) -> None:
        text = [*prompt, *answer]
        where = np.unique(np.linspace(0, len(text) - 1, self.options.positions).round().astype(np.int64))
        out = read_text(target, text, self.taps)
        seen = out.taps[torch.from_numpy(where).to(out.taps.device)].float().cpu().numpy()
        self.fingerprints.append(project(seen, self.options.num_projections))
        self.rows += (where + len(self.tokens)).tolist()
        self.tokens += text
        self.lengths.append(len(text))
        self.prompts.append(len(prompt))

    def add_rounds(self, chains: list[tuple[int, ...]], rounds: list[Round], prompt: int) -> None:
        committed = prompt + 1
        for one in rounds:
            self.rounds.append((len(self.lengths) - 1, committed, one.accepted))
            committed += one.committed
        self.chains += chains

    def witness(self, info: WitnessInfo) -> Witness:
        conversation, position, accepted = np.array(self.rounds, dtype=np.int64).reshape(-1, 3).T.copy()
        return Witness(
            info=info,
            tokens=np.array(self.tokens, dtype=np.int64),
            starts=np.cumsum([0, *self.lengths], dtype=np.int64),
            prompt_lengths=np.array(self.prompts, dtype=np.int64),
            fingerprint_rows=np.array(self.rows, dtype=np.int64),
            fingerprints=np.concatenate(self.fingerprints),
            round_conversations=conversation,
            round_positions=position,
            proposals=np.array(self.chains, dtype=np.int64).reshape(-1, info.num_steps),
            accepted=accepted,
        )
