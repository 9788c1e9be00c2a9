"""Evaluations as series: one setting of K, temperature and draft sampling, followed through a run by domain."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from eyas.train.evaluate import ALL

PREFERRED_STEPS = 5

Documents = Sequence[Mapping[str, Any]]
"""Evaluations as the log keeps them; see :meth:`eyas.train.log.RunLog.evaluated`."""


@dataclass(frozen=True)
class Setting:
    """Which of an evaluation's records to follow."""

    num_steps: int
    temperature: float = 0.0
    draft_sampling: str = "one-hot"

    def __str__(self) -> str:
        sampling = "" if self.draft_sampling == "one-hot" else f", {self.draft_sampling}"
        return f"K = {self.num_steps}, temperature {self.temperature:g}{sampling}"

    def fits(self, record: Mapping[str, Any]) -> bool:
        """True if the record was measured so."""
        named = (record["num_steps"], record["temperature"], record["draft_sampling"])
        return named == (self.num_steps, self.temperature, self.draft_sampling)


def usual_setting(evaluations: Documents) -> Setting:
    """The lowest temperature measured, one-hot, K = 5 if it was measured, else the greatest K that was."""
    records = [r for e in evaluations for r in e["expected"] if r["draft_sampling"] == "one-hot"]
    temperature = min((r["temperature"] for r in records), default=0.0)
    measured = {r["num_steps"] for r in records if r["temperature"] == temperature}
    num_steps = PREFERRED_STEPS if PREFERRED_STEPS in measured else max(measured, default=PREFERRED_STEPS)
    return Setting(num_steps, temperature)


def by_domain(evaluations: Documents, setting: Setting) -> dict[str, list[dict[str, Any]]]:
    """Per domain its records under ``setting``, each with the ``step`` and the ``answer_tokens`` of its evaluation,
    and with ``first``: P(a ≥ 1), None if it was not counted. All domains together come last, and only if there are
    several.
    """
    series: dict[str, list[dict[str, Any]]] = {}
    for evaluation in evaluations:
        when = {name: evaluation[name] for name in ("step", "answer_tokens")}
        firsts = {_group(curve): curve["survival"][0] for curve in evaluation["curves"]}
        for record in evaluation["expected"]:
            if setting.fits(record):
                entry = {**record, **when, "first": firsts.get(_group(record))}
                series.setdefault(record["prompt_set"], []).append(entry)
    together = series.pop(ALL, None)
    return series if together is None or len(series) == 1 else {**series, ALL: together}


def _group(counted: Mapping[str, Any]) -> tuple[str, float, str]:
    return counted["prompt_set"], counted["temperature"], counted["draft_sampling"]
