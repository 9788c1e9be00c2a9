"""Where figures may go besides the log's own files: TensorBoard, and Trackio or Weights & Biases if asked for.

Their packages are imported when a run asks for them, so that none is needed for a run that does not.
"""

from __future__ import annotations

import importlib
import secrets
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from eyas.artifacts import atomic_write
from eyas.errors import EyasError

PROJECT = "eyas"
RUN_ID = "run-id.txt"


class Sink(ABC):
    """A place that takes figures. After a resume it may be given figures again that it has: the same ones."""

    @abstractmethod
    def scalars(self, step: int, values: Mapping[str, float]) -> None:
        """Take the figures of an optimizer step, by name."""

    @abstractmethod
    def flush(self) -> None:
        """Keep what was taken even if the process dies now."""

    @abstractmethod
    def close(self) -> None:
        """The run ends."""


@dataclass(frozen=True)
class RunFacts:
    """What a sink is told of a run: its folder, the step it goes on after (0: none), its settings (plain JSON)."""

    folder: Path
    resumed_step: int
    settings: Mapping[str, Any]


class TensorBoard(Sink):
    """Event files in ``tensorboard/`` of the run's folder; what an earlier try wrote of later steps is hidden."""

    def __init__(self, facts: RunFacts) -> None:
        place = str(facts.folder / "tensorboard")
        package = _load("torch.utils.tensorboard", "tensorboard")
        self.writer = package.SummaryWriter(place, purge_step=facts.resumed_step + 1, flush_secs=10)

    def scalars(self, step: int, values: Mapping[str, float]) -> None:
        for name, value in values.items():
            self.writer.add_scalar(name, value, step)

    def flush(self) -> None:
        self.writer.flush()

    def close(self) -> None:
        self.writer.close()


class Tracker(Sink):
    """Trackio, or Weights & Biases: a run of theirs that a resumed run goes on with. They flush on their own."""

    def __init__(self, package: str, facts: RunFacts, by_id: bool) -> None:
        module, run_id = _load(package, package), _run_id(facts)
        identity = {"id": run_id, "dir": str(facts.folder)} if by_id else {}
        name = f"{facts.folder.name}-{run_id}"
        self.run = module.init(project=PROJECT, name=name, config=dict(facts.settings), resume="allow", **identity)

    def scalars(self, step: int, values: Mapping[str, float]) -> None:
        self.run.log(dict(values), step=step)

    def flush(self) -> None:
        return

    def close(self) -> None:
        self.run.finish()


SINKS: dict[str, Callable[[RunFacts], Sink]] = {
    "tensorboard": TensorBoard,
    "trackio": lambda facts: Tracker("trackio", facts, by_id=False),
    "wandb": lambda facts: Tracker("wandb", facts, by_id=True),
}


def open_sinks(names: Sequence[str], facts: RunFacts) -> list[Sink]:
    """The sinks ``names``, opened. Raises ``flags.unknown``, ``package.missing``; then none is left open."""
    unknown = [name for name in names if name not in SINKS]
    if unknown:
        raise EyasError("flags.unknown", f"there is no sink {unknown[0]!r}", f"one of: {', '.join(SINKS)}")
    sinks: list[Sink] = []
    try:
        for name in dict.fromkeys(names):
            sinks.append(SINKS[name](facts))
    except BaseException:
        for sink in sinks:
            sink.close()
        raise
    return sinks


def _load(module: str, package: str) -> ModuleType:
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        fix = f"`pip install {package}`, or do without it"
        raise EyasError("package.missing", f"figures were to go to {package}, which is not installed", fix) from error


def _run_id(facts: RunFacts) -> str:
    """The run's name at a tracker: made at its start, read again when it goes on."""
    path = facts.folder / RUN_ID
    if facts.resumed_step == 0 or not path.is_file():
        atomic_write(path, secrets.token_hex(4))
    return path.read_text(encoding="utf-8")
