"""Draft checkpoints: one folder that SGLang, vLLM and Eyas read alike.

    config.json          ``eyas.draft.layout``
    model.safetensors    ``eyas.draft.names``; d2t (offsets, int64) and t2d (bool) only for a reduced vocabulary
    contract.json        what the draft was trained for, if known; enforced on loading
    manifest.json        hashes, written last

``embed_tokens.weight`` is stored only if the draft's embedding is its own, because SGLang replaces it whenever the
widths agree. The head is always stored.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from torch import Tensor

from eyas.artifacts import build_folder
from eyas.contract import Contract, ContractFacts, RopeOptions, TargetShape, enforce, vocab_map_sha256
from eyas.dialects.engines import Engine
from eyas.draft.config import DraftConfig, LayerDialect
from eyas.draft.layout import from_json, norm_options, to_json
from eyas.draft.model import DraftModel
from eyas.draft.names import EMBEDDING, HEAD, KEPT, OFFSETS, canonical_names, parameter_pieces
from eyas.draft.vocab import check_kept, check_offsets, kept_mask
from eyas.errors import EyasError
from eyas.kernels import get_backend
from eyas.models.config import read_config
from eyas.models.strict import check_tensors
from eyas.models.target import Target
from eyas.models.weights.safetensors import (
    SINGLE,
    Checkpoint,
    TensorInfo,
    open_checkpoint,
    write_safetensors,
)

CONTRACT = "contract.json"
DTYPES = {torch.float32: ("F32", "float32"), torch.bfloat16: ("BF16", "bfloat16"), torch.float16: ("F16", "float16")}
"""dtype → its name in safetensors and in config.json."""


def write_draft(
    folder: Path,
    model: DraftModel,
    target_architecture: str,
    contract: Contract | None = None,
    dtype: torch.dtype = torch.bfloat16,
    engines: Sequence[Engine] | None = None,
) -> None:
    """Write ``folder`` at once or not at all; an older one is replaced. One writer at a time.

    ``engines``: those that must serve it as trained, by default the newest SGLang and vLLM known. Raises
    ``draft.dialect`` if one of them cannot, ``draft.vocab-map``, ``contract.mismatch`` if the contract is of another
    draft, ``model.nonfinite`` for weights that are not finite as ``dtype``.
    """
    config = model.config
    served = engines or (Engine.parse("sglang"), Engine.parse("vllm"))
    document = to_json(config, target_architecture, served, DTYPES[dtype][1])
    if config.has_map:
        check_offsets(model.d2t.cpu(), config.vocab_size)
    if contract is not None:
        enforce(contract, draft_facts(model))
    tensors = _stored(model, dtype)
    kinds = {torch.int64: "I64", torch.bool: "BOOL", dtype: DTYPES[dtype][0]}
    specs = {name: (kinds[tensor.dtype], tuple(tensor.shape)) for name, tensor in tensors.items()}
    with build_folder(folder, "draft", folder.name, f"a draft of {target_architecture}") as made:
        write_safetensors(made.path / SINGLE, specs, tensors.items())
        text = json.dumps(document, indent=2, ensure_ascii=False) + "\n"
        (made.path / "config.json").write_text(text, encoding="utf-8")
        if contract is not None:
            (made.path / CONTRACT).write_text(contract.to_json(), encoding="utf-8")


def read_draft(
    folder: Path,
    target: Target,
    backend: str = "eager",
    dtype: torch.dtype = torch.float32,
    layer_dialect: LayerDialect | None = None,
) -> DraftModel:
    """The draft in ``folder`` with matrices as ``dtype``, on the target's device, to be trained or looked into.

    Nothing is made up: what the file leaves to the target (embedding, and head where draft_vocab_size is null) is
    the target's, and ``notes`` say so. Raises ``artifact.…``, ``draft.…``, ``taps.…``, ``model.tensor-…``,
    ``model.nonfinite``. ``layer_dialect``: whose norms several layers use, where the file does not say.
    """
    document = read_config(folder)
    checkpoint = open_checkpoint(folder)
    names = canonical_names(checkpoint.infos)
    own_embedding = EMBEDDING in names and not _same_embedding(checkpoint, names[EMBEDDING], target)
    config, notes = from_json(document, target_shape(target), names, own_embedding, layer_dialect)
    shared_head = document["draft_vocab_size"] is None
    tensors = _load(checkpoint, names, config, shared_head)
    if not own_embedding:
        notes += ("the embedding is the target's",)
    if shared_head:
        _check_shared_head(config, target)
        tensors[HEAD] = target.head()
        notes += ("draft_vocab_size is null: the head is the target's",)
    kernels = get_backend(backend)
    active, length = kernels.activation_dtype(dtype), max(config.max_position_embeddings, target.max_positions)
    model = DraftModel(config, kernels, length)
    state = {}
    for name, pieces in parameter_pieces(config).items():
        value = torch.cat([tensors[piece] for piece, _ in pieces])
        is_matrix = name.endswith((".weight", ".bias")) or name == "embed_tokens"
        # Norms work on activations; matrices keep their own dtype until a backend packs them.
        state[name] = value.to(target.device, dtype if is_matrix else active)
    state.setdefault("embed_tokens", target.embedding())
    state["d2t"] = tensors.get(OFFSETS, torch.zeros(config.draft_vocab_size, dtype=torch.int64)).to(target.device)
    model.load_state_dict(state, assign=True)
    model.rotary.to(target.device, active)
    model.notes = notes
    return model


def load_draft(
    folder: Path,
    target: Target,
    backend: str = "auto",
    dtype: torch.dtype | None = None,
    known: ContractFacts | None = None,
) -> DraftModel:
    """The draft in ``folder``, packed to serve ``target``.

    ``dtype`` of the matrices is by default that of the target's weights, or bf16 where they are stored so and the
    backend computes in the target's precision all the same: the numbers are equal and half the bytes are read.

    A contract.json in the folder is enforced against the target's shape and the draft itself, and against what is
    ``known`` besides (hashes of weights, tokenizer, template): ``contract.mismatch``. Else as :func:`read_draft`.
    """
    if backend == "auto" and target.device.type != "cpu":
        backend = "eager"
    model = read_draft(folder, target, backend, dtype or _serving_dtype(folder, target, backend))
    if (folder / CONTRACT).is_file():
        enforce(Contract.read(folder / CONTRACT), draft_facts(model, target, known))
    else:
        model.notes += (f"no {CONTRACT}: which target the draft was trained for is not known",)
    return model.pack()


def _serving_dtype(folder: Path, target: Target, backend: str) -> torch.dtype:
    stored = {info.dtype for info in open_checkpoint(folder).infos.values() if len(info.shape) > 1}
    same_numbers = get_backend(backend).activation_dtype(torch.bfloat16) == target.dtype
    return torch.bfloat16 if stored == {"BF16"} and same_numbers else target.embedding().dtype


def target_shape(target: Target) -> TargetShape:
    """The sizes of a loaded target, as a contract names them."""
    return TargetShape(
        architecture=target.architecture,
        num_layers=target.num_layers,
        hidden_size=target.hidden_size,
        vocab_size=target.vocab_size,
        num_heads=target.num_heads,
        num_kv_heads=target.num_kv_heads,
        head_dim=target.head_dim,
    )


def draft_facts(model: DraftModel, target: Target | None = None, known: ContractFacts | None = None) -> ContractFacts:
    """What is true of a draft and, if given, of its target, on top of what is ``known``."""
    config = model.config
    facts = {name: getattr(known, name) for name in known.model_fields_set} if known else {}
    if target is not None:
        facts["target"] = target_shape(target)
    return ContractFacts(
        **facts
        | {
            "taps": config.taps,
            "norms": norm_options(config),
            "rope": RopeOptions(theta=config.rope_theta, scaling=config.rope_scaling, partial_rotary_factor=1.0),
            "vocab_map_sha256": vocab_map_sha256(model.d2t.cpu().numpy()) if config.has_map else None,
        }
    )


def _stored(model: DraftModel, dtype: torch.dtype) -> dict[str, Tensor]:
    """The file's tensors by name, on the CPU; raises ``model.nonfinite``."""
    config, state = model.config, model.state_dict()
    tensors: dict[str, Tensor] = {}
    for name, pieces in parameter_pieces(config).items():
        value = state[name].detach().to("cpu", dtype)
        _check_finite(name, value)
        parts = value.split([shape[0] for _, shape in pieces])
        for (piece, shape), part in zip(pieces, parts, strict=True):
            assert tuple(part.shape) == shape, (piece, part.shape)
            tensors[piece] = part
    if config.has_map:
        tensors[OFFSETS] = model.d2t.cpu()
        tensors[KEPT] = kept_mask(tensors[OFFSETS], config.vocab_size)
    return tensors


