"""Options that several verbs share, and what they do with them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, TypeVar

import typer
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

T = TypeVar("T")
BUILTIN = "builtin:smollm2-135m"

Json = Annotated[bool, typer.Option("--json", help="Print one JSON document on stdout, nothing else.")]
Model = Annotated[str, typer.Option("--model", help="builtin:…, a hub id, a model folder or a GGUF file.")]
DraftOption = Annotated[
    str, typer.Option("--draft", help="A draft folder; auto: the one that the built-in model brings; none.")
]
Dtype = Annotated[
    str, typer.Option("--dtype", "--quantization", help="Weights: fp32, bf16, or int8 (activations too).")
]
BackendOption = Annotated[str, typer.Option("--backend", help="Kernels: auto, native, onednn or eager.")]
Threads = Annotated[int | None, typer.Option("--threads", min=1, help="CPU threads; torch's own choice if not given.")]
Steps = Annotated[int | None, typer.Option("--speculative-num-steps", help="Draft steps in a round, K.")]
Topk = Annotated[int | None, typer.Option("--speculative-eagle-topk", help="Tokens kept per step; 1 is a chain.")]
DraftTokens = Annotated[
    int | None, typer.Option("--speculative-num-draft-tokens", help="Tokens verified in a round, the root counted.")
]


def open_model(model: str, draft: Path | None, dtype: str, backend: str, threads: int | None, quiet: bool) -> Any:
    import torch

    from eyas.artifacts import cache_root
    from eyas.engine.session import open_session
    from eyas.pull import resolve_model

    if threads is not None:
        torch.set_num_threads(threads)
    folder = with_progress(lambda progress: resolve_model(model, cache_root(), progress), quiet)
    return open_session(folder, draft, dtype, backend)


def with_progress(work: Callable[[Any], T], quiet: bool) -> T:
    """Run ``work`` with a callback that draws progress bars on stderr."""
    columns = (SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True, quiet=quiet), transient=True) as bars:
        tasks: dict[str, Any] = {}

        def progress(what: str, done: int, total: int) -> None:
            if what not in tasks:
                tasks[what] = bars.add_task(what, total=total or None)
            bars.update(tasks[what], completed=done, total=total or None)

        return work(progress)
