"""Any other causal model of transformers, run over flat ragged batches.

The model's own code runs; only its attention is replaced, through transformers' attention interface, by ours
over slot tables. Loading proves on a few tokens that this gives the model's own logits, or refuses the model.

Shape legend: R rows, H hidden, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from huggingface_hub.errors import StrictDataclassError
from torch import Tensor, nn
from transformers import AutoConfig, AutoModelForCausalLM, PretrainedConfig, PreTrainedModel

from eyas.errors import EyasError
from eyas.kernels import Backend, KVCache, Rows
from eyas.models.config import architecture_of, read_config
from eyas.models.hf_anatomy import find_base, find_ends, layer_input, layer_output, study, switch_attention
from eyas.models.hf_bridge import NAME, Bridge, UnsupportedError
from eyas.models.strict import some
from eyas.models.target import Outputs, Target
from eyas.models.weights.safetensors import open_checkpoint

PROOF_TOKENS = 12
TOLERANCE = {torch.float32: 1e-4, torch.bfloat16: 5e-2}
"""Largest difference between our logits and the model's own in the proof, relative to the largest logit."""


def load_hf(folder: Path, dtype: torch.dtype, backend: Backend, device: torch.device) -> HFTarget:
    """The target in ``folder`` through transformers; never runs code from the folder.

    Raises ``artifact.…``, ``model.tensor-…``, and ``model.unknown-architecture`` with the reason.
    """
    open_checkpoint(folder)
    architecture = architecture_of(read_config(folder))
    config = _read_hf_config(folder, architecture)
    try:
        loaded: Any = AutoModelForCausalLM.from_pretrained(
            folder,
            config=config,
            dtype=dtype,
            attn_implementation="eager",
            trust_remote_code=False,
            use_safetensors=True,
            local_files_only=True,
            ignore_mismatched_sizes=True,  # so that they are listed in ``info``, and named below
            output_loading_info=True,
        )
    except ValueError as error:
        raise _unknown(architecture, f"transformers has no causal model for it: {error}") from error
    model, info = loaded
    _check_loading(info)
    if type(model).__name__ != architecture:
        raise _unknown(architecture, f"transformers runs it as {type(model).__name__}")
    model.to(device, backend.activation_dtype(dtype)).eval()
    try:
        return HFTarget(model, backend, device)
    except UnsupportedError as error:
        raise _unknown(architecture, str(error)) from error


