"""Verbs that answer: generate, demo."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from eyas.cli.app import app
from eyas.cli.options import (
    BUILTIN,
    BackendOption,
    DraftOption,
    DraftTokens,
    Dtype,
    Json,
    Model,
    Steps,
    Threads,
    Topk,
    open_model,
    with_progress,
)
from eyas.errors import EyasError


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
    session = open_model(model, plan.draft, dtype, backend, threads, quiet=as_json)
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
    session = open_model(model, plan.draft, dtype, backend, threads, quiet=as_json)
    chosen = with_progress(lambda progress: demo_prompts(cache_root(), prompts, progress), quiet=as_json)
    console = Console(quiet=as_json, highlight=False, record=svg is not None, width=110 if svg else None)
    result = run_demo(session, chosen, plan.speculation, max_new_tokens, console)
    if svg is not None:
        console.save_svg(str(svg), title="eyas demo")
    if as_json:
        print(json.dumps(result))


def _biases(items: list[str]) -> dict[int, float]:
    biases = {}
    for item in items:
        token, _, value = item.partition("=")
        try:
            biases[int(token)] = float(value)
        except ValueError:
            raise EyasError("request.sampling", f"--logit-bias {item} is not ID=BIAS", "write e.g. 42=-100") from None
    return biases
