"""What the trainers train on, and what a step of it costs at least."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from peers.protocol import Data

from eyas.artifacts import cache_root
from eyas.corpus.features import Features, make_features
from eyas.corpus.samples import Sample, read_samples, trained_slots
from eyas.engine.session import open_session
from eyas.pull import resolve_model
from eyas.train.prepare import own_weights

MODEL = "builtin:smollm2-135m"
SAMPLES, SHORTEST, LONGEST = 8, 200, 500
LENGTHS = (334, 233, 347, 255, 242, 208, 353, 369)
"""Tokens of drawn conversations."""
ANSWER_SHARE = 0.6
SHAPE: dict[str, Any] = {
    "vocab_size": 49152,
    "draft_vocab_size": 8192,
    "hidden_size": 576,
    "intermediate_size": 1536,
    "num_heads": 9,
    "num_kv_heads": 3,
    "taps": (2, 15, 27),
    "target_layers": 30,
    "max_positions": 8192,
    "ttt_steps": 4,
}
"""The built-in target's, and the draft's for it."""
GEMM = (512, SHAPE["hidden_size"], SHAPE["draft_vocab_size"])


def draw(lengths: Sequence[int] = LENGTHS) -> Data:
    """Conversations of random tokens and features, each one prompt and one answer: a step costs the same."""
    rng, total = np.random.default_rng(0), sum(lengths)
    vocab, hidden, taps = SHAPE["vocab_size"], SHAPE["hidden_size"], len(SHAPE["taps"])

    def normal(*size: int) -> np.ndarray:
        return rng.standard_normal(size, dtype=np.float32)

    segments = [np.repeat([0, i], [n - int(n * ANSWER_SHARE), int(n * ANSWER_SHARE)]) for i, n in enumerate(lengths, 1)]
    head = normal(vocab, hidden) * hidden**-0.5
    return Data(
        tokens=rng.integers(1, vocab, total).astype(np.int32),
        lengths=np.array(lengths),
        segments=np.concatenate(segments),
        taps=normal(total, taps * hidden),
        hidden=normal(total, hidden),
        head=head,
        embedding=head,
        kept=np.sort(rng.choice(vocab, SHAPE["draft_vocab_size"], replace=False)),
        shape=SHAPE,
    )


def from_samples(path: Path) -> Data:
    """The first conversations of ordinary length in a file of samples, with the built-in target's features."""
    samples = [s for s in read_samples(path).samples if SHORTEST < len(s.tokens) < LONGEST][:SAMPLES]
    target = open_session(resolve_model(MODEL, cache_root()), None).target
    features, own = list(make_features(target, samples, SHAPE["taps"], None)), own_weights(target)
    counts = np.bincount(np.concatenate([s.tokens for s in samples]), minlength=len(own.head))
    kept = np.sort(np.argsort(-counts, kind="stable")[: SHAPE["draft_vocab_size"]])
    return _join(samples, features, own.head.numpy(), own.embedding.numpy(), kept)


def _join(
    samples: Sequence[Sample], features: Sequence[Features], head: np.ndarray, embedding: np.ndarray, kept: np.ndarray
) -> Data:
    segments, used = [], 0
    for sample in samples:
        own = sample.segments()
        segments.append(np.where(own > 0, own + used, 0))
        used += len(sample.answers)
    return Data(
        tokens=np.concatenate([s.tokens for s in samples]),
        lengths=np.array([len(s.tokens) for s in samples]),
        segments=np.concatenate(segments),
        taps=torch.cat([f.taps.float().flatten(1) for f in features]).numpy(),
        hidden=torch.cat([f.hidden.float() for f in features if f.hidden is not None]).numpy(),
        head=head,
        embedding=embedding,
        kept=kept,
        shape=SHAPE,
    )


def answer_tokens(data: Data) -> int:
    """Tokens inside answers."""
    return int((data.segments > 0).sum())


def step_flops(data: Data) -> float:
    """Floating-point operations that the loss and its gradients need, no row computed that no loss asks for.

    A matrix product costs 2 per weight and row forward, and twice that backward; the taps need no gradient. Attention
    costs two products forward and five backward per head, over the keys that a slot sees.
    """
    s = data.shape
    H, d, heads = s["hidden_size"], s["draft_vocab_size"], s["hidden_size"] // s["num_heads"]
    rows = len(data.tokens)
    qkv, rest = 2 * H * heads * (s["num_heads"] + 2 * s["num_kv_heads"]), H * H + 3 * H * s["intermediate_size"]
    total = 4.0 * rows * H * H * len(s["taps"])
    for step in range(s["ttt_steps"]):
        slots = [trained_slots(data.segments[part], step).nonzero()[0] for part in data.samples()]
        asked, seen = sum(map(len, slots)), sum(int((t + 1 + step).sum()) for t in slots)
        total += 6.0 * (qkv * (asked if step else rows) + (rest + H * d) * asked) + 14.0 * H * seen
        if step == 0:
            total += 2.0 * asked * H * (s["vocab_size"] + d)  # The target's distribution.
    return total
