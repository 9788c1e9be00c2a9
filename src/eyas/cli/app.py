"""The application that the verbs are added to."""

from __future__ import annotations

import sys
from typing import Any

import typer
from rich.console import Console
from typer.core import TyperGroup


class Verbs(TyperGroup):
    """Says what an interrupt left behind, which is nothing."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            Console(stderr=True).print("\ninterrupted; nothing is half-written, the same command goes on")
            sys.exit(130)


app = typer.Typer(
    cls=Verbs, no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False, rich_markup_mode="rich"
)
