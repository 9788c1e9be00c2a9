"""What an engine's process is told when it starts: everything settled, nothing left to choose."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

from eyas.config import SpeculativeSettings
from eyas.engine.asked import Algorithm

Count = Annotated[int, Field(ge=1)]


class EngineSettings(BaseModel):
    """``model``: its name to the world · ``num_slots``: tokens that the cache holds · ``prefill_tokens``: of prompts in
    a step · ``threads``: of the CPU, for each rank · ``tp_size``: ranks that share the target · ``by_priority``: else
    requests go in the order of arrival alone.
    """

    model_config = ConfigDict(frozen=True, strict=True, extra="forbid", allow_inf_nan=False)

    model: str
    target: Path
    tokenizer: Path | None
    """None: the target's own."""
    chat_template: str | None
    """None: the tokenizer's own."""
    draft: Path | None
    algorithm: Algorithm
    speculation: SpeculativeSettings | None
    adaptive: bool
    """The steps of ``speculation`` are a ceiling."""
    dtype: str
    backend: str
    device: str
    threads: Count
    tp_size: Count
    context: Count
    num_slots: Count
    prefill_tokens: Count
    max_running: Count
    prefix_cache: bool
    by_priority: bool
