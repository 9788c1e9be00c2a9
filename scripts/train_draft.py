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


class Run:
    """A training run: model, optimizer and progress, saved together and found again."""

    def __init__(self, args: argparse.Namespace) -> None:
        self.args, self.weights = args, load_file(args.target / "model.safetensors")
        self.corpus = Shards(args.shards, target_head(self.weights))
        self.corpus.refresh()
        self.state_path, self.optimizer_path = args.out / "state.safetensors", args.out / "optimizer.safetensors"
        saved = load_file(self.state_path) if self.optimizer_path.exists() else None
        if saved is None:
            kept, coverage = choose_vocabulary(self.corpus.expected_counts(args.prefix), args.draft_vocab)
            self.scales = tap_scales(self.corpus.train[:64])
            print(f"draft vocabulary covers {coverage:.3f}; tap scales {self.scales.tolist()}", flush=True)
        else:
            kept, self.scales = saved["d2t"] + torch.arange(len(saved["d2t"])), saved.pop("scales")
        self.head_DH = target_head(self.weights)[kept]
        self.model = initial_draft(make_config(args.target, tuple(args.taps), args.draft_vocab), self.weights, kept)
        self.trainable = [p for p in self.model.parameters() if p.requires_grad]
        self.optimizer = torch.optim.AdamW(self.trainable, lr=args.lr, betas=(0.9, 0.95), weight_decay=0.01)
        self.progress = {"minutes": 0.0, "tokens": 0, "steps": 0}
        if saved is not None:
            self._resume(saved)

    def _resume(self, saved: dict[str, Tensor]) -> None:
        self.model.load_state_dict(saved)
        moments = load_file(self.optimizer_path)
        for n, p in enumerate(self.trainable):
            self.optimizer.state[p] = {k: moments[f"{n}.{k}"] for k in ("step", "exp_avg", "exp_avg_sq")}
        self.progress = json.loads((self.args.out / "progress.json").read_text())
        print(f"resumed at {self.progress}", flush=True)

    def train(self) -> None:
        """Train until the minutes are spent, over as many sittings as it takes."""
        begun, saved_at, losses, order = time.time() - 60 * self.progress["minutes"], time.time(), [], []
        while self.progress["minutes"] < self.args.minutes:
            if len(order) < self.args.batch:
                self.corpus.refresh()
                order = random.sample(range(len(self.corpus.train)), len(self.corpus.train))
            losses.append(self.step([self.corpus.train[order.pop()] for _ in range(self.args.batch)]))
            self.progress["minutes"] = (time.time() - begun) / 60
            if time.time() - saved_at > 300 or self.progress["minutes"] >= self.args.minutes:
                saved_at = time.time()
                line = dict(self.progress, loss=round(sum(losses) / len(losses), 4), train=len(self.corpus.train))
                print(json.dumps(line | evaluate(self.model, self.corpus, self.scales)), flush=True)
                losses.clear()
                self.save()

    def step(self, items: list[dict]) -> float:
        """One optimizer step over some conversations; returns the loss."""
        done = self.progress["minutes"] / self.args.minutes
        warm = min(1.0, (self.progress["steps"] + 1) / 40)
        for group in self.optimizer.param_groups:
            group["lr"] = self.args.lr * warm * (0.02 + 0.98 * 0.5 * (1 + math.cos(math.pi * done)))
        batch = collate(self.corpus, items, self.scales)
        loss = loss_of(self.model, self.head_DH, batch, self.args.ttt if done > 0.3 else 2, self.args.prefix)
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.trainable, 1.0)
        self.optimizer.step()
        self.progress["tokens"] += int(batch["length"].sum())
        self.progress["steps"] += 1
        return loss.item()

    def save(self) -> None:
        moments = {f"{n}.{k}": v for n, p in enumerate(self.trainable) for k, v in self.optimizer.state[p].items()}
        save(moments, self.optimizer_path)
        save(dict(self.model.state_dict(), scales=self.scales), self.state_path)
        (self.args.out / "progress.json").write_text(json.dumps(self.progress))


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
    Run(args).train()


def save(tensors: dict[str, Tensor], path: Path) -> None:
    """Write beside, then rename, so that a kill leaves the old file or the new one."""
    partial = path.with_suffix(".partial")
    save_file({k: v.detach().clone().contiguous() for k, v in tensors.items()}, partial)
    partial.replace(path)


if __name__ == "__main__":
    main()
