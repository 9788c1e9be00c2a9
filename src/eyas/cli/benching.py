"""What ``eyas bench`` puts together: servers and keys, the prompts, progress, and where the result goes."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from eyas.artifacts import cache_root, write_json
from eyas.bench.client import Clock
from eyas.bench.report import document, show
from eyas.bench.run import Address, Result, Step, bench
from eyas.bench.settings import BenchSettings
from eyas.cli.options import with_progress
from eyas.corpus.prompts import Prompt
from eyas.environment import environment
from eyas.errors import EyasError
from eyas.pull import load_prompts

Draw = Callable[[Result, Path], None]


@dataclass(frozen=True)
class Key:
    """Where an API key is; no output shows it."""

    variable: str | None
    file: Path | None
    flag: str = "--api-key"

    def read(self) -> str | None:
        """The key; None: none is given. Raises ``flags.contradiction``, ``flags.range``, ``artifact.missing``."""
        if self.variable is not None and self.file is not None:
            cause = f"{self.flag}-env and {self.flag}-file are both given"
            raise EyasError("flags.contradiction", cause, "leave one of the two out")
        if self.file is not None:
            try:
                key = self.file.read_text(encoding="utf-8").strip()
            except (OSError, UnicodeDecodeError) as error:
                cause = f"{self.flag}-file {self.file} cannot be read"
                raise EyasError("artifact.missing", cause, "check the file") from error
            if not key:
                raise EyasError("flags.range", f"{self.flag}-file {self.file} is empty", "write the key into it")
            return key
        if self.variable is None:
            return None
        if not os.environ.get(self.variable):
            cause = f"{self.flag}-env {self.variable}: there is no such environment variable"
            raise EyasError("flags.range", cause, f"export {self.variable}=…")
        return os.environ[self.variable]


@dataclass(frozen=True)
class Sides:
    """What is measured, and what against."""

    url: str
    against: str | None
    baseline: str | None
    model: str | None
    against_model: str | None
    key: Key
    against_key: Key

    def addresses(self) -> tuple[Address, ...]:
        """One or two. A key is sent to the server only that it is given for. Raises ``flags.…``."""
        if self.baseline not in (None, "request"):
            raise EyasError("flags.range", f"--baseline {self.baseline}", "write --baseline request, or --against URL")
        if self.baseline and self.against:
            cause = "--baseline request and --against both name what to compare with"
            raise EyasError("flags.contradiction", cause, "leave one of the two out")
        if self.against is None and (self.against_model or self.against_key.variable or self.against_key.file):
            raise EyasError("flags.missing", "--against-… means nothing without --against", "give --against URL")
        key = self.key.read()
        if self.baseline:
            both = [Address(name, self.url, "URL", self.model, key, plain=name == "plain") for name in PLAIN_NAMES]
            return tuple(both)
        if self.against is None:
            return (Address("server", self.url, "URL", self.model, key),)
        second = Address("second", self.against, "--against", self.against_model, self.against_key.read())
        return Address("first", self.url, "URL", self.model, key), second


PLAIN_NAMES = ("speculating", "plain")


@dataclass(frozen=True)
class Outputs:
    """Files to write, and whether stdout gets JSON."""

    out: Path | None
    plot: Path | None
    as_json: bool


def run_bench(
    sides: Sides, settings: BenchSettings, prompts: tuple[str, ...], limit: int | None, outputs: Outputs
) -> None:
    """Measure, then show and write."""
    addresses = sides.addresses()
    # What cannot be drawn at the end is said at the beginning.
    draw = None if outputs.plot is None else _painter()
    asked = with_progress(lambda progress: _prompts(prompts, limit, progress), outputs.as_json)
    with _bars(outputs.as_json) as on_step:
        result = bench(addresses, asked, settings, on_step, Clock())
    machine = environment(sys.argv)
    if outputs.out is not None:
        outputs.out.parent.mkdir(parents=True, exist_ok=True)
        write_json(outputs.out, document(result, machine, with_requests=True))
    if outputs.plot is not None and draw is not None:
        outputs.plot.parent.mkdir(parents=True, exist_ok=True)
        draw(result, outputs.plot)
    if outputs.as_json:
        print(json.dumps(document(result, machine, with_requests=False), ensure_ascii=False))
    else:
        show(result, Console(highlight=False))


def numbers(text: str | None, flag: str) -> tuple[float, ...]:
    """A list with commas; none of None. Raises ``flags.range``."""
    try:
        return tuple(float(part) for part in text.split(",")) if text is not None else ()
    except ValueError:
        raise EyasError("flags.range", f"{flag} {text} is no list of numbers", f"write e.g. {flag} 1,8") from None


def whole_numbers(text: str | None, flag: str) -> tuple[int, ...]:
    """The same of whole numbers."""
    found = numbers(text, flag)
    if any(not number.is_integer() for number in found):
        raise EyasError("flags.range", f"{flag} {text} is no list of whole numbers", f"write e.g. {flag} 1,8")
    return tuple(int(number) for number in found)


def _prompts(names: tuple[str, ...], limit: int | None, progress: Any) -> list[Prompt]:
    return [p for name in names for p in load_prompts(name, cache_root(), progress=progress)][:limit]


def _painter() -> Draw:
    from eyas.bench.plot import draw

    return draw


@contextmanager
def _bars(quiet: bool) -> Iterator[Callable[[Step], None]]:
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True, quiet=quiet), transient=True) as bars:
        tasks: dict[str, Any] = {}
        failed: dict[str, int] = {}

        def on_step(step: Step) -> None:
            name = str(step.load)
            if name not in tasks:
                tasks[name] = bars.add_task(name, total=step.total)
            failed[name] = failed.get(name, 0) + (step.outcome.fault is not None)
            said = f"{name}, [yellow]{failed[name]} failed[/]" if failed[name] else name
            bars.update(tasks[name], completed=step.done, description=said)

        yield on_step
