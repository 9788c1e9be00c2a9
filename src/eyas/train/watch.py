"""Who watches a run: its log with sinks, its picture, and the progress that a person sees."""

from __future__ import annotations

import time
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from eyas.train.curves import draw_curves
from eyas.train.evaluate import Evaluation
from eyas.train.log import RunLog
from eyas.train.loop import Progress
from eyas.train.progress import Clock, TrainProgress


class Recorder:
    """A :class:`~eyas.train.loop.Watcher` that keeps the run's folder and shows its progress. Use it as a context, in
    the first process alone; ``log`` is closed with it.
    """

    def __init__(self, log: RunLog, show: TrainProgress, clock: Clock = time.monotonic) -> None:
        self.log, self.show, self.clock = log, show, clock
        self._since = clock()

    def __enter__(self) -> Self:
        self.show.__enter__()
        self._since = self.clock()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.show.__exit__(kind, error, trace)
        self.log.close()

    @property
    def folder(self) -> Path:
        return self.log.folder

    def step(self, progress: Progress, total: int, values: dict[str, Any]) -> None:
        """Log and show an optimizer step."""
        now = self.clock()
        speed = self.log.step(values, now - self._since)
        self._since = now
        self.show.step(values, total, speed)

    def evaluated(self, progress: Progress, result: Evaluation) -> None:
        """Log and show an evaluation, and draw the run anew."""
        when = {"step": progress.step, "answer_tokens": progress.answer_tokens}
        self.log.evaluated({**when, **result.to_json()})
        self.log.sync()
        draw_curves(self.folder)
        self.show.evaluated(self.log.evaluations[-1])
        # The next step's time starts after the evaluation.
        self._since = self.clock()

    def saving(self) -> None:
        """Bring the log to the disk, so that no state is ahead of it."""
        self.log.sync()
