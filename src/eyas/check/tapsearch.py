"""Which taps was this draft trained on? All boundaries, in every slot of fc, without trying every combination.

fc is linear: its output is a sum of one term per slot, so each boundary's term in each slot is computed once, and a
combination costs one decoder layer and the head. Two things find the right one among tens of thousands:

- the likelihood changes smoothly with depth, so a coarse grid of depths lands near it, and
- replacing one slot at a time from there (coordinate ascent) ends on it.

A sweep tries slots · (L + 1) combinations, the grid a fixed number of depths to the power of the slots: so a target of
61 layers costs about twice as many trials as one of 30, not eight times.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product
from math import perm

import torch
from torch import Tensor

from eyas.check.forced import Text, draft_ids_of, forced_from, log_likelihoods
from eyas.check.measure import Rig
from eyas.check.readings import Reading, arrange, narrowed

Taps = tuple[int, ...]
GRID_SLOTS = 48
"""Positions that a trial of the coarse grid looks at; a sweep looks at :data:`SWEEP_SLOTS`."""
SWEEP_SLOTS = 160
HEAD_ROWS = 1024
"""Rows of the head, about, that a trial compares the text's tokens with: all of them cost more than the rest of it."""
TRIAL_SHARPNESS = (0.65, 0.8, 1.0)
STARTS = 3
LEAST_STEP = 0.01
"""Nats a position that a replaced tap must bring to be followed: less is noise at so few positions."""
MOST_COMBINATIONS = 1000


@dataclass(frozen=True)
class TapSearch:
    """``best`` taps, ``response`` [slots][L + 1]: nats a position with one slot replaced, the others as in ``best``;
    ``near``: the next best combinations; ``trials``: combinations that were tried.
    """

    best: Taps
    response: tuple[tuple[float, ...], ...]
    near: tuple[Taps, ...]
    trials: int


def search_taps(rig: Rig, reading: Reading, everywhere: bool) -> TapSearch:
    """Climb from the reading's own taps, and, if ``everywhere``, from the best of a coarse grid of depths as well."""
    sweep = _Trials(rig, reading, SWEEP_SLOTS)
    starts, trials = [reading.taps], 0
    if everywhere:
        coarse = _Trials(rig, reading, GRID_SLOTS)
        grid = list(_grid(rig.target.num_layers, len(reading.taps)))
        ranked = sorted(grid, key=coarse, reverse=True)
        starts += ranked[:STARTS]
        trials += coarse.count
    ends = {_climb(sweep, start, rig.target.num_layers) for start in starts}
    best = max(ends, key=sweep)
    response = _responses(sweep, best, rig.target.num_layers)
    others = {
        (*best[:j], v, *best[j + 1 :]): nats
        for j, row in enumerate(response)
        for v, nats in enumerate(row)
        if v not in best
    }
    near = sorted(others, key=lambda taps: others[taps], reverse=True)[:4]
    return TapSearch(best, response, tuple(near), trials + sweep.count)


