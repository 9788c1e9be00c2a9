"""The hypothesis search: which reading of a draft explains the target's text best, and whether that is beyond doubt.

Cheap hypotheses first, on a few texts; what survives is measured on more of them, and at last on all. Where that
leaves doubt, more texts are asked for. The best hypothesis is followed and the search begins again from there, so that
several faults at once are found one after the other. A reading that looks ahead explains nothing: no server can give
it what it reads.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from eyas.check.findings import Ranked
from eyas.check.forced import Text
from eyas.check.hypotheses import DECLARED, Hypothesis, other_taps, single_changes
from eyas.check.measure import Difference, Measure, Rig, compare
from eyas.check.readings import Reading, Rope
from eyas.check.tapsearch import TapSearch, search_taps

SURE = 4.0
"""z from which a hypothesis is better than what the files declare: about forty are tried on a few dozen
conversations, so that 2 would be reached by chance. Judged, not calibrated."""
NEARLY = 2.0
"""z from which more text is read before a hypothesis is given up."""
PERHAPS = 2.5
"""z from which a hypothesis that is not sure on all there is to read leaves the verdict open."""
APART = 2.5
"""z from which the best hypothesis is better than another one that is also sure."""
LEAST_GAIN = 0.004
"""Nats a position below which nothing is a fault: it costs no accept length."""
LADDER = ((2, -3.0), (5, -1.5))
"""Texts looked at first, and the z below which a hypothesis goes no further: one that would be sure on all of them has
about half of its z on five, so that it falls below by chance once in thousands of times."""
PART = LADDER[-1][0]
MOST_ON_ALL = (8, 4)
"""Hypotheses that are measured on all text, the best on the part: in the first turn, and in later ones."""
LEAST_ON_ALL = 3
BEHIND = 2.0
"""z behind the best one, on the part, from which any but the first few are not measured on all text."""
CLOSED = 0.45
"""Share of the second step's loss against the first that a fault of the carried state must explain: in a draft that is
merely noisy the second step is worse too, and another norm mends a little of that."""
MOST_FAULTS = 3
POOR = 0.2
"""Share of first proposals that hit below which the taps are searched everywhere, not only around the declared ones."""

Judged = tuple[Difference, Hypothesis]
More = Callable[[], Sequence[Text]]
"""Further texts; none: there are no more."""


@dataclass
class SearchResult:
    """``found``: the faults' hypotheses, one after the other; ``gains``: of each (nats a position, z); ``rivals``: what
    could not be told apart from ``doubted``, the first of them that has any, or one that was not sure enough to be
    found; ``ranking``: what was measured on all text in the first turn; ``reading``: with all faults mended.
    """

    reading: Reading
    found: list[Hypothesis] = field(default_factory=list)
    gains: list[tuple[float, float]] = field(default_factory=list)
    doubted: Hypothesis | None = None
    rivals: list[Hypothesis] = field(default_factory=list)
    ranking: list[Ranked] = field(default_factory=list)
    taps: TapSearch | None = None

    @property
    def undecided(self) -> bool:
        """Whether it is open which kind of fault it is. Which of several taps that do as well is not."""
        return self.doubted is not None and any(h.kinds != self.doubted.kinds for h in self.rivals)


class Search:
    """One draft, its texts, and where more of them come from."""

    def __init__(
        self, rig: Rig, target_rope: Rope | None, note: Callable[[str], None], more: More = lambda: ()
    ) -> None:
        self.rig, self.note, self.more, self.target_rope = rig, note, more, target_rope

    def run(self, base: Reading, taps_known: bool = True) -> SearchResult:
        """Follow the best hypotheses from ``base`` until none is surely better. ``taps_known`` False: the files leave
        the taps open, and those of ``base`` only stand in for them.
        """
        result = SearchResult(base)
        for turn in range(MOST_FAULTS + 1):
            judged = self._judge(result.reading, self._candidates(result, turn, taps_known))
            sure, rivals = self._sure(result.reading, judged)
            if (rivals or (not sure and _nearly(judged))) and self._read_more():
                judged = self._judge(result.reading, [h for _, h in judged])
                sure, rivals = self._sure(result.reading, judged)
            if turn == 0:
                result.ranking = self._ranking(result.reading, judged)
            if not sure and turn == 0:
                self._leave_open(result, judged)
            if not sure or turn == MOST_FAULTS:
                break
            gain, best = sure[0]
            result.gains.append((gain.gain, gain.z))
            result.found.append(best)
            result.reading = best.reading
            if rivals and result.doubted is None:
                result.doubted, result.rivals = best, rivals
        # A rival that was found besides is a second fault.
        found = {h.name for h in result.found}
        result.rivals = [h for h in result.rivals if h.name not in found]
        result.doubted = result.doubted if result.rivals else None
        return result

    def _leave_open(self, result: SearchResult, judged: Sequence[Judged]) -> None:
        """What the files declare against a hypothesis that is better, but not surely."""
        perhaps, _ = self._sure(result.reading, judged, PERHAPS)
        if perhaps:
            result.doubted, result.rivals = perhaps[0][1], [Hypothesis(DECLARED, (), result.reading)]

    def _candidates(self, result: SearchResult, turn: int, taps_known: bool) -> list[Hypothesis]:
        """What is worth measuring on all text, the best on the part first."""
        config = self.rig.model.config
        cheap = list(single_changes(result.reading, config, self.target_rope, config.own_embedding))
        self.note(f"{len(cheap)} hypotheses")
        for count, least in LADDER:
            cheap = [h for h in cheap if self._against(h.reading, result.reading, count).z > least]
        if not (result.found and result.found[-1].kinds == ("taps.wrong",)):  # else they were searched just now
            known = {h.reading for h in cheap} | {result.reading}
            cheap += [h for h in self._other_taps(result, taps_known or turn > 0) if h.reading not in known]
        cheap.sort(key=lambda h: -self.rig.measure(h.reading, PART).mean)
        ahead = [h for h in cheap if h.looks_ahead]  # shown, and in nobody's place
        real = [h for h in cheap if not h.looks_ahead][: MOST_ON_ALL[min(turn, 1)]]
        return ahead + [
            h
            for rank, h in enumerate(real)
            if rank < LEAST_ON_ALL or self._against(real[0].reading, h.reading, PART).z < BEHIND
        ]

    def _other_taps(self, result: SearchResult, taps_known: bool) -> list[Hypothesis]:
        """What the search over all boundaries found best."""
        self.note("taps: every boundary in every slot")
        poor = self.rig.acceptance(result.reading, 1, PART).survival(1) < POOR
        taps = search_taps(self.rig, result.reading, everywhere=poor or not taps_known)
        if result.taps is None or taps.best != result.reading.taps:
            result.taps = taps
        return [other_taps(result.reading, combination) for combination in (taps.best, *taps.near)]

    def _against(self, better: Reading, worse: Reading, count: int | None = None) -> Difference:
        return compare(self.rig.measure(better, count), self.rig.measure(worse, count))

    def _judge(self, now: Reading, candidates: Sequence[Hypothesis]) -> list[Judged]:
        """The candidates against the reading so far, on all text, the best first."""
        self.note(f"{len(candidates)} hypotheses on all texts")
        judged = [(self._against(h.reading, now), h) for h in candidates]
        return sorted(judged, key=lambda item: -item[0].gain)

    def _sure(
        self, now: Reading, judged: Sequence[Judged], least: float = SURE
    ) -> tuple[list[Judged], list[Hypothesis]]:
        """(those that are surely better, the best first; those among them that cannot be told from it).

        What explains more, though less surely, is not ruled out: of the same kind it is the better name for it, of
        another one a rival.
        """
        real = [(d, h) for d, h in judged if d.gain >= LEAST_GAIN and not h.looks_ahead]
        real = [(d, h) for d, h in real if h.kinds != ("norm.output",) or self._closes(h.reading, now)]
        sure = [(d, h) for d, h in real if d.z >= least]
        if not sure:
            return [], []
        above = [(d, h) for d, h in real if min(PERHAPS, least) <= d.z < least and d.gain > sure[0][0].gain]
        kinds = sure[0][1].kinds
        sure = [(d, h) for d, h in above if h.kinds == kinds] + sure
        rivals = [h for _, h in sure[1:] if self._against(sure[0][1].reading, h.reading).z < APART]
        return sure, rivals + [h for _, h in above if h.kinds != kinds]

    def _closes(self, reading: Reading, now: Reading) -> bool:
        """Whether the second step becomes nearly as good as the first."""
        return _step_loss(self.rig.measure(reading)) <= (1 - CLOSED) * _step_loss(self.rig.measure(now))

    def _read_more(self) -> bool:
        """Once: the same prompts a second time would count as others."""
        self.note("more text")
        texts = self.more()
        self.more = tuple
        self.rig.texts += texts
        return bool(texts)

    def _ranking(self, base: Reading, judged: Sequence[Judged]) -> list[Ranked]:
        ranking = [
            Ranked(h.name, h.kinds, d.gain, d.z, self.rig.accept_length(h.reading), h.looks_ahead) for d, h in judged
        ]
        ranking.append(Ranked(DECLARED, (), 0.0, 0.0, self.rig.accept_length(base)))
        return sorted(ranking, key=lambda one: -one.gain)


def _nearly(judged: Sequence[Judged]) -> bool:
    return any(d.z >= NEARLY and d.gain >= LEAST_GAIN and not h.looks_ahead for d, h in judged)


def _step_loss(measure: Measure) -> float:
    """Nats a position that the last step is behind the first."""
    first, last = (float(measure.nats[measure.depth == i].mean()) for i in (0, int(measure.depth.max())))
    return first - last
