"""Small random targets and drafts, and a proposer that knows the future, for the tests of speculation."""

from __future__ import annotations

import random
from collections.abc import Sequence
from functools import cache
from typing import Any

import torch

from eyas.config import SamplingSettings, SpeculativeSettings
from eyas.draft.config import DraftConfig
from eyas.draft.model import DraftModel
from eyas.draft.vocab import offsets_from_ids
from eyas.engine.engine import Engine
from eyas.kernels import Quantization, get_backend
from eyas.models.config import parse_llama_config
from eyas.models.llama import LlamaTarget, expected_shapes
from eyas.models.target import Target
from eyas.speculate.propose import Proposal
from eyas.speculate.state import DecodeState
from eyas.speculate.tree import Tree

HIDDEN, HEAD = 64, 16


def random_target(
    seed: int = 0,
    *,
    vocab: int = 128,
    layers: int = 3,
    context: int = 256,
    backend: str = "onednn",
    quantization: Quantization = "none",
    **config: Any,
) -> LlamaTarget:
    """A Llama whose next token depends on many before it, and whose greedy text does not fall into a loop at once."""
    shape = parse_llama_config(
        {
            "architectures": ["LlamaForCausalLM"],
            "vocab_size": vocab,
            "hidden_size": HIDDEN,
            "intermediate_size": 2 * HIDDEN,
            "num_hidden_layers": layers,
            "num_attention_heads": HIDDEN // HEAD,
            "num_key_value_heads": 2,
            "max_position_embeddings": context,
        }
        | config
    )
    generator = torch.Generator().manual_seed(seed)
    tensors = {}
    for name, dims in expected_shapes(shape).items():
        noise = torch.randn(dims, generator=generator)
        fan_in = 1.0 if "embed" in name else dims[-1] ** 0.5
        tensors[name] = 1 + 0.1 * noise if len(dims) == 1 else noise * (2.0 / fan_in)
    return LlamaTarget(shape, tensors, torch.float32, get_backend(backend, quantization))


def random_draft(
    target: Target, seed: int = 0, *, kept: Sequence[int] | None = None, length: int = 2048, **options: Any
) -> DraftModel:
    """An EAGLE-3 draft that fits ``target`` and has learnt nothing; ``kept``: the ids of a reduced vocabulary."""
    config = DraftConfig(
        taps=options.pop("taps", (0, 1, target.num_layers)),
        target_num_layers=target.num_layers,
        target_hidden_size=target.hidden_size,
        vocab_size=target.vocab_size,
        draft_vocab_size=len(kept) if kept else target.vocab_size,
        hidden_size=target.hidden_size,
        intermediate_size=2 * HIDDEN,
        num_heads=HIDDEN // HEAD,
        num_kv_heads=2,
        head_dim=HEAD,
        max_position_embeddings=length,
        **options,
    )
    draft = DraftModel(config, get_backend("onednn"))
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in draft.parameters():
            if parameter.dim() == 2:
                parameter.copy_(torch.randn(parameter.shape, generator=generator) * (2.0 / parameter.shape[1] ** 0.5))
        draft.embed_tokens.copy_(target.embedding())
        if kept:
            draft.d2t.copy_(offsets_from_ids(torch.tensor(sorted(kept)), target.vocab_size))
    return draft.pack()


