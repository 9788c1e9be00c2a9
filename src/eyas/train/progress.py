"""How a run shows itself while it goes: a live table on a terminal, a plain line now and then elsewhere, or nothing."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import Any, Self

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from eyas.train.series import by_domain, usual_setting

PLAIN_EVERY = 30.0
"""Seconds between two plain lines."""

Clock = Callable[[], float]


class TrainProgress:
    """What the trainer reports to. This one shows nothing. Use it as a context."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        return

    def step(self, values: Mapping[str, Any], total: int, tokens_per_second: float) -> None:
        """An optimizer step of ``total`` is done, at this many answer tokens a second; ``values`` as in
        :meth:`eyas.train.log.RunLog.step`.
        """

    def evaluated(self, evaluation: Mapping[str, Any]) -> None:
        """An evaluation is done; see :meth:`eyas.train.log.RunLog.evaluated`."""

    def phase(self, what: str, done: int, total: int) -> None:
        """Something beside the steps goes on: units done, of ``total`` or 0 if unknown. Over when done = total."""


class _Watching(TrainProgress):
    """Keeps what was reported last, and knows how long the rest will take."""

    def __init__(self, console: Console, clock: Clock) -> None:
        self.console, self.clock, self.began = console, clock, clock()
        self.values: Mapping[str, Any] = {}
        self.total, self.speed, self.seconds_per_step = 0, 0.0, 0.0
        self.lengths = ""
        self._first: tuple[int, float] | None = None

    def step(self, values: Mapping[str, Any], total: int, tokens_per_second: float) -> None:
        self.values, self.total, self.speed = values, total, tokens_per_second
        # The first step of this process warms up, and pauses for evaluations belong to the time that is left as well.
        if self._first is None:
            self._first = (values["step"], self.clock())
            self.seconds_per_step = self._first[1] - self.began
        else:
            self.seconds_per_step = (self.clock() - self._first[1]) / (values["step"] - self._first[0])
        self.show()

    def evaluated(self, evaluation: Mapping[str, Any]) -> None:
        setting = usual_setting([evaluation])
        series = by_domain([evaluation], setting)
        parts = [f"{domain} {r['accept_length']:.2f}" for domain, (r,) in series.items()]
        self.lengths = f"{', '.join(parts)} of {setting.num_steps + 1} ({setting})" if parts else ""
        self.show(at_once=True)

    def show(self, at_once: bool = False) -> None:
        """Bring what is known to the console."""

    @property
    def seconds_left(self) -> float:
        """Of the run, as far as its pace in this process tells."""
        return (self.total - self.values["step"]) * self.seconds_per_step if self.values else 0.0


class LiveProgress(_Watching):
    """A bar and a table on a terminal, drawn anew in place."""

    def __init__(self, console: Console, clock: Clock = time.monotonic) -> None:
        super().__init__(console, clock)
        self._aside = ""
        self._live = Live(console=console, get_renderable=self.render, refresh_per_second=4)

    def __enter__(self) -> Self:
        self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._aside = ""
        self._live.stop()

    def phase(self, what: str, done: int, total: int) -> None:
        over = 0 < total <= done
        self._aside = "" if over else f"{what} {done:,} of {total:,}" if total else what

    def render(self) -> RenderableType:
        """What stands on the terminal now."""
        table = Table.grid(padding=(0, 2))
        table.add_column(style="dim", justify="right")
        table.add_column()
        if not self.values:
            return Text(self._aside or "starting")
        m = self.values
        bar = Table.grid(padding=(0, 2))
        bar.add_row(
            ProgressBar(total=self.total, completed=m["step"], width=40),
            f"step {m['step']:,} of {self.total:,}",
            f"{duration(self.seconds_left)} left",
        )
        table.add_row("loss", f"[bold]{m['loss']:.4f}[/]")
        table.add_row("accuracy", f"{percentages(m['marginal_accuracies'])}  [dim]per unrolled step[/]")
        table.add_row("answer tokens/s", f"{self.speed:,.0f}  [dim]seen[/] {m['answer_tokens']:,}")
        table.add_row("rate", f"{m['learning_rate']:.2e}  [dim]gradient norm[/] {m['gradient_norm']:.3f}")
        # Names of domains are a user's and may hold what rich takes for markup.
        table.add_row("accept length", Text(self.lengths or "not evaluated yet"))
        return Group(bar, table, Text(self._aside, style="dim"))


class PlainProgress(_Watching):
    """One line every ``every`` seconds, for logs and pipes."""

    def __init__(self, console: Console, every: float = PLAIN_EVERY, clock: Clock = time.monotonic) -> None:
        super().__init__(console, clock)
        self.every, self._said, self._phase = every, -float("inf"), ""

    def phase(self, what: str, done: int, total: int) -> None:
        if what != self._phase:
            self._phase = what
            self._say(what)

    def show(self, at_once: bool = False) -> None:
        m, now = self.values, self.clock()
        if at_once and self.lengths:
            at = f"step {m['step']} · " if m else ""
            self._say(f"{at}accept length {self.lengths}")
        elif m and (now - self._said >= self.every or m["step"] == self.total):
            self._said = now
            accuracies = percentages(m["marginal_accuracies"])
            self._say(
                f"step {m['step']}/{self.total} · loss {m['loss']:.4f} · accuracy per unrolled step {accuracies} · "
                f"{self.speed:,.0f} answer tokens/s · {duration(self.seconds_left)} left"
            )

    def _say(self, line: str) -> None:
        self.console.print(line, markup=False, highlight=False, soft_wrap=True)


def train_progress(console: Console, quiet: bool = False, clock: Clock = time.monotonic) -> TrainProgress:
    """The progress that suits the console: none if ``quiet`` (as with --json), live on a terminal, else plain lines."""
    if quiet:
        return TrainProgress()
    return LiveProgress(console, clock) if console.is_terminal else PlainProgress(console, clock=clock)


def percentages(shares: Sequence[float]) -> str:
    """Shares as ``71 58 47 %``; a dash where nothing was counted."""
    return " ".join("–" if share != share else f"{share * 100:.0f}" for share in shares) + " %"


def duration(seconds: float) -> str:
    """Seconds as ``1 d 2 h``, ``3 h 05 min``, ``4 min 10 s`` or ``12 s``."""
    whole = max(round(seconds), 0)
    days, hours, minutes = whole // 86400, whole // 3600 % 24, whole // 60 % 60
    if days:
        return f"{days} d {hours} h"
    if hours:
        return f"{hours} h {minutes:02} min"
    return f"{minutes} min {whole % 60:02} s" if minutes else f"{whole} s"
