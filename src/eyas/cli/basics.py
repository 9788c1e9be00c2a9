"""Verbs about what is on disk: version, pull, list, explain."""

from __future__ import annotations

import json
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

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
def explain(code: Annotated[str, typer.Argument(help="An error code, e.g. draft.vocab-map.")]) -> None:
    """Say what an error code means."""
    if code not in CODES:
        raise EyasError("flags.unknown", f"there is no error code {code!r}", f"one of: {', '.join(sorted(CODES))}")
    print(f"{code}: {CODES[code]}")
