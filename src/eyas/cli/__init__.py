"""The command line: verbs only, no logic."""

from __future__ import annotations

import json
import sys
from typing import NoReturn

from rich.console import Console

# Importing a module of verbs adds them.
from eyas.cli import answer, basics, bench, capture, check, data, export, recipes, regen, samples, serve, train
from eyas.cli.app import app
from eyas.errors import EyasError

__all__ = [
    "answer",
    "app",
    "basics",
    "bench",
    "capture",
    "check",
    "data",
    "export",
    "main",
    "recipes",
    "regen",
    "samples",
    "serve",
    "train",
]


def main() -> None:
    """Entry point: errors that a user can cause end in a code, the cause and the fix."""
    try:
        app()
    except EyasError as error:
        _end(error)
    except ModuleNotFoundError as error:
        # A verb of training in an installation that was made for serving; a module of our own is our own fault.
        if error.name is None or error.name.split(".")[0] == "eyas":
            raise
        cause = f"this verb needs the package {error.name}, which is not installed"
        _end(EyasError("package.missing", cause, "pip install 'eyas[train]'"))


def _end(error: EyasError) -> NoReturn:
    if "--json" in sys.argv:
        print(json.dumps({"error": {"code": error.code, "cause": error.cause, "fix": error.fix}}))
    else:
        console = Console(stderr=True, highlight=False, soft_wrap=True)
        console.print(f"[bold red]error[/] [bold]\\[{error.code}][/]", end=" ")
        console.print(error.cause, markup=False)
        console.print("  [bold]fix:[/]", end=" ")
        console.print(error.fix, markup=False)
    sys.exit(2 if error.code.startswith("flags.") else 1)
