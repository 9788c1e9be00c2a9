"""``eyas data``: verbs about prompts, chats and samples. Other modules of verbs add theirs to ``data_app``."""

from __future__ import annotations

import typer

from eyas.cli.app import app

data_app = typer.Typer(no_args_is_help=True, rich_markup_mode="rich")
app.add_typer(data_app, name="data")


@data_app.callback()
def data() -> None:
    """Prompts, chats and samples: make them, look at them, count them."""
