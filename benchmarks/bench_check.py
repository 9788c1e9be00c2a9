"""Planted faults: how many `eyas check` names exactly, how many wrongly, and how often it finds one in a healthy draft.

    python benchmarks/bench_check.py [--pair tiny|smollm2|all] [--group NAME …] [--only NAME …] [--limit N] [--out FILE]

Every fault is planted in a copy of a healthy draft (eyas.testing.planted), which is checked as a user would check it.
``exact``: all that was planted is named, with the right taps, order or base, and nothing else is called a fault.
``part`` and ``missed``: some or nothing of it is named · ``wrong``: something else is · ``clear`` and ``false alarm``:
of a healthy draft. Of each healthy one the walk's accept length is compared with what the own engine shows. Drafts of a
training run, such as its states after some of the steps, are healthy too: ``--checkpoints FOLDER …``.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch
from bench_decode import machine
from rich.console import Console
from rich.table import Table

from eyas.artifacts import cache_root, write_json
from eyas.check.acceptance import compared_with_engine
from eyas.check.evidence import NUM_PROMPTS, texts_of
from eyas.check.findings import Verdict
from eyas.check.meant import meant_parts, model_of
from eyas.check.measure import Rig
from eyas.check.run import CheckRequest, run_check
from eyas.check.static import check_static
from eyas.draft.checkpoint import target_shape
from eyas.engine.session import open_session
from eyas.errors import EyasError
from eyas.pull import resolve_model
from eyas.testing.planted import doubles, healthy, singles
from eyas.testing.planting import Pair, Planted, foreign, outcome, smollm2, tiny

GROUPS = ("single", "double", "healthy")
OUTCOMES = ("exact", "part", "undecided", "missed", "wrong", "clear", "false alarm", "refused")
GOOD = ("exact", "clear")
NUM_STEPS = 3
WALKED = 12
"""Prompts on which the walk of a healthy draft is compared with the engine."""
SHOWN = 4
"""Lines of a verdict's ranking that are kept."""


def chosen(
    pair: Pair, only: Sequence[str], groups: Sequence[str], limit: int | None, checkpoints: Sequence[Path]
) -> list[tuple[str, Planted]]:
    """(group, what to check), in a fixed order; ``only``: parts of names; ``checkpoints``: of SmolLM2."""
    # Faults of two things at once say something of the search, which is the same for both pairs.
    two = doubles(pair) if pair.name == "tiny" else []
    more = [checkpoint(path) for path in checkpoints] if pair.name == "smollm2" else []
    of = {"single": singles(pair), "double": two, "healthy": [*healthy(pair), *more]}
    found = [(group, planted) for group in groups for planted in of[group]]
    found = [(group, one) for group, one in found if not only or any(part in one.name for part in only)]
    return found[:limit]


def checkpoint(path: Path) -> Planted:
    """A draft in a folder, as another trainer would leave it."""

    def plant(folder: Path) -> None:
        shutil.rmtree(folder)
        shutil.copytree(path, folder)
        foreign(folder)

    return Planted(f"checkpoint {path.name}", plant=plant, pairs=("smollm2",))


def walk_and_engine(target: Path, draft: Path, prompts: int) -> dict[str, Any]:
    """The accept length that the walk predicts at temperature 0 beside the own engine's, which is to equal it."""
    session = open_session(target, None)
    parts = meant_parts(check_static(draft, target_shape(session.target), None, None), session.target)
    assert parts is not None
    texts = texts_of(session, None, prompts)
    rig = Rig(model_of(parts, session.target), session.target, texts)
    link = compared_with_engine(session, rig, [text.conversation for text in texts], NUM_STEPS)
    return {"walk_is_engine": link.state == "proven", "walk_and_engine": link.said}


def check(pair: Pair, target: Path, group: str, planted: Planted, folder: Path, prompts: int) -> dict[str, Any]:
    """One check: what was expected, what was said, and how long it took."""
    draft = planted.make(pair, folder)
    request = CheckRequest(
        draft=draft,
        target=None if planted.flags else target,
        flags=planted.flags,
        engines=planted.parsed_engines,
        num_prompts=prompts,
    )
    begin = time.perf_counter()
    said: dict[str, Any]
    try:
        verdict = run_check(request)
        said = told(verdict) | {"outcome": outcome(planted, verdict)}
    except EyasError as error:
        said = {"outcome": "refused", "code": error.code, "headline": error.cause}
    expected = [" or ".join(sorted(kinds)) for kinds in planted.expected]
    seconds = time.perf_counter() - begin
    if group == "healthy" and planted.flags is None:
        said |= walk_and_engine(target, draft, min(prompts, WALKED))
    return {"pair": pair.name, "group": group, "name": planted.name, "expected": expected, "seconds": seconds, **said}


def told(verdict: Verdict) -> dict[str, Any]:
    """What of a verdict is kept."""
    survival = verdict.survival
    findings = [{"kind": f.kind, "weight": f.weight, "said": f.said} for f in verdict.findings if f.weight != "note"]
    ranking = [{"name": r.name, "gain": r.gain, "z": r.z} for r in verdict.ranking[:SHOWN]]
    faults = sorted({f.kind for f in verdict.findings if f.weight == "fault"})
    return {
        "answer": verdict.answer,
        "headline": verdict.headline,
        "named": faults,
        "warned": sorted({f.kind for f in verdict.findings if f.weight == "warning"} - set(faults)),
        "findings": findings,
        "ranking": ranking,
        "between": list(verdict.between),
        "accept_length": None if survival is None else survival.accept_length,
        "levels": dict(verdict.seconds),
    }


