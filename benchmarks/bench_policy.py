"""Never slower: the controller of K beside plain decoding and every fixed K, on loads of all kinds.

    python benchmarks/bench_policy.py [--out FILE] [--threads N] [--quick] [--only NAME …]

Each load's variants answer the same prompts at the same time, a few tokens of one after a few of the other, so that
what else the machine does meets all alike. Rates are tokens over seconds of all turns, taken while the batch is full:
from the last prompt read to the first answer that ends. What prompts take, which a draft reads too, is given apart.
Intervals are the middle 95 % of resampled turns. With one thread rates are also given per second of processor time.
"""

from __future__ import annotations

import argparse
import gc
import random
import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
from bench_decode import machine
from rich.console import Console
from rich.table import Table

from eyas.artifacts import cache_root, write_json
from eyas.config import SamplingSettings, SpeculativeSettings
from eyas.contract import Contract
from eyas.draft.checkpoint import CONTRACT, load_draft
from eyas.draft.model import DraftModel
from eyas.engine.costs import measure_costs
from eyas.engine.engine import Engine
from eyas.engine.request import Request
from eyas.engine.session import Session, builtin_draft_folder, open_session
from eyas.pull import load_prompts, resolve_model
from eyas.speculate.costs import CostTable
from eyas.speculate.policy import Controller, expected_of
from eyas.speculate.propose import DraftProposer

MODEL = "builtin:smollm2-135m"
PLAIN, ADAPTIVE = "plain", "adaptive"
COST_SLOTS = 16384
PROMPT, LONG_PROMPT = 400, 1200
"""Tokens of a prompt at most."""
LAP = 8
"""Tokens of each request, until the next variant goes on."""
RESAMPLINGS = 2000
BATCH_STEPS = 2
"""The greatest K beside others: their rows leave none for more."""


@dataclass(frozen=True)
class Load:
    """What is asked: prompts of a set (or of two in turn) at a batch size."""

    name: str
    width: int
    sets: tuple[str, ...]
    temperature: float = 0.0
    useless: bool = False
    long: bool = False
    series: int = 1
    """Batches of a turn, one after the other."""
    turns: int = 12


CODE, CHAT = "prompts:humaneval", "prompts:mt-bench"
LOADS = (
    Load("code, batch 1", 1, (CODE,)),
    Load("chat, batch 1", 1, (CHAT,)),
    Load("mixed, batch 1", 1, (CODE, CHAT), series=2),
    Load("code, batch 8", 8, (CODE,), turns=6),
    Load("chat, batch 8", 8, (CHAT,), turns=6),
    Load("mixed, batch 8", 8, (CODE, CHAT), turns=6),
    Load("code, batch 32", 32, (CODE,), turns=4),
    Load("chat, batch 32", 32, (CHAT,), turns=4),
    Load("useless draft, batch 1", 1, (CODE,), useless=True),
    Load("useless draft, batch 8", 8, (CODE,), useless=True, turns=6),
    Load("temperature 1, batch 1", 1, (CHAT,), temperature=1.0),
    Load("long context, batch 1", 1, (CODE,), long=True),
)


class Run(NamedTuple):
    """One variant in a turn: tokens, seconds of wall and of processor, those of the prompts, mean K, accept length."""

    tokens: int
    wall: float
    processor: float
    prompts: float
    mean_k: float
    accept_length: float


class Player:
    """One variant at one batch of prompts, which is read at once; then it goes on lap by lap."""

    def __init__(self, engine: Engine, requests: list[Request], controller: Controller | None) -> None:
        self.engine, self.requests, self.controller = engine, requests, controller
        self.wall = self.processor = 0.0
        self.done = False
        start = time.process_time()
        while not all(request.answer for request in requests):
            engine.step()
        self.prompts = time.process_time() - start
        self.first = made(requests)

    def lap(self) -> None:
        """Until each request has ``LAP`` more tokens on average, or one has ended."""
        until = made(self.requests) + LAP * len(self.requests)
        wall, processor = time.perf_counter(), time.process_time()
        while not self.done and made(self.requests) < until:
            self.done = bool(self.engine.step())
        self.wall += time.perf_counter() - wall
        self.processor += time.process_time() - processor

    def end(self) -> Run:
        tokens = made(self.requests) - self.first
        for request in self.requests:
            self.engine.abort(request)
            if self.controller is not None:
                self.controller.forget(request)
        whole = [r for request in self.requests for r in request.rounds if not r.cut]
        mean_k, accepted = (
            statistics.mean(column) for column in ([r.proposed for r in whole], [r.accepted for r in whole])
        )
        return Run(tokens, self.wall, self.processor, self.prompts, mean_k, 1 + accepted)


