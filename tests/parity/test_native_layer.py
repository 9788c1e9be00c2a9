"""The native decoder layer against the eager one in double precision, and that a row's bits are its own.

Every instruction set of this machine is held to it. Where the library was not built there is nothing to loop over;
test_native_library.py holds that it is built wherever there is a compiler.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from eyas.draft.config import DraftConfig
from eyas.draft.model import DraftModel
from eyas.kernels import Backend, KVCache, Part, Rows, get_backend
from eyas.kernels.native import Native, instruction_sets
from eyas.models.config import ModelConfig, parse_llama_config
from eyas.models.llama import LlamaTarget, expected_shapes
from parity import reference as pr

VOCAB, LAYERS = 40, 2
POISON = VOCAB - 1
"""A token that only the test of NaN uses."""
BOUND = 3e-5
"""Of the largest value, against double precision."""
DTYPES = (torch.float32, torch.bfloat16)
NATIVES = tuple(Native(name) for name in instruction_sets())
HEADS = ((4, 4), (4, 2), (6, 2), (3, 1), (1, 1))
HEAD_SIZES = (2, 8, 16, 20, 64)
QWEN_WINDOW = {"use_sliding_window": True, "max_window_layers": 1}
SEEDS = st.integers(0, 2**31)


def llama(family: str, heads: tuple[int, int], head_dim: int, **more: Any) -> ModelConfig:
    return parse_llama_config(
        {
            "architectures": [f"{family}ForCausalLM"],
            "vocab_size": VOCAB,
            "hidden_size": 40,
            "intermediate_size": 52,
            "num_hidden_layers": LAYERS,
            "num_attention_heads": heads[0],
            "num_key_value_heads": heads[1],
            "head_dim": head_dim,
            "max_position_embeddings": 128,
        }
        | more
    )


@st.composite
def configs(draw: st.DrawFn) -> ModelConfig:
    """Biases, norms of q and k, and windows in all layers or in the last."""
    family = draw(st.sampled_from(["Llama", "Mistral", "Qwen2", "Qwen3"]))
    more: dict[str, Any] = {
        "hidden_size": draw(st.sampled_from([24, 40, 50])),
        "intermediate_size": draw(st.sampled_from([17, 52, 96])),
        "mlp_bias": draw(st.booleans()),
        "attention_bias": draw(st.booleans()),
    }
    if family != "Llama":
        more["sliding_window"] = draw(st.none() | st.integers(1, 12))
    if family.startswith("Qwen") and more["sliding_window"]:
        more |= QWEN_WINDOW
    return llama(family, draw(st.sampled_from(HEADS)), draw(st.sampled_from(HEAD_SIZES)), **more)


def weights(config: ModelConfig, seed: int, dtype: torch.dtype) -> dict[str, Tensor]:
    """Random numbers that ``dtype`` holds, so that all precisions run one model."""
    generator = torch.Generator().manual_seed(seed)
    tensors = {}
    for name, shape in expected_shapes(config).items():
        noise = torch.randn(shape, generator=generator)
        fan_in = 1.0 if "embed" in name else shape[-1] ** 0.5
        value = noise * (1.5 / fan_in) if len(shape) == 2 else 0.3 * noise + (0 if "bias" in name else 1)
        tensors[name] = value.to(dtype).float()
    return tensors


def truth_of(config: ModelConfig, tensors: dict[str, Tensor]) -> LlamaTarget:
    return LlamaTarget(config, tensors, torch.float64, get_backend("eager"))


def native_of(config: ModelConfig, tensors: dict[str, Tensor], dtype: torch.dtype, backend: Native) -> LlamaTarget:
    target = LlamaTarget(config, tensors, dtype, backend)
    assert all(layer.fused for layer in target.layers)
    return target


@dataclass
class Request:
    """A committed text and a forest of tokens that hang on it; ``parents`` −1: on the text's end."""

    text: list[int]
    tokens: list[int]
    parents: list[int]
    text_slots: Tensor = field(default_factory=lambda: pr.EMPTY)
    slots: list[int] = field(default_factory=list)

    def path(self, row: int) -> list[int]:
        """Rows from the text's end down to ``row``."""
        path = [row]
        while self.parents[path[0]] >= 0:
            path.insert(0, self.parents[path[0]])
        return path

    @property
    def text_part(self) -> Part:
        return Part.chain(self.text, 0, self.text_slots.tolist(), pr.EMPTY)

    @property
    def forest_part(self) -> Part:
        positions = [len(self.text) + len(self.path(row)) - 1 for row in range(len(self.tokens))]
        return Part(self.tokens, positions, self.parents, self.slots, self.text_slots)


