"""``eyas bench``: a server's address → how fast it answers."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from eyas.cli.app import app
from eyas.cli.options import Json

DEFAULT_PROMPTS = "prompts:mt-bench"

Prompts = Annotated[list[str] | None, typer.Option("--prompts", help="A set or JSON Lines file; may be repeated.")]
Concurrency = Annotated[str | None, typer.Option(help="Requests open at any time, a level each, e.g. 1,8,32.")]
Rate = Annotated[str | None, typer.Option(help="Or requests a second, at random times (Poisson), e.g. 0.5,2.")]
KeyEnv = Annotated[str | None, typer.Option(help="The environment variable that holds the key.")]
KeyFile = Annotated[Path | None, typer.Option(help="Or the file that holds it.")]


@app.command()
def bench(
    url: Annotated[str, typer.Argument(metavar="URL", help="The server's address, with or without /v1.")],
    against: Annotated[str | None, typer.Option(help="A second server, measured in turns with the first.")] = None,
    baseline: Annotated[
        str | None, typer.Option(help="request: measure Eyas's server against itself without speculation.")
    ] = None,
    prompts: Prompts = None,
    limit: Annotated[int | None, typer.Option(min=1, help="Take the first prompts only.")] = None,
    concurrency: Concurrency = None,
    rate: Rate = None,
    requests: Annotated[int | None, typer.Option(help="Of a level and server; every prompt once if not given.")] = None,
    max_tokens: Annotated[int, typer.Option(help="Tokens of one answer at most.")] = 256,
    ignore_eos: Annotated[bool, typer.Option("--ignore-eos", help="Every answer has --max-tokens tokens.")] = False,
    temperature: Annotated[float, typer.Option(help="0 is greedy.")] = 0.0,
    top_p: Annotated[float, typer.Option(help="Keep the likeliest tokens that reach p together; 1 is off.")] = 1.0,
    seed: Annotated[int, typer.Option(help="Of arrivals, of sampling and of intervals.")] = 0,
    warmup: Annotated[int, typer.Option(help="Requests to each server before, in no figure.")] = 2,
    timeout: Annotated[float, typer.Option(help="Seconds that a request may take with all its tries.")] = 600.0,
    tries: Annotated[int, typer.Option(help="Of a request that is refused as too busy (429, 503).")] = 4,
    max_seconds: Annotated[float | None, typer.Option(help="Of a level on one server; then no more is sent.")] = None,
    served_model: Annotated[str | None, typer.Option(help="The server's name of the model, if it has several.")] = None,
    against_model: Annotated[str | None, typer.Option(help="The same of the second server.")] = None,
    api_key_env: KeyEnv = None,
    api_key_file: KeyFile = None,
    against_api_key_env: KeyEnv = None,
    against_api_key_file: KeyFile = None,
    out: Annotated[Path | None, typer.Option(help="Write the result as JSON here, each request in it.")] = None,
    plot: Annotated[Path | None, typer.Option(help="Write a picture (PNG) here.")] = None,
    as_json: Json = False,
) -> None:
    """Measure a running server: Eyas's, SGLang, vLLM, llama.cpp's, or any that speaks OpenAI's API."""
    from eyas.bench.settings import BenchSettings
    from eyas.cli.benching import Key, Outputs, Sides, numbers, run_bench, whole_numbers

    settings = BenchSettings(
        concurrency=whole_numbers(concurrency, "--concurrency"),
        rates=numbers(rate, "--rate"),
        requests=requests,
        max_tokens=max_tokens,
        ignore_eos=ignore_eos,
        temperature=temperature,
        top_p=top_p,
        seed=seed,
        warmup=warmup,
        timeout=timeout,
        tries=tries,
        max_seconds=max_seconds,
    )
    keys = Key(api_key_env, api_key_file), Key(against_api_key_env, against_api_key_file, "--against-api-key")
    sides = Sides(url, against, baseline, served_model, against_model, *keys)
    run_bench(sides, settings, tuple(prompts or [DEFAULT_PROMPTS]), limit, Outputs(out, plot, as_json))