def _grid(layers: int, slots: int) -> Iterator[Taps]:
    """Combinations of distinct depths, closer together near the embedding, where states change fastest."""
    depths = sorted({0, 1, min(3, layers), layers - 1, layers, *(round(layers * i / 6) for i in range(1, 6))})
    while perm(len(depths), slots) > MOST_COMBINATIONS and len(depths) > slots + 1:
        del depths[len(depths) // 2]
    return (taps for taps in product(depths, repeat=slots) if len(set(taps)) == slots)


def _climb(score: Callable[[Taps], float], taps: Taps, layers: int) -> Taps:
    """Replace one slot at a time by what is best there, until nothing is better."""
    while True:
        around = [(*taps[:j], v, *taps[j + 1 :]) for j in range(len(taps)) for v in range(layers + 1) if v not in taps]
        # Two slots may hold each other's tap.
        around += [_exchanged(taps, i, j) for i in range(len(taps)) for j in range(i)]
        best = max(around, key=score)
        if score(best) <= score(taps) + LEAST_STEP:
            return taps
        taps = best


def _exchanged(taps: Taps, i: int, j: int) -> Taps:
    changed = list(taps)
    changed[i], changed[j] = taps[j], taps[i]
    return tuple(changed)


def _responses(score: Callable[[Taps], float], best: Taps, layers: int) -> tuple[tuple[float, ...], ...]:
    return tuple(tuple(score((*best[:j], v, *best[j + 1 :])) for v in range(layers + 1)) for j in range(len(best)))


class _Trials:
    """The mean log-likelihood of the first step for any taps, on the first texts that make up ``slots`` positions."""

    def __init__(self, rig: Rig, reading: Reading, slots: int) -> None:
        self.texts = _first(rig.texts, slots)
        whole = arrange(rig.model, reading, rig.target)
        rows = _head_rows(draft_ids_of(whole.d2t, rig.target.vocab_size), self.texts)
        self.reading, self.view = reading, narrowed(whole, rows)
        self.ids = draft_ids_of(self.view.d2t, rig.target.vocab_size)
        config = self.view.config
        self._separable = not config.norm_before_fc
        self._terms: dict[tuple[int, int, int], Tensor] = {}
        self._scores: dict[Taps, float] = {}

    @property
    def count(self) -> int:
        """Combinations tried so far."""
        return len(self._scores)

    def __call__(self, taps: Taps) -> float:
        if taps not in self._scores:
            self._scores[taps] = self._try(taps)
        return self._scores[taps]

    @torch.no_grad()
    def _try(self, taps: Taps) -> float:
        parts = []
        for number, text in enumerate(self.texts):
            reading = replace(self.reading, taps=taps)
            state = self._state(number, text, reading)
            (step,) = forced_from(self.view, reading, text, state, 1)
            parts.append(log_likelihoods(step, self.ids, TRIAL_SHARPNESS))
        return float(torch.cat(parts, 1).mean(1).max())

    def _state(self, number: int, text: Text, reading: Reading) -> Tensor:
        """fc's output [n, H]: the sum of the slots' terms where fc sees each tap by itself."""
        if not self._separable:
            return self.view.combine(text.features(reading))
        total = sum(self._term(number, text, j, tap) for j, tap in enumerate(reading.taps))
        bias = self.view.fc.bias
        assert isinstance(total, Tensor)
        return total if bias is None else total + bias

    def _term(self, number: int, text: Text, slot: int, tap: int) -> Tensor:
        key = (number, slot, tap)
        if key not in self._terms:
            view, last = self.view, slot == len(self.reading.taps) - 1
            state = text.normed if self.reading.last_normed and last else text.taps[tap]
            if view.tap_norms is not None:
                state = view.backend.rms_norm(state, view.tap_norms[slot], view.config.rms_norm_eps)
            width = view.config.target_hidden_size
            columns = view.fc.weight[:, slot * width : (slot + 1) * width]
            self._terms[key] = (state @ columns.T).roll(-self.reading.feature_shift, 0)
        return self._terms[key]


def _head_rows(ids: Tensor, texts: Sequence[Text]) -> Tensor:
    """Draft ids [m], rising: of what the texts say, and of others evenly spread, against which that is judged."""
    said = ids[torch.cat([text.tokens[text.slots(0) + 2] for text in texts])]
    size = int(ids.max()) + 1
    return torch.cat([said[said >= 0], torch.arange(0, size, max(1, size // HEAD_ROWS))]).unique()


def _first(texts: Sequence[Text], slots: int) -> tuple[Text, ...]:
    """The first texts with ``slots`` positions together, the last of them shortened."""
    chosen: list[Text] = []
    for text in texts:
        if slots <= 0:
            break
        length = min(len(text.tokens), text.prompt + 1 + slots)
        chosen.append(Text(text.tokens[:length], text.prompt, text.taps[:, :length], text.normed[:length]))
        slots -= len(chosen[-1].slots(0))
    return tuple(chosen)
