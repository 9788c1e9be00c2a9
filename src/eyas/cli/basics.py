"""Verbs about what is on disk: version, pull, list, explain."""

from __future__ import annotations

import json
from difflib import get_close_matches
from typing import Annotated

import typer
from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from eyas import __version__
from eyas.cli.app import app
from eyas.cli.options import BUILTIN, Json, with_progress
from eyas.errors import CODES, EyasError


@app.command()
def version(as_json: Json = False) -> None:
    """Print the version."""
    print(json.dumps({"version": __version__}) if as_json else __version__)


@app.command()
def pull(
    source: Annotated[str, typer.Argument(help="builtin:…, prompts:…, org/name, a folder, a GGUF file.")],
    as_json: Json = False,
) -> None:
    """Fetch a model or a prompt set into the cache; what is there already is not fetched again."""
    from eyas.artifacts import cache_root
    from eyas.pull import pull as fetch

    path = with_progress(lambda progress: fetch(source, cache_root(), progress), quiet=as_json)
    print(json.dumps({"source": source, "path": str(path)}) if as_json else path)


@app.command("list")
def list_(as_json: Json = False) -> None:
    """Show what the cache holds."""
    from eyas.artifacts import cache_root, human_bytes
    from eyas.pull import list_cache

    entries = list_cache(cache_root())
    if as_json:
        rows = [{**vars(e), "path": str(e.path)} for e in entries]
        print(json.dumps({"cache": str(cache_root()), "entries": rows}))
        return
    table = Table("name", "kind", "size", "created", "source", title=str(cache_root()))
    for e in entries:
        table.add_row(
            e.name, e.kind, human_bytes(e.size), e.created[:16], f"[red]{e.fault}[/]" if e.fault else e.source
        )
    Console().print(table if entries else f"nothing in {cache_root()}: try  eyas pull {BUILTIN}")


@app.command()
def explain(
    code: Annotated[str, typer.Argument(help="An error code, or a kind of fault that `eyas check` named.")],
    as_json: Json = False,
) -> None:
    """Say what an error code means, or what a fault is, how it shows, and how it is fixed."""
    from dataclasses import asdict

    from eyas.check.catalogue import KINDS

    if code not in CODES and code not in KINDS:
        known = sorted({*CODES, *KINDS})
        near = get_close_matches(code, known) or known
        raise EyasError("flags.unknown", f"there is no error code or fault {code!r}", f"one of: {', '.join(near)}")
    error, fault = CODES.get(code), KINDS.get(code)
    if as_json:
        print(json.dumps({"code": code, "error": error, "fault": fault and asdict(fault)}))
        return
    if error:
        print(f"{code}: {error}")
    if fault:
        table = Table.grid(padding=(0, 2))
        for name, text in asdict(fault).items():
            if name != "title":
                table.add_row(Text(name, style="dim"), Text(text))
        console = Console(highlight=False)
        console.print(Text.assemble((code, "bold"), f": {fault.title}"))
        console.print(Padding(table, (0, 0, 0, 2), expand=False))
