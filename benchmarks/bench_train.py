"""Training speed and memory of one step, beside other trainers of EAGLE-3 drafts, and against sequence length.

    python benchmarks/bench_train.py [--speculators PYTHON] [--specforge PYTHON] [--samples FILE] [--out FILE]

Each trainer is a process of its own with one thread, and takes the same step: the same conversations, features, draft
shape and four steps of training-time test; forward, backward, clipping and AdamW in fp32. They take turns. PYTHON is an
interpreter whose environment holds that trainer; benchmarks/peers/ says what of it runs on a CPU. Seconds are CPU
seconds, which on one thread are those of an idle machine; wall seconds stand beside them.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch
from bench_decode import machine
from peers.parent import LostError, Worker, medians, paired_ratio
from peers.protocol import Data
from peers.workload import GEMM, answer_tokens, draw, from_samples, step_flops
from rich.console import Console
from rich.table import Table

from eyas.artifacts import write_json

SCAN = (512, 1024, 2048, 4096, 8192)
"""Tokens of a conversation."""
TRAINERS = ("eyas", "speculators", "specforge")


def compare(pythons: dict[str, str], data: Data, folder: Path, rounds: int, memory: int) -> dict[str, Any]:
    """Every trainer's step, in turns: its medians, and how many times as fast Eyas is, in pairs. Matrix products take
    a turn in each round too, so that the roofline is of the same minutes.
    """
    path = folder / "data.npz"
    data.write(path)
    workers = {name: Worker(name, python, path, memory) for name, python in pythons.items()}
    taken: dict[str, dict[str, list[dict[str, float]]]] = {name: {} for name in workers}
    for worker in workers.values():
        worker.step(worker.kinds[0])  # Compiles, and fills caches and pools.
    rates = []
    for _ in range(rounds):
        rates.append(gemm_rate())
        for name, worker in workers.items():
            for kind in worker.kinds:
                taken[name].setdefault(kind, []).append(worker.step(kind))
    reference = taken["eyas"]["step"]
    result = {
        name: {
            **worker.close(),
            "kinds": {kind: figures(steps, reference, data) for kind, steps in taken[name].items()},
        }
        for name, worker in workers.items()
    }
    return {"gemm_flops_per_second": statistics.median(rates), "trainers": result}


def figures(steps: list[dict[str, float]], reference: list[dict[str, float]], data: Data) -> dict[str, float]:
    """One kind of step; ``reference``: Eyas' in the same rounds."""
    found = medians(steps)
    return found | {
        "tokens_per_second": len(data.tokens) / found["cpu_seconds"],
        "answer_tokens_per_second": answer_tokens(data) / found["cpu_seconds"],
        "eyas_times_as_fast": paired_ratio(steps, reference, "cpu_seconds"),
        "eyas_times_as_fast_by_wall": paired_ratio(steps, reference, "wall_seconds"),
    }


