"""Train the first draft of a target on the self-sampled feature shards of scripts/self_sample.py.

Training-time test (Li et al., EAGLE-3, section 3.2): step i of slot t takes the draft's own state of step i − 1 and
the true token t + 1 + i, attends to the step-0 keys of slots ≤ t and to its own earlier steps, and is trained on the
target's distribution for token t + 2 + i. Killed at any time, it goes on from its last checkpoint.

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
import torch.nn.functional as F
from safetensors.torch import load_file, save_file
from torch import Tensor

from eyas.draft.config import DraftConfig
from eyas.draft.model import DraftModel
from eyas.draft.vocab import choose_vocabulary, offsets_from_ids
from eyas.models.config import parse_llama_config, read_config

HELD_OUT = 17
"""Every 17th shard is held out, from training and from the vocabulary's counts."""


class Corpus:
    """Conversations with their taps and final states, read shard by shard."""

    def __init__(self, folder: Path, embedding_VH: Tensor) -> None:
        self.folder, self.embedding = folder, embedding_VH
        self.seen: set[str] = set()
        self.train: list[dict] = []
        self.held: list[dict] = []

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

    def expected_counts(self, prefix: int, positions: int = 20000) -> Tensor:
        """How often the target expects each token, [V]: its distributions, summed over a sample of positions.

        The few tokens of a small corpus leave most of a vocabulary uncounted; their distributions do not.
        """
        hidden = torch.cat([x["hidden"][prefix:] for x in self.train])
        sample = hidden[torch.randperm(len(hidden))[:positions]]
        return sum(((h.float() @ self.embedding.T).softmax(-1).sum(0) for h in sample.split(256)), torch.zeros(()))

    def log_partition(self, item: dict) -> Tensor:
        """log Σ exp of the target's full logits per position, [n]; computed once."""
        if "lse" not in item:
            item["lse"] = torch.cat(
                [(h.float() @ self.embedding.T).logsumexp(-1) for h in item["hidden"].split(256)]
            )
        return item["lse"]


def initial_draft(config: DraftConfig, weights: dict[str, Tensor], kept: Tensor) -> DraftModel:
    """Head rows from the target's head; the rest random, so that states and logits start at an ordinary size."""
    model = DraftModel(config)
    H, I, layer = config.hidden_size, config.intermediate_size, model.layers[0]
    with torch.no_grad():
        model.d2t.copy_(offsets_from_ids(kept, config.vocab_size))
        model.embed_tokens.copy_(weights["model.embed_tokens.weight"])
        model.head.weight.copy_(weights["model.embed_tokens.weight"][kept])
        model.norm.copy_(0.4 * weights["model.norm.weight"])
        for linear, fan_in in ((model.fc, config.feature_size), (layer.qkv, 2 * H), (layer.gate_up, H)):
            linear.weight.normal_(0, fan_in**-0.5)
        for linear, fan_in in ((layer.o, H), (layer.down, I)):
            linear.weight.normal_(0, 0.5 * fan_in**-0.5)
    return model


