"""Training-time test (Li et al., EAGLE-3, section 3.2): what the trainers of this folder share.

Step i of slot t takes the draft's own state of step i − 1 and the true token t + 1 + i, attends to the step-0 keys of
slots ≤ t and to its own earlier steps, and is trained on the target's distribution for token t + 2 + i.

A conversation is a dictionary: tokens [n], taps [n, taps, H], hidden [n, H] (after the final norm), answer (index of
the answer's first token), temperature.
"""

from __future__ import annotations

import math
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

from eyas.draft.config import DraftConfig
from eyas.draft.model import DraftModel
from eyas.draft.vocab import offsets_from_ids
from eyas.models.config import parse_llama_config, read_config


class Corpus:
    """Conversations with their taps and final states. ``head_VH`` is the target's head."""

    def __init__(self, head_VH: Tensor) -> None:
        self.head = head_VH
        self.train: list[dict] = []
        self.held: list[dict] = []

    def expected_counts(self, prefix: int, positions: int = 20000) -> Tensor:
        """How often the target expects each token, [V]: its distributions, summed over a sample of positions.

        The few tokens of a small corpus leave most of a vocabulary uncounted; their distributions do not.
        """
        hidden = torch.cat([x["hidden"][prefix:] for x in self.train])
        sample = hidden[torch.randperm(len(hidden))[:positions]]
        return sum(((h.float() @ self.head.T).softmax(-1).sum(0) for h in sample.split(256)), torch.zeros(()))

    def log_partition(self, item: dict) -> Tensor:
        """log Σ exp of the target's full logits per position, [n]; computed once."""
        if "lse" not in item:
            item["lse"] = torch.cat([(h.float() @ self.head.T).logsumexp(-1) for h in item["hidden"].split(256)])
        return item["lse"]


def target_head(weights: dict[str, Tensor]) -> Tensor:
    """The target's head [V, H], which is its embedding where they are tied."""
    return weights.get("lm_head.weight", weights["model.embed_tokens.weight"])


def tap_scales(conversations: list[dict]) -> Tensor:
    """[n taps] factors that bring the taps to a common size, so that one learning rate suits all of fc."""
    norms = torch.stack([x["taps"][1:].float().pow(2).mean(-1).sqrt().median(0).values for x in conversations])
    return 1 / norms.median(0).values


def fold_scales(model: DraftModel, scales: Tensor) -> None:
    """Multiply fc's columns by the scales of their taps, so that the draft reads the taps as they are."""
    normed = model.config.fc_norm or model.config.norm_before_fc
    assert not normed, "a norm would undo the scales"
    columns = scales.repeat_interleave(model.config.target_hidden_size)
    with torch.no_grad():
        model.fc.weight.mul_(columns)


def initial_draft(config: DraftConfig, weights: dict[str, Tensor], kept: Tensor) -> DraftModel:
    """Head rows from the target's head; the rest random, so that states and logits start at an ordinary size.

    ``weights``: the target's embedding, head (if untied) and final norm, by Hugging Face name.
    """
    model = DraftModel(config)
    H, inner, layer = config.hidden_size, config.intermediate_size, model.layers[0]
    with torch.no_grad():
        model.d2t.copy_(offsets_from_ids(kept, config.vocab_size))
        model.embed_tokens.copy_(weights["model.embed_tokens.weight"])
        model.head.weight.copy_(target_head(weights)[kept])
        model.norm.copy_(0.4 * weights["model.norm.weight"])
        for linear, fan_in in ((model.fc, config.feature_size), (layer.qkv, 2 * H), (layer.gate_up, H)):
            linear.weight.normal_(0, fan_in**-0.5)
        for linear, fan_in in ((layer.o, H), (layer.down, inner)):
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
    tokens, T = batch["tokens"], batch["tokens"].shape[1]
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
    """Soft cross-entropy to the target, mean over valid slots; tokens outside the draft vocabulary keep their mass."""
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