class Bench:
    """The models, and what was measured of them."""

    def __init__(self, max_steps: int, tokens: int, quantization: str) -> None:
        folder, draft = resolve_model(MODEL, cache_root()), builtin_draft_folder(MODEL)
        assert draft is not None
        self.session: Session = open_session(folder, draft, quantization)
        assert self.session.draft is not None
        self.draft, self.useless = self.session.draft, useless_draft(load_draft(draft, self.session.target))
        self.expected = expected_of(Contract.read(draft / CONTRACT))
        self.max_steps, self.tokens = max_steps, tokens
        self.costs: dict[int, CostTable] = {}

    def prompts(self, load: Load, number: int) -> list[list[int]]:
        """Of one batch; the same for all variants."""
        texts = [load_prompts(name, cache_root()) for name in load.sets]
        ids = []
        for i in range(load.width):
            n = number * load.width + i
            several = texts[n % len(texts)]
            chosen = [several[(7 * n + j) % len(several)].user_turns[0] for j in range(24 if load.long else 1)]
            encoded = self.session.encode_chat([("user", "\n\n".join(chosen))])
            ids.append(encoded[-longest(load) :])
        return ids

    def costs_for(self, width: int) -> CostTable:
        if width not in self.costs:
            target = self.session.target
            proposer = DraftProposer(self.draft, self.draft.new_cache(COST_SLOTS))
            self.costs[width] = measure_costs(
                target, target.new_cache(COST_SLOTS), proposer, max_requests=width, max_steps=self.max_steps
            )
        return self.costs[width]

    def player(self, load: Load, prompts: Sequence[list[int]], steps: int, controller: Controller | None) -> Player:
        """At the prompts with up to ``steps`` drafts; 0: without a draft."""
        draft = (self.useless if load.useless else self.draft) if steps else None
        # A round may write all its rows before it knows which stay.
        slots = load.width * (longest(load) + self.tokens + 4 * (self.max_steps + 1))
        engine = Engine(self.session.target, draft, num_slots=slots, max_running=load.width, prefix_cache=False)
        engine.chooser.controller = controller
        speculation = SpeculativeSettings.resolve(steps) if steps else None
        sampling = [self._sampling(load, number) for number in range(len(prompts))]
        requests = [engine.submit(ids, how, speculation) for ids, how in zip(prompts, sampling, strict=True)]
        return Player(engine, requests, controller)

    def _sampling(self, load: Load, seed: int) -> SamplingSettings:
        return SamplingSettings(max_new_tokens=self.tokens, ignore_eos=True, temperature=load.temperature, seed=seed)


def useless_draft(draft: DraftModel) -> DraftModel:
    """A draft that costs what the real one does and is never right: its map is shuffled."""
    generator = torch.Generator().manual_seed(0)
    ids = draft.to_target_ids(torch.arange(len(draft.d2t)))
    draft.d2t.copy_(ids[torch.randperm(len(ids), generator=generator)] - torch.arange(len(ids)))
    return draft


def longest(load: Load) -> int:
    """Tokens of a prompt at most."""
    return LONG_PROMPT if load.long else PROMPT


def made(requests: Sequence[Request]) -> int:
    """Tokens of all answers so far."""
    return sum(len(request.answer) for request in requests)


def together(runs: Sequence[Run]) -> Run:
    """Of one variant, one after the other."""
    if len(runs) == 1:
        return runs[0]
    tokens, wall, processor, prompts = (sum(column) for column in list(zip(*runs, strict=True))[:4])
    mean_k, accept_length = (statistics.mean(column) for column in list(zip(*runs, strict=True))[4:])
    return Run(int(tokens), wall, processor, prompts, mean_k, accept_length)


def measure(bench: Bench, load: Load, turns: int) -> dict[str, Any]:
    """All variants of a load, taking turns; the controller goes on from turn to turn, as in a server."""
    most = bench.max_steps if load.width == 1 else min(bench.max_steps, BATCH_STEPS)
    controller = Controller(bench.costs_for(load.width), most, bench.expected)
    variants: dict[str, int] = {PLAIN: 0, **{f"K={k}": k for k in range(1, most + 1)}, ADAPTIVE: most}
    runs: dict[str, list[Run]] = {name: [] for name in variants}
    for turn in range(turns):
        batches = [bench.prompts(load, turn * load.series + i) for i in range(load.series)]
        played = [play(bench, load, prompts, variants, controller) for prompts in batches]
        for name, several in runs.items():
            several.append(together([batch[name] for batch in played]))
    return summary(runs) | {"turns": turns, "controller": controller.to_json()}


