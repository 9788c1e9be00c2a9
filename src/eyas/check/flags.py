"""The flags of a launch: what the engine really runs, and the accept length that it allows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from eyas.check.findings import Finding
from eyas.dialects.engines import Engine
from eyas.dialects.flags import Resolution
from eyas.dialects.launch import LaunchFlags, parse_launch
from eyas.dialects.launch_resolve import resolve_launch
from eyas.dialects.launch_rules import DraftFacts, Row


@dataclass(frozen=True)
class FlagCheck:
    """``findings``: of level flags, faults first · ``ceiling``: the greatest accept length that can be seen (1: it
    decodes plainly; None: not known) · ``resolution``: steps, topk and draft tokens that run, None where none do or
    it is not known · ``rows``: for a table, notes included.
    """

    engine: Engine
    flags: LaunchFlags
    findings: tuple[Finding, ...]
    ceiling: int | None
    resolution: Resolution | None
    rows: tuple[Row, ...]


def check_flags(
    text: str, engine: Engine | None, architecture: str, document: Mapping[str, Any] | None = None
) -> FlagCheck:
    """Read a launch command and resolve it. ``engine`` None: the one that the text starts, at the version that it names
    or the newest known. ``architecture``: the target's class; ``document``: the draft's config.json.

    Raises ``flags.unknown``, ``flags.range``, ``flags.contradiction`` for a text that is no launch of that engine;
    ``dialect.unknown-engine`` for a version without rules.
    """
    flags = parse_launch(text, engine.name if engine else None)
    engine = engine or engine_of(flags)
    draft = DraftFacts() if document is None else DraftFacts.of(document)
    launch = resolve_launch(flags, engine, architecture, draft)
    findings = tuple(_finding(row, engine, launch.ceiling) for row in launch.rows if row.weight != "note")
    return FlagCheck(engine, flags, findings, launch.ceiling, launch.resolution, launch.rows)


def engine_of(flags: LaunchFlags) -> Engine:
    """The engine that is started, at the version that is named or the newest known."""
    return Engine.parse(f"{flags.engine}=={flags.version}" if flags.version else flags.engine)


def _finding(row: Row, engine: Engine, ceiling: int | None) -> Finding:
    data = {"engine": str(engine), "flag": row.flag, "asked": row.asked, "effective": row.effective, "ceiling": ceiling}
    asked = "not given" if row.asked is None else row.asked
    runs = "nothing" if row.effective is None else row.effective
    evidence = f"{row.flag}: asked {asked}, runs {runs}"
    if ceiling is not None:
        evidence += f"; accept length at most {ceiling}"
    return Finding(row.kind, "flags", row.weight, f"{row.flag}: {row.rule}", evidence, row.fix, data)