def summary(records: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Shares over faults and over healthy drafts, and seconds."""
    faults = [record for record in records if record["group"] != "healthy"]
    sound = [record for record in records if record["group"] == "healthy"]
    seconds = sorted(record["seconds"] for record in records)

    def share(of: Sequence[dict[str, Any]], *outcomes: str) -> float | None:
        return sum(record["outcome"] in outcomes for record in of) / len(of) if of else None

    return {
        "faults": len(faults),
        "exact": share(faults, "exact"),
        "exact_by_warning": sum(r["outcome"] == "exact" and r["answer"] != "fault" for r in faults),
        "undecided": share(faults, "undecided"),
        "wrong": share(faults, "wrong"),
        "healthy": len(sound),
        "false_alarms": share(sound, "false alarm"),
        "walk_is_engine": sum(r.get("walk_is_engine", False) for r in sound),
        "walked": sum("walk_is_engine" in r for r in sound),
        "median_seconds": statistics.median(seconds) if seconds else None,
        "longest_seconds": seconds[-1] if seconds else None,
    }


def show(result: dict[str, Any], console: Console) -> None:
    """The document as tables: outcomes by group, what was not named exactly, and the shares."""
    console.print(" · ".join(f"{k} {v}" for k, v in result["machine"].items()))
    records = result["checks"]
    table = Table("pair", "planted", *OUTCOMES, "seconds", title="planted faults")
    for pair in dict.fromkeys(record["pair"] for record in records):
        for group in GROUPS:
            mine = [r for r in records if (r["pair"], r["group"]) == (pair, group)]
            if mine:
                counts = Counter(r["outcome"] for r in mine)
                median = statistics.median(r["seconds"] for r in mine)
                table.add_row(pair, group, *(str(counts[o]) if counts[o] else "" for o in OUTCOMES), f"{median:.1f}")
    console.print(table)
    confused = Table("fault", "planted", "named", "outcome", "headline", title="not named exactly")
    for r in records:
        if r["outcome"] not in GOOD:
            name = f"{r['pair']}: {r['name']}"
            confused.add_row(
                name, " + ".join(r["expected"]), ", ".join(r.get("named", ())), r["outcome"], r["headline"]
            )
    if confused.row_count:
        console.print(confused)
    s = result["summary"]
    if s["faults"]:
        console.print(
            f"{s['faults']} faults: {s['exact']:.1%} named exactly ({s['exact_by_warning']} by a warning), "
            f"{s['wrong']:.1%} wrongly, {s['undecided']:.1%} undecided"
        )
    if s["healthy"]:
        equal = f"{s['walk_is_engine']} of {s['walked']}"
        console.print(f"{s['healthy']} healthy drafts: {s['false_alarms']:.1%} false alarms; walk = engine: {equal}")
    if records:
        console.print(f"seconds a check: {s['median_seconds']:.1f} median, {s['longest_seconds']:.1f} at most")


def run(args: argparse.Namespace, console: Console) -> dict[str, Any]:
    torch.set_num_threads(args.threads)
    pairs = [pair for pair in (tiny(), smollm2()) if args.pair in (pair.name, "all")]
    result: dict[str, Any] = {"machine": machine(), "prompts": args.prompts, "checks": []}
    with tempfile.TemporaryDirectory() as scratch:
        for pair in pairs:
            target = resolve_model(pair.target, cache_root())
            for number, (group, planted) in enumerate(
                chosen(pair, args.only, args.group, args.limit, args.checkpoints)
            ):
                folder = Path(scratch) / pair.name / str(number)
                record = check(pair, target, group, planted, folder, args.prompts)
                record = json.loads(json.dumps(record).replace(str(folder), "draft"))  # no path of this machine
                result["checks"].append(record)
                seconds, named = (
                    f"{record['seconds']:.1f} s",
                    ", ".join(record.get("named") or record.get("warned", ())),
                )
                console.print(f"{pair.name} · {planted.name}: {record['outcome']} ({named or '–'}) {seconds}")
                result["summary"] = summary(result["checks"])
                if args.out:
                    write_json(args.out, result)  # What is done is not lost when the run is stopped.
    result["summary"] = summary(result["checks"])
    result["finished"] = datetime.now(UTC).isoformat(timespec="seconds")
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--pair", choices=("tiny", "smollm2", "all"), default="all")
    parser.add_argument("--group", nargs="+", choices=GROUPS, default=GROUPS)
    parser.add_argument("--only", nargs="+", default=(), metavar="NAME", help="those whose names contain one of these")
    parser.add_argument("--limit", type=int, help="the first so many of each pair")
    parser.add_argument("--checkpoints", nargs="+", type=Path, default=(), metavar="FOLDER", help="drafts of SmolLM2")
    parser.add_argument("--prompts", type=int, default=NUM_PROMPTS, help="fewer are faster, and decide less")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    console = Console(width=160)
    result = run(args, console)
    show(result, console)
    if args.out:
        write_json(args.out, result)


if __name__ == "__main__":
    main()