@st.composite
def batches(draw: st.DrawFn, longest: int = 24) -> list[Request]:
    """Ragged requests whose slots lie in one cache in any order."""
    tokens = lambda n: draw(st.lists(st.integers(0, POISON - 1), min_size=n, max_size=n))  # noqa: E731
    requests = []
    for _ in range(draw(st.integers(1, 4))):
        rows = draw(st.integers(1, 9))
        parents = [draw(st.integers(max(-1, i - 3), i - 1)) for i in range(rows)]
        requests.append(Request(tokens(draw(st.integers(0, longest))), tokens(rows), parents))
    give_slots(requests, draw(SEEDS))
    return requests


def give_slots(requests: Sequence[Request], seed: int) -> None:
    slots = torch.randperm(num_slots(requests), generator=torch.Generator().manual_seed(seed))
    for request in requests:
        n, m = len(request.text), len(request.tokens)
        request.text_slots, request.slots, slots = slots[:n], slots[n : n + m].tolist(), slots[n + m :]


def num_slots(requests: Sequence[Request]) -> int:
    return sum(len(request.text) + len(request.tokens) for request in requests)


def forwards(requests: Sequence[Request]) -> list[Rows]:
    """The texts, then the forests."""
    texts = [request.text_part for request in requests if request.text]
    return [Rows.build(parts) for parts in (texts, [request.forest_part for request in requests]) if parts]


def outcome(target: LlamaTarget, rows: Sequence[Rows], slots: int) -> list[Tensor]:
    """Every tap and the final state, [R, L + 2, H] of each forward; slots that nobody wrote hold NaN."""
    cache = target.new_cache(slots)
    if isinstance(target.backend, Native):
        for store in cache.layers:
            store.fill_(torch.nan)
    results = [pr.run(target, batch, cache) for batch in rows]
    return [torch.cat([result.taps, result.hidden[:, None]], 1) for result in results]


def assert_close(mine: Tensor, truth: Tensor, bound: float = BOUND) -> None:
    """Not by max(), which passes over NaN."""
    gaps = pr.tap_gaps(mine.double(), truth)
    assert all(gap <= bound for gap in gaps), gaps


def same_bits(a: Tensor, b: Tensor) -> bool:
    return torch.equal(a.contiguous().view(torch.int32), b.contiguous().view(torch.int32))


@given(configs(), batches(), st.sampled_from(DTYPES), SEEDS)
@settings(max_examples=60, deadline=None)
def test_it_is_the_eager_layer(config: ModelConfig, batch: list[Request], dtype: torch.dtype, seed: int) -> None:
    tensors, rows, slots = weights(config, seed, dtype), forwards(batch), num_slots(batch)
    theirs = outcome(truth_of(config, tensors), rows, slots)
    for backend in NATIVES:  # all over the same rows, each with a cache of its own
        ours = outcome(native_of(config, tensors, dtype, backend), rows, slots)
        for mine, truth in zip(ours, theirs, strict=True):
            assert_close(mine, truth)


@pytest.mark.parametrize("head_dim", HEAD_SIZES)
@pytest.mark.parametrize("window", [1, 2, 7, 15, 16, 17, None])
def test_a_window_ends_where_the_eager_one_does(head_dim: int, window: int | None) -> None:
    config = llama("Mistral", (4, 2), head_dim, sliding_window=window)
    tensors = weights(config, head_dim, torch.float32)
    # A branch whose window begins in the text, one whose window begins in the branch itself.
    batch = [Request(list(range(16)), list(range(20)), [-1, -1, *range(18)])]
    give_slots(batch, 1)
    rows = forwards(batch)
    theirs = outcome(truth_of(config, tensors), rows, num_slots(batch))
    for backend in NATIVES:
        ours = outcome(native_of(config, tensors, torch.float32, backend), rows, num_slots(batch))
        for mine, truth in zip(ours, theirs, strict=True):
            assert_close(mine, truth)


def bits_in_the_batch(target: LlamaTarget, batch: Sequence[Request]) -> list[Tensor]:
    """Of each request its forest's rows, computed with all the others."""
    forest = outcome(target, forwards(batch), num_slots(batch))[-1]
    return list(forest.split([len(request.tokens) for request in batch]))


