"""``eyas regen``: prompts → chats that the target answered."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from eyas.cli.app import app
from eyas.cli.data import EVALUATION_SETS
from eyas.cli.options import BUILTIN, Json, Threads
from eyas.errors import EyasError

Avoid = Annotated[
    list[str] | None, typer.Option(help="Evaluation set to share no 8 words with; may be repeated. none: no set.")
]


@app.command()
def regen(
    prompts: Annotated[list[str], typer.Argument(help="JSON Lines files of prompts, or prompts:… sets.")],
    out: Annotated[Path, typer.Option(help="A folder: journal.jsonl, chats.jsonl, report.json.")],
    model: Annotated[str | None, typer.Option(help=f"The target, run here; {BUILTIN} if not given.")] = None,
    server: Annotated[str | None, typer.Option(help="Or an OpenAI-compatible server's address, …/v1.")] = None,
    limit: Annotated[int | None, typer.Option(min=1, help="Take the first prompts only.")] = None,
    temperatures: Annotated[str, typer.Option(help="A mix, e.g. 0,0.8,1.0: sample i takes the i-th.")] = "0",
    samples: Annotated[int | None, typer.Option(help="Answers to each prompt; one a temperature if not given.")] = None,
    top_p: Annotated[float, typer.Option(help="Keep the likeliest tokens that reach p together; 1 is off.")] = 1.0,
    max_new_tokens: Annotated[int, typer.Option(help="Tokens of one answer at most.")] = 1024,
    seed: Annotated[int, typer.Option(help="The same seed gives the same answers.")] = 0,
    thinking: Annotated[str, typer.Option(help="none, off, on, mixed: the template's switch.")] = "none",
    system: Annotated[str | None, typer.Option(help="A system message where a prompt has none.")] = None,
    keep_given: Annotated[bool, typer.Option("--keep-given", help="Assistant turns in the data stay.")] = False,
    keep_cut: Annotated[bool, typer.Option("--keep-cut", help="Keep answers that ran to a limit or a loop.")] = False,
    near_duplicate: Annotated[float, typer.Option(help="Drop what is this similar to a kept one; 0 is off.")] = 0.8,
    avoid: Avoid = None,
    batch: Annotated[int | None, typer.Option(help="Answers at once; 32 if not given.")] = None,
    slots: Annotated[int | None, typer.Option(help="Tokens in the cache, over the batch.")] = None,
    dtype: Annotated[
        str | None,
        typer.Option("--dtype", "--quantization", help="Weights: fp32 (if not given), bf16 or int8 (activations too)."),
    ] = None,
    backend: Annotated[str | None, typer.Option(help="Kernels: auto (if not given), native, onednn or eager.")] = None,
    threads: Threads = None,
    served_model: Annotated[str | None, typer.Option(help="The server's name of the model, if it has several.")] = None,
    concurrency: Annotated[int | None, typer.Option(help="Requests open at the server; 64 if not given.")] = None,
    timeout: Annotated[float | None, typer.Option(help="Seconds that a request may take; 600 if not given.")] = None,
    tries: Annotated[int | None, typer.Option(help="Of one request, with longer and longer pauses; 6.")] = None,
    api_key_env: Annotated[str | None, typer.Option(help="The environment variable that holds the key.")] = None,
    plan: Annotated[bool, typer.Option("--plan", help="Say what would be done, and do nothing.")] = False,
    as_json: Json = False,
) -> None:
    """Let the target answer prompts, turn by turn. Killed at any moment, the same command goes on."""
    from eyas.cli.regenerating import EngineChoice, RegenJob, ServerChoice, run_regen
    from eyas.data.regen.settings import RegenSettings

    settings = RegenSettings(
        temperatures=_numbers(temperatures),
        num_samples=samples,
        top_p=top_p,
        max_new_tokens=max_new_tokens,
        seed=seed,
        thinking=thinking,  # type: ignore[arg-type]
        system=system,
        keep_given=keep_given,
    )
    here = EngineChoice(model, batch, slots, dtype, backend, threads)
    there = ServerChoice(served_model, concurrency, timeout, tries, api_key_env)
    source, avoided = here.source() if server is None else there.source(server), tuple(avoid or EVALUATION_SETS)
    job = RegenJob(tuple(prompts), limit, out, settings, source, avoided, _share(near_duplicate), keep_cut)
    (there if server is None else here).require_unused(server)
    result = run_regen(job, plan, Console(quiet=as_json, highlight=False, soft_wrap=True))
    if as_json:
        print(json.dumps(result, ensure_ascii=False))


def _numbers(text: str) -> tuple[float, ...]:
    try:
        return tuple(float(part) for part in text.split(","))
    except ValueError:
        cause = f"--temperatures {text} is no list of numbers"
        raise EyasError("flags.range", cause, "write e.g. --temperatures 0,0.8,1.0") from None


def _share(near_duplicate: float) -> float | None:
    if not 0 <= near_duplicate <= 1:
        raise EyasError("flags.range", f"--near-duplicate {near_duplicate}", "give a share of 0 … 1; 0 is off")
    return near_duplicate or None
