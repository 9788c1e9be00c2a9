"""Verbs that answer: generate, demo."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape

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

DEMO_TOKENS = 128


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
    from eyas.engine.asked import Asked
    from eyas.generate.run import run_generate

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
    max_new_tokens: Annotated[
        int | None, typer.Option(min=2, help="Tokens of each answer at most; 128, in the story 64.")
    ] = None,
    story: Annotated[
        bool, typer.Option("--story", help="A draft that is fed other taps than it learnt: served, checked, mended.")
    ] = False,
    dtype: Dtype = "fp32",
    backend: BackendOption = "auto",
    threads: Threads = None,
    svg: Annotated[Path | None, typer.Option(help="Also save what is shown as a picture.")] = None,
    as_json: Json = False,
) -> None:
    """Real questions answered twice, plain and with EAGLE-3: the same text, and what it cost."""
    console = Console(quiet=as_json, highlight=False, record=svg is not None, width=110 if svg else None)
    if story:
        if (model, draft, num_steps, eagle_topk, num_draft_tokens) != (BUILTIN, "auto", None, None, None):
            cause = "the story has its own target, draft and flags"
            raise EyasError("flags.contradiction", cause, "leave --model, --draft and --speculative-… out")
        result = _story((prompts, max_new_tokens, dtype, backend, threads), console)
    else:
        flags = (num_steps, eagle_topk, num_draft_tokens)
        result = _compare(
            model, draft, flags, (prompts, max_new_tokens or DEMO_TOKENS), (dtype, backend, threads), console
        )
    if svg is not None:
        console.save_svg(str(svg), title="eyas demo")
    if as_json:
        print(json.dumps(result))


def _compare(
    model: str,
    draft: str,
    flags: tuple[int | None, int | None, int | None],
    amount: tuple[int, int],
    how: tuple[str, str, int | None],
    console: Console,
) -> dict[str, Any]:
    from eyas.artifacts import cache_root
    from eyas.demo.demo import DEMO_STEPS, demo_prompts, run_demo
    from eyas.engine.asked import Asked

    prompts, max_new_tokens = amount
    steps, topk, tokens = (DEMO_STEPS, None, None) if flags == (None, None, None) else flags
    plan = Asked("EAGLE3", draft, steps, topk, tokens, "one-hot").resolve(model)
    assert plan.speculation is not None
    session = open_model(model, plan.draft, *how, quiet=console.quiet)
    chosen = with_progress(lambda progress: demo_prompts(cache_root(), prompts, progress), quiet=console.quiet)
    return run_demo(session, chosen, plan.speculation, max_new_tokens, console)


def _story(amount: tuple[int, int | None, str, str, int | None], console: Console) -> dict[str, Any]:
    from tempfile import TemporaryDirectory

    import torch

    from eyas.artifacts import cache_root
    from eyas.demo.story import STORY_TOKENS, How, packaged_story, run_story
    from eyas.pull import resolve_model

    prompts, max_new_tokens, dtype, backend, threads = amount
    if threads is not None:
        torch.set_num_threads(threads)
    target = with_progress(lambda progress: resolve_model(BUILTIN, cache_root(), progress), quiet=console.quiet)
    how = How(prompts, max_new_tokens or STORY_TOKENS, dtype=dtype, backend=backend)
    with TemporaryDirectory() as folder, Console(stderr=True, quiet=console.quiet).status("") as status:
        story = packaged_story(target, BUILTIN)
        return run_story(story, how, Path(folder), console, lambda what: status.update(escape(what)))


def _biases(items: list[str]) -> dict[int, float]:
    biases = {}
    for item in items:
        token, _, value = item.partition("=")
        try:
            biases[int(token)] = float(value)
        except ValueError:
            raise EyasError("request.sampling", f"--logit-bias {item} is not ID=BIAS", "write e.g. 42=-100") from None
    return biases
