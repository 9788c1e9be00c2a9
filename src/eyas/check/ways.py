"""The ways in which a server may run a draft: the hypotheses about training, said of a server."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from eyas.check.hypotheses import DECLARED, Hypothesis, rope_of, single_changes
from eyas.check.measure import Rig
from eyas.check.readings import Reading, declared
from eyas.contract import default_taps
from eyas.errors import EyasError

TRAINED = "as the check finds that it was trained"
NEVER = "no draft is ever accepted"


@dataclass(frozen=True)
class Way:
    """A way in which the server may run the draft. ``reading`` None: it accepts nothing · ``deepest``: the greatest K
    that is looked at.
    """

    name: str
    reading: Reading | None
    num_steps: int
    deepest: int
    kinds: tuple[str, ...] = ()


def ways_of(rig: Rig, trained: Reading | None, num_steps: int) -> Iterator[Way]:
    """The declared way first. ``trained``: how the draft was trained, where a check found that its files are wrong."""
    now = declared(rig.model.config)
    yield Way(DECLARED, now, num_steps, num_steps)
    if trained is not None and trained != now:
        yield Way(TRAINED, trained, num_steps, num_steps)
    for steps in range(1, num_steps):
        yield Way(f"K = {steps}", now, steps, num_steps)
    for h in single_changes(now, rig.model.config, rope_of(rig.target), rig.model.config.own_embedding):
        yield Way(_name(h, now, rig.target.num_layers), h.reading, num_steps, num_steps, h.kinds)
    yield Way(NEVER, None, num_steps, num_steps)


def _name(h: Hypothesis, now: Reading, num_layers: int) -> str:
    """A hypothesis about training, said of a server."""
    if h.kinds == ("map.absolute",):
        return "d2t read as target ids"
    if h.kinds == ("map.wrong",):
        return "no map: draft ids taken for target ids"
    if h.reading.taps == now.taps:
        return h.name
    name = f"fed taps ({', '.join(map(str, h.reading.taps))})"
    shifts = {theirs - ours for theirs, ours in zip(h.reading.taps, now.taps, strict=True)}
    return f"{name}, {why}" if (why := _why(h.reading.taps, shifts, num_layers)) else name


def _why(taps: tuple[int, ...], shifts: set[int], num_layers: int) -> str:
    try:
        if taps == default_taps(num_layers):
            return "which engines take where they read no layer ids"
    except EyasError:  # a target too shallow for the default
        pass
    if shifts == {1}:
        return "as where SGLang reads ids that are meant for vLLM"
    return "as where vLLM reads ids that are meant for SGLang" if shifts == {-1} else ""
