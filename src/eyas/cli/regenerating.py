"""What ``eyas regen`` puts together: the source, the prompts, the journal, the filters, and what is shown."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table

from eyas.artifacts import cache_root, hold_lock
from eyas.cli.options import BUILTIN, open_model, with_progress
from eyas.corpus.prompts import Prompt
from eyas.data.overlap import Evaluation, evaluation_texts
from eyas.data.regen import run
from eyas.data.regen.finish import CHATS, finish, summary
from eyas.data.regen.journal import NAME, Journal
from eyas.data.regen.own import DEFAULT_BATCH, OwnEngine
from eyas.data.regen.server import Server, ServerOptions
from eyas.data.regen.settings import Identity, RegenSettings
from eyas.data.regen.sift import Sieve
from eyas.data.regen.source import AnswerSource
from eyas.engine.session import facts_of
from eyas.errors import EyasError
from eyas.pull import load_prompts, resolve_model

OpenSource = Callable[[RegenSettings, bool], AnswerSource]


class _Choice:
    """Flags of one of the two kinds of source; None: not given."""

    def require_unused(self, server: str | None) -> None:
        """Raise ``flags.contradiction`` if a flag was given that the other kind of source has no use for."""
        for name, value in vars(self).items():
            if value is not None:
                flag = f"--{name.replace('_', '-')} {value}"
                with_what = f"with --server {server}" if server else "without --server"
                raise EyasError("flags.contradiction", f"{flag} means nothing {with_what}", "leave one of the two out")


@dataclass(frozen=True)
class EngineChoice(_Choice):
    """The own engine."""

    model: str | None
    batch: int | None
    slots: int | None
    dtype: str | None
    backend: str | None
    threads: int | None

    def source(self) -> OpenSource:
        """How to open it."""
        return self._open

    def _open(self, settings: RegenSettings, quiet: bool) -> AnswerSource:
        name = self.model or BUILTIN
        folder = with_progress(lambda progress: resolve_model(name, cache_root(), progress), quiet)
        session = open_model(name, None, self.dtype or "fp32", self.backend or "auto", self.threads, quiet)
        facts = facts_of(folder, session.tokenizer).model_dump(mode="json", exclude_none=True)
        batch = DEFAULT_BATCH if self.batch is None else self.batch
        return OwnEngine(session, facts, settings, batch, self.slots)


@dataclass(frozen=True)
class ServerChoice(_Choice):
    """A server."""

    served_model: str | None
    concurrency: int | None
    timeout: float | None
    tries: int | None
    api_key_env: str | None

    def source(self, url: str) -> OpenSource:
        """How to open the server at ``url``."""
        given = {"concurrency": self.concurrency, "timeout": self.timeout, "tries": self.tries}
        known: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
        options = ServerOptions(url, self.served_model, self._key(), **known)
        return lambda settings, quiet: Server(options, settings)

    def _key(self) -> str | None:
        if self.api_key_env is None:
            return None
        key = os.environ.get(self.api_key_env)
        if not key:
            cause = f"--api-key-env {self.api_key_env}: there is no such environment variable"
            raise EyasError("flags.range", cause, f"export {self.api_key_env}=…")
        return key


@dataclass(frozen=True)
class RegenJob:
    """What was asked for. ``avoid``: evaluation sets, or ("none",)."""

    prompts: tuple[str, ...]
    limit: int | None
    out: Path
    settings: RegenSettings
    open_source: OpenSource
    avoid: tuple[str, ...]
    near_duplicate: float | None
    keep_cut: bool


def run_regen(job: RegenJob, plan_only: bool, console: Console) -> dict[str, Any]:
    """Answer what is missing, then sift; returns the report, or the plan."""
    quiet = console.quiet
    prompts, evaluation = with_progress(lambda progress: _prompts(job, progress), quiet)
    source = job.open_source(job.settings, quiet)
    try:
        identity = Identity.of(job.settings, source.identity())
        if plan_only and not (job.out / NAME).exists():
            return _show_plan(run.plan(prompts, source, job.settings, None), console)
        with hold_lock(job.out, "regen", lambda what, *_: console.print(what)), Journal(job.out, identity) as journal:
            work = run.plan(prompts, source, job.settings, journal)
            if plan_only:
                return _show_plan(work, console)
            _show_left_out(work, console)
            with _bars(quiet) as on_progress:
                left_out = run.answer_all(work, source, journal, on_progress)
            sieve = Sieve(evaluation, job.near_duplicate, job.keep_cut)
            report = finish(job.out, journal, work, left_out, sieve, identity)
    finally:
        source.close()
    _show_report(report, job.out, console)
    return report


def _prompts(job: RegenJob, progress: Any) -> tuple[list[Prompt], Evaluation | None]:
    prompts = [p for name in job.prompts for p in load_prompts(name, cache_root(), progress=progress)][: job.limit]
    seen: set[str] = set()
    for prompt in prompts:
        if prompt.id in seen:
            cause = f"the prompt id {prompt.id} is in more than one of {', '.join(job.prompts)}"
            raise EyasError("artifact.corrupt", cause, "give each prompt an id of its own")
        seen.add(prompt.id)
    if job.avoid == ("none",):
        return prompts, None
    held_out = [p for name in job.avoid for p in load_prompts(name, cache_root(), progress=progress)]
    return prompts, Evaluation(evaluation_texts(held_out))


def _show_plan(work: run.Work, console: Console) -> dict[str, Any]:
    left_out = summary(work.left_out)
    wanted, missing = len(work.wanted) + len(work.left_out), len(work.missing)
    answers = sum(chat.expected_answers for chat in work.missing)
    there = len(work.wanted) - missing
    console.print(f"{wanted} chats: {there} are there, {missing} to make, with about {answers} answers")
    _show_left_out(work, console)
    return {"wanted": wanted, "there": there, "missing": missing, "answers": answers, "left_out": left_out}


def _show_left_out(work: run.Work, console: Console) -> None:
    for why, group in summary(work.left_out).items():
        first = group["first"][0]
        detail = f": {first['detail']}" if first["detail"] else ""
        console.print(f"[yellow]left out[/] {group['chats']} chats, {why} (first: {first['chat_id']}{detail})")


@contextmanager
def _bars(quiet: bool) -> Iterator[run.OnProgress]:
    columns = (
        TextColumn("answering"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("chats · {task.fields[speed]} tokens/s ·"),
        TimeElapsedColumn(),
        TextColumn("· left"),
        TimeRemainingColumn(elapsed_when_finished=False),
        TextColumn("{task.fields[left_out]}"),
    )
    begun: float | None = None
    with Progress(*columns, console=Console(stderr=True, quiet=quiet), speed_estimate_period=600) as bars:
        task = bars.add_task("answering", total=None, speed="–", left_out="")

        def on_progress(now: run.Progress) -> None:
            nonlocal begun
            if begun is None:
                # What an earlier run made is not of this run's speed.
                begun = time.monotonic()
                bars.reset(task, completed=now.done)
            speed = f"{now.tokens / max(time.monotonic() - begun, 1e-9):.0f}"
            left_out = f"· {now.left_out} left out" if now.left_out else ""
            bars.update(task, completed=now.done, total=now.total - now.left_out, speed=speed, left_out=left_out)

        yield on_progress


def _show_report(report: dict[str, Any], out: Path, console: Console) -> None:
    table = Table("", "chats", "kept", "shortened", "dropped", "answers", "answer tokens")
    groups = [("all", report)]
    groups += [(f"domain {name or '–'}", part) for name, part in report["domains"].items()]
    groups += [(f"temperature {name}", part) for name, part in report["temperatures"].items()]
    for name, part in groups:
        numbers = (part["chats"], part["kept"], part["shortened"], f"{part['share_dropped']:.1%}", part["answers"])
        table.add_row(name, *map(str, numbers), str(part["answer_tokens"] or "–"))
    console.print(table)
    reasons = [f"{reason} {count}" for reason, count in report["dropped"].items() if count]
    console.print(f"dropped: {', '.join(reasons) or 'none'}")
    for name, quantiles in report["lengths"].items():
        if quantiles:
            console.print(f"{name.replace('_', ' ')}: " + ", ".join(f"{q} {n}" for q, n in quantiles.items()))
    console.print(f"{report['kept']} chats → {out / CHATS}")
