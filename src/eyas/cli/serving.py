"""What ``eyas serve`` puts together: the model's folder, settings with their origins, the server, what is shown."""

from __future__ import annotations

import asyncio
import json
from datetime import datetime
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from eyas.artifacts import cache_root
from eyas.cli.options import with_progress
from eyas.pull import resolve_model
from eyas.serve.resolve import Serving, resolve
from eyas.serve.run import Outside, run_server
from eyas.serve.settings import merge
from eyas.serve.wire import Ready
from eyas.serve.wording import open_tokenizer

WIDE = 120
LOOPBACK = ("127.0.0.1", "::1", "localhost")
ORIGIN_STYLES = {"flag": "bold", "config file": "bold", "default": "dim"}


def serve(flags: dict[str, Any], config: Path | None, explain: bool, as_json: bool) -> None:
    """Serve until told to end, or with ``explain`` show what would run."""
    settings, origins = merge(flags, config)
    settings.keys()
    folder = with_progress(lambda progress: resolve_model(settings.model_path, cache_root(), progress), quiet=as_json)
    tokenizer = open_tokenizer(settings, folder)
    serving = resolve(settings, origins, folder, tokenizer.chat_template)
    if explain:
        show_values(serving, as_json)
        return
    console = Console(stderr=True, quiet=as_json, highlight=False, soft_wrap=True)

    def say(what: str) -> None:
        stamp = datetime.now().strftime("%H:%M:%S")
        Console(stderr=True, highlight=False, soft_wrap=True).print(f"[dim]{stamp}[/]", Text(what))

    def ready(url: str, told: Ready) -> None:
        if as_json:
            print(json.dumps({"url": url, "model": told.model, "settings": serving.to_json()}), flush=True)
        console.print(f"[bold green]ready[/] {url}", Text(f"· model {told.model}"))

    outside = Outside(say, lambda url: console.print(banner(serving, url)), ready)
    asyncio.run(run_server(serving, tokenizer, outside))


def show_values(serving: Serving, as_json: bool) -> None:
    """Every effective value and where it came from, on stdout."""
    if as_json:
        print(json.dumps({"settings": serving.to_json()}))
        return
    console = Console(highlight=False)
    if not console.is_terminal:
        console = Console(highlight=False, width=WIDE)
    table = Table("setting", "value", "from", "", title="eyas serve: what would run", title_style="bold", box=None)
    table.columns[0].no_wrap = table.columns[2].no_wrap = True
    for value in serving.values:
        style = ORIGIN_STYLES.get(value.origin, "cyan")
        shown = Text("–" if value.value is None else str(value.value), overflow="fold")
        table.add_row(value.name, shown, Text(value.origin, style), Text(value.note, "dim"))
    console.print(table)


def banner(serving: Serving, url: str) -> Table:
    """The few facts that one wants to see before the first request."""
    engine, settings = serving.engine, serving.settings
    grid = Table.grid(padding=(0, 2))
    grid.add_row(Text("eyas serve", "bold"), Text(f"{url}  (chat page at /, OpenAI's API at /v1)"))
    grid.add_row("model", Text(f"{engine.model} · {engine.dtype} · context {engine.context:,}"))
    grid.add_row("draft", Text(_draft(serving)))
    slots = f"{engine.num_slots:,} cache slots · {engine.max_running} requests at a time"
    replicas = f" · {settings.dp_size} replicas" if settings.dp_size > 1 else ""
    grid.add_row("room", Text(slots + replicas))
    if settings.host not in LOOPBACK and not settings.keys():
        grid.add_row(Text("open", "bold yellow"), Text("whoever reaches this address may use it: no --api-key is set"))
    grid.add_row("", Text("eyas serve --explain shows every setting and where it came from", "dim"))
    return grid


def _draft(serving: Serving) -> str:
    how, engine = serving.engine.speculation, serving.engine
    if how is None:
        return "none: plain decoding"
    shape = f"{how.num_steps} steps" if not how.is_tree else f"tree of {how.num_draft_tokens} tokens"
    chosen = "at most, as many as pay" if engine.adaptive else "always"
    name = "n-grams of the text" if engine.draft is None else engine.draft.name
    return f"{name} · {engine.algorithm} · {shape} {chosen} · accept length up to {how.ceiling}"
