"""The model card of a draft: README.md, from its contract and what was measured."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from itertools import groupby
from pathlib import Path
from typing import Any

from huggingface_hub import ModelCardData
from jinja2 import Environment, StrictUndefined

from eyas.contract import Contract, ExpectedAcceptLength
from eyas.dialects.engines import Engine
from eyas.draft.config import DraftConfig
from eyas.draft.layout import refusal_of

CARD, PICTURE = "README.md", "learning_curve.png"
_TEMPLATE = "card.md.jinja"
_SAMPLING = {"one-hot": "one-hot", "probabilistic": "drawn (probabilistic)"}


@dataclass(frozen=True)
class CardFacts:
    """What a card says besides the contract.

    ``name``: the draft's title · ``target``: as ``--model`` takes it · ``target_name``: its hub id, or None where it
    has none · ``licence``: of the draft, an SPDX id · ``num_steps``: the K to serve with · ``draft``: where it lies,
    as the commands name it · ``limits``: more of them, a sentence each.
    """

    name: str
    target: str
    target_name: str | None
    licence: str
    num_steps: int
    draft: str = "PATH_OF_THIS_FOLDER"
    limits: tuple[str, ...] = ()


def render_card(
    facts: CardFacts,
    contract: Contract,
    config: DraftConfig,
    picture: bool = False,
    has_witness: bool = False,
    engines: Sequence[Engine] | None = None,
) -> str:
    """The card's text, with the header that the Hugging Face hub reads.

    ``picture``: whether the learning curve lies beside it. ``engines``: to show commands for, by default the newest
    SGLang and vLLM known; one that cannot serve the draft is shown with the reason.
    """
    environment = Environment(
        undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True, keep_trailing_newline=True
    )
    environment.filters["cell"] = _cell
    template = environment.from_string(files("eyas.train").joinpath(_TEMPLATE).read_text(encoding="utf-8"))
    served = engines or (Engine.parse("sglang"), Engine.parse("vllm"))
    text = template.render(
        name=facts.name,
        target_name=facts.target_name or facts.target,
        contract=contract,
        tables=_tables(contract.expected),
        norms=_norms(config),
        picture=PICTURE if picture else None,
        has_witness=has_witness,
        commands={"eyas": _eyas_command(facts), "engines": [_engine(e, facts, contract, config) for e in served]},
        limits=_limits(contract, config) + facts.limits,
    )
    return f"---\n{_header(facts)}\n---\n\n{text}"


def card_files(card: str, curve: Path | None = None) -> dict[str, bytes]:
    """The files to hand to ``write_draft``: the card, and the learning curve where there is one."""
    found = {CARD: card.encode()}
    if curve is not None and curve.is_file():
        found[PICTURE] = curve.read_bytes()
    return found


def _header(facts: CardFacts) -> str:
    data = ModelCardData(
        license=facts.licence.lower(),
        base_model=facts.target_name,
        pipeline_tag="text-generation",
        tags=["eagle-3", "speculative-decoding", "draft-model", "eyas"],
    )
    return str(data.to_yaml()).strip()


def _tables(expected: Sequence[ExpectedAcceptLength]) -> list[dict[str, Any]]:
    """One table for each temperature and way of drafting: prompt sets against K."""

    def kind(record: ExpectedAcceptLength) -> tuple[float, str]:
        return record.temperature, record.draft_sampling

    tables = []
    for (temperature, sampling), group in groupby(sorted(expected, key=kind), kind):
        records = list(group)
        by_place = {(record.prompt_set, record.num_steps): record for record in records}
        steps = sorted({record.num_steps for record in records})
        names = list(dict.fromkeys(record.prompt_set for record in records))
        rows = [{"name": _cell(n), "cells": [_figure(by_place.get((n, k))) for k in steps]} for n in names]
        tables.append(
            {"temperature": f"{temperature:g}", "sampling": _SAMPLING[sampling], "steps": steps, "rows": rows}
        )
    return tables


def _figure(record: ExpectedAcceptLength | None) -> str:
    if record is None:
        return "–"
    return f"{record.accept_length:.2f} ({record.low:.2f} … {record.high:.2f})"


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")


def _norms(config: DraftConfig) -> str:
    flags = ("fc_norm", "norm_before_fc", "norm_output", "norm_before_residual")
    return ", ".join(flag for flag in flags if getattr(config, flag)) or "none besides EAGLE-3's own"


def _eyas_command(facts: CardFacts) -> str:
    parts = ["eyas", "generate", "Why is the sky blue?", "--model", facts.target, "--draft", facts.draft]
    return shlex.join([*parts, "--speculative-num-steps", str(facts.num_steps)])


def _engine(engine: Engine, facts: CardFacts, contract: Contract, config: DraftConfig) -> Mapping[str, str | None]:
    refused = refusal_of(config, contract.target.architecture, engine)
    if refused is not None:
        return {"name": str(engine), "command": None, "refusal": refused.cause}
    target = facts.target_name or facts.target
    if engine.name == "sglang":
        parts = ["python", "-m", "sglang.launch_server", "--model-path", target, "--dtype", contract.features.dtype]
        parts += ["--speculative-algorithm", "EAGLE3", "--speculative-draft-model-path", facts.draft]
        parts += ["--speculative-num-steps", str(facts.num_steps), "--speculative-eagle-topk", "1"]
        parts += ["--speculative-num-draft-tokens", str(facts.num_steps + 1)]
        if contract.features.quantisation is not None:
            # Left out, the draft would be quantised as its target is.
            parts += ["--speculative-draft-model-quantization", "unquant"]
    else:
        settings = {"method": "eagle3", "model": facts.draft, "num_speculative_tokens": facts.num_steps}
        parts = ["vllm", "serve", target, "--dtype", contract.features.dtype]
        parts += ["--speculative-config", json.dumps(settings)]
    return {"name": str(engine), "command": shlex.join(parts), "refusal": None}


def _limits(contract: Contract, config: DraftConfig) -> tuple[str, ...]:
    rendering = contract.rendering
    prompts = {
        "none": "without a system prompt (the template may add its own)",
        "fixed": f"always with the system prompt “{rendering.system_prompt_text}”",
        "per-conversation": "with the system prompts of the data",
    }[rendering.system_prompt]
    thinking = {"none": "", "off": ", thinking off", "on": ", thinking on", "mixed": ", thinking on and off"}
    weights = f"with {contract.features.quantisation} weights" if contract.features.quantisation else "not quantised"
    found = [
        f"The longest position trained on is {contract.longest_trained_position}: beyond it accept length falls.",
        f"Chats were rendered by the template above {prompts}{thinking[rendering.thinking]}; else less is accepted.",
        f"The target ran in {contract.features.dtype}, {weights}: others or a fine-tune accept less.",
    ]
    if config.has_map:
        found.append(
            f"It proposes {config.draft_vocab_size:,} of {config.vocab_size:,} tokens; above, all others are misses."
        )
    return tuple(found)
