"""The shape and options of an EAGLE-3 draft."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, model_validator

from eyas.config import Settings
from eyas.contract import validate_taps
from eyas.errors import EyasError

LayerDialect = Literal["sglang", "vllm"]
Size = Annotated[int, Field(ge=1)]


class DraftConfig(Settings):
    """An EAGLE-3 draft (Li et al. 2025), with the options that SGLang, vLLM and EAGLE-3.1 know.

    Sizes in elements. ``taps`` in the order in which they are concatenated. Raises ``draft.config``, ``taps.…``.
    """

    CODE: ClassVar[str] = "draft.config"

    taps: tuple[int, ...]
    target_num_layers: Size
    target_hidden_size: Size
    vocab_size: Size
    """The target's vocabulary."""
    draft_vocab_size: Size
    """The head's rows; equal to ``vocab_size`` when there is no map."""
    hidden_size: Size
    intermediate_size: Size
    num_heads: Size
    num_kv_heads: Size
    head_dim: Size
    num_layers: Size = 1
    rms_norm_eps: float = 1e-5
    rope_theta: float = 10000.0
    rope_scaling: dict[str, Any] | None = None
    max_position_embeddings: Size = 2048
    norm_output: bool = False
    """EAGLE-3.1: the next step takes the state after the final norm, not before it."""
    fc_norm: bool = False
    """EAGLE-3.1: an RMS norm on each tap before fc."""
    norm_before_fc: bool = False
    """One RMS norm over the whole feature before fc, and before ``fc_norm`` if both are on."""
    norm_before_residual: bool = False
    """The residual is the state after ``hidden_norm``, not before it."""
    attention_bias: bool = False
    """Biases on q, k and v."""
    fc_bias: bool = False
    own_embedding: bool = False
    """False: the embedding is the target's."""
    layer_dialect: LayerDialect = "sglang"
    """Which engine's rule names the norm before attention in layers after the first; only matters for several."""

    @model_validator(mode="after")
    def _consistent(self) -> DraftConfig:
        validate_taps(self.taps, self.target_num_layers)
        if self.draft_vocab_size > self.vocab_size:
            raise EyasError(
                "draft.config",
                f"draft_vocab_size {self.draft_vocab_size} is more than the target's {self.vocab_size}",
                f"use at most {self.vocab_size}",
            )
        if self.num_heads % self.num_kv_heads:
            raise EyasError(
                "draft.config",
                f"{self.num_heads} heads do not divide by {self.num_kv_heads} KV heads",
                "mend the draft's config.json",
            )
        if self.head_dim % 2:
            raise EyasError(
                "draft.config",
                f"head_dim is {self.head_dim}, and rotary embedding turns pairs of elements",
                "use an even head_dim",
            )
        if self.hidden_size != self.target_hidden_size and not self.own_embedding:
            raise EyasError(
                "draft.config",
                f"hidden size {self.hidden_size} with the embedding of a target of {self.target_hidden_size}",
                "give the draft an embedding of its own",
            )
        return self

    @property
    def feature_size(self) -> int:
        """Elements of one position's feature."""
        return len(self.taps) * self.target_hidden_size

    @property
    def has_map(self) -> bool:
        """True if the head has fewer rows than the target has tokens."""
        return self.draft_vocab_size < self.vocab_size

    @property
    def output_bias(self) -> bool:
        """A bias on the attention's output: the engines give it one if either of the two flags is set."""
        return self.attention_bias or self.fc_bias
