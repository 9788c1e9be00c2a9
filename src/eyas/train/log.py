"""What a run writes down while it goes: one JSON document per line, the same bytes however often the run was killed.

``metrics.jsonl``: a line per optimizer step, bit-reproducible. ``evaluations.jsonl``: a line per evaluation, likewise.
``timing.jsonl``: what the clock said, which no two runs share.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from eyas.artifacts import named_disk_errors
from eyas.errors import EyasError
from eyas.train.sinks import Sink

METRICS, EVALUATIONS, TIMING = "metrics.jsonl", "evaluations.jsonl", "timing.jsonl"

_FIX = "put the file back as it was; or train into a new folder, with the last checkpoint as a warm start"


class RunLog:
    """The log of one run in ``folder``; one process writes it."""

    def __init__(self, folder: Path, resumed_step: int = 0, sinks: Sequence[Sink] = ()) -> None:
        """Go on after step ``resumed_step`` (0: from the start): what was written of later steps, and a cut last line,
        is dropped, because those steps are computed again. Raises ``artifact.corrupt`` if earlier lines are gone.
        """
        self.folder, self.sinks, self.last_step = folder, tuple(sinks), resumed_step
        with named_disk_errors(folder):
            folder.mkdir(parents=True, exist_ok=True)
            steps = _keep(folder / METRICS, lambda lines: _numbered(folder / METRICS, lines, resumed_step))
            kept = _keep(folder / EVALUATIONS, lambda lines: _up_to(lines, resumed_step))
            _keep(folder / TIMING, lambda lines: _up_to(lines, resumed_step))
            self._files = {name: (folder / name).open("ab") for name in (METRICS, EVALUATIONS, TIMING)}
        self._answer_tokens = json.loads(steps[-1])["answer_tokens"] if steps else 0
        self.evaluations: list[dict[str, Any]] = [json.loads(line) for line in kept]
        """Every evaluation so far, those before a resume included."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def step(self, values: Mapping[str, Any], seconds: float) -> float:
        """Write an optimizer step that took ``seconds``; returns its answer tokens per second.

        ``values``: ``step`` (steps done, so the first is 1), ``answer_tokens`` (seen since the run began), ``loss``,
        ``step_losses`` and ``marginal_accuracies`` (per unrolled step, over all its slots; NaN where it had none),
        ``gradient_norm`` (before clipping), ``learning_rate``; ``conditional_accuracies`` (over the slots whose earlier
        steps were all right) where they are counted. Marginal ones must never be multiplied.
        """
        assert values["step"] == self.last_step + 1, (values["step"], self.last_step)
        speed = (values["answer_tokens"] - self._answer_tokens) / max(seconds, 1e-9)
        document = self._append(METRICS, values)
        self._append(TIMING, {"step": values["step"], "seconds": seconds, "answer_tokens_per_second": speed})
        self.last_step, self._answer_tokens = values["step"], values["answer_tokens"]
        self._send(self.last_step, {**_step_scalars(document), "speed/answer_tokens_per_second": speed})
        return speed

    def evaluated(self, evaluation: Mapping[str, Any]) -> None:
        """Write an evaluation: ``step``, ``answer_tokens``, and what :class:`~eyas.train.evaluate.Evaluation` gives as
        JSON: ``expected`` and ``curves``.
        """
        assert evaluation["step"] == self.last_step, (evaluation["step"], self.last_step)
        assert not self.has_evaluation(self.last_step), "the same evaluation twice"
        self.evaluations.append(self._append(EVALUATIONS, evaluation))
        self._send(self.last_step, _evaluation_scalars(self.evaluations[-1]))

    def has_evaluation(self, step: int) -> bool:
        """True if the evaluation of ``step`` is written. A run killed between saving its state at a step and evaluating
        it goes on with the evaluation.
        """
        return any(evaluation["step"] == step for evaluation in self.evaluations)

    def sync(self) -> None:
        """Bring everything to the disk: before a state is saved, so that no state is ahead of its log."""
        with named_disk_errors(self.folder):
            for file in self._files.values():
                os.fsync(file.fileno())
        for sink in self.sinks:
            sink.flush()

    def close(self) -> None:
        """Close the files and the sinks."""
        for file in self._files.values():
            file.close()
        for sink in self.sinks:
            sink.close()

    def _append(self, name: str, document: Mapping[str, Any]) -> dict[str, Any]:
        written = plain(document)
        line = json.dumps(written, ensure_ascii=False, allow_nan=False) + "\n"
        with named_disk_errors(self.folder):
            self._files[name].write(line.encode())
            self._files[name].flush()
        return written

    def _send(self, step: int, scalars: Mapping[str, float | None]) -> None:
        known = {name: value for name, value in scalars.items() if value is not None}
        for sink in self.sinks:
            sink.scalars(step, known)


