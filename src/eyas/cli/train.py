"""The verb that makes a draft: train."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from eyas.cli.app import app
from eyas.cli.options import BUILTIN, BackendOption, Dtype, Json, Threads, with_progress
from eyas.errors import EyasError


@app.command()
def train(
    data: Annotated[Path, typer.Argument(help="Samples (.npz), or a folder of features that `eyas capture` wrote.")],
    out: Annotated[Path, typer.Option(help="The run's folder; a run that was cut short goes on there.")],
    recipe: Annotated[str | None, typer.Option(help="A recipe by name, or its file: see `eyas recipes`.")] = None,
    settings: Annotated[
        list[str] | None, typer.Option("--set", help="NAME=VALUE over the recipe, e.g. draft.taps=[2,15,27].")
    ] = None,
    model: Annotated[str | None, typer.Option("--model", help="The target; the recipe's if not given.")] = None,
    draft: Annotated[Path | None, typer.Option(help="Start from this draft; its vocabulary map stays.")] = None,
    plan: Annotated[
        bool, typer.Option("--plan", help="Say what it would take, and whether it fits; start nothing.")
    ] = False,
    strategy: Annotated[str, typer.Option(help="Under torchrun: ddp or fsdp.")] = "ddp",
    device: Annotated[str, typer.Option(help="cpu, or cuda (not run by us yet).")] = "cpu",
    evaluate: Annotated[
        list[Path] | None, typer.Option(help="Samples to measure the draft on at the end (.npz); may be repeated.")
    ] = None,
    licence: Annotated[
        str | None, typer.Option(help="The draft's, an SPDX id; the recipe's target's if not given.")
    ] = None,
    sink: Annotated[list[str] | None, typer.Option(help="tensorboard, trackio or wandb; may be repeated.")] = None,
    without_target: Annotated[
        bool,
        typer.Option("--without-target", help="Do not load the target: for features of one that does not fit here."),
    ] = False,
    foreign_answers: Annotated[
        bool, typer.Option("--foreign-answers", help="Allow answers that other weights gave.")
    ] = False,
    dtype: Dtype = "fp32",
    backend: BackendOption = "auto",
    threads: Threads = None,
    as_json: Json = False,
) -> None:
    """Train a draft, and say which accept length an engine will show with it.

    Killed at any moment, the same command goes on and ends with the same bits.
    """
    import torch

    if threads is not None:
        torch.set_num_threads(threads)
    wanted, target, known_licence = _asked(recipe, settings or [], model)
    folder = with_progress(lambda progress: _resolve(target, progress), quiet=as_json)
    if plan:
        _plan(wanted, folder, data, (device, dtype), as_json)
        return
    session = _open(folder, (dtype, backend, device), without_target)
    job = _job(wanted, session, folder, (data, out, draft, foreign_answers))
    ending = _ending(session, folder, job, (target, licence or known_licence, evaluate or []), foreign_answers)
    result = _train(job, ending, (strategy, device, sink or []), as_json)
    if result is not None:
        print(json.dumps(result)) if as_json else _tell(result)


def _asked(recipe: str | None, settings: list[str], model: str | None) -> tuple[Any, str, str]:
    """(settings, the target's name, its licence)."""
    from eyas.recipes import load_recipe
    from eyas.train.settings import TrainSettings, override

    base = load_recipe(recipe) if recipe else None
    target = model or (base.target.source if base else BUILTIN)
    known = base.target.licence if base and base.target.source == target else "other"
    return (
        override(base.train if base else TrainSettings(), settings),
        target,
        "Apache-2.0" if target == BUILTIN else known,
    )


def _resolve(target: str, progress: Any) -> Path:
    from eyas.artifacts import cache_root
    from eyas.pull import resolve_model

    return resolve_model(target, cache_root(), progress)


def _open(folder: Path, how: tuple[str, str, str], without_target: bool) -> Any:
    """A session; its target None if it is not to be loaded."""
    from transformers import AutoTokenizer

    from eyas.engine.session import Session, eos_ids_of, open_session

    if not without_target:
        return open_session(folder, None, *how)
    tokenizer = AutoTokenizer.from_pretrained(folder, trust_remote_code=False)
    return Session(None, None, tokenizer, eos_ids_of(folder))  # type: ignore[arg-type]


def _job(settings: Any, session: Any, folder: Path, given: tuple[Path, Path, Path | None, bool]) -> Any:
    import torch

    from eyas.draft.checkpoint import read_draft
    from eyas.engine.session import facts_of
    from eyas.models.config import read_config
    from eyas.models.weights.safetensors import open_checkpoint, weight_fingerprint
    from eyas.train.prepare import open_source, own_weights, stored_weights
    from eyas.train.run import Job
    from eyas.train.start import settings_of

    data, out, draft, foreign = given
    if draft and session.target is None:
        raise EyasError(
            "flags.contradiction",
            "a draft to start from takes its embedding from the target, which is not to be loaded",
            "leave --without-target or --draft out",
        )
    warm = read_draft(draft, session.target, "eager", torch.float32) if draft else None
    settings = settings_of(settings, warm.config) if warm else settings
    source = open_source(data, session.target, facts_of(folder, session.tokenizer), settings, warm, foreign)
    fingerprint = weight_fingerprint(open_checkpoint(draft)) if draft else None
    own = stored_weights(folder) if session.target is None else own_weights(session.target)
    return Job(source, own, read_config(folder), settings, out, warm, fingerprint)


def _ending(session: Any, folder: Path, job: Any, given: tuple[str, str, list[Path]], foreign: bool) -> Any:
    from eyas.engine.session import facts_of
    from eyas.pull.hub import HUB_ID
    from eyas.train.card import CardFacts
    from eyas.train.prepare import open_source
    from eyas.train.whole import WITNESS_STEPS, Ending

    target, licence, evaluations = given
    known = facts_of(folder, session.tokenizer)
    name = target if HUB_ID.fullmatch(target) else None
    card = CardFacts(f"EAGLE-3 draft for {name or folder.name}", target, name, licence, WITNESS_STEPS)
    names = [path.stem for path in evaluations]
    if len(set(names)) < len(names):
        raise EyasError("flags.contradiction", f"two sets to measure on have one name: {names}", "rename a file")
    sources = {
        path.stem: open_source(path, session.target, known, job.settings, job.warm_start, foreign)
        for path in evaluations
    }
    return Ending(session.target, session.eos_ids, known, card, sources)


def _train(job: Any, ending: Any, how: tuple[str, str, list[str]], as_json: bool) -> dict[str, Any] | None:
    import torch

    from eyas.train.parallel import Parallel
    from eyas.train.progress import train_progress
    from eyas.train.whole import train_draft

    strategy, device, sinks = how
    if strategy not in ("ddp", "fsdp"):
        raise EyasError("flags.range", f"--strategy {strategy}", "use ddp or fsdp")
    parallel = Parallel.from_environment(strategy, torch.device(device))  # type: ignore[arg-type]
    console = Console(stderr=True, quiet=as_json, highlight=False)
    return train_draft(job, ending, parallel, train_progress(console, quiet=as_json), sinks, sys.argv)


def _plan(settings: Any, folder: Path, data: Path, how: tuple[str, str], as_json: bool) -> None:
    from eyas.corpus.feature_store import FeatureFolder
    from eyas.corpus.samples import read_samples
    from eyas.models.config import read_config
    from eyas.train.amounts import DataCounts, FeatureChoice, machine_facts
    from eyas.train.plan import plan_training
    from eyas.train.plan_table import print_plan
    from eyas.train.start import draft_config

    device, dtype = how
    document = read_config(folder)
    choice: dict[str, Any] = {"mode": "online", "target_dtype": dtype}
    if data.is_dir():
        stored = FeatureFolder(data)
        kept = {"storage": stored.facts.storage, "top_k": stored.facts.top_k, "target_in_process": False}
        samples, choice = stored.samples, {**choice, **kept, "mode": "stored", "captured": True}
    else:
        samples = read_samples(data).samples
    features = FeatureChoice(**choice)
    machine = machine_facts(data, draft_config(document, settings.draft), settings, device)
    made = plan_training(settings, document, DataCounts.of(samples, settings), features, machine)
    if as_json:
        print(json.dumps(made.to_json()))
    else:
        print_plan(made, Console(highlight=False))
    made.require()


def _tell(result: dict[str, Any]) -> None:
    table = Table("prompts", "temperature", "drafts", "K", "accept length", "95 %", "ceiling")
    for r in result["expected"]:
        if r["num_steps"] in (1, 3, 5, 7):
            interval = f"{r['low']:.2f} … {r['high']:.2f}"
            cells = (f"{r['temperature']:g}", r["draft_sampling"], str(r["num_steps"]), f"{r['accept_length']:.3f}")
            table.add_row(r["prompt_set"], *cells, interval, str(r["ceiling"]))
    console = Console(highlight=False, soft_wrap=True)
    console.print(table)
    served = " and ".join(result["served_by"])
    console.print(f"draft → {result['draft']}  (step {result['best_step']} of {result['steps']}; for {served})")
