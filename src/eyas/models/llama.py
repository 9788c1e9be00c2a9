"""The Llama family (Llama, Mistral, Qwen2, Qwen3, SmolLM) over flat ragged batches.

Shape legend: R rows, H hidden, D head size, I intermediate size, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from eyas.kernels import Backend, FusedLayer, KVCache, LayerShape, Linear, Rows
from eyas.models.config import ModelConfig
from eyas.models.rope import RotaryTable, rope_frequencies
from eyas.models.strict import Sliceable, check_tensors
from eyas.models.target import Outputs, Target


class LlamaLayer(nn.Module):
    """x + attention(norm(x)), then + MLP(norm(x)). q, k and v are one matrix; so are gate and up."""

    def __init__(self, config: ModelConfig, index: int, backend: Backend) -> None:
        super().__init__()
        heads, kv, D = config.num_heads, config.num_kv_heads, config.head_dim
        self.heads, self.kv, self.D, self.index = heads, kv, D, index
        self.eps, self.scale, self.backend = config.rms_norm_eps, D**-0.5, backend
        self.window = config.sliding_window if config.windowed_layers[index] else None
        self.qkv = Linear(config.hidden_size, (heads + 2 * kv) * D, config.attention_bias)
        self.o = Linear(heads * D, config.hidden_size, config.output_bias)
        self.gate_up = Linear(config.hidden_size, 2 * config.intermediate_size, config.mlp_bias)
        self.down = Linear(config.intermediate_size, config.hidden_size, config.mlp_bias)
        self.input_norm = nn.Parameter(torch.empty(config.hidden_size))
        self.mlp_norm = nn.Parameter(torch.empty(config.hidden_size))
        self.q_norm = nn.Parameter(torch.empty(D)) if config.qk_norm else None
        self.k_norm = nn.Parameter(torch.empty(D)) if config.qk_norm else None
        self.inner = config.intermediate_size
        self.fused: FusedLayer | None = None

    def pack(self) -> None:
        """Give the weights to the backend: as a whole layer where it has one, else matrix by matrix."""
        H = len(self.input_norm)
        shape = LayerShape(H, H, self.heads, self.kv, self.D, self.inner, self.window, self.eps)
        self.fused = self.backend.fuse(shape, self.linears, (self.input_norm, self.mlp_norm, self.q_norm, self.k_norm))
        if self.fused is None:
            for linear in self.linears:
                linear.pack(self.backend)

    @property
    def linears(self) -> tuple[Linear, Linear, Linear, Linear]:
        return self.qkv, self.o, self.gate_up, self.down

    def forward(self, x_RH: Tensor, cos: Tensor, sin: Tensor, rows: Rows, cache: KVCache) -> Tensor:
        if self.fused is not None:
            return self.fused(x_RH, None, (cos, sin), rows, cache, self.index)
        norm = self.backend.rms_norm
        x_RH = x_RH + self.o(self._attend(norm(x_RH, self.input_norm, self.eps), cos, sin, rows, cache))
        gate, up = self.gate_up(norm(x_RH, self.mlp_norm, self.eps)).chunk(2, -1)
        return x_RH + self.down(F.silu(gate) * up)

    def _attend(self, y_RH: Tensor, cos: Tensor, sin: Tensor, rows: Rows, cache: KVCache) -> Tensor:
        heads, kv = self.heads, self.kv
        qkv = self.qkv(y_RH).view(-1, heads + 2 * kv, self.D)
        qk, v = qkv[:, : heads + kv], qkv[:, heads + kv :]
        if self.q_norm is not None and self.k_norm is not None:
            q = self.backend.rms_norm(qk[:, :heads], self.q_norm, self.eps)
            k = self.backend.rms_norm(qk[:, heads:], self.k_norm, self.eps)
            qk = torch.cat([q, k], 1)
        qk = self.backend.rotate(qk, cos, sin)
        slots = rows.consecutive_slots
        where = slots if slots is not None else rows.slots.to(qk.device)
        store = cache.layers[self.index]
        store[where, :kv], store[where, kv:] = qk[:, heads:], v
        return self.backend.attention(qk[:, :heads], cache, self.index, rows, self.scale, self.window)


class LlamaTarget(Target):
    """A Llama-family target on one device, its matrices packed by a backend."""

    def __init__(
        self,
        config: ModelConfig,
        tensors: Mapping[str, Sliceable],
        dtype: torch.dtype,
        backend: Backend,
        device: torch.device | str = "cpu",
    ) -> None:
        """``tensors``: Hugging Face names → weights, all and nothing else (raises ``model.tensor-…``)."""
        check_tensors(tensors, expected_shapes(config))
        self.config, self.backend, self.device = config, backend, torch.device(device)
        self.architecture, self.vocab_size = config.architecture, config.vocab_size
        self.num_layers, self.hidden_size = config.num_layers, config.hidden_size
        self.num_heads, self.num_kv_heads, self.head_dim = (
            config.num_heads,
            config.num_kv_heads,
            config.head_dim,
        )
        self.max_positions = config.max_position_embeddings
        self.dtype = backend.activation_dtype(dtype)
        frequencies, factor = rope_frequencies(
            config.head_dim,
            config.rope_theta,
            config.rope_scaling,
            config.max_position_embeddings,
        )
        self.rotary = RotaryTable(frequencies, factor, self.max_positions).to(self.device, self.dtype)
        with torch.no_grad():
            self._load(tensors, dtype)

    def _load(self, tensors: Mapping[str, Sliceable], dtype: torch.dtype) -> None:
        get = lambda name: self._read(tensors, name).to(self.device, dtype)  # noqa: E731
        self._embedding = get("model.embed_tokens.weight")
        packed_before = self.backend.packed_bytes
        tied = self.config.tie_word_embeddings
        self._head_weight = self._head_of_embedding() if tied else get("lm_head.weight")
        self._head = Linear(0, 0)
        self._head.weight = nn.Parameter(self._head_weight, requires_grad=False)
        self._head.pack(self.backend)
        self._norm = get("model.norm.weight").to(self.dtype)
        with torch.device("meta"):
            self.layers = [self._new_layer(i) for i in range(self.num_layers)]
        for i, layer in enumerate(self.layers):
            for name, sources in _layer_sources(self.config).items():
                value = torch.cat([get(f"model.layers.{i}.{source}") for source in sources])
                module, _, leaf = name.rpartition(".")
                owner = layer.get_submodule(module) if module else layer
                value = value if module else value.to(self.dtype)  # norms work on activations
                setattr(owner, leaf, nn.Parameter(value, requires_grad=False))
            layer.pack()
        self._weight_bytes = self.backend.packed_bytes - packed_before
        fused = [layer.fused for layer in self.layers if layer.fused is not None]
        self.row_exact = len(fused) == len(self.layers)
        self._stack = self.backend.stack(fused) if self.row_exact else None

    # What a target that is shared by several processes does otherwise.

    def _read(self, tensors: Mapping[str, Sliceable], name: str) -> Tensor:
        return tensors[name][...]

    def _new_layer(self, index: int) -> LlamaLayer:
        return LlamaLayer(self.config, index, self.backend)

    def _head_of_embedding(self) -> Tensor:
        return self._embedding

    @torch.no_grad()
    def forward(self, rows: Rows, cache: KVCache, out: Outputs) -> None:
        x_RH = F.embedding(rows.tokens.to(self.device), self._embedding).to(self.dtype)
        cos, sin = self.rotary.at(rows.positions)
        if self._stack is not None:
            x_RH = self._stack(x_RH, (cos, sin), rows, cache, out.taps, out.tap_ids)
        else:
            x_RH = self._layer_by_layer(x_RH, cos, sin, rows, cache, out)
        out.hidden.copy_(self.final_norm(x_RH))

    def _layer_by_layer(
        self, x_RH: Tensor, cos: Tensor, sin: Tensor, rows: Rows, cache: KVCache, out: Outputs
    ) -> Tensor:
        for v, layer in enumerate(self.layers):
            self._tap(v, x_RH, out)
            x_RH = layer(x_RH, cos, sin, rows, cache)
        self._tap(self.num_layers, x_RH, out)
        return x_RH

    def _tap(self, v: int, x_RH: Tensor, out: Outputs) -> None:
        for column, tap in enumerate(out.tap_ids):
            if tap == v:
                out.taps[:, column] = x_RH

    @torch.no_grad()
    def logits(self, hidden_nH: Tensor) -> Tensor:
        return self._head(hidden_nH.to(self.dtype)).float()

    def final_norm(self, tap_nH: Tensor) -> Tensor:
        return self.backend.rms_norm(tap_nH, self._norm, self.config.rms_norm_eps)

    def weight_bytes(self) -> int:
        return self._weight_bytes

    def embedding(self) -> Tensor:
        return self._embedding

    def head(self) -> Tensor:
        return self._head_weight


def expected_shapes(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    """Every tensor that a checkpoint of this config must hold, by Hugging Face name, and no other."""
    H, V, D = config.hidden_size, config.vocab_size, config.head_dim
    q, kv, inner = config.num_heads * D, config.num_kv_heads * D, config.intermediate_size
    one: dict[str, tuple[int, ...]] = {
        "input_layernorm.weight": (H,),
        "post_attention_layernorm.weight": (H,),
        "self_attn.q_proj.weight": (q, H),
        "self_attn.k_proj.weight": (kv, H),
        "self_attn.v_proj.weight": (kv, H),
        "self_attn.o_proj.weight": (H, q),
        "mlp.gate_proj.weight": (inner, H),
        "mlp.up_proj.weight": (inner, H),
        "mlp.down_proj.weight": (H, inner),
    }
    if config.attention_bias:
        one |= {f"self_attn.{x}_proj.bias": (n,) for x, n in (("q", q), ("k", kv), ("v", kv))}
    if config.output_bias:
        one["self_attn.o_proj.bias"] = (H,)
    if config.mlp_bias:
        one |= {f"mlp.{x}_proj.bias": (n,) for x, n in (("gate", inner), ("up", inner), ("down", H))}
    if config.qk_norm:
        one |= {"self_attn.q_norm.weight": (D,), "self_attn.k_norm.weight": (D,)}
    shapes: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (V, H), "model.norm.weight": (H,)}
    if not config.tie_word_embeddings:
        shapes["lm_head.weight"] = (V, H)
    for i in range(config.num_layers):
        shapes |= {f"model.layers.{i}.{name}": shape for name, shape in one.items()}
    return shapes


def _layer_sources(config: ModelConfig) -> dict[str, list[str]]:
    """Our name of each of a layer's parameters → the checkpoint's tensors that are stacked into it."""
    fused = {
        "qkv": [f"self_attn.{x}_proj" for x in "qkv"],
        "o": ["self_attn.o_proj"],
        "gate_up": ["mlp.gate_proj", "mlp.up_proj"],
        "down": ["mlp.down_proj"],
    }
    biased = dict.fromkeys(("gate_up", "down"), config.mlp_bias)
    biased |= {"qkv": config.attention_bias, "o": config.output_bias}
    sources = {f"{ours}.weight": [f"{s}.weight" for s in theirs] for ours, theirs in fused.items()}
    sources |= {f"{ours}.bias": [f"{s}.bias" for s in fused[ours]] for ours in fused if biased[ours]}
    sources |= {"input_norm": ["input_layernorm.weight"], "mlp_norm": ["post_attention_layernorm.weight"]}
    if config.qk_norm:
        sources |= {"q_norm": ["self_attn.q_norm.weight"], "k_norm": ["self_attn.k_norm.weight"]}
    return sources
