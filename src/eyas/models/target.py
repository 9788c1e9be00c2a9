"""What Eyas needs from a target, whatever its architecture."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from eyas.errors import EyasError
from eyas.kernels import Backend, KVCache, Rows


@dataclass
class Outputs:
    """The caller's buffers for one forward. R rows, n taps, H hidden size; dtype as activations."""

    hidden: Tensor
    """[R, H] the state after the final norm, which the head reads."""
    taps: Tensor
    """[R, n, H] in the order of ``tap_ids``; n may be 0."""
    tap_ids: tuple[int, ...] = ()

    @property
    def features(self) -> Tensor:
        """[R, n · H]: the taps of each row, concatenated in order."""
        return self.taps.flatten(1)


class Target(ABC):
    """A decoder that runs flat ragged batches over slot tables, and shows its taps."""

    architecture: str
    num_layers: int
    hidden_size: int
    vocab_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    max_positions: int
    backend: Backend
    device: torch.device
    dtype: torch.dtype
    """dtype of activations, keys and values."""
    row_exact: bool = False
    """Whether a row's bits are proven to depend on its own path alone, whatever else shares the forward."""

    @abstractmethod
    def forward(self, rows: Rows, cache: KVCache, out: Outputs) -> None:
        """Run the rows, write their keys and values into ``cache``, and fill ``out``."""

    @abstractmethod
    def logits(self, hidden_nH: Tensor) -> Tensor:
        """The head over final-norm states → fp32 logits [n, V]."""

    @abstractmethod
    def final_norm(self, tap_nH: Tensor) -> Tensor:
        """The final norm, so that logits(final_norm(tap L)) are the target's own logits."""

    @abstractmethod
    def embedding(self) -> Tensor:
        """The input embedding [V, H]; tap 0 of a token is its row (times any scale the model applies)."""

    @abstractmethod
    def head(self) -> Tensor:
        """The output head's weight [V, H]."""

    @abstractmethod
    def weight_bytes(self) -> int:
        """Bytes of matrices that one forward of one row reads, the head included and the embedding not."""

    def new_cache(self, num_slots: int) -> KVCache:
        """An empty cache of this target's shape."""
        return KVCache(self.num_layers, num_slots, self.num_kv_heads, self.head_dim, self.dtype, self.device)

    def new_outputs(self, num_rows: int, tap_ids: Sequence[int] = ()) -> Outputs:
        """Buffers for ``num_rows`` rows with these taps; raises ``taps.range``."""
        for tap in tap_ids:
            if not 0 <= tap <= self.num_layers:
                raise EyasError(
                    "taps.range",
                    f"tap {tap} of a target with {self.num_layers} layers",
                    f"use taps 0 … {self.num_layers}",
                )
        hidden = torch.empty(num_rows, self.hidden_size, dtype=self.dtype, device=self.device)
        taps = hidden.new_empty(num_rows, len(tap_ids), self.hidden_size)
        return Outputs(hidden, taps, tuple(tap_ids))
