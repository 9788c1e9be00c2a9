"""The hypothesis search: which reading of a draft explains the target's text best, and whether that is beyond doubt.

Cheap hypotheses first, on a part of the text; what survives is measured on all of it. The best one is followed and the
search begins again from there, so that several faults at once are found one after the other. A reading that looks ahead
explains nothing: no server can give it what it reads.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from eyas.check.findings import Ranked
from eyas.check.hypotheses import Hypothesis, other_taps, single_changes
from eyas.check.measure import Rig, compare
from eyas.check.readings import Reading
from eyas.check.tapsearch import TapSearch, search_taps

SURE = 4.0
"""z from which a hypothesis is better than what the files declare: about forty are tried on a few dozen
conversations, so that 2 would be reached by chance. Judged, not calibrated."""
APART = 2.5
"""z from which the best hypothesis is better than another one that is also sure."""
LEAST_GAIN = 0.004
"""Nats a position below which nothing is a fault: it costs no accept length."""
HOPELESS = -1.5
"""z on the part of the text below which a hypothesis is not measured on all of it: one that would be sure there has
about half of its z here, so that it falls below by chance once in thousands of times."""
MOST_ON_ALL = 8
"""Hypotheses that are measured on all text, the best on the part."""
MOST_FAULTS = 3
POOR = 0.2
"""Share of first proposals that hit below which the taps are searched everywhere, not only around the declared ones."""


@dataclass
class SearchResult:
    """``found``: the faults' hypotheses, one after the other; ``gains``: of each (nats a position, z); ``rivals``: what
    could not be told apart from the last; ``ranking``: what was measured on all text in the first turn; ``reading``:
    with all faults mended.
    """

    reading: Reading
    found: list[Hypothesis] = field(default_factory=list)
    gains: list[tuple[float, float]] = field(default_factory=list)
    rivals: list[Hypothesis] = field(default_factory=list)
    ranking: list[Ranked] = field(default_factory=list)
    taps: TapSearch | None = None


class Search:
    """One draft, a part of the texts and all of them."""

    def __init__(
        self, part: Rig, whole: Rig, target_theta: float | None, num_steps: int, note: Callable[[str], None]
    ) -> None:
        self.part, self.whole, self.num_steps, self.note = part, whole, num_steps, note
        self.target_theta = target_theta

    def run(self, base: Reading, taps_known: bool = True) -> SearchResult:
        """Follow the best hypotheses from ``base`` until none is surely better. ``taps_known`` False: the files leave
        the taps open, and those of ``base`` only stand in for them.
        """
        result = SearchResult(base)
        for turn in range(MOST_FAULTS + 1):
            candidates = self._candidates(result, turn, taps_known)
            sure = self._judge(result, candidates, turn)
            if not sure or turn == MOST_FAULTS:
                break
            best = sure[0]
            result.rivals = [
                h
                for h in sure[1:]
                if compare(self.whole.measure(best.reading), self.whole.measure(h.reading)).z < APART
            ]
            gain = compare(self.whole.measure(best.reading), self.whole.measure(result.reading))
            result.gains.append((gain.gain, gain.z))
            result.found.append(best)
            result.reading = best.reading
        return result

    def _candidates(self, result: SearchResult, turn: int, taps_known: bool) -> list[Hypothesis]:
        model = self.whole.model
        cheap = list(single_changes(result.reading, model.config, self.target_theta, model.config.own_embedding))
        self.note(f"{len(cheap)} hypotheses")
        cheap = [h for h in cheap if self._promising(h, result.reading)]
        if not (result.found and result.found[-1].kinds == ("taps.wrong",)):  # else they were searched just now
            known = {h.reading for h in cheap} | {result.reading}
            cheap += [h for h in self._other_taps(result, taps_known or turn > 0) if h.reading not in known]
        cheap.sort(key=lambda h: -self.part.measure(h.reading).mean)
        return cheap[:MOST_ON_ALL]

    def _other_taps(self, result: SearchResult, taps_known: bool) -> list[Hypothesis]:
        """What the search over all boundaries found best."""
        self.note("taps: every boundary in every slot")
        poor = self.part.acceptance(result.reading, 1).survival(1) < POOR
        taps = search_taps(self.part, result.reading, everywhere=poor or not taps_known)
        if result.taps is None or taps.best != result.reading.taps:
            result.taps = taps
        return [other_taps(result.reading, combination) for combination in (taps.best, *taps.near)]

    def _promising(self, h: Hypothesis, now: Reading) -> bool:
        return compare(self.part.measure(h.reading), self.part.measure(now)).z > HOPELESS

    def _judge(self, result: SearchResult, candidates: Sequence[Hypothesis], turn: int) -> list[Hypothesis]:
        """The candidates that are surely better than the reading so far, the best first."""
        self.note(f"{len(candidates)} hypotheses on all texts")
        now = self.whole.measure(result.reading)
        judged = [(compare(self.whole.measure(h.reading), now), h) for h in candidates]
        judged.sort(key=lambda item: -item[0].gain)
        if turn == 0:
            result.ranking = [
                Ranked(h.name, h.kinds, d.gain, d.z, self._accept_length(h.reading), h.looks_ahead)
                for d, h in judged[:8]
            ]
            as_declared = self._accept_length(result.reading)
            result.ranking.append(Ranked("as the files declare", (), 0.0, 0.0, as_declared))
            result.ranking.sort(key=lambda one: -one.gain)
        return [h for d, h in judged if d.z >= SURE and d.gain >= LEAST_GAIN and not h.looks_ahead]

    def _accept_length(self, reading: Reading) -> float:
        """On the part of the text: for a comparison by eye, not for the judgement."""
        return self.part.acceptance(reading, self.num_steps).accept_length