def read_lines(path: Path) -> list[dict[str, Any]]:
    """The documents of a log, without a cut last line; none if there is no file. Raises ``artifact.corrupt``."""
    try:
        return [json.loads(line) for line in _whole_lines(path)]
    except ValueError as error:
        raise EyasError("artifact.corrupt", f"{path} is no log: {error}", _FIX) from error


def _whole_lines(path: Path) -> list[bytes]:
    if not path.is_file():
        return []
    return [line + b"\n" for line in path.read_bytes().split(b"\n")[:-1]]


def _keep(path: Path, choose: Callable[[list[bytes]], list[bytes]]) -> list[bytes]:
    """Cut a file after the lines that are chosen, which are its first ones."""
    kept = choose(_whole_lines(path))
    if path.is_file():
        os.truncate(path, sum(map(len, kept)))
    return kept


def _numbered(path: Path, lines: list[bytes], last_step: int) -> list[bytes]:
    """The lines of steps 1 … ``last_step``, all of which must be there."""
    for step, line in enumerate(lines[:last_step], 1):
        if _step_of(line) != step:
            cause = f"line {step} of {path} is not that of step {step}"
            raise EyasError("artifact.corrupt", cause, _FIX)
    if len(lines) < last_step:
        cause = f"{path} ends with step {len(lines)}, and the run goes on after step {last_step}"
        raise EyasError("artifact.corrupt", cause, _FIX)
    return lines[:last_step]


def _up_to(lines: list[bytes], last_step: int) -> list[bytes]:
    """The lines before the first that is of a later step, or of none."""
    steps = [_step_of(line) for line in lines]
    wanted = [step is not None and step <= last_step for step in steps]
    return lines[: wanted.index(False)] if False in wanted else lines


def _step_of(line: bytes) -> int | None:
    try:
        document = json.loads(line)
    except ValueError:
        return None
    step = document.get("step") if isinstance(document, dict) else None
    return step if isinstance(step, int) else None


def plain(value: Any) -> Any:
    """As JSON has it: NaN, which means that nothing was counted, becomes null; infinity is refused."""
    if isinstance(value, Mapping):
        return {name: plain(part) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return [plain(part) for part in value]
    return None if isinstance(value, float) and math.isnan(value) else value


def _step_scalars(document: Mapping[str, Any]) -> dict[str, float | None]:
    scalars: dict[str, float | None] = {}
    for name, value in document.items():
        if isinstance(value, list):
            scalars |= {f"train/{name}/step_{i}": part for i, part in enumerate(value, 1)}
        elif name != "step":
            scalars[f"train/{name}"] = value
    return scalars


def _evaluation_scalars(evaluation: Mapping[str, Any]) -> dict[str, float | None]:
    scalars: dict[str, float | None] = {}
    for record in evaluation["expected"]:
        for figure in ("accept_length", "low", "high"):
            scalars[f"held_out/{figure}/{_group(record)}/K_{record['num_steps']}"] = record[figure]
    for curve in evaluation["curves"]:
        for figure in ("survival", "conditional"):
            values = enumerate(curve[figure], 1)
            scalars |= {f"held_out/{figure}/{_group(curve)}/{i}": value for i, value in values}
    return scalars


def _group(counted: Mapping[str, Any]) -> str:
    return f"{counted['prompt_set']}/T_{counted['temperature']:g}_{counted['draft_sampling']}"
