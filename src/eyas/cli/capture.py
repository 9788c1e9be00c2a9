"""The verb that turns samples into features: capture."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from eyas.cli.app import app
from eyas.cli.options import BUILTIN, BackendOption, Dtype, Json, Model, Threads, with_progress
from eyas.errors import EyasError


@app.command()
def capture(
    samples: Annotated[Path, typer.Argument(help="The samples, as `eyas data` wrote them (.npz).")],
    out: Annotated[Path, typer.Option(help="The folder of features; a capture that was cut short goes on there.")],
    model: Model = BUILTIN,
    taps: Annotated[str | None, typer.Option(help="E.g. 2,15,27; 2, L//2 and L-3 if not given.")] = None,
    storage: Annotated[str, typer.Option(help="bf16, fp32, or fp8: taps as float8 with a scale each.")] = "bf16",
    top_k: Annotated[int | None, typer.Option(help="Keep the K likeliest tokens in place of the last state.")] = None,
    shard_tokens: Annotated[int | None, typer.Option(help="Positions of a shard; 256 MiB worth if not given.")] = None,
    foreign_answers: Annotated[
        bool, typer.Option("--foreign-answers", help="Allow answers that other weights gave.")
    ] = False,
    reference: Annotated[
        bool, typer.Option("--reference", help="First compare the taps with those of transformers (a second model).")
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Check and estimate; write nothing.")] = False,
    dtype: Dtype = "fp32",
    backend: BackendOption = "auto",
    threads: Threads = None,
    as_json: Json = False,
) -> None:
    """Let the target read all samples, and keep its taps and last states for training.

    Killed at any moment, the same command goes on at the next shard; several at once share the shards.
    """
    from eyas.capture import plan_capture, run_capture
    from eyas.corpus.samples import read_samples

    made = read_samples(samples)
    folder, session = _open(model, dtype, backend, threads, as_json)
    facts = _facts(session, folder, made.facts, (taps, storage, top_k), foreign_answers)
    if reference:
        _compare(session.target, folder, made.samples, facts.taps)
    job = plan_capture(session.target, made, facts, out, shard_tokens)
    console = Console(stderr=True, quiet=as_json, highlight=False, soft_wrap=True)
    console.print(_announced(job))
    report = None if dry_run else with_progress(lambda progress: run_capture(job, progress), quiet=as_json)
    result = {
        "out": str(out),
        "taps": list(facts.taps),
        "samples": len(made.samples),
        "estimate": asdict(job.estimate),
        "identity": asdict(job.identity),
        "written": None if report is None else asdict(report),
    }
    if as_json:
        print(json.dumps(result))
    elif report is not None:
        Console(highlight=False, soft_wrap=True).print(_told(report, out))


def _open(model: str, dtype: str, backend: str, threads: int | None, quiet: bool) -> tuple[Path, Any]:
    import torch

    from eyas.artifacts import cache_root
    from eyas.engine.session import open_session
    from eyas.pull import resolve_model

    if threads is not None:
        torch.set_num_threads(threads)
    folder = with_progress(lambda progress: resolve_model(model, cache_root(), progress), quiet)
    return folder, open_session(folder, None, dtype, backend)


def _facts(session: Any, folder: Path, samples: Any, wanted: tuple[str | None, str, int | None], foreign: bool) -> Any:
    from eyas.contract import default_taps
    from eyas.corpus.features import check_origin, facts_for
    from eyas.corpus.storage import TAP_DTYPES
    from eyas.engine.session import facts_of

    taps, storage, top_k = wanted
    if storage not in TAP_DTYPES:
        raise EyasError("flags.range", f"--storage {storage}", f"use one of {', '.join(TAP_DTYPES)}")
    chosen = default_taps(session.target.num_layers) if taps is None else _numbers(taps)
    known = facts_of(folder, session.tokenizer)
    check_origin(samples, known, foreign)
    return facts_for(session.target, str(known.weights_sha256), samples, chosen, storage, top_k)


def _numbers(taps: str) -> tuple[int, ...]:
    try:
        return tuple(int(tap) for tap in taps.split(","))
    except ValueError:
        raise EyasError("flags.range", f"--taps {taps} is no list of numbers", "write e.g. --taps 2,15,27") from None


def _compare(target: Any, folder: Path, samples: Any, taps: tuple[int, ...]) -> None:
    import torch

    from eyas.corpus.identity import check_taps
    from eyas.kernels import get_backend
    from eyas.models.hf import load_hf

    other = load_hf(folder, torch.float32, get_backend("eager"), torch.device("cpu"))
    if samples:
        check_taps(target, other, samples[0].tokens.tolist(), taps)


def _announced(job: Any) -> str:
    from eyas.artifacts import human_bytes

    e, i = job.estimate, job.identity
    return (
        f"identity of tap {job.target.num_layers}: off by {i.error:.1e} nats at most, the tap before it by"
        f" {i.control:.1f}\n"
        f"{e.tokens:,} tokens in {e.shards} shards: {human_bytes(e.bytes)} of {human_bytes(e.free_bytes)} free,"
        f" about {e.seconds / 60:.1f} minutes"
    )


def _told(report: Any, out: Path) -> str:
    from eyas.artifacts import human_bytes

    kept = f", {report.kept} were there" if report.kept else ""
    return (
        f"{out}: {report.shards} shards written{kept} · {report.tokens:,} tokens, {human_bytes(report.bytes)}"
        f" in {report.seconds:.1f} s"
    )
