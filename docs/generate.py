"""Write the pages of docs/ that are generated: errors.md from the error codes, faults.md from the catalogue of faults,
cli.md from the command line itself, serving-metrics.md from the table of metrics.

python docs/generate.py [--check]
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator
from itertools import groupby
from pathlib import Path
from typing import Any

from typer.main import get_command

from eyas.check.catalogue import KINDS, Kind
from eyas.cli import app
from eyas.errors import CODES
from eyas.serve.metric_table import GROUPS, NO_SUCH, QUERIES

FOLDER = Path(__file__).parent
NOTE = "<!-- Written by `make docs`; do not edit. -->"


def errors_page() -> str:
    """All error codes, by family."""
    lines = [
        "# Errors",
        "",
        NOTE,
        "",
        "Whatever a user can cause ends in an error with a stable code, the cause, and the fix to type or do. A code",
        "never changes its meaning. With `--json` the error is one document on stdout:",
        '`{"error": {"code": …, "cause": …, "fix": …}}`.',
        "The exit status is 2 for `flags.…`, 130 for Ctrl-C, 1 for everything else.",
    ]
    for family, codes in groupby(sorted(CODES), key=lambda code: code.split(".")[0]):
        lines += ["", f"## {family}", "", *_table(("code", "meaning"), ((f"`{c}`", CODES[c]) for c in codes))]
    return "\n".join(lines) + "\n"


def faults_page() -> str:
    """All kinds of faults that a check names, by family."""
    lines = [
        "# Faults",
        "",
        NOTE,
        "",
        "What can be wrong with a draft or with how it is served, as `eyas check` names it. Nearly all of it is",
        "silent: the server is healthy, the text is right, and only the accept length is low. `eyas explain KIND`",
        "prints an entry; with `--json` a finding carries its kind.",
    ]
    for family, kinds in groupby(sorted(KINDS), key=lambda kind: kind.split(".")[0]):
        lines += ["", f"## {family}"]
        for kind in kinds:
            lines += ["", f"### {kind}", "", *_fault(KINDS[kind])]
    return "\n".join(lines) + "\n"


def _fault(kind: Kind) -> list[str]:
    rows = {"Symptom": kind.symptom, "Cause": kind.cause, "How it is found": kind.found, "Fix": kind.fix}
    return [f"**{kind.title}.**", "", *(f"- {name}: {text}" for name, text in rows.items())]


def cli_page() -> str:
    """Every verb with its arguments and flags."""
    lines = ["# Command line", "", NOTE, "", "`eyas VERB --help` shows the same."]
    for name, command in _verbs("eyas", get_command(app)):
        context = command.context_class(command, info_name=name)
        arguments = [p for p in command.params if p.param_type_name == "argument"]
        usage = " ".join([name, *(_usage(p) for p in arguments), "[flags]"])
        lines += ["", f"## {name}", "", command.help or "", "", "```text", usage, "```", ""]
        lines += _table(("argument or flag", "type", "default", "meaning"), (_row(p, context) for p in command.params))
    return "\n".join(lines) + "\n"


def _verbs(prefix: str, group: Any) -> Iterator[tuple[str, Any]]:
    """(what is typed, its command) for every verb, those of a group after each other."""
    for name, command in sorted(group.commands.items()):
        if hasattr(command, "commands"):
            yield from _verbs(f"{prefix} {name}", command)
        else:
            yield f"{prefix} {name}", command


def _usage(argument: Any) -> str:
    name = argument.name.upper()
    return name if argument.required else f"[{name}]"


def _row(param: Any, context: Any) -> tuple[str, str, str, str]:
    is_argument = param.param_type_name == "argument"
    name = param.name.upper() if is_argument else ", ".join(param.opts)
    kind = "" if getattr(param, "is_flag", False) else param.display_type(context).strip("<>").removesuffix(" range")
    empty = param.default is None or param.default is False
    default = "required" if param.required else "" if empty else f"`{param.default}`"
    return f"`{name}`", kind, default, param.help or ""


def metrics_page() -> str:
    """All metrics of the server, by group."""
    lines = [
        "# Metrics of `eyas serve`",
        "",
        NOTE,
        "",
        "`GET /metrics` is read by Prometheus. [metrics.md](metrics.md) defines round, accept length, survival and",
        "cut round. The last two columns name what SGLang and vLLM call the same, by their sources (0.5.23 and",
        "0.32.0), and where they count otherwise. Counters begin at 0 whenever the engine starts, which `rate()`",
        "allows for; what is not known is absent, never 0.",
        "",
        "A dashboard for Grafana is at `/grafana.json` of every server: import it and choose the data source.",
    ]
    for group, metrics in GROUPS.items():
        lines += ["", f"## {group}", ""]
        lines += _table(("name", "type", "unit", "definition", "SGLang", "vLLM"), (_metric(m) for m in metrics))
    lines += ["", "## Questions", "", *_table(("question", "PromQL"), ((k, f"`{q}`") for k, q in QUERIES.items()))]
    return "\n".join(lines) + "\n"


def _metric(metric: Any) -> tuple[str, ...]:
    labels = f"{{{', '.join(metric.labels)}}}" if metric.labels else ""
    others = (name if name == NO_SUCH else _equivalent(name) for name in (metric.sglang, metric.vllm))
    return (f"`{metric.name}{labels}`", metric.type, metric.unit, metric.definition, *others)


def _equivalent(text: str) -> str:
    """Another engine's name, and behind a comma what differs."""
    name, comma, differs = text.partition(", ")
    return f"`{name}`{comma}{differs}"


def _table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> list[str]:
    lines = [head, tuple("---" for _ in head), *rows]
    return ["| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines]


PAGES: dict[str, Callable[[], str]] = {
    "errors.md": errors_page,
    "faults.md": faults_page,
    "cli.md": cli_page,
    "serving-metrics.md": metrics_page,
}


def main(arguments: list[str]) -> int:
    """Write the pages; with ``--check`` only say which would change. Returns the exit status."""
    stale = []
    for name, page in PAGES.items():
        path, text = FOLDER / name, page()
        if path.is_file() and path.read_text(encoding="utf-8") == text:
            continue
        stale.append(name)
        if "--check" not in arguments:
            path.write_text(text, encoding="utf-8")
    if stale and "--check" in arguments:
        print(f"out of date: {', '.join(stale)}; run `make docs`", file=sys.stderr)
        return 1
    print(f"written: {', '.join(stale)}" if stale else "up to date")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
