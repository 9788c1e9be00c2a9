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
    sink: Annotated[list[str] | None, typer.Option(help="tensorboard, trackio or wandb; may be repeated.")] = None,
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
    wanted, target = _asked(recipe, settings or [], model)
    folder = with_progress(lambda progress: _resolve(target, progress), quiet=as_json)
    if plan:
        _plan(wanted, folder, data, (device, dtype), as_json)
        return
    result = _train(
        _job(wanted, folder, data, out, (draft, foreign_answers, dtype, backend, device)),
        (strategy, device, sink or []),
        as_json,
    )
    if result is None:
        return
    if as_json:
        print(json.dumps(result))
    else:
        _tell(result)


def _asked(recipe: str | None, settings: list[str], model: str | None) -> tuple[Any, str]:
    """(settings, the target's name)."""
    from eyas.recipes import load_recipe
    from eyas.train.settings import TrainSettings, override

    base = load_recipe(recipe) if recipe else None
    target = model or (base.target.source if base else BUILTIN)
    return override(base.train if base else TrainSettings(), settings), target


def _resolve(target: str, progress: Any) -> Path:
    from eyas.artifacts import cache_root
    from eyas.pull import resolve_model

    return resolve_model(target, cache_root(), progress)


def _job(settings: Any, folder: Path, data: Path, out: Path, how: tuple[Path | None, bool, str, str, str]) -> Any:
    import torch

    from eyas.draft.checkpoint import read_draft
    from eyas.engine.session import facts_of, open_session
    from eyas.models.config import read_config
    from eyas.models.weights.safetensors import open_checkpoint, weight_fingerprint
    from eyas.train.prepare import open_source, own_weights
    from eyas.train.run import Job

    draft, foreign, dtype, backend, device = how
    session = open_session(folder, None, dtype, backend, device)
    warm = read_draft(draft, session.target, "eager", torch.float32) if draft else None
    source = open_source(data, session.target, facts_of(folder, session.tokenizer), settings, warm, foreign)
    fingerprint = weight_fingerprint(open_checkpoint(draft)) if draft else None
    return Job(source, own_weights(session.target), read_config(folder), settings, out, warm, fingerprint)


def _train(job: Any, how: tuple[str, str, list[str]], as_json: bool) -> dict[str, Any] | None:
    import torch

    from eyas.train.parallel import Parallel
    from eyas.train.progress import train_progress
    from eyas.train.whole import train_draft

    strategy, device, sinks = how
    if strategy not in ("ddp", "fsdp"):
        raise EyasError("flags.range", f"--strategy {strategy}", "use ddp or fsdp")
    parallel = Parallel.from_environment(strategy, torch.device(device))  # type: ignore[arg-type]
    console = Console(stderr=True, quiet=as_json, highlight=False)
    return train_draft(job, parallel, train_progress(console, quiet=as_json), sinks, sys.argv)


def _plan(settings: Any, folder: Path, data: Path, how: tuple[str, str], as_json: bool) -> None:
    from eyas.corpus.feature_store import FeatureFolder
    from eyas.corpus.samples import read_samples
    from eyas.models.config import read_config
    from eyas.train.amounts import DataCounts, FeatureChoice, machine_facts
    from eyas.train.plan import plan_training
    from eyas.train.plan_table import print_plan
    from eyas.train.start import draft_config

    device, dtype = how
    stored = data.is_dir()
    samples = FeatureFolder(data).samples if stored else read_samples(data).samples
    document = read_config(folder)
    features = FeatureChoice(mode="stored" if stored else "online", target_dtype=dtype)  # type: ignore[arg-type]
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
    console.print(f"draft → {result['draft']}  (step {result['best_step']} of {result['steps']})")
