"""From an engine's settings to an engine, in its own process."""

from __future__ import annotations

import platform
from importlib import metadata
from typing import Any

import torch

import eyas
from eyas.contract import Contract
from eyas.draft.checkpoint import CONTRACT
from eyas.engine.costs import measure_costs
from eyas.engine.engine import Engine
from eyas.engine.session import Session, open_session
from eyas.engine.shared import SharedChooser, measure_costs_together
from eyas.models.ranks import Ranks
from eyas.serve.engine_settings import EngineSettings
from eyas.serve.wire import Ready
from eyas.speculate.policy import Controller, expected_of
from eyas.speculate.propose import NgramProposer

PACKAGES = ("torch", "transformers", "tokenizers", "safetensors")


def open_engine_session(settings: EngineSettings, ranks: Ranks | None = None) -> Session:
    """Target, tokenizer and draft, the draft's contract enforced; of the target this rank's share. Raises as
    ``open_session``."""
    torch.set_num_threads(settings.threads)
    s = settings
    session = open_session(s.target, s.draft, s.dtype, s.backend, s.device, s.tokenizer, s.chat_template, ranks)
    session.target.max_positions = settings.context
    return session


def engine_of(session: Session, settings: EngineSettings, ranks: Ranks | None = None) -> Engine:
    """An engine as the settings say; where K is chosen, what rounds cost is measured first, which takes seconds."""
    engine = Engine(
        session.target,
        NgramProposer() if settings.algorithm == "NGRAM" else session.draft,
        eos_ids=session.eos_ids,
        num_slots=settings.num_slots,
        prefill_tokens=settings.prefill_tokens,
        prefix_cache=settings.prefix_cache,
        max_running=settings.max_running,
    )
    if settings.adaptive and settings.speculation is not None:
        engine.chooser.controller = _controller(engine, settings, settings.speculation.num_steps, ranks)
    if ranks is not None:
        engine.chooser = SharedChooser(
            session.target.max_positions, engine.chooser.controller, ranks, engine.chooser.drafts
        )
    return engine


def _controller(engine: Engine, settings: EngineSettings, steps: int, ranks: Ranks | None) -> Controller | None:
    """Of several ranks, the first one's alone."""
    models, contract = (engine.target, engine.cache, engine.proposer), contract_of(settings)
    expected = expected_of(contract) if contract is not None else None
    if ranks is None:
        costs = measure_costs(*models, max_requests=settings.max_running, max_steps=steps)
        return Controller(costs, steps, expected)
    shared = measure_costs_together(*models, ranks, max_requests=settings.max_running, max_steps=steps)
    return None if shared is None else Controller(shared, steps, expected)


def contract_of(settings: EngineSettings) -> Contract | None:
    """What the draft promises, if it has a contract."""
    if settings.draft is None or not (settings.draft / CONTRACT).is_file():
        return None
    return Contract.read(settings.draft / CONTRACT)


def ready_of(session: Session, engine: Engine, settings: EngineSettings) -> Ready:
    """What the outside may know of the engine: no place in the file system is in it."""
    target, contract = session.target, contract_of(settings)
    promised = None if contract is None else contract.model_dump(mode="json")
    facts: dict[str, Any] = {
        "target": {
            "architecture": target.architecture,
            "num_layers": target.num_layers,
            "hidden_size": target.hidden_size,
            "dtype": str(target.dtype).removeprefix("torch."),
            "kernels": target.backend.name,
            "row_exact": target.row_exact,
        },
        "draft": None if session.draft is None else {"taps": list(session.draft.config.taps), "contract": promised},
        "algorithm": settings.algorithm,
        "speculation": None if settings.speculation is None else settings.speculation.model_dump(mode="json"),
        "adaptive": settings.adaptive,
        "controller": None if engine.chooser.controller is None else engine.chooser.controller.to_json(),
        "threads": torch.get_num_threads(),
        "tp_size": settings.tp_size,
        "device": target.device.type,
        "versions": {
            "eyas": eyas.__version__,
            "python": platform.python_version(),
            **{name: metadata.version(name) for name in PACKAGES},
        },
    }
    return Ready(settings.model, target.vocab_size, target.max_positions, settings.num_slots, facts)
