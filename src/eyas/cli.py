"""The command line: verbs only, no logic."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, TypeVar

import typer
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table
from typer.core import TyperGroup

from eyas import __version__
from eyas.errors import CODES, EyasError


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
T = TypeVar("T")
BUILTIN = "builtin:smollm2-135m"

Json = Annotated[bool, typer.Option("--json", help="Print one JSON document on stdout, nothing else.")]
Model = Annotated[str, typer.Option("--model", help="builtin:…, a hub id, a model folder or a GGUF file.")]
DraftOption = Annotated[
    str, typer.Option("--draft", help="A draft folder; auto: the one that the built-in model brings; none.")
]
Dtype = Annotated[str, typer.Option("--dtype", help="Weights of the target: fp32 or bf16.")]
BackendOption = Annotated[str, typer.Option("--backend", help="Kernels: auto, native, onednn or eager.")]
Threads = Annotated[int | None, typer.Option("--threads", min=1, help="CPU threads; torch's own choice if not given.")]
Steps = Annotated[int | None, typer.Option("--speculative-num-steps", help="Draft steps in a round, K.")]
Topk = Annotated[int | None, typer.Option("--speculative-eagle-topk", help="Tokens kept per step; 1 is a chain.")]
DraftTokens = Annotated[
    int | None, typer.Option("--speculative-num-draft-tokens", help="Tokens verified in a round, the root counted.")
]


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

    path = _with_progress(lambda progress: fetch(source, cache_root(), progress), quiet=as_json)
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
def generate(
    prompt: Annotated[str, typer.Argument(help="The user's message, or the text to continue with --raw.")],
    model: Model = BUILTIN,
    draft: DraftOption = "auto",
    system: Annotated[str | None, typer.Option(help="A system message.")] = None,
    raw: Annotated[bool, typer.Option("--raw", help="Continue the text itself, without the chat template.")] = False,
    algorithm: Annotated[str | None, typer.Option("--speculative-algorithm", help="EAGLE3, NGRAM or NONE.")] = None,
    num_steps: Steps = None,
    eagle_topk: Topk = None,
    num_draft_tokens: DraftTokens = None,
    draft_sampling: Annotated[str, typer.Option(help="one-hot or probabilistic.")] = "one-hot",
    max_new_tokens: Annotated[int, typer.Option(help="Tokens of the answer at most.")] = 256,
    temperature: Annotated[float, typer.Option(help="0 is greedy.")] = 0.0,
    top_k: Annotated[int, typer.Option(help="Keep the k most likely tokens; 0 is off.")] = 0,
    top_p: Annotated[float, typer.Option(help="Keep the likeliest tokens that reach p together; 1 is off.")] = 1.0,
    min_p: Annotated[
        float, typer.Option(help="Keep tokens at least this likely beside the likeliest; 0 is off.")
    ] = 0.0,
    seed: Annotated[int, typer.Option(help="Keys the noise: the same seed gives the same text, for every K.")] = 0,
    repetition_penalty: Annotated[float, typer.Option(help="Divides logits of tokens seen; 1 is off.")] = 1.0,
    presence_penalty: Annotated[float, typer.Option(help="Subtracted from logits of tokens generated.")] = 0.0,
    frequency_penalty: Annotated[float, typer.Option(help="The same, times their number.")] = 0.0,
    logit_bias: Annotated[list[str] | None, typer.Option(help="ID=BIAS, may be repeated.")] = None,
    ignore_eos: Annotated[bool, typer.Option("--ignore-eos", help="Go on past the end-of-turn token.")] = False,
    dtype: Dtype = "fp32",
    backend: BackendOption = "auto",
    threads: Threads = None,
    as_json: Json = False,
) -> None:
    """Answer one prompt, with or without a draft: the text is the same."""
    from eyas.config import SamplingSettings
    from eyas.generate.run import Asked, run_generate

    sampling = SamplingSettings(
        temperature=temperature,
        top_k=top_k,
        top_p=top_p,
        min_p=min_p,
        seed=seed,
        repetition_penalty=repetition_penalty,
        presence_penalty=presence_penalty,
        frequency_penalty=frequency_penalty,
        logit_bias=_biases(logit_bias or []),
        max_new_tokens=max_new_tokens,
        ignore_eos=ignore_eos,
    )
    asked = Asked(algorithm, draft, num_steps, eagle_topk, num_draft_tokens, draft_sampling)
    plan = asked.resolve(model)
    session = _open(model, plan.draft, dtype, backend, threads, quiet=as_json)
    turns = ([("system", system)] if system is not None else []) + [("user", prompt)]
    ids = session.encode(prompt) if raw else session.encode_chat(turns)
    result = run_generate(session, ids, sampling, plan, Console(quiet=as_json, highlight=False))
    if as_json:
        print(json.dumps(result))


@app.command()
def demo(
    model: Model = BUILTIN,
    draft: DraftOption = "auto",
    num_steps: Steps = None,
    eagle_topk: Topk = None,
    num_draft_tokens: DraftTokens = None,
    prompts: Annotated[int, typer.Option(min=1, help="Prompts of each set.")] = 6,
    max_new_tokens: Annotated[int, typer.Option(min=2, help="Tokens of each answer at most.")] = 128,
    dtype: Dtype = "fp32",
    backend: BackendOption = "auto",
    threads: Threads = None,
    svg: Annotated[Path | None, typer.Option(help="Also save what is shown as a picture.")] = None,
    as_json: Json = False,
) -> None:
    """Real questions answered twice, plain and with EAGLE-3: the same text, and what it cost."""
    from eyas.artifacts import cache_root
    from eyas.demo.demo import DEMO_STEPS, demo_prompts, run_demo
    from eyas.generate.run import Asked

    if (num_steps, eagle_topk, num_draft_tokens) == (None, None, None):
        num_steps = DEMO_STEPS
    plan = Asked("EAGLE3", draft, num_steps, eagle_topk, num_draft_tokens, "one-hot").resolve(model)
    assert plan.speculation is not None
    session = _open(model, plan.draft, dtype, backend, threads, quiet=as_json)
    chosen = _with_progress(lambda progress: demo_prompts(cache_root(), prompts, progress), quiet=as_json)
    console = Console(quiet=as_json, highlight=False, record=svg is not None, width=110 if svg else None)
    result = run_demo(session, chosen, plan.speculation, max_new_tokens, console)
    if svg is not None:
        console.save_svg(str(svg), title="eyas demo")
    if as_json:
        print(json.dumps(result))


@app.command()
def explain(code: Annotated[str, typer.Argument(help="An error code, e.g. draft.vocab-map.")]) -> None:
    """Say what an error code means."""
    if code not in CODES:
        raise EyasError("flags.unknown", f"there is no error code {code!r}", f"one of: {', '.join(sorted(CODES))}")
    print(f"{code}: {CODES[code]}")


def _open(model: str, draft: Path | None, dtype: str, backend: str, threads: int | None, quiet: bool) -> Any:
    import torch

    from eyas.artifacts import cache_root
    from eyas.generate.session import open_session
    from eyas.pull import resolve_model

    if threads is not None:
        torch.set_num_threads(threads)
    folder = _with_progress(lambda progress: resolve_model(model, cache_root(), progress), quiet)
    return open_session(folder, draft, dtype, backend)


def _biases(items: list[str]) -> dict[int, float]:
    biases = {}
    for item in items:
        token, _, value = item.partition("=")
        try:
            biases[int(token)] = float(value)
        except ValueError:
            raise EyasError("request.sampling", f"--logit-bias {item} is not ID=BIAS", "write e.g. 42=-100") from None
    return biases


def _with_progress(work: Callable[[Any], T], quiet: bool) -> T:
    """Run ``work`` with a callback that draws progress bars on stderr."""
    columns = (SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True, quiet=quiet), transient=True) as bars:
        tasks: dict[str, Any] = {}

        def progress(what: str, done: int, total: int) -> None:
            if what not in tasks:
                tasks[what] = bars.add_task(what, total=total or None)
            bars.update(tasks[what], completed=done, total=total or None)

        return work(progress)


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


if __name__ == "__main__":
    main()
