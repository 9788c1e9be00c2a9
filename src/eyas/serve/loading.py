"""From an engine's settings to an engine, in its own process."""

from __future__ import annotations

import json
import platform
from importlib import metadata
from typing import Any

import torch

import eyas
from eyas.draft.checkpoint import CONTRACT
from eyas.engine.engine import Engine
from eyas.engine.session import Session, open_session
from eyas.serve.engine_settings import EngineSettings
from eyas.serve.wire import Ready
from eyas.speculate.propose import NgramProposer

PACKAGES = ("torch", "transformers", "tokenizers", "safetensors")


def open_engine_session(settings: EngineSettings) -> Session:
    """Target, tokenizer and draft, the draft's contract enforced. Raises as ``open_session``."""
    torch.set_num_threads(settings.threads)
    s = settings
    session = open_session(s.target, s.draft, s.dtype, s.backend, s.device, s.tokenizer)
    session.target.max_positions = settings.context
    return session


def engine_of(session: Session, settings: EngineSettings) -> Engine:
    """An engine as the settings say."""
    return Engine(
        session.target,
        NgramProposer() if settings.algorithm == "NGRAM" else session.draft,
        eos_ids=session.eos_ids,
        num_slots=settings.num_slots,
        prefill_tokens=settings.prefill_tokens,
        prefix_cache=settings.prefix_cache,
        max_running=settings.max_running,
    )


def ready_of(session: Session, settings: EngineSettings) -> Ready:
    """What the outside may know of the engine: no place in the file system is in it."""
    target, contract = session.target, None
    if settings.draft is not None and (settings.draft / CONTRACT).is_file():
        contract = json.loads((settings.draft / CONTRACT).read_text(encoding="utf-8"))
    facts: dict[str, Any] = {
        "target": {
            "architecture": target.architecture,
            "num_layers": target.num_layers,
            "hidden_size": target.hidden_size,
            "dtype": str(target.dtype).removeprefix("torch."),
            "kernels": target.backend.name,
            "row_exact": target.row_exact,
        },
        "draft": None if session.draft is None else {"taps": list(session.draft.config.taps), "contract": contract},
        "algorithm": settings.algorithm,
        "speculation": None if settings.speculation is None else settings.speculation.model_dump(mode="json"),
        "adaptive": settings.adaptive,
        "threads": torch.get_num_threads(),
        "device": target.device.type,
        "versions": {
            "eyas": eyas.__version__,
            "python": platform.python_version(),
            **{name: metadata.version(name) for name in PACKAGES},
        },
    }
    return Ready(settings.model, target.vocab_size, target.max_positions, settings.num_slots, facts)
