"""The figures of speculation that an answer tells, by the one set of formulas."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from eyas.metrics import Acceptance, Round
from eyas.serve.api.answers import SpeculationFigures
from eyas.serve.wire import RoundCount


def figures_of(choices: Mapping[int, Sequence[RoundCount]]) -> SpeculationFigures:
    """Of all choices of a request together; their rounds in order."""
    acceptance = Acceptance()
    plain = 0
    for index, rounds in choices.items():
        for one in rounds:
            if one.proposed:
                acceptance.add(index, Round(one.accepted, one.proposed, one.cut, one.depth))
            else:
                plain += 1
    whole = [r for rounds in choices.values() for r in rounds if r.proposed and not r.cut]
    deepest = acceptance.max_depth
    histogram = [sum(r.accepted == i for r in whole) for i in range(deepest + 1)] if whole else []
    return SpeculationFigures(
        rounds=acceptance.num_rounds,
        cut_rounds=acceptance.num_cut_rounds,
        plain_rounds=plain,
        proposed=sum(r.proposed for r in whole),
        accepted_histogram=histogram,
        accept_length=acceptance.accept_length if whole else None,
        ceiling=deepest + 1,
        survival=[acceptance.survival(i) for i in range(1, deepest + 1)],
    )
