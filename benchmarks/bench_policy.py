"""Never slower: the controller of K beside plain decoding and every fixed K, on loads of all kinds.

    python benchmarks/bench_policy.py [--out FILE] [--threads N] [--quick] [--only NAME …]

Each load's variants take turns on one engine's models, and medians over the rounds of turns are reported. Rates are
taken while the batch is full: from the last prompt read to the first answer that ends. What prompts take, which a draft
reads too, is given apart. With one thread rates are also given per second of processor time, which a busy neighbour
disturbs less.
"""

from __future__ import annotations

import argparse
import gc
import statistics
import time
from collections.abc import Sequence
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
SLOTS = 16384
LONG_PROMPT = 1200
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


CODE, CHAT = "prompts:humaneval", "prompts:mt-bench"
LOADS = (
    Load("code, batch 1", 1, (CODE,)),
    Load("chat, batch 1", 1, (CHAT,)),
    Load("mixed, batch 1", 1, (CODE, CHAT), series=2),
    Load("code, batch 8", 8, (CODE,)),
    Load("chat, batch 8", 8, (CHAT,)),
    Load("mixed, batch 8", 8, (CODE, CHAT)),
    Load("code, batch 32", 32, (CODE,)),
    Load("chat, batch 32", 32, (CHAT,)),
    Load("useless draft, batch 1", 1, (CODE,), useless=True),
    Load("useless draft, batch 8", 8, (CODE,), useless=True),
    Load("temperature 1, batch 1", 1, (CHAT,), temperature=1.0),
    Load("long context, batch 1", 1, (CODE,), long=True),
)


class Run(NamedTuple):
    """One variant once: tokens, seconds of wall and of processor, those of the prompts, mean K and accept length."""

    tokens: int
    wall: float
    processor: float
    prompts: float
    mean_k: float
    accept_length: float


class Bench:
    """The models, and what was measured of them."""

    def __init__(self, max_steps: int, tokens: int) -> None:
        folder, draft = resolve_model(MODEL, cache_root()), builtin_draft_folder(MODEL)
        assert draft is not None
        self.session: Session = open_session(folder, draft, "fp32")
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
            ids.append(encoded[-LONG_PROMPT:] if load.long else encoded[-400:])
        return ids

    def costs_for(self, width: int) -> CostTable:
        if width not in self.costs:
            target = self.session.target
            proposer = DraftProposer(self.draft, self.draft.new_cache(SLOTS))
            self.costs[width] = measure_costs(
                target, target.new_cache(SLOTS), proposer, max_requests=width, max_steps=self.max_steps
            )
        return self.costs[width]

    def play(self, load: Load, prompts: Sequence[list[int]], steps: int, controller: Controller | None) -> Run:
        """Answer the prompts with up to ``steps`` drafts; 0: without a draft."""
        # The last engine's caches are gigabytes, and only a collection gives them back.
        gc.collect()
        draft = (self.useless if load.useless else self.draft) if steps else None
        engine = Engine(self.session.target, draft, num_slots=SLOTS, max_running=load.width, prefix_cache=False)
        engine.chooser.controller = controller
        speculation = SpeculativeSettings.resolve(steps) if steps else None
        requests = [engine.submit(ids, self._sampling(load, number), speculation) for number, ids in enumerate(prompts)]
        start = time.process_time()
        while not all(request.answer for request in requests):
            engine.step()
        before, wall, processor = made(requests), time.perf_counter(), time.process_time()
        prompts_took = processor - start
        done: list[Request] = []
        while not done:
            done = engine.step()
        wall, processor = time.perf_counter() - wall, time.process_time() - processor
        tokens = made(requests) - before
        for request in requests:
            engine.abort(request)
            if controller is not None:
                controller.forget(request)
        whole = [r for request in requests for r in request.rounds if not r.cut]
        mean_k = statistics.mean(r.proposed for r in whole)
        return Run(tokens, wall, processor, prompts_took, mean_k, 1 + statistics.mean(r.accepted for r in whole))

    def _sampling(self, load: Load, seed: int) -> SamplingSettings:
        return SamplingSettings(max_new_tokens=self.tokens, ignore_eos=True, temperature=load.temperature, seed=seed)