def ttt_attend(model: DraftModel, bank: list, mask: Tensor):
    """Attention of one step: causal over step 0, and the diagonal of each later step. ``bank`` grows by (k, v)."""
    fold = model.config.num_heads // model.config.num_kv_heads

    def attend(_layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        k, v = (x.repeat_interleave(fold, 2).transpose(1, 2) for x in (k, v))
        q, scale = q.transpose(1, 2), q.shape[-1] ** -0.5
        bank.append((k, v))
        scores = (q @ bank[0][0].transpose(-1, -2) * scale).masked_fill(~mask, -math.inf)
        own = [(q * k_j).sum(-1, keepdim=True) * scale for k_j, _ in bank[1:]]
        weights = torch.cat([scores, *own], -1).softmax(-1)
        T = scores.shape[-1]
        y = weights[..., :T] @ bank[0][1]
        for j, (_, v_j) in enumerate(bank[1:]):
            y = y + weights[..., T + j : T + j + 1] * v_j
        return y.transpose(1, 2).flatten(2)

    return attend


def unroll(model: DraftModel, batch: dict, steps: int):
    """Yield (i, normed states [B, T, H]) of each step; slot t of step i predicts token t + 2 + i."""
    tokens, B, T = batch["tokens"], *batch["tokens"].shape
    mask = torch.ones(T, T, dtype=torch.bool).tril()
    hidden, bank = model.combine(batch["features"]), []
    for i in range(steps):
        ahead = F.pad(tokens, (0, 1 + i))[:, 1 + i :]
        step = model.step(ahead, hidden, torch.arange(T) + i, ttt_attend(model, bank, mask))
        hidden = step.carried
        yield i, step.normed


def collate(corpus: Corpus, items: list[dict], scales: Tensor) -> dict:
    """Padded batch; ``scales`` [n taps] bring the taps to a common size and are folded into fc at export."""
    T = max(len(x["tokens"]) for x in items)
    pad = lambda x: F.pad(x, (0, 0) * (x.dim() - 1) + (0, T - len(x)))  # noqa: E731
    lse = [corpus.log_partition(x) for x in items]
    stack = lambda key: torch.stack([pad(x[key]) for x in items])  # noqa: E731
    features = stack("taps").float() * scales[:, None]
    return {
        "tokens": stack("tokens"),
        "features": features.flatten(2),
        "hidden": stack("hidden").float(),
        "lse": torch.stack([pad(x) for x in lse]),
        "length": torch.tensor([len(x["tokens"]) for x in items]),
        "answer": torch.tensor([x["answer"] for x in items]),
    }


def slots_of(batch: dict, i: int, first: Tensor) -> Tensor:
    """[B, T] bool: slots whose step i is trained: tokens t+1 … t+2+i lie in the text from ``first`` on."""
    t = torch.arange(batch["tokens"].shape[1])[None]
    return (t + 1 >= first[:, None]) & (t + 2 + i < batch["length"][:, None])


def loss_of(model: DraftModel, head_DH: Tensor, batch: dict, steps: int, prefix: int) -> Tensor:
    """Soft cross-entropy to the target, mean over valid slots. What lies outside the draft vocabulary keeps its mass."""
    total, weight = torch.zeros(()), 0.0
    # Self-sampled prompts are the target's own text too, so that they teach as well as answers do.
    first = torch.full_like(batch["answer"], prefix)
    with torch.no_grad():
        p_BTD = (batch["hidden"] @ head_DH.T - batch["lse"][..., None]).exp()
    for i, normed in unroll(model, batch, steps):
        b, t = slots_of(batch, i, first).nonzero(as_tuple=True)
        if i > 0:  # half of the slots are enough for later steps
            keep = torch.rand(len(b)) < 0.5
            b, t = b[keep], t[keep]
        p = p_BTD[b, t + 1 + i]
        nll = -(p * model.logits(normed[b, t]).log_softmax(-1)).sum(-1).mean()
        total, weight = total + 0.8**i * nll, weight + 0.8**i
    return total / weight


@torch.no_grad()
def evaluate(model: DraftModel, corpus: Corpus, scales: Tensor, most: int = 10, steps: int = 5) -> dict:
    """Joint survival at temperature 0 over all answer positions of held-out greedy conversations."""
    items = [x for x in corpus.held if x["temperature"] == 0][:most]
    alive_sum, count = torch.zeros(steps), 0
    for item in items:
        batch = collate(corpus, [item], scales)
        slots = slots_of(batch, steps - 1, batch["answer"])[0].nonzero()[:, 0]
        alive = torch.ones(len(slots), dtype=torch.bool)
        for i, normed in unroll(model, batch, steps):
            proposed = model.to_target_ids(model.logits(normed[0, slots]).argmax(-1))
            alive &= proposed == batch["tokens"][0, slots + 2 + i]
            alive_sum[i] += alive.sum()
        count += len(slots)
    survival = (alive_sum / max(count, 1)).tolist()
    return {"survival": [round(s, 4) for s in survival], "accept_length": round(1 + sum(survival), 4)}


def make_config(target: Path, taps: tuple[int, ...], draft_vocab: int) -> DraftConfig:
    c = parse_llama_config(read_config(target))
    return DraftConfig(
        taps=taps,
        target_num_layers=c.num_layers,
        target_hidden_size=c.hidden_size,
        vocab_size=c.vocab_size,
        draft_vocab_size=draft_vocab,
        hidden_size=c.hidden_size,
        intermediate_size=c.intermediate_size,
        num_heads=c.num_heads,
        num_kv_heads=c.num_kv_heads,
        head_dim=c.head_dim,
        rms_norm_eps=c.rms_norm_eps,
        rope_theta=c.rope_theta,
        max_position_embeddings=c.max_position_embeddings,
    )


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
    corpus = Corpus(args.shards, weights["model.embed_tokens.weight"])
    corpus.refresh()
    state_path, optimizer_path = args.out / "state.safetensors", args.out / "optimizer.safetensors"
    resumed = json.loads((args.out / "progress.json").read_text()) if optimizer_path.exists() else None
    if resumed:
        saved = load_file(state_path)
        kept = saved["d2t"] + torch.arange(len(saved["d2t"]))
        scales = saved.pop("scales")
    else:
        kept, coverage = choose_vocabulary(corpus.expected_counts(args.prefix), args.draft_vocab)
        norms = torch.stack([x["taps"][1:].float().pow(2).mean(-1).sqrt().median(0).values for x in corpus.train[:64]])
        scales = 1 / norms.median(0).values
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
    head_DH = weights["model.embed_tokens.weight"][kept]
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
            line = dict(progress, loss=round(sum(losses) / len(losses), 4), train=len(corpus.train), lr=optimizer.param_groups[0]["lr"])
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
