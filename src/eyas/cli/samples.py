"""Verbs about samples: data build, data join, data report, data show."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from eyas.cli.data import data_app
from eyas.cli.options import BUILTIN, Json, Model, with_progress
from eyas.errors import EyasError

Samples = Annotated[Path, typer.Argument(help="Samples, as `eyas data build` wrote them (.npz).")]
HeldOut = Annotated[float, typer.Option("--held-out", min=0, max=1, help="Share of the prompts that is held out.")]


@data_app.command()
def build(
    chats: Annotated[Path, typer.Argument(help="The folder that `eyas regen` wrote, or a file of chats.")],
    out: Annotated[Path, typer.Option(help="The file of samples to write (.npz); the account lies beside it.")],
    model: Model = BUILTIN,
    max_length: Annotated[int, typer.Option(help="Tokens of a sample at most; what is longer is cut.")] = 2048,
    thinking: Annotated[
        str, typer.Option(help="The template's switch: none (it has none), off, on or mixed.")
    ] = "none",
    system_prompt: Annotated[
        str | None, typer.Option(help="One system prompt for all; if not given, each chat's own.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Render chats with the target's own template: token ids, and which of them are answers."""
    from eyas.corpus.rendering import Renderer
    from eyas.corpus.samples import write_samples
    from eyas.data.samples import account_path, build_samples, open_chats, origin_facts, rendering_for, write_account
    from eyas.engine.session import eos_ids_of, text_facts_of

    _require_npz(out)
    read = open_chats(chats)
    folder, tokenizer = _open(model, quiet=as_json)
    known = origin_facts(read.identity, text_facts_of(tokenizer))
    rendering = rendering_for(read.chats, _thinking(thinking, read.identity), system_prompt)
    renderer = Renderer(tokenizer, rendering, eos_ids_of(folder))
    made, account = with_progress(
        lambda progress: build_samples(read.chats, renderer, known, max_length, progress), quiet=as_json
    )
    write_samples(out, made)
    write_account(out, account)
    if as_json:
        counts = {"samples": len(made.samples), "answer_tokens": sum(s.answer_tokens for s in made.samples)}
        print(json.dumps({"out": str(out), "account": str(account_path(out)), **counts, **account.model_dump()}))
        return
    console = Console(highlight=False, soft_wrap=True)
    console.print(f"{len(made.samples)} samples of {account.chats} chats → {out}")
    console.print(f"{account.answers} answers, {account.cut_answers} without an end of turn", style="dim")
    _tell_account(console, account)