def _load(
    checkpoint: Checkpoint, names: Mapping[str, str], config: DraftConfig, shared_head: bool
) -> dict[str, Tensor]:
    """Exactly the tensors that the config asks for, by canonical name, checked before any is read."""
    infos: dict[str, TensorInfo] = {name: checkpoint.infos[stored] for name, stored in names.items()}
    floats = {piece: shape for pieces in parameter_pieces(config).values() for piece, shape in pieces}
    if shared_head:
        del floats[HEAD]
    if not config.own_embedding:
        infos.pop(EMBEDDING, None)
    if config.has_map and OFFSETS not in infos:
        raise EyasError(
            "draft.vocab-map",
            f"{OFFSETS} is missing, and the head has {config.draft_vocab_size} rows for {config.vocab_size} tokens",
            "take the whole checkpoint from its source again: engines would take draft ids for target ids",
        )
    maps = {OFFSETS: (config.draft_vocab_size,), KEPT: (config.vocab_size,)}
    expected = floats | {name: shape for name, shape in maps.items() if name in infos}
    check_tensors(infos, expected)
    for name in floats:
        if infos[name].dtype not in {stored for stored, _ in DTYPES.values()}:
            raise EyasError(
                "draft.config", f"{name} is stored as {infos[name].dtype}", "use weights that are not quantised"
            )
    loaded = checkpoint.load([names[name] for name in expected])
    tensors = {name: loaded[names[name]] for name in expected}
    for name in floats:
        _check_finite(name, tensors[name])
    if OFFSETS in tensors:
        check_offsets(tensors[OFFSETS], config.vocab_size)
    if KEPT in tensors:
        check_kept(tensors[KEPT], tensors.get(OFFSETS), config.vocab_size)
    return tensors


def _check_finite(name: str, value: Tensor) -> None:
    if not bool(value.isfinite().all()):
        cause = f"the draft's {name} holds NaN or infinity as {str(value.dtype).removeprefix('torch.')}"
        raise EyasError("model.nonfinite", cause, "use bf16 or fp32 instead of fp16, or an earlier checkpoint")


def _same_embedding(checkpoint: Checkpoint, name: str, target: Target) -> bool:
    """A stored embedding that is the target's own is only a copy, and the target's serves."""
    embedding = target.embedding()
    if checkpoint.infos[name].shape != tuple(embedding.shape):
        return False
    stored = checkpoint.load([name])[name]
    return torch.equal(stored.to(embedding.device, embedding.dtype), embedding)


def _check_shared_head(config: DraftConfig, target: Target) -> None:
    if config.hidden_size != target.hidden_size:
        raise EyasError(
            "draft.config",
            f"draft_vocab_size is null, but the target's head reads {target.hidden_size} elements, not"
            f" {config.hidden_size}",
            "store the draft's own head and write its draft_vocab_size",
        )
