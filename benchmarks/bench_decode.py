"""Decoding speed, first stage: the own engine beside transformers, the cost of verifying rows, and the roofline.

    python benchmarks/bench_decode.py [--out FILE] [--threads N] [--quick]

All figures of one document come from one run. Plain decoding and transformers take turns, so that a noisy machine
disturbs both; medians are reported.
"""

from __future__ import annotations

import argparse
import platform
import statistics
import subprocess
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch
import transformers
from rich.console import Console
from rich.table import Table
from torch import Tensor
from transformers import AutoModelForCausalLM

from eyas import __version__
from eyas.artifacts import cache_root, write_json
from eyas.config import SamplingSettings, SpeculativeSettings
from eyas.corpus.prompts import Prompt
from eyas.demo.demo import demo_prompts
from eyas.draft.model import DraftModel
from eyas.engine.session import Session, builtin_draft_folder, open_session
from eyas.generate import Figures, figures_of
from eyas.generate.decode import Decoded, decode
from eyas.kernels import Rows
from eyas.kernels.bandwidth import read_bandwidth
from eyas.kernels.rows import Part
from eyas.models.target import Target
from eyas.pull import resolve_model

MODEL = "builtin:smollm2-135m"
ROWS = (1, 2, 4, 8, 16)
STEPS = (1, 2, 3, 4)
CONTEXT = 256
"""Committed tokens before the rows that are verified."""


def median_seconds(work: Callable[[], Any], repeats: int) -> float:
    """Median time of ``work`` after one call that does not count."""
    work()
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        work()
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def chain_rows(count: int) -> Rows:
    """``count`` rows that follow CONTEXT committed ones."""
    tokens = [1000 + i for i in range(count)]
    positions = range(CONTEXT, CONTEXT + count)
    return Rows.build([Part(tokens, positions, range(-1, count - 1), list(positions), torch.arange(CONTEXT))])


def verify_cost(target: Target, repeats: int) -> dict[int, float]:
    """Rows → seconds of a whole target step (layers and head) over them."""
    cache = target.new_cache(CONTEXT + max(ROWS))

    def step(count: int) -> None:
        rows = chain_rows(count)
        out = target.new_outputs(count)
        target.forward(rows, cache, out)
        target.logits(out.hidden)

    return {count: median_seconds(lambda count=count: step(count), repeats) for count in ROWS}


def draft_cost(draft: DraftModel, repeats: int) -> dict[str, float]:
    """Seconds of a draft's first step (absorbing one row) and of its head alone."""
    cache = draft.new_cache(CONTEXT + 1)
    features = torch.zeros(1, draft.config.feature_size)

    def step() -> Tensor:
        done = draft(chain_rows(1), draft.combine(features), cache)
        return draft.logits(done.normed).argmax(-1)

    normed = torch.zeros(1, draft.config.hidden_size)
    return {"step": median_seconds(step, repeats), "head": median_seconds(lambda: draft.logits(normed), repeats)}


def where_time_goes(target: Target, repeats: int) -> dict[str, float]:
    """Shares of a one-row step: its head and its layers, and beside them what reading the weights alone would take."""
    cache, rows = target.new_cache(CONTEXT + 1), chain_rows(1)
    out = target.new_outputs(1)
    whole = median_seconds(lambda: (target.forward(rows, cache, out), target.logits(out.hidden)), repeats)
    head = median_seconds(lambda: target.logits(out.hidden), repeats)
    floor = target.weight_bytes() / read_bandwidth()
    return {"head": head / whole, "layers": 1 - head / whole, "(reading the weights alone)": floor / whole}


def ours_and_theirs(
    session: Session, folder: Path, dtype: torch.dtype, prompts: list[Prompt], tokens: int
) -> dict[str, Any]:
    """tok/s of plain decoding, of EAGLE-3 and of transformers' generate on the same prompts, taking turns."""
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype).eval()
    sampling = SamplingSettings(max_new_tokens=tokens, ignore_eos=True)
    plain, theirs = [], []
    speculative: dict[int, list[Decoded]] = {steps: [] for steps in STEPS if session.draft is not None}
    for prompt in prompts:
        ids = session.encode_chat([("user", prompt.user_turns[0])])
        slots = len(ids) + tokens + 64
        plain.append(decode(session.engine(None, slots), ids, sampling, None))
        for steps, done in speculative.items():
            settings = SpeculativeSettings.resolve(steps)
            done.append(decode(session.engine(session.draft, slots), ids, sampling, settings))
        theirs.append(_transformers_seconds(model, ids, tokens))
    reference = (tokens - 1) * len(prompts) / sum(theirs)
    ratios = [t / d.decode_seconds for t, d in zip(theirs, plain, strict=True)]
    return {
        "plain": _sum(plain, None).to_json(),
        "speculative": {
            steps: _sum(done, SpeculativeSettings.resolve(steps)).to_json()
            | {"over_plain_median": statistics.median(_ratios(plain, done)), "identical": _identical(plain, done)}
            for steps, done in speculative.items()
        },
        "transformers_tokens_per_second": reference,
        "plain_over_transformers_median": statistics.median(ratios),
    }