@data_app.command()
def join(
    samples: Annotated[list[Path], typer.Argument(help="Files of samples (.npz), of one target and template.")],
    out: Annotated[Path, typer.Option(help="The file of all of them (.npz).")],
    together: Annotated[
        bool, typer.Option("--together", help="Near-alike prompts count as one: all trained on, or all held out.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Make one file of several, in their order, to capture and train on them together."""
    from dataclasses import replace

    from eyas.corpus.samples import read_samples, write_samples
    from eyas.data.alike import put_together
    from eyas.data.joining import join_samples

    _require_npz(out)
    made = join_samples([(path, read_samples(path)) for path in samples])
    if together:
        made = replace(made, samples=tuple(put_together(made.samples)))
    write_samples(out, made)
    answer_tokens = sum(sample.answer_tokens for sample in made.samples)
    if as_json:
        print(json.dumps({"out": str(out), "samples": len(made.samples), "answer_tokens": answer_tokens}))
    else:
        print(f"{len(made.samples)} samples, {answer_tokens:,} answer tokens → {out}")


@data_app.command()
def report(
    samples: Samples,
    model: Model = BUILTIN,
    held_out: HeldOut = 0.05,
    as_json: Json = False,
) -> None:
    """Count what samples hold: lengths, mask and vocabulary coverage, what was cut; name what is wrong."""
    from dataclasses import asdict

    from eyas.corpus.samples import read_samples
    from eyas.data.report import data_report
    from eyas.data.samples import read_account

    made = read_samples(samples)
    folder, renderer = _renderer(made.facts, model, quiet=as_json)
    made_report = data_report(made, _vocab_size(folder), held_out, read_account(samples), renderer)
    if as_json:
        account = made_report.account and made_report.account.model_dump(mode="json")
        print(json.dumps({**asdict(made_report), "account": account}))
    else:
        _tell_report(made_report)


@data_app.command()
def show(
    samples: Samples,
    model: Model = BUILTIN,
    count: Annotated[int, typer.Option(min=1, help="How many samples, spread over the file.")] = 10,
    draft: Annotated[Path | None, typer.Option(help="A draft's folder: underline what it cannot propose.")] = None,
    draft_vocab: Annotated[int | None, typer.Option(help="The same for the N most frequent tokens.")] = None,
    svg: Annotated[Path | None, typer.Option(help="Also save the picture.")] = None,
    as_json: Json = False,
) -> None:
    """Print samples in colours: prompt, what is trained, ends of turns, what a draft vocabulary lacks."""
    from eyas.corpus.samples import read_samples
    from eyas.data.picture import draw_sample, legend

    made = read_samples(samples)
    folder, renderer = _renderer(made.facts, model, quiet=as_json)
    kept = _kept(made.samples, folder, draft, draft_vocab)
    chosen = made.samples[:: max(len(made.samples) // count, 1)][:count]
    console = Console(quiet=as_json, highlight=False, record=svg is not None, width=110 if svg else None)
    console.print(legend(kept is not None))
    for sample in chosen:
        drawn = f"temperature {sample.temperature:g}" if sample.temperature == sample.temperature else "mixed"
        facts = f"{sample.domain or '–'}, {len(sample.tokens)} tokens, {sample.answer_tokens} of answers, {drawn}"
        console.rule(f"{sample.id} · {facts}", align="left", style="dim")
        console.print(draw_sample(sample, renderer.tokenizer, renderer.eos_ids, kept))
    if svg is not None:
        console.save_svg(str(svg), title="eyas data show")
    if as_json:
        shown = [{"id": s.id, "tokens": s.tokens.tolist(), "answers": s.answers} for s in chosen]
        print(json.dumps({"samples": shown, "svg": str(svg) if svg else None}))


def _require_npz(out: Path) -> None:
    if out.suffix != ".npz":
        raise EyasError("flags.range", f"--out {out} does not end in .npz", f"write --out {out.with_suffix('.npz')}")


def _open(model: str, quiet: bool) -> tuple[Path, Any]:
    from transformers import AutoTokenizer

    from eyas.artifacts import cache_root
    from eyas.pull import resolve_model

    folder = with_progress(lambda progress: resolve_model(model, cache_root(), progress), quiet)
    return folder, AutoTokenizer.from_pretrained(folder, trust_remote_code=False)


def _thinking(asked: str | None, identity: Any) -> str:
    was = None if identity is None else identity.thinking
    if asked is not None and was is not None and asked != was:
        cause = f"--thinking {asked}, and the answers were given with thinking {was}"
        raise EyasError("flags.contradiction", cause, "leave --thinking out")
    return asked or was or "none"


def _renderer(facts: Any, model: str, quiet: bool) -> tuple[Path, Any]:
    """The model's folder and renderer, if the samples ``facts`` speaks of are in its tokens and its template."""
    from eyas.corpus.features import check_origin
    from eyas.corpus.rendering import Renderer
    from eyas.engine.session import eos_ids_of, text_facts_of

    folder, tokenizer = _open(model, quiet)
    check_origin(facts, text_facts_of(tokenizer), True)
    return folder, Renderer(tokenizer, facts.rendering, eos_ids_of(folder))


def _vocab_size(folder: Path) -> int:
    from eyas.models.config import read_config

    config = read_config(folder)
    size = config.get("vocab_size", config.get("text_config", {}).get("vocab_size"))
    if not isinstance(size, int):
        raise EyasError("model.config", f"{folder} names no vocab_size", "complete its config.json")
    return size


def _kept(samples: Any, folder: Path, draft: Path | None, size: int | None) -> frozenset[int] | None:
    from eyas.data.report import draft_tokens, frequent_tokens

    if draft is not None and size is not None:
        raise EyasError("flags.contradiction", "--draft and --draft-vocab both name a vocabulary", "give one of them")
    if draft is not None:
        return draft_tokens(draft, _vocab_size(folder))
    return None if size is None else frequent_tokens(samples, size, _vocab_size(folder))


def _tell_account(console: Console, account: Any) -> None:
    if account.truncated:
        console.print(f"{len(account.truncated)} samples cut at {account.max_length} tokens", style="yellow")
    if account.rewritten:
        console.print(f"{account.rewritten} chats in several samples: the template rewrites their history", style="dim")
    for why, number in account.dropped.items():
        console.print(f"dropped {number}: {why}, e.g. {account.examples[why]}", style="yellow", markup=False)


def _tell_report(made: Any) -> None:
    console = Console(highlight=False, soft_wrap=True)
    table = Table("", *("samples", "prompts", "tokens", "of answers"))
    for column in table.columns[1:]:
        column.justify = "right"
    groups = [(made.all, made.trained_on, made.held_out), made.domains, made.temperatures]
    for prefix, group in zip(("", "", "temperature "), groups, strict=True):
        for part in group:
            numbers = (part.samples, part.prompts, part.tokens, part.answer_tokens)
            table.add_row(prefix + (part.name or "–"), *(f"{number:,}" for number in numbers))
        table.add_section()
    console.print(table)
    for name, lengths in (("tokens of a sample", made.lengths), ("tokens of an answer", made.answer_lengths)):
        console.print(f"{name}: " + " · ".join(f"{key} {value:,}" for key, value in lengths.items()))
    steps = " ".join(f"{share:.1%}" for share in made.mask_coverage)
    console.print(f"slots trained in step 1, 2, …: {steps}")
    for v in made.vocabularies:
        held = "none" if v.held_out is None else f"{v.held_out:.2%}"
        console.print(f"draft vocabulary {v.size:,}: {v.trained or 0:.2%} of the answers trained on, {held} held out")
    console.print("sources: " + ", ".join(f"{name} ({licence})" for name, licence in made.sources), markup=False)
    if made.account is not None:
        _tell_account(console, made.account)
    for fault in made.faults:
        console.print(f"[bold red]{fault.code}[/]", end=" ")
        console.print(fault.cause, markup=False)
        console.print(f"  fix: {fault.fix}", markup=False)
