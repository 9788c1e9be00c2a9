"""A result as one JSON document, and as a table for people."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, is_dataclass
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

from eyas.bench.client import Outcome, Target
from eyas.bench.measure import Figures, Spread, answered, ttft
from eyas.bench.paired import Paired, Ratio
from eyas.bench.run import Level, Result

VERSION = 1
CAPTION = "first token, per token, latency: median and 99th percentile; docs/bench.md defines each figure"
SHARED_OUT = "* it does not tell how many tokens a chunk holds: each answer's chunks are taken as equal"
LATE = 0.01
"""Seconds of the client's own lateness from which its times are doubtful."""


def document(result: Result, machine: dict[str, Any], with_requests: bool) -> dict[str, Any]:
    """Plain JSON: seconds, null for what is not known; no key, no prompt's and no answer's text."""
    return {
        "bench": VERSION,
        "machine": machine,
        "settings": result.settings.model_dump(mode="json"),
        "servers": [_server(target) for target in result.targets],
        "levels": [_level(result, level, with_requests) for level in result.levels],
        "unsent": [str(load) for load in result.unsent],
        "client_lag": plain(result.lag),
    }


def _server(target: Target) -> dict[str, Any]:
    return {
        "name": target.name,
        "url": target.root,
        "model": target.model,
        "engine": target.server.kind,
        "version": target.server.version,
        "speculates": target.server.speculates,
        "ceiling": target.server.ceiling,
        "asked": dict(target.extra),
    }


def _level(result: Result, level: Level, with_requests: bool) -> dict[str, Any]:
    servers = {}
    for target, figures, blocks in zip(result.targets, level.figures, level.blocks, strict=True):
        derived = {
            "tokens_per_second": figures.tokens_per_second,
            "requests_per_second": figures.requests_per_second,
            "ceiling": ceiling_of(target, figures),
        }
        servers[target.name] = plain(asdict(figures) | derived)
        if with_requests:
            servers[target.name]["each"] = [_request(o) for block in blocks for o in block.outcomes]
    load = {"kind": level.load.kind, "value": level.load.value}
    return {"load": load, "servers": servers, "paired": plain(level.paired)}


def _request(outcome: Outcome) -> dict[str, Any]:
    whole = bool(answered([outcome]))
    return {
        "number": outcome.question.number,
        "prompt": outcome.question.prompt,
        "fault": outcome.fault,
        "ttft": ttft(outcome) if whole else None,
        "latency": outcome.ended - outcome.due,
        "chunks": len(outcome.chunks),
        "tokens": outcome.completion,
        "prompt_tokens": outcome.prompt_tokens,
        "finish": outcome.finish,
        "rounds": None if outcome.counts is None else outcome.counts.rounds,
        "accepted": None if outcome.counts is None else outcome.counts.accepted,
    }


def plain(value: Any) -> Any:
    """As JSON can hold it: NaN becomes null."""
    if is_dataclass(value) and not isinstance(value, type):
        value = asdict(value)
    if isinstance(value, dict):
        return {str(key): plain(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [plain(inner) for inner in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def ceiling_of(target: Target, figures: Figures) -> int | None:
    """The greatest accept length possible, by the server's flags, else by what its rounds could hold."""
    if target.server.ceiling is not None and not target.extra:
        return target.server.ceiling
    histogram = figures.accept.histogram if figures.accept else None
    return len(histogram) if histogram and target.server.kind in ("eyas", "vllm", "llama.cpp") else None


def show(result: Result, console: Console) -> None:
    """Who was measured, a table of the levels, what is compared, and what went wrong."""
    for target in result.targets:
        version = f" {target.server.version}" if target.server.version else ""
        console.print(f"[bold]{target.name}[/]: {target.server.kind}{version}, {target.model}, {target.root}")
    heads = ("load", "server", "answers", "tokens/s", "first\ntoken", "per\ntoken", "latency", "accept\nlength")
    table = Table(*heads, box=box.SIMPLE, padding=(0, 1, 0, 0), caption=CAPTION, caption_justify="left")
    for level in result.levels:
        for target, figures in zip(result.targets, level.figures, strict=True):
            table.add_row(str(level.load), target.name, *_cells(target, figures))
    console.print(table)
    for level in result.levels:
        if level.paired is not None:
            console.print(_compared(result, level, level.paired))
    if any(figures.told == "shared out" for level in result.levels for figures in level.figures):
        console.print(SHARED_OUT)
    for level in result.levels:
        for target, figures in zip(result.targets, level.figures, strict=True):
            for line in _troubles(figures):
                console.print(f"[yellow]{level.load}, {target.name}:[/] {line}", markup=True)
    for load in result.unsent:
        console.print(f"[yellow]{load}:[/] not run, because a server had stopped answering")
    if result.lag.count and result.lag.p99 > LATE:
        console.print(
            f"[yellow]this client was late itself:[/] p99 {result.lag.p99 * 1000:.0f} ms; its machine is busy"
        )


def _cells(target: Target, figures: Figures) -> Sequence[str]:
    speed = figures.tokens_per_second
    return (
        f"{figures.answered}/{figures.requests}",
        "not told" if math.isnan(speed) else f"{speed:.1f}",
        _two(figures.ttft),
        _two(figures.inter_token) + (" *" if figures.told == "shared out" else ""),
        _two(figures.latency),
        _accept(target, figures),
    )


def _accept(target: Target, figures: Figures) -> str:
    if figures.accept is None:
        return "–"
    ceiling = ceiling_of(target, figures)
    said = f"{figures.accept.length:.2f}" + (f" of {ceiling}" if ceiling else "")
    return said + (" (its own mean)" if figures.accept.source == "the server's mean" else "")


def _compared(result: Result, level: Level, paired: Paired) -> str:
    ours, theirs = result.targets
    said = f"[bold]{level.load}[/]: {ours.name} is {_times(paired.speed)} as fast as {theirs.name}"
    said += f" (first token {_times(paired.first_token)}, decoding {_times(paired.decoding)})"
    said += f", over {paired.pairs} answers to {paired.speed.prompts} prompts"
    if paired.same_text is not None and paired.pairs:
        said += f"; {paired.same_text} of {paired.pairs} texts are the same"
    return said


def _times(ratio: Ratio) -> str:
    if math.isnan(ratio.value):
        return "–"
    interval = "" if math.isnan(ratio.low) else f" [{ratio.low:.2f} … {ratio.high:.2f}]"
    # Brackets would be read as markup.
    return f"{ratio.value:.2f}×" + interval.replace("[", "\\[")


def _troubles(figures: Figures) -> list[str]:
    found = [
        f"{n} failed: {code} {figures.examples.get(code, '')[:160]}".replace("[", "\\[").strip()
        for code, n in sorted(figures.faults.items())
    ]
    if figures.refusals:
        said = ", ".join(f"HTTP {status} {n} times" for status, n in sorted(figures.refusals.items()))
        found.append(f"refused as busy: {said}; {figures.waited:.1f} s waited")
    if figures.stopped:
        found.append(f"stopped early: {figures.stopped}".replace("[", "\\["))
    if figures.doubts:
        found.append(f"{figures.doubts} answers had figures of speculation that cannot be")
    return found


def _two(spread: Spread) -> str:
    """In one unit."""
    if not spread.count:
        return "–"
    unit, times = ("s", 1.0) if spread.p50 >= 1 else ("ms", 1000.0)
    return f"{_short(spread.p50 * times)} / {_short(spread.p99 * times)} {unit}"


def _short(value: float) -> str:
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}"
