"""The verb that takes a draft from one layout to another."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from eyas.cli.app import app
from eyas.cli.options import Json, with_progress
from eyas.errors import EyasError


@app.command()
def export(
    draft: Annotated[str, typer.Argument(help="A draft's folder, in any layout; builtin:… for the packaged draft.")],
    to: Annotated[str, typer.Option("--to", help="sglang, vllm or speculators.")],
    out: Annotated[Path, typer.Option("--out", help="The folder to write; an older one is replaced at the end.")],
    engine_version: Annotated[
        str | None,
        typer.Option(help="Version of the engine that must serve it (vLLM for speculators); the newest known if not."),
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(
            "--model",
            help="The target, where the draft does not say: a folder (config.json is enough, unless an embedding must"
            " be compared), builtin:… or a hub id.",
        ),
    ] = None,
    target_name: Annotated[
        str | None, typer.Option(help="Hub id of the target, written in the speculators layout.")
    ] = None,
    taps: Annotated[
        str | None, typer.Option(help="Taps it was trained on, such as 2,15,27, where its config names none.")
    ] = None,
    layer_dialect: Annotated[
        str | None, typer.Option(help="sglang or vllm: whose norms a draft of several layers has, where it is open.")
    ] = None,
    num_steps: Annotated[
        int | None,
        typer.Option("--speculative-num-steps", min=1, help="K that vLLM takes from the speculators layout."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Write a draft in the layout of SGLang, vLLM or speculators: key by key, checked by loading it back."""
    from eyas.engine.session import builtin_draft_folder
    from eyas.export import Asked, Goal, export_draft

    goal = Goal.parse(to, engine_version)
    if layer_dialect not in (None, "sglang", "vllm"):
        raise EyasError("flags.range", f"there is no layer dialect {layer_dialect!r}", "use sglang or vllm")
    asked = Asked(
        target=None if model is None else _target_folder(model, quiet=as_json),
        target_name=target_name,
        taps=None if taps is None else _numbers(taps),
        layer_dialect=layer_dialect,  # type: ignore[arg-type]
        num_steps=num_steps,
    )
    result = export_draft(builtin_draft_folder(draft) or Path(draft), goal, out, asked)
    if as_json:
        print(json.dumps(result.to_json()))
    else:
        _show(result, Console(highlight=False))


def _target_folder(model: str, quiet: bool) -> Path:
    """A folder is taken as it is, because its config.json alone may be enough."""
    from eyas.artifacts import cache_root
    from eyas.pull import resolve_model

    path = Path(model).expanduser()
    if path.is_dir():
        return path
    return with_progress(lambda progress: resolve_model(model, cache_root(), progress), quiet)


def _numbers(text: str) -> tuple[int, ...]:
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError:
        raise EyasError("flags.range", f"--taps {text} is no list of numbers", "write e.g. --taps 2,15,27") from None


def _show(result: Any, console: Console) -> None:
    moved = {old: new for old, new in result.tensors.items() if old != new}
    console.print(f"{result.folder}: {result.goal.name} layout, taps {list(result.taps)}, read back bit-equal")
    console.print(f"  served as trained by {' and '.join(result.served_by)}")
    # The first layer has another name in each layout, which says the same for each of its tensors.
    lines = sorted({f"{_first_layer(old)} → {_first_layer(new)}" for old, new in moved.items()})
    console.print(f"  {len(result.tensors)} tensors, {len(moved)} by another name or not needed")
    for line in lines:
        console.print(f"    {line}", markup=False)
    if result.config_left_out:
        console.print(f"  without effect, kept in manifest.json: {', '.join(result.config_left_out)}")
    if result.files_left:
        console.print(f"  not of the draft, left behind: {', '.join(result.files_left)}", markup=False)
    for note in result.notes:
        console.print(f"  note: {note}", markup=False)


def _first_layer(name: str) -> str:
    return next((f"{prefix}…" for prefix in ("midlayer.", "layers.0.") if name.startswith(prefix)), name)
