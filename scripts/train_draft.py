"""Train the first draft of a target on the self-sampled feature shards of scripts/self_sample.py.

Killed at any time, it goes on from its last checkpoint. What the training does stands in ttt.py.

    python scripts/train_draft.py --target FOLDER --shards DIR --out DIR --minutes 90
"""

from __future__ import annotations

import argparse
import json
import math
import random
import time
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from ttt import Corpus, collate, evaluate, initial_draft, loss_of, make_config, tap_scales, target_head

from eyas.draft.vocab import choose_vocabulary

HELD_OUT = 17
"""Every 17th shard is held out, from training and from the vocabulary's counts."""


class Shards(Corpus):
    """Conversations read shard by shard as they come."""

    def __init__(self, folder: Path, head_VH: Tensor) -> None:
        super().__init__(head_VH)
        self.folder = folder
        self.seen: set[str] = set()

    def refresh(self) -> None:
        """Read the shards that came since the last call."""
        for path in sorted(self.folder.glob("*.safetensors")):
            if path.name in self.seen:
                continue
            self.seen.add(path.name)
            held = int(path.stem.split("-")[1]) % HELD_OUT == 2
            data, start = load_file(path), 0
            for item in json.loads(path.with_suffix(".json").read_text()):
                end = start + item["n"]
                part = {name: data[key][start:end] for name, key in (("taps", "taps"), ("hidden", "hid"))}
                tokens = data["tokens"][start:end].long()
                (self.held if held else self.train).append(
                    dict(part, tokens=tokens, answer=item["plen"], temperature=item["temp"])
                )
                start = end


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--target", type=Path, required=True)
    parser.add_argument("--shards", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--minutes", type=float, default=90)
    parser.add_argument("--taps", type=int, nargs="+", default=[2, 15, 27])
    parser.add_argument("--draft-vocab", type=int, default=8192)
    parser.add_argument("--lr", type=float, default=1.5e-3)
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--ttt", type=int, default=3)
    parser.add_argument("--prefix", type=int, default=25, help="tokens of the system prompt, never trained on")
    parser.add_argument("--threads", type=int, default=1)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    torch.manual_seed(0)
    random.seed(0)
    args.out.mkdir(parents=True, exist_ok=True)
    weights = load_file(args.target / "model.safetensors")
    corpus = Shards(args.shards, target_head(weights))
    corpus.refresh()
    state_path, optimizer_path = args.out / "state.safetensors", args.out / "optimizer.safetensors"
    resumed = json.loads((args.out / "progress.json").read_text()) if optimizer_path.exists() else None
    if resumed:
        saved = load_file(state_path)
        kept = saved["d2t"] + torch.arange(len(saved["d2t"]))
        scales = saved.pop("scales")
    else:
        kept, coverage = choose_vocabulary(corpus.expected_counts(args.prefix), args.draft_vocab)
        scales = tap_scales(corpus.train[:64])
        print(f"draft vocabulary covers {coverage:.3f}; tap scales {scales.tolist()}", flush=True)
    model = initial_draft(make_config(args.target, tuple(args.taps), args.draft_vocab), weights, kept)
    trainable = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(trainable, lr=args.lr, betas=(0.9, 0.95), weight_decay=0.01)
    progress = resumed or {"minutes": 0.0, "tokens": 0, "steps": 0}
    if resumed:
        model.load_state_dict(saved)
        moments = load_file(optimizer_path)
        for n, p in enumerate(trainable):
            optimizer.state[p] = {k: moments[f"{n}.{k}"] for k in ("step", "exp_avg", "exp_avg_sq")}
        print(f"resumed at {progress}", flush=True)
    head_DH = target_head(weights)[kept]
    start, saved_at, losses, order = time.time() - 60 * progress["minutes"], time.time(), [], []
    while (minutes := (time.time() - start) / 60) < args.minutes:
        if len(order) < args.batch:
            corpus.refresh()
            order = random.sample(range(len(corpus.train)), len(corpus.train))
        items = [corpus.train[order.pop()] for _ in range(args.batch)]
        done = minutes / args.minutes
        warm = min(1.0, (progress["steps"] + 1) / 40)
        for group in optimizer.param_groups:
            group["lr"] = args.lr * warm * (0.02 + 0.98 * 0.5 * (1 + math.cos(math.pi * done)))
        batch = collate(corpus, items, scales)
        loss = loss_of(model, head_DH, batch, args.ttt if done > 0.3 else 2, args.prefix)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(trainable, 1.0)
        optimizer.step()
        losses.append(loss.item())
        progress = {
            "minutes": (time.time() - start) / 60,
            "tokens": progress["tokens"] + int(batch["length"].sum()),
            "steps": progress["steps"] + 1,
        }
        if time.time() - saved_at > 300 or progress["minutes"] >= args.minutes:
            saved_at = time.time()
            line = dict(
                progress,
                loss=round(sum(losses) / len(losses), 4),
                train=len(corpus.train),
                lr=optimizer.param_groups[0]["lr"],
            )
            print(json.dumps(line | evaluate(model, corpus, scales)), flush=True)
            losses.clear()
            moments = {f"{n}.{k}": v for n, p in enumerate(trainable) for k, v in optimizer.state[p].items()}
            save(moments, optimizer_path)
            save(dict(model.state_dict(), scales=scales), state_path)
            (args.out / "progress.json").write_text(json.dumps(progress))


def save(tensors: dict[str, Tensor], path: Path) -> None:
    """Write beside, then rename, so that a kill leaves the old file or the new one."""
    partial = path.with_suffix(".partial")
    save_file({k: v.detach().clone().contiguous() for k, v in tensors.items()}, partial)
    partial.replace(path)


if __name__ == "__main__":
    main()