def _ratios(plain: list[Decoded], other: list[Decoded]) -> list[float]:
    """Speed of ``other`` over plain decoding, prompt by prompt."""
    return [a.decode_seconds / b.decode_seconds for a, b in zip(plain, other, strict=True)]


def _identical(plain: list[Decoded], other: list[Decoded]) -> bool:
    return all(a.request.answer == b.request.answer for a, b in zip(plain, other, strict=True))


def _sum(done: list[Decoded], speculation: SpeculativeSettings | None) -> Figures:
    return figures_of([d.request for d in done], sum(d.decode_seconds for d in done), speculation)


@torch.no_grad()
def _transformers_seconds(model: Any, ids: list[int], tokens: int) -> float:
    """Seconds for tokens 2 … n: the time of n tokens less that of one, which is the prompt's."""
    times = []
    for count in (1, tokens):
        start = time.perf_counter()
        model.generate(torch.tensor([ids]), max_new_tokens=count, min_new_tokens=count, do_sample=False, pad_token_id=0)
        times.append(time.perf_counter() - start)
    return times[1] - times[0]


def machine() -> dict[str, Any]:
    """What the figures depend on."""
    model = next((line.split(":")[1].strip() for line in _lines("/proc/cpuinfo") if line.startswith("model name")), "")
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False)
    return {
        "cpu": model or platform.processor(),
        "capability": torch.backends.cpu.get_cpu_capability(),
        "threads": torch.get_num_threads(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "eyas": __version__,
        "commit": commit.stdout.strip(),
        "time": datetime.now(UTC).isoformat(timespec="seconds"),
    }


def _lines(path: str) -> list[str]:
    file = Path(path)
    return file.read_text().splitlines() if file.is_file() else []


def run(threads: int | None, quick: bool) -> dict[str, Any]:
    if threads:
        torch.set_num_threads(threads)
    repeats, tokens = (5, 24) if quick else (15, 48)
    folder = resolve_model(MODEL, cache_root())
    prompts = demo_prompts(cache_root(), 1 if quick else 2, lambda *_: None)
    result: dict[str, Any] = {"machine": machine(), "bandwidth_bytes_per_second": read_bandwidth(), "dtypes": {}}
    # Transformers has no int8 on a CPU: fp32 is what it would be asked for.
    for name, dtype in (("fp32", torch.float32), ("bf16", torch.bfloat16), ("int8", torch.float32)):
        session = open_session(folder, builtin_draft_folder(MODEL), name)
        costs = verify_cost(session.target, repeats)
        result["dtypes"][name] = {
            "weight_bytes": session.target.weight_bytes(),
            "verify_seconds": costs,
            "draft_seconds": draft_cost(session.draft, repeats) if session.draft else None,
            "where_time_goes": where_time_goes(session.target, repeats),
            **ours_and_theirs(session, folder, dtype, prompts, tokens),
        }
    return result


def show(result: dict[str, Any], console: Console) -> None:
    """The document as tables."""
    bandwidth = result["bandwidth_bytes_per_second"]
    console.print(" · ".join(f"{k} {v}" for k, v in result["machine"].items()))
    speed = Table("dtype", "transformers", "plain", "ratio", "GB/s of roofline", title="plain decoding, tok/s, batch 1")
    cost = Table("dtype", *(f"{n} rows" for n in ROWS), "draft step", title="one target step, ms (times one row)")
    gain = Table("dtype", "K", "tok/s", "times plain", "accept length", "identical", title="EAGLE-3, batch 1")
    for name, d in result["dtypes"].items():
        used = d["plain"]["tokens_per_second"] * d["weight_bytes"]
        speed.add_row(
            name,
            f"{d['transformers_tokens_per_second']:.1f}",
            f"{d['plain']['tokens_per_second']:.1f}",
            f"{d['plain_over_transformers_median']:.2f}",
            f"{used / 1e9:.1f} of {bandwidth / 1e9:.1f} ({used / bandwidth:.0%})",
        )
        for steps, s in d["speculative"].items():
            row = (f"{s['tokens_per_second']:.1f}", f"{s['over_plain_median']:.2f}")
            al = f"{s['accept_length']:.2f} of {s['ceiling']}"
            gain.add_row(name, str(steps), *row, al, "yes" if s["identical"] else "no")
        one = d["verify_seconds"][1]
        draft = f"{d['draft_seconds']['step'] * 1e3:.2f}" if d["draft_seconds"] else "–"
        cost.add_row(name, *(f"{t * 1e3:.1f} ({t / one:.2f})" for t in d["verify_seconds"].values()), draft)
        shares = ", ".join(f"{kind} {share:.0%}" for kind, share in d["where_time_goes"].items())
        console.print(f"{name}, one row: {shares}")
    console.print(speed, cost, gain)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path)
    parser.add_argument("--threads", type=int)
    parser.add_argument("--quick", action="store_true", help="a few seconds, to see that it runs")
    args = parser.parse_args()
    result = run(args.threads, args.quick)
    show(result, Console())
    if args.out:
        write_json(args.out, result)


if __name__ == "__main__":
    main()
