"""The command line: verbs only, no logic."""

from __future__ import annotations

import json
import sys

from rich.console import Console

# Importing a module of verbs adds them.
from eyas.cli import answer, basics, data
from eyas.cli.app import app
from eyas.errors import EyasError

__all__ = ["answer", "app", "basics", "data", "main"]


def main() -> None:
    """Entry point: errors that a user can cause end in a code, the cause and the fix."""
    try:
        app()
    except EyasError as error:
        if "--json" in sys.argv:
            print(json.dumps({"error": {"code": error.code, "cause": error.cause, "fix": error.fix}}))
        else:
            console = Console(stderr=True, highlight=False, soft_wrap=True)
            console.print(f"[bold red]error[/] [bold]\\[{error.code}][/]", end=" ")
            console.print(error.cause, markup=False)
            console.print("  [bold]fix:[/]", end=" ")
            console.print(error.fix, markup=False)
        sys.exit(2 if error.code.startswith("flags.") else 1)
