"""A training plan for people: tables of what it takes, what it assumes, and what stands against it."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from eyas.artifacts import human_bytes
from eyas.train.plan import TrainingPlan


def print_plan(plan: TrainingPlan, console: Console) -> None:
    """Tables of the run, its memory and its time; then assumptions, warnings and refusals, one a line."""
    console.print(_run(plan))
    console.print(_parts("memory of a process", plan.memory, _bytes, plan.peak_memory))
    console.print(_parts("operations", plan.operations, _flops, sum(plan.operations.values())))
    for line in plan.assumptions:
        console.print(f"[dim]assumed[/]  {escape(line)}")
    for line in plan.warnings:
        console.print(f"[yellow]warning[/]  {escape(line)}")
    for refusal in plan.refusals:
        console.print(f"[bold red]refused[/]  \\[{refusal.code}] {escape(refusal.cause)}")
        console.print(f"         [bold]fix:[/] {escape(refusal.fix)}")


def _run(plan: TrainingPlan) -> Table:
    c, trained, machine, ttt = plan.config, plan.data.trained, plan.machine, plan.settings.ttt_steps
    table = Table("", "planned", title="training plan", title_justify="left", show_header=False)
    about = "" if plan.data.measured else "about "
    there = " (there already)" if plan.features.captured else ""
    rows = {
        "draft": f"{plan.trained_parameters:,} parameters trained, {plan.total_parameters:,} with the embedding",
        "": f"taps {list(c.taps)}, hidden {c.hidden_size}, vocabulary {c.draft_vocab_size:,} of {c.vocab_size:,}",
        "data": f"{about}{trained.conversations:,} conversations, {trained.tokens:,} tokens,"
        f" {trained.answer_tokens:,} of answers; {plan.data.held.conversations:,} held out",
        "steps": f"{plan.optimizer_steps:,} optimizer steps, {plan.steps_per_epoch:,} an epoch; TTT {ttt}",
        "tokens seen": f"{plan.tokens_seen:,}, {plan.answer_tokens_seen:,} of answers",
        "disk": f"features {human_bytes(plan.feature_bytes)}{there}, states {human_bytes(plan.checkpoint_bytes)};"
        f" {human_bytes(machine.free_disk)} free",
        "memory": f"about {human_bytes(plan.peak_memory)} a process; {human_bytes(machine.free_memory)} free",
        "time": f"about {human_time(plan.seconds)} on {machine.processes} x {machine.device}",
    }
    for name, value in rows.items():
        table.add_row(name, value)
    return table


def _parts(title: str, parts: Mapping[str, float], text: Callable[[float], str], total: float) -> Table:
    table = Table("part", title=title, title_justify="left")
    table.add_column("", justify="right")
    table.add_column("share", justify="right")
    for name, value in sorted(parts.items(), key=lambda item: -item[1]):
        table.add_row(name, text(value), f"{value / max(total, 1):.0%}")
    table.add_row("together", text(total), "", style="bold")
    return table


def _bytes(value: float) -> str:
    return human_bytes(round(value))


def human_time(seconds: float) -> str:
    """A duration with two figures that matter, e.g. ``3.5 hours``."""
    for size, name in ((86400, "days"), (3600, "hours"), (60, "minutes")):
        if seconds >= 1.5 * size:
            return f"{seconds / size:,.1f} {name}"
    return f"{seconds:.0f} seconds"


def _flops(value: float) -> str:
    for power, name in ((18, "EFLOP"), (15, "PFLOP"), (12, "TFLOP"), (9, "GFLOP")):
        if value >= 10.0**power:
            return f"{value / 10.0**power:,.1f} {name}"
    return f"{value / 1e6:,.1f} MFLOP"
