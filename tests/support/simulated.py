"""A simulated engine: requests of known acceptance, steps of known cost, and a controller or a fixed K over them."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate, cycle
from operator import mul
from typing import NamedTuple

from eyas.config import SpeculativeSettings
from eyas.metrics import Round
from eyas.speculate.confidence import SureChain, bin_of
from eyas.speculate.costs import CostModel, CostTable, Curve
from eyas.speculate.policy import Controller, Prospect, shape_of

CODE, CHAT, USELESS = (0.8, 0.75, 0.75, 0.7, 0.7), (0.3, 0.25, 0.2, 0.2, 0.2), (0.01,) * 5
"""conditional_i of a draft."""

TABLE = CostTable(
    verify=Curve((1, 2, 4, 8, 16, 32, 64), (0.080, 0.083, 0.088, 0.095, 0.125, 0.210, 0.380)),
    absorb=Curve((1, 4, 16, 64), (0.0035, 0.0037, 0.0050, 0.0100)),
    step=Curve((1, 4, 16, 64), (0.0027, 0.0040, 0.0090, 0.0300)),
    per_request=0.0002,
    per_proposal=0.0003,
    attend=8e-6,
    draft_attend=5e-7,
)
"""About what the built-in pair costs on two cores: verifying is nearly free up to 8 rows, and is not at all at 32."""


@dataclass
class Text:
    """One request: after ``switch`` tokens its draft does as ``then`` says."""

    conditional: Sequence[float]
    length: int = 128
    prompt: int = 128
    switch: int | None = None
    then: Sequence[float] = ()
    made: int = 1
    absorbed: int = 0
    spread: bool = False
    """Whether a draft is surer of one token than of another, and its chain ends where it is unsure."""
    true: float = 1.0
    """What its chances are really worth; less for a draft that boasts."""

    def chances(self, dice: random.Random) -> list[float]:
        """Of each draft of a round, which its draft knows: spread around the conditionals."""
        late = self.switch is not None and self.made > self.switch
        means = self.then if late else self.conditional
        return [dice.betavariate(2 * mean, 2 * (1 - mean)) for mean in means] if self.spread else list(means)


class Drafted(NamedTuple):
    """A chain: drafts verified, drafts computed and not verified, and the paths' probabilities if it was a sure one."""

    kept: int
    dropped: int = 0
    paths: Sequence[float] | None = None

    @classmethod
    def sure(cls, chain: SureChain, chances: Sequence[float]) -> Drafted:
        paths: list[float] = []
        for path in accumulate(chances[: chain.num_steps], mul):
            paths.append(path)
            if bin_of(path) < chain.keep:
                return cls(len(paths) - 1, 1, paths)
            if bin_of(path) < chain.extend:
                break
        return cls(len(paths), 0, paths)


def accepted_of(chances: Sequence[float], dice: random.Random) -> int:
    """Drafts until the first that is refused."""
    return next((i for i, chance in enumerate(chances) if dice.random() >= chance), len(chances))


@dataclass
class Load:
    """``width`` requests at a time; whoever ends makes room for the next of ``texts``, which never run out."""

    texts: list[Text]
    width: int
    truth: CostTable = TABLE
    noise: Callable[[random.Random], float] = lambda dice: 1.0
    max_steps: int = 5
    rounds: int = 1500
    chosen: list[list[int]] = field(default_factory=list)

    def run(self, controller: Controller | int, seed: int = 0) -> float:
        """Tokens per second, with K chosen by the controller or fixed, over ``rounds`` steps of a full batch."""
        dice = random.Random(seed)
        waiting = cycle(self.texts)
        running: dict[int, Text] = {}
        costs, tokens, seconds, number = CostModel(self.truth), 0, 0.0, 0
        asked = SpeculativeSettings.resolve(self.max_steps)
        for _ in range(self.rounds):
            while len(running) < self.width:
                running[number] = replace(next(waiting))
                number += 1
            prospects = [
                Prospect(key, (n := t.prompt + t.made - 1), n - t.absorbed, t.length - t.made, asked, sure=t.spread)
                for key, t in running.items()
            ]
            if isinstance(controller, int):
                steps = [min(controller, p.remaining - 1) for p in prospects]
            else:
                steps = controller.choose(prospects)
            chances = [t.chances(dice) for t in running.values()]
            drafted = [
                Drafted.sure(controller.sure_chain(p), its)
                if K and p.sure and isinstance(controller, Controller)
                else Drafted(K)
                for p, K, its in zip(prospects, steps, chances, strict=True)
            ]
            dropped = [d.dropped for d in drafted]
            steps = [d.kept + d.dropped for d in drafted]
            shape = shape_of(prospects, steps, dropped=dropped)
            true_seconds = costs.seconds(shape)
            seconds += true_seconds
            if isinstance(controller, Controller):
                controller.observe(shape, true_seconds * self.noise(dice))
                self.chosen.append(steps)
            for key, its, (kept, less, paths) in zip(list(running), chances, drafted, strict=True):
                text = running[key]
                if kept + less:
                    text.absorbed = text.prompt + text.made - 1
                accepted = accepted_of([text.true * chance for chance in its[:kept]], dice)
                text.made += accepted + 1
                tokens += accepted + 1
                if isinstance(controller, Controller) and paths is not None:
                    controller.note_sure(key, False, Round(accepted, kept), paths)
                elif isinstance(controller, Controller):
                    controller.note(key, [Round(accepted, kept)])
                if text.made >= text.length:
                    del running[key]
                    if isinstance(controller, Controller):
                        controller.forget(key)
        return tokens / seconds


def noisy(sigma: float, outliers: float) -> Callable[[random.Random], float]:
    """Log-normal noise, and a pause of ten times the step for a share of the steps."""
    return lambda dice: dice.lognormvariate(0, sigma) * (10 if dice.random() < outliers else 1)


def best_fixed(load: Load, seeds: Sequence[int] = (0,)) -> float:
    """Tokens per second of the best K that is the same for all requests and rounds, K = 0 among them."""
    return max(sum(load.run(K, seed) for seed in seeds) / len(seeds) for K in range(load.max_steps + 1))