class HFTarget(Target):
    """A causal model of transformers whose attention runs over slot tables."""

    def __init__(self, model: PreTrainedModel, backend: Backend, device: torch.device) -> None:
        """``model`` in eval mode on ``device``, with its own attention; it is changed in place.

        Raises :class:`UnsupportedError` if it cannot be represented.
        """
        config = model.config.get_text_config()
        self.architecture, self.backend, self.device = type(model).__name__, backend, device
        self.dtype = model.dtype
        self.num_layers, self.hidden_size = int(config.num_hidden_layers), int(config.hidden_size)
        _refuse_changing_rope(config)
        model.config.return_dict = True
        self._base = find_base(model)
        self._embedding, self._head = find_ends(model, self.hidden_size)
        self.vocab_size = self.head().shape[0]
        tokens = torch.arange(PROOF_TOKENS) * 7919 % self.vocab_size
        inputs = {
            "input_ids": tokens[None].to(device),
            "position_ids": torch.arange(PROOF_TOKENS, device=device)[None],
        }
        with torch.no_grad():
            own_logits = model(**inputs, use_cache=False).logits[0].float()
            by_head = self.logits(self._base(**inputs, use_cache=False).last_hidden_state[0])
        if not _close(by_head, own_logits, self.dtype):
            raise UnsupportedError("its logits are not head(hidden state): they are scaled, capped or projected")
        self._bridge = Bridge(backend)
        self._bridge.attach(model)
        anatomy = study(model, self._bridge, inputs, self.num_layers)
        self._norm = anatomy.norm
        call = self._bridge.calls[0]
        self.num_heads, self.num_kv_heads, self.head_dim = call.heads, call.kv_heads, call.head_dim
        switch_attention(model, NAME)
        matrices = {id(p): p.numel() * p.element_size() for p in model.parameters() if p.dim() > 1}
        if self._embedding.weight is not self._head.weight:
            matrices.pop(id(self._embedding.weight))
        self._weight_bytes = sum(matrices.values())
        self._hook(anatomy.layers)
        self._pack(model)
        self._prove(tokens, own_logits)
        self.max_positions = _context(config)

    @torch.no_grad()
    def forward(self, rows: Rows, cache: KVCache, out: Outputs) -> None:
        bridge = self._bridge
        bridge.rows, bridge.cache, bridge.out = rows, cache, out
        try:
            hidden_1RH = self._base(
                input_ids=rows.tokens.to(self.device)[None],
                position_ids=rows.positions.to(self.device)[None],
                use_cache=False,
            ).last_hidden_state
        finally:
            bridge.rows = bridge.cache = bridge.out = None
        out.hidden.copy_(hidden_1RH[0])

    @torch.no_grad()
    def logits(self, hidden_nH: Tensor) -> Tensor:
        logits: Tensor = self._head(hidden_nH.to(self.dtype))
        return logits.float()

    @torch.no_grad()
    def final_norm(self, tap_nH: Tensor) -> Tensor:
        normed: Tensor = self._norm(tap_nH.to(self.dtype))
        return normed

    def weight_bytes(self) -> int:
        return self._weight_bytes

    def embedding(self) -> Tensor:
        weight = self._embedding.weight
        assert isinstance(weight, Tensor)
        return weight.detach()

    def head(self) -> Tensor:
        weight = self._head.weight
        assert isinstance(weight, Tensor)
        return weight.detach()

    @property
    def windows(self) -> tuple[int | None, ...]:
        """Each layer's sliding window in tokens, None: it sees all."""
        return tuple(self._bridge.calls[i].window for i in range(self.num_layers))

    def _hook(self, layers: nn.ModuleList) -> None:
        bridge = self._bridge
        for v, layer in enumerate(layers):
            layer.register_forward_pre_hook(
                lambda _, args, kwargs, v=v: bridge.tap(v, layer_input(args, kwargs)), with_kwargs=True
            )
        layers[-1].register_forward_hook(lambda _, args, result: bridge.tap(len(layers), layer_output(result)))

    def _pack(self, model: PreTrainedModel) -> None:
        """Let the backend compute the linear layers, so that a row's bits depend on that row alone."""
        if self.backend.name == "eager" and self.backend.quantization == "none":
            return
        kept = {id(self._embedding.weight), id(self._head.weight)}
        for module in model.modules():
            if type(module) is nn.Linear:
                bias = None if module.bias is None else module.bias.detach()
                packed = self.backend.pack(module.weight.detach(), bias)
                module.forward = packed  # type: ignore[method-assign, assignment]
                if id(module.weight) not in kept:
                    # The backend has its own copy; dtype and device stay readable.
                    module.weight = nn.Parameter(module.weight.new_empty(0), requires_grad=False)

    def _prove(self, tokens: Tensor, own_logits: Tensor) -> None:
        """Two requests, in two chunks each, must give the model's own logits; so must tap L."""
        n, cut, L = len(tokens), len(tokens) // 3, self.num_layers
        cache, first = self.new_cache(2 * n), torch.arange(n)
        tables, logits, heads = [first[:0], first[:0]], [], []
        for part in (first[:cut], first[cut:]):
            rows = Rows(
                tokens=tokens[part].repeat(2),
                positions=part.repeat(2),
                request=torch.arange(2).repeat_interleave(len(part)),
                parent=torch.cat([torch.arange(-1, len(part) - 1), torch.arange(-1, len(part) - 1)]),
                slots=torch.cat([part, n + part]),
                tables=tables,
            )
            rows.parent[len(part) + 1 :] += len(part)
            out = self.new_outputs(len(rows), (L,))
            self.forward(rows, cache, out)
            tables = [part, n + part]
            logits.append(self.logits(out.hidden).view(2, len(part), -1))
            heads.append(self.logits(self.final_norm(out.taps[:, 0])).view(2, len(part), -1))
        if not _close(torch.cat(logits, 1), own_logits, self.dtype):
            raise UnsupportedError("over slot tables it gives other logits than by its own attention")
        if not _close(torch.cat(heads, 1), own_logits, self.dtype):
            raise UnsupportedError("its logits are not head(norm(last layer))")


def _close(logits: Tensor, own_logits: Tensor, dtype: torch.dtype) -> bool:
    """NaN is not close."""
    return float((logits - own_logits).abs().max()) <= TOLERANCE[dtype] * float(own_logits.abs().max())


def _read_hf_config(folder: Path, architecture: str) -> PretrainedConfig:
    try:
        return AutoConfig.from_pretrained(folder, trust_remote_code=False, local_files_only=True)
    except (ValueError, KeyError) as error:
        raise _unknown(architecture, f"transformers does not know it: {error}") from error
    except StrictDataclassError as error:
        raise EyasError("model.config", f"config.json: {error}", "use the config.json of these weights") from error


def _check_loading(info: Mapping[str, Any]) -> None:
    """transformers' report of a load → the first thing that is wrong with the tensors."""
    kinds = {
        "missing": "lacks",
        "unexpected": "holds, though the model has none such,",
        "mismatched": "misshapes",
    }
    codes = {"missing": "missing", "unexpected": "unknown", "mismatched": "shape"}
    for kind, verb in kinds.items():
        names = sorted(str(name) for name in info[f"{kind}_keys"])
        if names:
            raise EyasError(
                f"model.tensor-{codes[kind]}",
                f"the checkpoint {verb} {some(names)}",
                "use the config.json and the checkpoint that belong together",
            )


def _context(config: PretrainedConfig) -> int:
    value = getattr(config, "max_position_embeddings", None)
    if type(value) is not int or value <= 0:
        raise EyasError(
            "model.config",
            f"max_position_embeddings is {value!r}, not a positive integer",
            "set it in config.json",
        )
    return value


def _refuse_changing_rope(config: PretrainedConfig) -> None:
    rope = getattr(config, "rope_parameters", None) or {}
    flat = [rope, *(value for value in rope.values() if isinstance(value, dict))]
    for parameters in flat:
        if parameters.get("rope_type") in ("dynamic", "longrope"):
            raise UnsupportedError(f"its RoPE ({parameters['rope_type']}) changes frequencies while keys are cached")


def _unknown(architecture: str, cause: str) -> EyasError:
    return EyasError(
        "model.unknown-architecture",
        f"{architecture} cannot be a target: {cause}",
        "use a Llama-family model, or another causal model whose attention transformers lets one replace",
    )