def bits_alone(target: LlamaTarget, request: Request, row: int, cuts: Sequence[int]) -> Tensor:
    """Of one forest row [L + 2, H]: its text and path as a line, in chunks that end at ``cuts``, without neighbours."""
    line = request.text + [request.tokens[i] for i in request.path(row)]
    slots, ends = torch.arange(len(line)), sorted({*(cut for cut in cuts if 0 < cut < len(line)), len(line)})
    starts = [0, *ends[:-1]]
    rows = [
        Rows.build([Part.chain(line[a:b], a, slots[a:b].tolist(), slots[:a])])
        for a, b in zip(starts, ends, strict=True)
    ]
    return outcome(target, rows, len(line))[-1][-1]


@given(configs(), batches(), st.sampled_from(DTYPES), st.lists(st.integers(1, 30), max_size=3), SEEDS)
@settings(max_examples=40, deadline=None)
def test_a_rows_bits_are_the_same_alone_and_in_any_company(
    config: ModelConfig, batch: list[Request], dtype: torch.dtype, cuts: list[int], seed: int
) -> None:
    for backend in NATIVES:
        target = native_of(config, weights(config, seed, dtype), dtype, backend)
        for request, together in zip(batch, bits_in_the_batch(target, batch), strict=True):
            for row in {0, len(request.tokens) // 2, len(request.tokens) - 1}:
                assert same_bits(together[row], bits_alone(target, request, row, cuts))


@pytest.fixture
def _threads() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.mark.usefixtures("_threads")
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_threads_do_not_change_bits(dtype: torch.dtype) -> None:
    """Wide enough that every product is shared out, and more rows than a tile or a block of them holds."""
    config = llama("Qwen3", (6, 2), 20, hidden_size=144, intermediate_size=208)
    requests = [
        Request(list(range(n)), [5] * m, list(range(-1, m - 1))) for n, m in ((0, 1), (30, 60), (9, 3), (17, 14))
    ]
    give_slots(requests, 3)
    for backend in NATIVES:
        target = native_of(config, weights(config, 0, dtype), dtype, backend)
        torch.set_num_threads(1)
        expected = bits_in_the_batch(target, requests)
        for request, rows in zip(requests, expected, strict=True):
            assert same_bits(rows[-1], bits_alone(target, request, len(request.tokens) - 1, [7]))
        for threads in (2, 3, 5):
            torch.set_num_threads(threads)
            assert all(map(same_bits, bits_in_the_batch(target, requests), expected))


@given(configs(), batches(), st.integers(0, 3), st.sampled_from([torch.nan, torch.inf, -torch.inf]), SEEDS)
@settings(max_examples=30, deadline=None)
def test_nonfinite_numbers_stay_in_their_request(
    config: ModelConfig, batch: list[Request], which: int, poison: float, seed: int
) -> None:
    tensors = weights(config, seed, torch.float32)
    tensors["model.embed_tokens.weight"][POISON] = poison
    ill = which % len(batch)
    for backend in NATIVES:
        target = native_of(config, tensors, torch.float32, backend)
        healthy, token = bits_in_the_batch(target, batch), batch[ill].tokens[-1]
        batch[ill].tokens[-1] = POISON
        poisoned = bits_in_the_batch(target, batch)
        batch[ill].tokens[-1] = token
        assert bool(poisoned[ill][-1, -1].isnan().all())
        poisoned[ill][-1] = healthy[ill][-1]  # nothing hangs on a forest's last row
        assert all(map(same_bits, healthy, poisoned))


def test_a_poisoned_text_reaches_every_row_that_sees_it_and_no_other() -> None:
    config = llama("Mistral", (4, 2), 16, sliding_window=4)
    tensors = weights(config, 0, torch.float32)
    tensors["model.embed_tokens.weight"][POISON] = torch.nan
    batch = [Request([1, 2, 3], [4, 5], [-1, 0]), Request([1, POISON, 3], [4, 5, 6, 7, 8, 9], [-1, 0, 1, 2, 3, 4])]
    give_slots(batch, 2)
    for backend in NATIVES:
        clean, ill = bits_in_the_batch(native_of(config, tensors, torch.float32, backend), batch)
        assert bool(clean.isfinite().all())
        # Layer 1 reads the poison at positions up to 1 + 3, layer 2 what layer 1 made of it, up to 4 + 3.
        assert ill[:, 1].isnan().any(-1).tolist() == [True, True, False, False, False, False]
        assert ill[:, 2].isnan().any(-1).tolist() == [True] * 5 + [False]


def test_attention_far_from_zero_neither_overflows_nor_vanishes() -> None:
    """Scores and gates of hundreds and more: beyond what e^x holds in fp32."""
    config = llama("Llama", (4, 2), 16)
    tensors = {
        name: value * (300 if "q_proj" in name or "gate" in name else 1)
        for name, value in weights(config, 0, torch.float32).items()
    }
    batch = [Request(list(range(20)), [1, 2, 3], [-1, 0, 0])]
    give_slots(batch, 0)
    theirs = outcome(truth_of(config, tensors), forwards(batch), num_slots(batch))
    for backend in NATIVES:
        ours = outcome(native_of(config, tensors, torch.float32, backend), forwards(batch), num_slots(batch))
        for mine, truth in zip(ours, theirs, strict=True):
            assert_close(mine, truth, 100 * BOUND)


def test_no_rows_give_no_rows() -> None:
    config = llama("Llama", (4, 2), 16)
    none = Rows(*[pr.EMPTY] * 5, tables=[])
    for backend in NATIVES:
        target = native_of(config, weights(config, 0, torch.float32), torch.float32, backend)
        out = target.new_outputs(0)
        target.forward(none, target.new_cache(1), out)
        assert out.hidden.shape == (0, config.hidden_size)


def test_the_same_rows_serve_two_targets_with_a_cache_each() -> None:
    """What is kept with the rows is of the batch, not of a cache: the deep target's keys, then the shallow one's."""
    wide, narrow = llama("Llama", (4, 4), 20), llama("Qwen3", (3, 1), 8, hidden_size=24)
    batch = [Request([1, 2, 3, 4], [5, 6, 7], [-1, 0, 0]), Request([], [8, 9], [-1, 0])]
    give_slots(batch, 4)
    shared = forwards(batch)
    for backend in NATIVES:
        targets = [native_of(config, weights(config, 1, DTYPES[0]), DTYPES[0], backend) for config in (wide, narrow)]
        caches = [target.new_cache(num_slots(batch)) for target in targets]
        for rows, fresh in zip(shared, forwards(batch), strict=True):
            for target, cache in zip(targets, caches, strict=True):
                once, again = pr.run(target, rows, cache), pr.run(target, fresh, cache)
                assert same_bits(once.taps, again.taps)


def draft_of(backend: Backend, seed: int, **options: Any) -> DraftModel:
    config = DraftConfig(
        taps=(0, 1, 2),
        target_num_layers=2,
        target_hidden_size=40,
        vocab_size=VOCAB,
        draft_vocab_size=VOCAB,
        hidden_size=40,
        intermediate_size=52,
        num_heads=6,
        num_kv_heads=2,
        num_layers=2,
        max_position_embeddings=128,
        **options,
    )
    draft, generator = DraftModel(config, backend), torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in draft.parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            parameter.copy_(noise * 1.5 / parameter.shape[-1] ** 0.5 if parameter.dim() == 2 else 1 + 0.3 * noise)
    return draft


def draft_steps(draft: DraftModel, rows: Sequence[Rows], slots: int) -> list[Tensor]:
    cache: KVCache = draft.pack().new_cache(slots)
    results = []
    for batch in rows:
        hidden = torch.randn(len(batch), 40, generator=torch.Generator().manual_seed(len(batch)))
        results.append(torch.stack(draft(batch, hidden.to(draft.norm.dtype), cache), 1))
    return results


@given(
    batches(),
    st.sampled_from(HEAD_SIZES),
    st.booleans(),
    st.booleans(),
    st.booleans(),
    SEEDS,
)
@settings(max_examples=25, deadline=None)
def test_a_drafts_layers_are_the_eager_ones(
    batch: list[Request], head_dim: int, biased: bool, norm_output: bool, before_residual: bool, seed: int
) -> None:
    options: dict[str, Any] = {
        "head_dim": head_dim,
        "attention_bias": biased,
        "norm_output": norm_output,
        "norm_before_residual": before_residual,
    }
    rows, slots = forwards(batch), num_slots(batch)
    theirs = draft_steps(draft_of(get_backend("eager"), seed, **options).double(), rows, slots)
    for backend in NATIVES:
        ours = draft_of(backend, seed, **options)
        steps = draft_steps(ours, rows, slots)
        assert all(layer.fused for layer in ours.decoder_layers)
        for mine, truth in zip(steps, theirs, strict=True):
            assert_close(mine, truth)