def play(
    bench: Bench, load: Load, prompts: Sequence[list[int]], variants: Mapping[str, int], controller: Controller
) -> dict[str, Run]:
    """One batch by all variants, lap by lap; who goes first changes from lap to lap."""
    # The last engines' caches are gigabytes, and only a collection gives them back.
    gc.collect()
    players = {
        name: bench.player(load, prompts, steps, controller if name == ADAPTIVE else None)
        for name, steps in variants.items()
    }
    names = list(players)
    while not all(player.done for player in players.values()):
        for name in names:
            players[name].lap()
        names.append(names.pop(0))
    return {name: player.end() for name, player in players.items()}


def summary(runs: Mapping[str, Sequence[Run]]) -> dict[str, Any]:
    """Rates, and the adaptive one over plain decoding and over the best fixed K, with intervals."""
    result: dict[str, Any] = {"variants": {}}
    for name, several in runs.items():
        result["variants"][name] = {
            "tokens_per_second": rate(several, "wall"),
            "tokens_per_processor_second": rate(several, "processor"),
            "prompt_processor_seconds": statistics.median(r.prompts for r in several),
            "mean_k": statistics.mean(r.mean_k for r in several),
            "accept_length": statistics.mean(r.accept_length for r in several),
        }
    for clock in ("wall", "processor"):
        over = {name: ratio(runs[ADAPTIVE], several, clock) for name, several in runs.items() if name != ADAPTIVE}
        best = min(over, key=lambda name: over[name]["ratio"])
        result[clock] = {
            "adaptive_over": over,
            "best_fixed": best,
            "first_turn_over_plain": rate(runs[ADAPTIVE][:1], clock) / rate(runs[PLAIN][:1], clock),
        }
    return result


def rate(runs: Sequence[Run], clock: str) -> float:
    """Tokens per second over all turns."""
    return sum(r.tokens for r in runs) / sum(getattr(r, clock) for r in runs)


def ratio(ours: Sequence[Run], theirs: Sequence[Run], clock: str) -> dict[str, float]:
    """Of two rates, with the middle 95 % over resampled turns."""
    chance, turns = random.Random(0), range(len(ours))
    drawn = []
    for _ in range(RESAMPLINGS):
        chosen = chance.choices(turns, k=len(turns))
        drawn.append(rate([ours[i] for i in chosen], clock) / rate([theirs[i] for i in chosen], clock))
    drawn.sort()
    low, high = drawn[int(0.025 * RESAMPLINGS)], drawn[int(0.975 * RESAMPLINGS)]
    return {"ratio": rate(ours, clock) / rate(theirs, clock), "low": low, "high": high}


def show(result: dict[str, Any], console: Console) -> None:
    """The document as a table."""
    console.print(" · ".join(f"{k} {v}" for k, v in result["machine"].items()))
    clock = result["clock"]
    table = Table("load", "plain tok/s", "adaptive / plain", "adaptive / best fixed", "best fixed", "mean K", "AL")
    for name, d in result["loads"].items():
        ratios, adaptive = d[clock], d["variants"][ADAPTIVE]
        table.add_row(
            name,
            f"{d['variants'][PLAIN]['tokens_per_second']:.1f}",
            written(ratios["adaptive_over"][PLAIN]),
            written(ratios["adaptive_over"][ratios["best_fixed"]]),
            ratios["best_fixed"],
            f"{adaptive['mean_k']:.2f}",
            f"{adaptive['accept_length']:.2f}",
        )
    console.print(table, f"ratios by {clock} time, with the middle 95 % over turns")


def written(over: Mapping[str, float]) -> str:
    return f"{over['ratio']:.3f} ({over['low']:.3f} … {over['high']:.3f})"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path)
    parser.add_argument("--threads", type=int)
    parser.add_argument("--only", nargs="*", help="loads whose name begins so")
    parser.add_argument("--steps", type=int, default=5, help="the greatest K")
    parser.add_argument("--turns", type=int, help="of each load; 12, 6 and 4 at batch 1, 8 and 32 if not given")
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--quantization", default="fp32", choices=("fp32", "bf16", "int8"))
    parser.add_argument("--quick", action="store_true", help="a few minutes, to see that it runs")
    args = parser.parse_args()
    if args.threads:
        torch.set_num_threads(args.threads)
    steps, turns, tokens = (2, 1, 24) if args.quick else (args.steps, args.turns, args.tokens)
    bench, console = Bench(steps, tokens, args.quantization), Console()
    chosen = [load for load in LOADS if not args.only or any(load.name.startswith(name) for name in args.only)]
    result: dict[str, Any] = {
        "machine": machine(),
        "quantization": args.quantization,
        "tokens": tokens,
        "clock": "processor" if torch.get_num_threads() == 1 else "wall",
        "loads": {},
    }
    for load in chosen:
        result["loads"][load.name] = measure(bench, load, turns or load.turns)
        show(result, console)
        if args.out:
            write_json(args.out, result)


if __name__ == "__main__":
    main()
