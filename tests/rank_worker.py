"""One rank of several: python rank_worker.py MEETING JSON RANK. What it finds goes to MEETING/RANK.*; exit 3: died."""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

import torch
from safetensors.torch import save_file

sys.path.insert(0, str(Path(__file__).parent))

from eyas.config import SpeculativeSettings
from eyas.engine.shared import SharedChooser, measure_costs_together
from eyas.errors import EyasError
from eyas.models.ranks import Ranks
from eyas.models.registry import load_target
from eyas.speculate.policy import Controller
from eyas.speculate.propose import DraftProposer
from support.rank_rig import PLANS, answers, digest, draft_of, read_batches


def target_job(ranks: Ranks, meeting: Path, asked: dict) -> dict:
    """Logits and taps, then texts under every plan, and under a controller with measured costs."""
    target = load_target(Path(asked["target"]), backend=asked["backend"], ranks=ranks)
    found: dict = {"kv_heads": target.new_cache(1).kv_heads, "weight_bytes": target.weight_bytes()}
    if asked.get("read"):
        read = read_batches(target)
        save_file(read, meeting / f"{ranks.rank}.safetensors")
        found["digest"] = digest(read)
    draft = draft_of(target, asked["draft"])
    for name in asked["plans"]:
        chooser = SharedChooser(target.max_positions, None, ranks)
        found[name] = answers(target, draft, asked["prompts"], PLANS[name], asked["length"], chooser)
    if asked.get("choose"):
        proposer, plan = DraftProposer(draft, draft.new_cache(256)), SpeculativeSettings.resolve(3)
        cache = target.new_cache(256)
        costs = measure_costs_together(target, cache, proposer, ranks, max_requests=4, max_steps=3)
        controller = None if costs is None else Controller(costs, 3)
        chooser = SharedChooser(target.max_positions, controller, ranks)
        found["choose"] = answers(target, draft, asked["prompts"], plan, asked["length"], chooser)
    return found


def exchange_job(ranks: Ranks, meeting: Path, asked: dict) -> dict:
    """Sums, joins and messages."""
    rank, mine = ranks.rank, torch.tensor(asked["parts"][ranks.rank])
    widths = [rank + 1 for rank in range(ranks.size)]
    messages = [b"", b"short", bytes(range(256)) * 4, bytes(1016), bytes(1017), b"x" * 100_000]
    numbers = [[], [-1, 2**62, 0], list(range(5000))]
    first = ranks.is_first
    told = [ranks.tell(message if first else None) for message in messages]
    counted = [ranks.tell_numbers(some if first else None) for some in numbers]
    return {
        "sum": ranks.sum(mine).tolist(),
        "alone": [ranks.sum(row[None])[0].tolist() for row in mine],
        "half": ranks.sum(mine.bfloat16()).dtype == torch.bfloat16,
        "join": ranks.join(torch.full((2, rank + 1), float(rank)), widths).tolist(),
        "told": told == messages,
        "numbers": counted == numbers,
    }


def loop_job(ranks: Ranks, meeting: Path, asked: dict) -> dict:
    """Exchange until the others are gone."""
    while True:
        ranks.sum(torch.ones(4))
        (meeting / f"{ranks.rank}.looping").touch()
        time.sleep(0.01)


JOBS = {"target": target_job, "exchange": exchange_job, "loop": loop_job}


def main() -> int:
    meeting, asked, rank = Path(sys.argv[1]), json.loads(sys.argv[2]), int(sys.argv[3])
    torch.set_num_threads(1)
    try:
        ranks = Ranks(meeting, rank, asked["size"], asked["device"], asked["patience"])
        found = JOBS[asked["job"]](ranks, meeting, asked)
    except EyasError as error:
        sys.stderr.write(f"{error}\n")
        return 3
    (meeting / f"{rank}.json").write_text(json.dumps(found))
    ranks.close()
    return 0


if __name__ == "__main__":
    status = main()
    sys.stderr.flush()
    # As the engine's own processes end: taken down in order beside a rank that is gone, gloo may abort instead.
    os._exit(status)
