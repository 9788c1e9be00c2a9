"""All layers as one native call: the bits of one call a layer, taps and cache included."""

from __future__ import annotations

import pytest
import torch

from eyas.kernels import KVCache, Part, Quantization, Rows
from eyas.kernels.native import load_library
from eyas.models.llama import LlamaTarget
from eyas.models.target import Outputs
from rigs import random_target

NATIVE = ("native",) if load_library() is not None else ()
"""Nothing to loop over where the library was not built; test_native_library.py holds that it is."""


def run(target: LlamaTarget, batches: list[Rows], taps: tuple[int, ...], slots: int) -> tuple[list[Outputs], KVCache]:
    cache, found = target.new_cache(slots), []
    for rows in batches:
        out = target.new_outputs(len(rows), taps)
        target.forward(rows, cache, out)
        found.append(out)
    return found, cache


@pytest.mark.parametrize("quantization", ["none", "int8"])
@pytest.mark.parametrize("taps", [(), (0, 2, 3), (3, 1, 3, 3, 0)], ids=str)
@pytest.mark.parametrize("bias", [False, True])
def test_the_bits_are_those_of_one_call_a_layer(quantization: Quantization, taps: tuple[int, ...], bias: bool) -> None:
    nothing = torch.arange(0)
    prompts = [Part.chain([5, 9, 3, 3], 0, range(4), nothing), Part.chain([7, 1], 0, range(8, 10), nothing)]
    tree = Part([4, 8, 2], [4, 5, 5], [-1, 0, 0], [4, 5, 6], torch.arange(4))
    batches = [Rows.build(prompts), Rows.build([tree, Part.chain([6], 2, range(10, 11), torch.arange(8, 10))])]
    for backend in NATIVE:
        target = random_target(3, backend=backend, quantization=quantization, attention_bias=bias)
        together, cache = run(target, batches, taps, 16)
        target._stack = None
        apart, other = run(target, batches, taps, 16)
        for one, two in zip(together, apart, strict=True):
            assert torch.equal(one.hidden, two.hidden)
            assert torch.equal(one.taps, two.taps)
        assert all(torch.equal(a, b) for a, b in zip(cache.layers, other.layers, strict=True))


def test_a_cache_of_another_shape_is_refused() -> None:
    rows = Rows.build([Part.chain([5], 0, range(1), torch.arange(0))])
    for backend in NATIVE:
        target = random_target(3, backend=backend)
        with pytest.raises(AssertionError):
            target.forward(rows, KVCache(target.num_layers, 4, 1, target.head_dim), target.new_outputs(1))
        with pytest.raises(AssertionError):
            target.forward(rows, KVCache(1, 4, target.num_kv_heads, target.head_dim), target.new_outputs(1))