def scan(folder: Path, tokens: int, lengths: tuple[int, ...], rounds: int, memory: int) -> list[dict[str, Any]]:
    """Eyas' step over as many tokens in ever longer conversations: seconds and peak memory."""
    points = []
    for length in lengths:
        path = folder / f"scan{length}.npz"
        data = draw([length] * (tokens // length))
        data.write(path)
        worker = Worker("eyas", sys.executable, path, memory)
        steps = [worker.step("step") for _ in range(rounds)]
        worker.close()
        best = min(steps, key=lambda step: step["cpu_seconds"])
        point = {"length": length, **best, "tokens_per_second": len(data.tokens) / best["cpu_seconds"]}
        points.append({**point, "flops": step_flops(data)})
        path.unlink()
    return points


def line_error(points: list[dict[str, Any]]) -> float:
    """The largest relative distance of the seconds from a straight line in the length."""
    lengths = torch.tensor([[1.0, p["length"]] for p in points], dtype=torch.float64)
    seconds = torch.tensor([p["cpu_seconds"] for p in points], dtype=torch.float64)
    fit = lengths @ torch.linalg.lstsq(lengths, seconds[:, None]).solution
    return float(((fit[:, 0] - seconds) / seconds).abs().max())


def gemm_rate() -> float:
    """FLOP/s of fp32 matrix products on one thread, per CPU second: the fastest of the three of the draft's head."""
    rows, inner, columns = GEMM
    x, weight, grad = torch.randn(rows, inner), torch.randn(columns, inner), torch.randn(rows, columns)
    products = (lambda: x @ weight.T, lambda: grad @ weight, lambda: grad.T @ x)
    return max(2 * rows * inner * columns / _median_cpu_seconds(product) for product in products)


def _median_cpu_seconds(work: Callable[[], Any]) -> float:
    times = []
    for _ in range(9):
        begin = time.process_time()
        work()
        times.append(time.process_time() - begin)
    return statistics.median(times)


def run(args: argparse.Namespace) -> dict[str, Any]:
    torch.set_num_threads(1)
    memory = int(args.memory_gib * 2**30)
    pythons = {"eyas": sys.executable}
    pythons |= {name: getattr(args, name) for name in TRAINERS[1:] if getattr(args, name)}
    data = from_samples(args.samples) if args.samples else draw()
    work = {"samples": len(data.lengths), "tokens": len(data.tokens), "answer_tokens": answer_tokens(data)}
    result: dict[str, Any] = {"machine": machine(), "workload": work | data.shape | {"flops": step_flops(data)}}
    with tempfile.TemporaryDirectory() as name:
        result |= compare(pythons, data, Path(name), args.rounds, memory)
        if not args.no_scan:
            result["scan"] = scan(Path(name), args.scan_tokens, SCAN, args.scan_rounds, memory)
            result["scan_line_error"] = line_error(result["scan"])
    result["finished"] = datetime.now(UTC).isoformat(timespec="seconds")
    return result


def show(result: dict[str, Any], console: Console) -> None:
    """The document as tables."""
    console.print(" · ".join(f"{k} {v}" for k, v in result["machine"].items()))
    console.print(" · ".join(f"{k} {v}" for k, v in result["workload"].items()))
    columns = ("trainer", "step", "CPU s", "wall s", "tok/s", "answer tok/s", "peak GB", "Eyas: times as fast (wall)")
    table = Table(*columns, title="one training step")
    for name, trainer in result["trainers"].items():
        for kind, f in trainer["kinds"].items():
            speed = (f"{f['tokens_per_second']:.0f}", f"{f['answer_tokens_per_second']:.0f}")
            times = (f"{f['cpu_seconds']:.2f}", f"{f['wall_seconds']:.2f}")
            ratio = f"{f['eyas_times_as_fast']:.2f} ({f['eyas_times_as_fast_by_wall']:.2f})"
            table.add_row(
                f"{name} {trainer['version']}", kind, *times, *speed, f"{trainer['peak_bytes'] / 1e9:.2f}", ratio
            )
    console.print(table)
    rate, flops = result["gemm_flops_per_second"], result["workload"]["flops"]
    floor, taken = flops / rate, result["trainers"]["eyas"]["kinds"]["step"]["cpu_seconds"]
    share = f"{floor:.2f} s, {floor / taken:.0%} of Eyas' step"
    console.print(f"roofline: {flops / 1e12:.2f} TFLOP at {rate / 1e9:.0f} GFLOP/s are {share}")
    if "scan" in result:
        columns = ("length", "CPU s", "tok/s", "of the roofline", "peak GB")
        table = Table(*columns, title="Eyas, as many tokens in longer conversations")
        for p in result["scan"]:
            share = p["flops"] / rate / p["cpu_seconds"]
            figures = (f"{p['cpu_seconds']:.1f}", f"{p['tokens_per_second']:.0f}", f"{share:.0%}")
            table.add_row(str(p["length"]), *figures, f"{p['peak_bytes'] / 1e9:.2f}")
        console.print(table, f"farthest from a straight line: {result['scan_line_error']:.1%}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    for name in TRAINERS[1:]:
        parser.add_argument(f"--{name}", metavar="PYTHON", help=f"an interpreter that can import {name}")
    parser.add_argument(
        "--samples", type=Path, help="what `eyas data` wrote for the built-in target; else drawn tokens"
    )
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--scan-tokens", type=int, default=max(SCAN))
    parser.add_argument("--scan-rounds", type=int, default=2)
    parser.add_argument("--no-scan", action="store_true")
    parser.add_argument("--memory-gib", type=float, default=10, help="more ends a trainer")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    try:
        result = run(args)
    except LostError as lost:
        sys.exit(f"{lost.name} ended:\n{lost.last_words}")
    show(result, Console(width=120))
    if args.out:
        write_json(args.out, result)


if __name__ == "__main__":
    main()
