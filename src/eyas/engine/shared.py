"""An engine on each of several ranks, in step: all see the same requests, and the first alone measures and chooses.

Clocks differ from rank to rank; a choice made by each would too, and the ranks would wait for each other in different
places.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from functools import cache

import numpy as np

from eyas.config import SpeculativeSettings
from eyas.engine.choosing import Chooser
from eyas.engine.costs import Scene, Stage, measure_costs
from eyas.engine.request import Request
from eyas.errors import EyasError
from eyas.kernels import KVCache
from eyas.models.ranks import Ranks
from eyas.models.target import Target
from eyas.speculate.confidence import SureChain, sure_chain
from eyas.speculate.costs import CostTable
from eyas.speculate.policy import Controller
from eyas.speculate.propose import Proposer

KINDS = ("verify", "draft")
"""Of scenes."""
NUMBERS = 7
"""That say what one request proposes."""


class SharedChooser(Chooser):
    """A :class:`Chooser` for each rank's engine that chooses as the first rank's does."""

    def __init__(self, max_positions: int, controller: Controller | None, ranks: Ranks, drafts: bool = True) -> None:
        """``controller``: on the first rank only."""
        assert ranks.is_first or controller is None, "only the first rank measures"
        super().__init__(max_positions, controller, drafts)
        self.ranks = ranks

    def choose(self, decoding: Sequence[Request], other_rows: int) -> dict[Request, SpeculativeSettings | None]:
        """As a :class:`Chooser`. Raises ``engine.died`` where this rank came to another step than the first one: it
        would wait for the others in another place, or answer what nobody asked."""
        here = _fingerprint(decoding, other_rows)
        if self.ranks.is_first:
            chosen = super().choose(decoding, other_rows)
            numbers = [number for request in decoding for number in _numbers_of(chosen[request])]
            self.ranks.tell_numbers([here, *numbers])
            return chosen
        there, *numbers = self.ranks.tell_numbers()
        if here != there:
            cause = f"rank {self.ranks.rank} came to another step than the first one"
            raise EyasError("engine.died", cause, "report it, with the versions in /server_info")
        each = np.reshape(numbers, (-1, NUMBERS)).tolist()
        return {request: _settings_of(*its) for request, its in zip(decoding, each, strict=True)}

    def reads_along(self, request: Request, running: int) -> bool:
        """As a :class:`Chooser`, the same on every rank."""
        if self.ranks.is_first:
            along = super().reads_along(request, running)
            self.ranks.tell_numbers([along])
            return along
        return bool(self.ranks.tell_numbers()[0])


def measure_costs_together(
    target: Target, cache: KVCache, proposer: Proposer, ranks: Ranks, *, max_requests: int, max_steps: int
) -> CostTable | None:
    """:func:`eyas.engine.costs.measure_costs` on the first rank, which the others play along; None on those."""
    stage = Stage(target, cache, proposer)
    if not ranks.is_first:
        while numbers := ranks.tell_numbers():
            kind, *sizes = numbers
            stage.play(Scene(KINDS[kind], *sizes))
        return None

    def clock(scene: Scene) -> float:
        kind, *sizes = scene
        ranks.tell_numbers([KINDS.index(kind), *sizes])
        return stage.play(scene)

    table = measure_costs(target, cache, proposer, max_requests=max_requests, max_steps=max_steps, clock=clock)
    ranks.tell_numbers([])
    return table


def _fingerprint(decoding: Sequence[Request], other_rows: int) -> int:
    """Of where the engine stands: each text's length and end."""
    ends = [(len(request.prompt), len(request.answer), request.answer[-1]) for request in decoding]
    return zlib.crc32(np.asarray([other_rows, *(number for end in ends for number in end)], np.int64).tobytes())


def _numbers_of(settings: SpeculativeSettings | None) -> tuple[int, ...]:
    """num_steps (0: plain decoding), eagle_topk, num_draft_tokens, whether probabilistic; a sure chain's two bins, and
    whether it is one."""
    if settings is None:
        return (0,) * NUMBERS
    probabilistic = settings.draft_sampling == "probabilistic"
    sure = (settings.keep, settings.extend, 1) if isinstance(settings, SureChain) else (0, 0, 0)
    return settings.num_steps, settings.eagle_topk, settings.num_draft_tokens, int(probabilistic), *sure


@cache
def _settings_of(
    num_steps: int, topk: int, num_draft_tokens: int, probabilistic: int, keep: int, extend: int, sure: int
) -> SpeculativeSettings | None:
    if num_steps == 0:
        return None
    if sure:
        return sure_chain(num_steps, keep, extend)
    return SpeculativeSettings(
        num_steps=num_steps,
        eagle_topk=topk,
        num_draft_tokens=num_draft_tokens,
        draft_sampling="probabilistic" if probabilistic else "one-hot",
    )