class Oracle:
    """Proposes the target's own future with planted errors, so that every accepted count 0 … K comes up.

    ``answers``: prompt → what the target will answer. The count a round gets depends on its position alone. A tree has
    the right path somewhere among wrong nodes, in an order that is drawn too.
    """

    def __init__(self, answers: dict[tuple[int, ...], Sequence[int]], vocab: int, taps: tuple[int, ...] = ()) -> None:
        self.answers, self.vocab, self.taps = answers, vocab, taps
        self.asked: list[list[int]] = []
        """Per call the K of each request."""

    def propose(self, states: Sequence[DecodeState], settings: Sequence[SpeculativeSettings | None]) -> list[Proposal]:
        self.asked.append([wanted.num_steps if wanted else 0 for wanted in settings])
        return [self._one(state, wanted) for state, wanted in zip(states, settings, strict=True)]

    def wanted_count(self, position: int, num_steps: int) -> int:
        """How many of the proposals after the root at ``position`` are right."""
        return random.Random(position).randint(0, num_steps)

    def _one(self, state: DecodeState, wanted: SpeculativeSettings | None) -> Proposal:
        if wanted is None:
            return Proposal(Tree.chain(state.tokens[-1:]))
        prompt = tuple(state.tokens[: state.prompt_length])
        future = list(self.answers[prompt][len(state.tokens) - len(prompt) :])
        draw = random.Random(f"{state.root_position} {wanted.num_steps} {wanted.num_draft_tokens}")
        longest = min(wanted.num_steps, wanted.num_draft_tokens - 1)
        right = min(self.wanted_count(state.root_position, longest), len(future))
        if not wanted.is_tree:
            wrong = [self._wrong(draw, future, i, set()) for i in range(right, longest)]
            return Proposal(Tree.chain([state.tokens[-1], *future[:right], *wrong]))
        return Proposal(self._tree(state.tokens[-1], future, right, wanted, draw))

    def _wrong(self, draw: random.Random, future: Sequence[int], depth: int, siblings: set[int]) -> int:
        banned = siblings | set(future[depth : depth + 1])
        return draw.choice([t for t in range(self.vocab) if t not in banned])

    def _tree(self, root: int, future: list[int], right: int, wanted: SpeculativeSettings, draw: random.Random) -> Tree:
        kinds = [True] * right + [False] * (wanted.num_draft_tokens - 1 - right)
        draw.shuffle(kinds)
        tokens, parents, depths, on_path, tip = [root], [-1], [0], [True], 0
        for is_right in kinds:
            parent = tip if is_right else draw.choice([i for i, d in enumerate(depths) if d < wanted.num_steps])
            siblings = {t for t, p in zip(tokens, parents, strict=True) if p == parent}
            # A wrong child of a right node must not be the right one; below a wrong node anything goes.
            ahead = future if on_path[parent] else []
            token = future[depths[parent]] if is_right else self._wrong(draw, ahead, depths[parent], siblings)
            tokens.append(token)
            parents.append(parent)
            depths.append(depths[parent] + 1)
            on_path.append(is_right)
            if is_right:
                tip = len(tokens) - 1
        return Tree(tuple(tokens), tuple(parents))


@cache
def random_prompt(seed: int, length: int, vocab: int = 128) -> tuple[int, ...]:
    draw = random.Random(seed)
    return tuple(draw.randrange(vocab) for _ in range(length))


def plain_answers(
    target: Target, prompts: Sequence[Sequence[int]], samplings: Sequence[SamplingSettings]
) -> list[list[int]]:
    """What plain decoding answers, one request at a time with no cache of prefixes: the truth."""
    answers = []
    for prompt, sampling in zip(prompts, samplings, strict=True):
        engine = Engine(target, num_slots=len(prompt) + sampling.max_new_tokens + 8, prefix_cache=False)
        request = engine.submit(prompt, sampling)
        engine.run()
        answers.append(request.answer)
    return answers


def assert_all_slots_returned(engine: Engine) -> None:
    """Nothing runs, and the books agree: with the kept prefixes forgotten, every slot is free."""
    engine.check_integrity()
    engine.flush()
    assert engine.pool.num_free == len(engine.pool.references)


def chain(num_steps: int, **more: Any) -> SpeculativeSettings:
    return SpeculativeSettings(num_steps=num_steps, num_draft_tokens=num_steps + 1, **more)


def tree(num_steps: int, eagle_topk: int, num_draft_tokens: int) -> SpeculativeSettings:
    return SpeculativeSettings(num_steps=num_steps, eagle_topk=eagle_topk, num_draft_tokens=num_draft_tokens)
