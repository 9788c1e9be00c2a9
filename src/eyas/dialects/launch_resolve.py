"""A launch's flags → the rows of all that becomes of them, and the ceiling of the accept length."""

from __future__ import annotations

from dataclasses import dataclass

from eyas.dialects import launch_sglang, launch_vllm
from eyas.dialects.engines import Engine
from eyas.dialects.flags import Resolution
from eyas.dialects.launch import LaunchFlags
from eyas.dialects.launch_rules import Case, DraftFacts, Row, common_rows, rows_of
from eyas.errors import EyasError


@dataclass(frozen=True)
class Launch:
    """``rows``: faults first, in the tables' order · ``resolution``: None where nothing of the kind runs, or the engine
    would fail · ``ceiling``: the greatest accept length that can be seen (1: no speculation; None: not known).
    """

    rows: tuple[Row, ...]
    resolution: Resolution | None
    ceiling: int | None

    @property
    def fails(self) -> bool:
        """True if the engine would not start."""
        return any(row.kind == "flags.refused" for row in self.rows)


def resolve_launch(flags: LaunchFlags, engine: Engine, architecture: str, draft: DraftFacts | None = None) -> Launch:
    """What ``engine`` makes of these flags. ``architecture``: the target's class; ``draft`` None: an EAGLE-3 draft of
    which nothing is known.

    Where the engine would fail there is a row of weight fault with what it shows; it raises only
    ``flags.contradiction``, for flags of the other engine.
    """
    if flags.engine != engine.name:
        cause = f"the flags are those of {flags.engine}, and the engine is {engine}"
        raise EyasError("flags.contradiction", cause, f"use --engine {flags.engine}, or give flags of {engine.name}")
    tables = launch_sglang if engine.name == "sglang" else launch_vllm
    pages = launch_sglang.page_size(flags) if engine.name == "sglang" else 1
    facts = draft or DraftFacts()
    resolution, changed = tables.resolve(Case(flags, engine, architecture, facts, page_size=pages))
    case = Case(flags, engine, architecture, facts, resolution, pages)
    others = launch_vllm.unknown_entries(case) if engine.name == "vllm" else ()
    rows = [*changed, *rows_of(tables.RULES, case), *common_rows(flags, engine), *others]
    rows.sort(key=lambda row: ("fault", "warning", "note").index(row.weight))
    return Launch(tuple(rows), resolution, tables.ceiling(case))
