"""The verb that proves a draft, or names what is wrong with it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.markup import escape

from eyas.cli.app import app
from eyas.cli.options import BUILTIN, BackendOption, Dtype, Json, Threads, with_progress
from eyas.config import DEFAULT_STEPS
from eyas.errors import EyasError

if TYPE_CHECKING:
    from eyas.check.findings import Verdict

MAX_COMMAND_BYTES = 1 << 16


DraftFolder = Annotated[str, typer.Argument(help="A draft's folder, in any layout; builtin:… for the packaged draft.")]
OfTarget = Annotated[
    str | None,
    typer.Option(
        "--target", help="builtin:…, a hub id, a model folder or a GGUF file; the built-in model if the draft is its."
    ),
]
OfOriginal = Annotated[
    str | None,
    typer.Option("--original-target", help="The target that it was trained for, if the served one was made from that."),
]
Prompts = Annotated[Path | None, typer.Option("--prompts", help="A file of prompts to measure on.")]
Flags = Annotated[
    str | None, typer.Option("--flags", help="The speculative flags that it is served with, as one string.")
]
LaunchCommand = Annotated[
    Path | None, typer.Option("--launch-command", help="A file with the whole launch command, in place of --flags.")
]
Engines = Annotated[
    list[str] | None, typer.Option("--engine", help="sglang==X or vllm==Y that is to serve it; may be repeated.")
]
Endpoint = Annotated[str | None, typer.Option("--endpoint", help="URL of a running server that uses this draft.")]
Observed = Annotated[
    Path | None,
    typer.Option("--observed", help="A file of accept lengths or counters seen there, in place of --endpoint."),
]
Fix = Annotated[
    Path | None, typer.Option("--fix", help="The folder for a corrected draft, where that needs no training.")
]
Page = Annotated[Path | None, typer.Option("--html", help="Also write the verdict as one page.")]
StepsToMeasure = Annotated[
    int, typer.Option("--speculative-num-steps", min=1, help="Draft steps in a round, K, to measure at.")
]


@app.command()
def check(
    draft: DraftFolder,
    target: OfTarget = None,
    original_target: OfOriginal = None,
    prompts: Prompts = None,
    flags: Flags = None,
    launch_command: LaunchCommand = None,
    engine: Engines = None,
    endpoint: Endpoint = None,
    observed: Observed = None,
    fix: Fix = None,
    html: Page = None,
    num_steps: StepsToMeasure = DEFAULT_STEPS,
    dtype: Dtype = "fp32",
    backend: BackendOption = "auto",
    threads: Threads = None,
    as_json: Json = False,
) -> None:
    """Prove a draft, or name what is wrong with it: exit status 0 proven or no fault, 1 fault, 3 undecided."""
    import torch

    from eyas.check.run import CheckRequest, run_check
    from eyas.dialects.engines import Engine

    _refuse_both("--flags", flags, "--launch-command", launch_command)
    _refuse_both("--endpoint", endpoint, "--observed", observed)
    folder, console = _draft_folder(draft), Console(highlight=False, quiet=as_json)
    _check_outputs(folder, fix, html)
    if observed is not None:
        _file(observed, "--observed")
    if threads is not None:
        torch.set_num_threads(threads)
    request = CheckRequest(
        draft=folder,
        target=_target_folder(
            target,
            folder,
            _outside(endpoint, observed) or ("--original-target" if original_target else None),
            quiet=as_json,
        ),
        original=None if original_target is None else _target_folder(original_target, folder, None, quiet=as_json),
        prompts=None if prompts is None else _file(prompts, "--prompts"),
        flags=flags if launch_command is None else _command(launch_command),
        engines=tuple(Engine.parse(name) for name in engine or ()),
        endpoint=endpoint,
        observed=observed,
        fix=fix,
        num_steps=num_steps,
        dtype=dtype,
        backend=backend,
    )
    with Console(stderr=True, quiet=as_json).status("checking") as status:
        verdict = run_check(request, _noting(status.update))
    _show(verdict, html, console, as_json)
    raise typer.Exit(verdict.exit_code)


def _show(verdict: Verdict, html: Path | None, console: Console, as_json: bool) -> None:
    from eyas.artifacts import atomic_write
    from eyas.check.html import to_html
    from eyas.check.report import render

    if html is not None:
        atomic_write(html, to_html(verdict))
    if as_json:
        print(json.dumps(verdict.to_json()))
        return
    render(verdict, console)
    if html is not None:
        console.print(f"report → {html}", markup=False, soft_wrap=True)


def _noting(update: Callable[[str], None]) -> Callable[[str], None]:
    return lambda what: update(escape(what))


def _refuse_both(one: str, value: object, other: str, other_value: object) -> None:
    if value is not None and other_value is not None:
        cause = f"{one} and {other} are two sources of the same thing"
        raise EyasError("flags.contradiction", cause, f"leave out {one} or {other}")


def _draft_folder(draft: str) -> Path:
    from eyas.engine.session import builtin_draft_folder

    folder = builtin_draft_folder(draft) or Path(draft).expanduser()
    if not folder.is_dir():
        fix = f"name the folder of a draft, or {BUILTIN} for the packaged one"
        raise EyasError("artifact.missing", f"there is no folder {draft}", fix)
    return folder


def _outside(endpoint: str | None, observed: Path | None) -> str | None:
    if endpoint is not None:
        return "--endpoint"
    return None if observed is None else "--observed"


def _target_folder(target: str | None, draft: Path, needed_by: str | None, quiet: bool) -> Path | None:
    from eyas.artifacts import cache_root
    from eyas.check.belongs import is_of
    from eyas.contract import Contract
    from eyas.draft.checkpoint import CONTRACT
    from eyas.engine.session import builtin_draft_folder
    from eyas.pull import resolve_model

    if target is None:
        packaged = builtin_draft_folder(BUILTIN)
        if packaged is None or not is_of(Contract.read(packaged / CONTRACT).target, draft):
            if needed_by is not None:
                cause = f"{needed_by} is compared with what the target accepts, and this draft's target is not given"
                raise EyasError("flags.missing", cause, "give --target: a model folder, a hub id or a GGUF file")
            said = "[yellow]only files and flags are checked[/]: the draft is not of the built-in target, so its own is"
            Console(stderr=True, quiet=quiet, highlight=False).print(said, "needed for the rest: give --target")
            return None
        target = BUILTIN
    name = target
    return with_progress(lambda progress: resolve_model(name, cache_root(), progress), quiet)


def _file(path: Path, flag: str) -> Path:
    if not path.is_file():
        raise EyasError("artifact.missing", f"{flag} {path}: there is no such file", "check the spelling")
    return path


def _command(path: Path) -> str:
    size = _file(path, "--launch-command").stat().st_size
    if size > MAX_COMMAND_BYTES:
        cause = f"{path} has {size} bytes, a launch command at most {MAX_COMMAND_BYTES}"
        raise EyasError("artifact.corrupt", cause, "name a file that holds nothing but the command")
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        cause = f"{path} is no text: {error}"
        raise EyasError("artifact.corrupt", cause, "name a file that holds nothing but the command") from error


def _check_outputs(draft: Path, fix: Path | None, html: Path | None) -> None:
    """Refuse before the work what could not be written after it."""
    if fix is not None and fix.resolve() == draft.resolve():
        cause = f"--fix {fix} is the draft itself, which is left as it is"
        raise EyasError("flags.contradiction", cause, "name another folder")
    if html is not None and html.is_dir():
        raise EyasError("flags.range", f"--html {html} is a folder", f"write --html {html / 'check.html'}")
