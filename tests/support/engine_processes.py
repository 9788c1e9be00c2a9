"""Engine processes for tests: of the tiny pair, or of a child that only behaves like one."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

from eyas.config import SamplingSettings
from eyas.serve.process import Care, EngineProcess
from eyas.serve.resolve import resolve
from eyas.serve.settings import merge
from eyas.serve.wire import Ask, Piece
from eyas.testing import tiny_pair, tiny_prompts

FAKE = (sys.executable, str(Path(__file__).parent / "fake_engine_child.py"))


def tiny_settings(**flags: object):
    target, draft = tiny_pair()
    given = {
        "model_path": str(target),
        "speculative_draft_model_path": str(draft),
        "max_total_tokens": 3000,
        "threads": 1,
        "speculative_adaptive": False,
    }
    return resolve(*merge(given | flags, None), target, free=1 << 30).engine


def fake(behaviour: str, care: Care | None = None, say=lambda what: None, **changes: object) -> EngineProcess:
    settings = tiny_settings().model_copy(update={"model": behaviour, **changes})
    care = replace(care or Care(), first_delay=0.01)
    return EngineProcess(settings, care, say, FAKE)


@asynccontextmanager
async def running(process: EngineProcess) -> AsyncIterator[EngineProcess]:
    await process.start()
    try:
        yield process
    finally:
        await process.close(now=True)


def ask(id_: str, number: int = 0, tokens: int = 24, **fields: object) -> Ask:
    sampling = fields.pop("sampling", SamplingSettings(max_new_tokens=tokens))
    assert isinstance(sampling, SamplingSettings)
    return Ask(id_, tiny_prompts()[number], sampling.model_dump_json(), **fields)  # type: ignore[arg-type]


async def whole(process, asked: Ask) -> list[Piece]:
    return [piece async for piece in process.answer(asked)]


def text_of(pieces: list[Piece]) -> str:
    return "".join(text for piece in pieces for text in piece.texts)
