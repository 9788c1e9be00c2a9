"""A Llama-family target whose layers are shared by several processes, each with its part of every matrix.

Hidden states, taps and logits are whole, and the same bits, on every rank; so a draft, which is small beside its
target, runs as a whole on every rank.

Shape legend: R rows, H hidden, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor

from eyas.kernels import Backend, KVCache, Linear
from eyas.models.config import ModelConfig, parse_llama_config, read_config
from eyas.models.llama import LlamaLayer, LlamaTarget, expected_shapes
from eyas.models.llama_weights import check_weights
from eyas.models.ranks import Ranks
from eyas.models.sharing import Share, deal
from eyas.models.strict import Sliceable
from eyas.models.weights.safetensors import open_checkpoint


class SummedLinear(Linear):
    """A linear layer of which each rank has some columns: the outputs add up over ranks."""

    def __init__(self, in_features: int, out_features: int, bias: bool, ranks: Ranks) -> None:
        super().__init__(in_features, out_features, bias)
        self._ranks = ranks

    def forward(self, x: Tensor) -> Tensor:
        return self._ranks.sum(super().forward(x))


class ShardedLayer(LlamaLayer):
    """A rank's heads and columns of a layer. Two exchanges a forward: after attention and after the MLP."""

    def __init__(self, config: ModelConfig, index: int, backend: Backend, ranks: Ranks) -> None:
        """``config``: of this rank's share."""
        super().__init__(config, index, backend)
        self.o = SummedLinear(config.num_heads * self.D, config.hidden_size, config.output_bias, ranks)
        self.down = SummedLinear(config.intermediate_size, config.hidden_size, config.mlp_bias, ranks)

    def pack(self) -> None:
        """Matrix by matrix: a fused layer has no place for an exchange."""
        for linear in self.linears:
            linear.pack(self.backend)


class ShardedLlama(LlamaTarget):
    """The target as one rank of several holds it. ``forward``, ``logits`` and ``head`` are exchanges: all ranks call
    them, in the same order and with the same rows. A cache holds the rank's own key heads, and ``weight_bytes`` counts
    its own matrices.
    """

    def __init__(
        self,
        config: ModelConfig,
        tensors: Mapping[str, Sliceable],
        dtype: torch.dtype,
        backend: Backend,
        ranks: Ranks,
    ) -> None:
        """``tensors``: as of a :class:`LlamaTarget`, whole; each is cut as it is read. Raises ``flags.range`` for more
        ranks than key heads."""
        self.ranks, self.share = ranks, Share.of(config, ranks.rank, ranks.size)
        self._widths = [len(deal(config.vocab_size, ranks.size, rank)) for rank in range(ranks.size)]
        super().__init__(config, tensors, dtype, backend, ranks.device)

    def new_cache(self, num_slots: int) -> KVCache:
        return KVCache(self.num_layers, num_slots, len(self.share.kv), self.head_dim, self.dtype, self.device)

    @torch.no_grad()
    def logits(self, hidden_nH: Tensor) -> Tensor:
        return self.ranks.join(super().logits(hidden_nH), self._widths)

    def head(self) -> Tensor:
        """Put together from all ranks' rows at every call, unless it is the embedding."""
        if self.config.tie_word_embeddings:
            return self.embedding()
        return self.ranks.join(super().head().T, self._widths).T.contiguous()

    def _new_layer(self, index: int) -> LlamaLayer:
        return ShardedLayer(self.share.layer_config(self.config), index, self.backend, self.ranks)

    def _read(self, tensors: Mapping[str, Sliceable], name: str) -> Tensor:
        part = tensors[name][self.share.cut(name)]
        return part if self.share.brings_bias(name) else torch.zeros_like(part)

    def _head_of_embedding(self) -> Tensor:
        return self._embedding[self.share.cut("lm_head.weight")]


def load_sharded(folder: Path, dtype: torch.dtype, backend: Backend, ranks: Ranks) -> ShardedLlama:
    """This rank's share of the target in ``folder``: only that is read, tensor by tensor as it is packed.

    Raises as ``load_llama``, and ``flags.range``.
    """
    config = parse_llama_config(read_config(folder))
    checkpoint = open_checkpoint(folder)
    check_weights(checkpoint, config)
    return ShardedLlama(config, checkpoint.stored(expected_shapes(config)), dtype, backend, ranks)
