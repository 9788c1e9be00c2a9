"""How a Llama-family target's matrices are dealt to ranks: whole heads with their key heads, columns, vocabulary rows.

Megatron-LM (Shoeybi et al., 2019), section 3, for any sizes: shares need not be equal.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from eyas.errors import EyasError
from eyas.models.config import ModelConfig


def deal(count: int, size: int, rank: int) -> range:
    """Which of ``count`` things in a row are this rank's; the first ranks have one more where it does not go even."""
    each, more = divmod(count, size)
    start = rank * each + min(rank, more)
    return range(start, start + each + (rank < more))


@dataclass(frozen=True)
class Share:
    """What one of ``size`` ranks holds of a target: q ``heads``, ``kv`` heads, ``inner`` columns of the MLP, and rows
    of the ``vocabulary`` in the head. Embedding and norms are whole on every rank.
    """

    rank: int
    size: int
    head_dim: int
    heads: range
    kv: range
    inner: range
    vocabulary: range

    @classmethod
    def of(cls, config: ModelConfig, rank: int, size: int) -> Share:
        """This rank's share; raises ``flags.range`` if a rank would have no key head."""
        if size > config.num_kv_heads:
            cause = f"{size} ranks for a target with {config.num_kv_heads} key heads, which are not split"
            raise EyasError("flags.range", cause, f"use --tp-size {config.num_kv_heads} or less")
        kv = deal(config.num_kv_heads, size, rank)
        fold = config.num_heads // config.num_kv_heads
        heads = range(kv.start * fold, kv.stop * fold)
        inner, vocabulary = (deal(count, size, rank) for count in (config.intermediate_size, config.vocab_size))
        return cls(rank, size, config.head_dim, heads, kv, inner, vocabulary)

    def layer_config(self, config: ModelConfig) -> ModelConfig:
        """The shape of this rank's part of a layer."""
        return replace(config, num_heads=len(self.heads), num_kv_heads=len(self.kv), intermediate_size=len(self.inner))

    def cut(self, name: str) -> tuple[slice, ...]:
        """Where this rank's part lies in the tensor of that Hugging Face name; as many slices as are needed.

        The biases of o and down are added to a sum of parts: :meth:`brings_bias`.
        """
        owner, _, leaf = name.rpartition(".")
        module = owner.rpartition(".")[2]
        rows = {
            "q_proj": self._elements(self.heads),
            "k_proj": self._elements(self.kv),
            "v_proj": self._elements(self.kv),
            "gate_proj": _slice(self.inner),
            "up_proj": _slice(self.inner),
            "lm_head": _slice(self.vocabulary),
        }
        columns = {"o_proj": self._elements(self.heads), "down_proj": _slice(self.inner)}
        if module in rows:
            return (rows[module],)
        if module in columns and leaf == "weight":
            return slice(None), columns[module]
        return (slice(None),)

    def brings_bias(self, name: str) -> bool:
        """Whether this rank adds that bias: only one may add that of o and down."""
        return self.rank == 0 or not name.endswith(("o_proj.bias", "down_proj.bias"))

    def _elements(self, heads: range) -> slice:
        return slice(heads.start * self.head_dim, heads.stop * self.head_dim)


def _slice(indices: range) -> slice:
    return slice(indices.start, indices.stop)
