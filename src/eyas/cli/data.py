"""``eyas data``: verbs about prompts, chats and samples. Other modules of verbs add theirs to ``data_app``."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from eyas.cli.app import app
from eyas.cli.options import BUILTIN, BackendOption, Dtype, Json, Model, Threads

EVALUATION_SETS = ("prompts:mt-bench", "prompts:humaneval")

data_app = typer.Typer(no_args_is_help=True, rich_markup_mode="rich")
app.add_typer(data_app, name="data")


@data_app.callback()
def data() -> None:
    """Prompts, chats and samples: make them, look at them, count them."""


@data_app.command()
def sample(
    count: Annotated[int, typer.Option(min=1, help="Prompts that pass the filters.")],
    out: Annotated[Path, typer.Option(help="The file to write (.jsonl); what is drawn lies in OUT.draws beside it.")],
    model: Model = BUILTIN,
    seed: Annotated[int, typer.Option(min=0, help="The same seed gives the same prompts.")] = 0,
    temperature: Annotated[float, typer.Option(help="At which the user is drawn.")] = 1.0,
    top_p: Annotated[float, typer.Option(help="Keep the likeliest tokens that reach p together.")] = 0.95,
    max_new_tokens: Annotated[int, typer.Option(help="A prompt that is longer is dropped.")] = 256,
    words_share: Annotated[float, typer.Option(help="Share of prompts that begin with a given word.")] = 0.3,
    code_share: Annotated[float, typer.Option(help="Share that begins as questions about code do.")] = 0.3,
    shortest: Annotated[int, typer.Option(help="Fewest tokens of a prompt.")] = 4,
    near_duplicate: Annotated[float, typer.Option(help="Drop what is this similar to a kept one; 0 is off.")] = 0.7,
    alphabet: Annotated[str | None, typer.Option(help="LATIN, CYRILLIC, CJK, …: of nine letters in ten.")] = None,
    language: Annotated[list[str] | None, typer.Option(help="en, de, …: keep these; may be repeated.")] = None,
    most_perplexity: Annotated[float | None, typer.Option(min=1, help="Of a prompt under the target.")] = None,
    avoid: Annotated[
        list[str] | None,
        typer.Option(help="Evaluation sets to share no 8 words with, or none. If not given: MT-Bench, HumanEval."),
    ] = None,
    licence: Annotated[str | None, typer.Option(help="The target's; of the built-in one it is known.")] = None,
    batch: Annotated[int, typer.Option(min=1, help="Prompts drawn at once.")] = 64,
    dtype: Dtype = "fp32",
    backend: BackendOption = "auto",
    threads: Threads = None,
    as_json: Json = False,
) -> None:
    """Let the target make up prompts: its chat template's user turn, continued. A killed run goes on where it was."""
    from eyas.cli.sampling import SampleJob, run_sample
    from eyas.data.filters import FilterSettings
    from eyas.data.selfsample import SelfSampleSettings

    settings = SelfSampleSettings(
        seed=seed,
        temperature=temperature,
        top_p=top_p,
        max_new_tokens=max_new_tokens,
        words_share=words_share,
        code_share=code_share,
    )
    filters = FilterSettings(
        shortest_tokens=shortest,
        longest_tokens=max(max_new_tokens, shortest) + 64,
        near_duplicate=near_duplicate or None,
        alphabet=alphabet,
        languages=tuple(language or ()),
        most_surprise=None if most_perplexity is None else math.log(most_perplexity),
    )
    job = SampleJob(model, out, count, settings, filters, tuple(avoid or EVALUATION_SETS), licence, batch)
    report = run_sample(job, dtype, backend, threads, quiet=as_json)
    if as_json:
        print(json.dumps(report))
        return
    console = Console(highlight=False, soft_wrap=True)
    console.print(f"{report['prompts']} prompts of {report['draws']} draws → {out}")
    for reason, number in report["dropped"].items():
        if number:
            console.print(f"  {number} dropped: {reason}", style="dim")