def useless_draft(draft: DraftModel) -> DraftModel:
    """A draft that costs what the real one does and is never right: its map is shuffled."""
    generator = torch.Generator().manual_seed(0)
    ids = draft.to_target_ids(torch.arange(len(draft.d2t)))
    draft.d2t.copy_(ids[torch.randperm(len(ids), generator=generator)] - torch.arange(len(ids)))
    return draft


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
        names = list(variants)
        # Who goes first changes, so that no variant always follows the same one.
        for name in names[turn % len(names) :] + names[: turn % len(names)]:
            chooser = controller if name == ADAPTIVE else None
            runs[name].append(together([bench.play(load, prompts, variants[name], chooser) for prompts in batches]))
    return summary(runs) | {"controller": controller.to_json()}


def summary(runs: dict[str, list[Run]]) -> dict[str, Any]:
    """Rates, and the adaptive one over plain decoding and over the best fixed K, turn by turn."""
    result: dict[str, Any] = {"variants": {}}
    for name, several in runs.items():
        result["variants"][name] = {
            "tokens_per_second": statistics.median(r.tokens / r.wall for r in several),
            "tokens_per_processor_second": statistics.median(r.tokens / r.processor for r in several),
            "prompt_processor_seconds": statistics.median(r.prompts for r in several),
            "mean_k": statistics.mean(r.mean_k for r in several),
            "accept_length": statistics.mean(r.accept_length for r in several),
        }
    for clock in ("wall", "processor"):
        rates = {name: [r.tokens / getattr(r, clock) for r in several] for name, several in runs.items()}
        fixed = [name for name in rates if name != ADAPTIVE]
        over = {
            name: statistics.median(a / b for a, b in zip(rates[ADAPTIVE], rates[name], strict=True)) for name in fixed
        }
        best = min(fixed, key=over.__getitem__)
        result[clock] = {
            "adaptive_over": over,
            "best_fixed": best,
            "adaptive_over_plain": over[PLAIN],
            "adaptive_over_best_fixed": over[best],
            "first_turn_over_plain": rates[ADAPTIVE][0] / rates[PLAIN][0],
        }
    return result


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
            f"{ratios['adaptive_over_plain']:.3f}",
            f"{ratios['adaptive_over_best_fixed']:.3f}",
            ratios["best_fixed"],
            f"{adaptive['mean_k']:.2f}",
            f"{adaptive['accept_length']:.2f}",
        )
    console.print(table, f"ratios by {clock} time, medians over {result['turns']} turns")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path)
    parser.add_argument("--threads", type=int)
    parser.add_argument("--only", nargs="*", help="loads whose name begins so")
    parser.add_argument("--steps", type=int, default=5, help="the greatest K")
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--tokens", type=int, default=96)
    parser.add_argument("--quick", action="store_true", help="a few minutes, to see that it runs")
    args = parser.parse_args()
    if args.threads:
        torch.set_num_threads(args.threads)
    steps, turns, tokens = (2, 1, 16) if args.quick else (args.steps, args.turns, args.tokens)
    bench, console = Bench(steps, tokens), Console()
    chosen = [load for load in LOADS if not args.only or any(load.name.startswith(name) for name in args.only)]
    result: dict[str, Any] = {
        "machine": machine(),
        "turns": turns,
        "tokens": tokens,
        "clock": "processor" if torch.get_num_threads() == 1 else "wall",
        "loads": {},
    }
    for load in chosen:
        result["loads"][load.name] = measure(bench, load, turns)
        show(result, console)
        if args.out:
            write_json(args.out, result)


if __name__ == "__main__":
    main()
