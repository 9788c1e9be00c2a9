"""Draft checkpoints: one folder that SGLang, vLLM and Eyas read alike.

    config.json           ``eyas.draft.layout``
    model.safetensors     ``eyas.draft.names``; d2t (offsets, int64) and t2d (bool) only for a reduced vocabulary
    contract.json         what the draft was trained for, if known; enforced on loading
    witness.safetensors   what must come out of draft and target, if known: ``eyas.contract.witness``
    README.md, …          the model card and its pictures, if given
    manifest.json         hashes, written last

``embed_tokens.weight`` is stored only if the draft's embedding is its own, because SGLang replaces it whenever the
widths agree. The head is always stored. Folders of other trainers are read by the same function.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from eyas.artifacts import build_folder
from eyas.contract import (
    Contract,
    ContractFacts,
    RopeOptions,
    TargetShape,
    Witness,
    enforce,
    sha256_hex,
    vocab_map_sha256,
)
from eyas.dialects.engines import Engine
from eyas.draft.config import DraftConfig, LayerDialect
from eyas.draft.layout import norm_options, refuse_for, to_json
from eyas.draft.model import DraftModel
from eyas.draft.names import HEAD, KEPT, OFFSETS, parameter_pieces
from eyas.draft.stored import DTYPES, check_finite, read_stored, write_stored
from eyas.draft.vocab import check_offsets, kept_mask
from eyas.errors import EyasError
from eyas.kernels import get_backend
from eyas.models.target import Target
from eyas.models.weights.safetensors import open_checkpoint

CONTRACT, WITNESS = "contract.json", "witness.safetensors"


def write_draft(
    folder: Path,
    model: DraftModel,
    target_architecture: str,
    contract: Contract | None = None,
    dtype: torch.dtype = torch.bfloat16,
    engines: Sequence[Engine] | None = None,
    witness: Witness | None = None,
    files: Mapping[str, bytes] | None = None,
) -> None:
    """Write ``folder`` at once or not at all; an older one is replaced. One writer at a time.

    ``model``: not packed. ``engines``: those that must serve it as trained, by default the newest SGLang and vLLM
    known. ``witness``: of this very contract. ``files``: more files by name, such as the model card. Raises
    ``draft.dialect`` if an engine cannot, ``draft.vocab-map``, ``contract.mismatch`` if the contract is of another
    draft or the witness of another contract, ``model.nonfinite`` for weights that are not finite as ``dtype``.
    """
    config = model.config
    assert not model.packed, "packed weights are the backend's: write the draft that was trained"
    served = engines or (Engine.parse("sglang"), Engine.parse("vllm"))
    refuse_for(config, served)
    document = to_json(config, target_architecture, served, DTYPES[dtype][1])
    if config.has_map:
        check_offsets(model.d2t.cpu(), config.vocab_size)
    beside = dict(files or {})
    assert not beside.keys() & {CONTRACT, WITNESS}, beside.keys()
    if contract is not None:
        enforce(contract, draft_facts(model))
        beside[CONTRACT] = contract.to_json().encode()
    if witness is not None:
        check_witness(witness, beside.get(CONTRACT))
        beside[WITNESS] = witness.to_bytes()
    tensors = _stored(model, dtype)
    with build_folder(folder, "draft", folder.name, f"a draft of {target_architecture}") as made:
        write_stored(made.path, document, tensors, beside)


def check_witness(witness: Witness, contract: bytes | None) -> None:
    """Raise ``contract.mismatch`` unless the witness belongs to the contract with these bytes."""
    actual = None if contract is None else sha256_hex(contract)
    if actual != witness.info.contract_sha256:
        cause = f"the witness belongs to the contract {witness.info.contract_sha256}, and this one is {actual}"
        raise EyasError("contract.mismatch", cause, "take contract.json and witness.safetensors from the same draft")


def read_witness(folder: Path) -> Witness:
    """The witness in a draft's folder. Raises ``artifact.…``, ``witness.schema``, and ``contract.mismatch`` where it
    is not of the contract beside it.
    """
    witness = Witness.read(folder / WITNESS)
    contract = folder / CONTRACT
    check_witness(witness, contract.read_bytes() if contract.is_file() else None)
    return witness


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
    embedding = target.embedding()

    def is_targets(stored: Tensor) -> bool:
        return torch.equal(stored.to(embedding.device, embedding.dtype), embedding)

    stored = read_stored(folder, target_shape(target), is_targets, layer_dialect)
    config, notes, tensors = stored.config, stored.notes, stored.tensors
    if not config.own_embedding:
        notes += ("the embedding is the target's",)
    if stored.shared_head:
        _check_shared_head(config, target)
        tensors[HEAD] = target.head()
        notes += ("draft_vocab_size is null: the head is the target's",)
    model = assemble(config, tensors, target, backend, dtype)
    model.notes = notes
    return model


def assemble(
    config: DraftConfig, tensors: Mapping[str, Tensor], target: Target, backend: str, dtype: torch.dtype
) -> DraftModel:
    """The draft of this config with ``tensors`` by canonical name, all there and of the right shape; an embedding that
    is not its own is the target's.
    """
    kernels = get_backend(backend, target.backend.quantization)
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
    same_numbers = get_backend(backend, target.backend.quantization).activation_dtype(torch.bfloat16) == target.dtype
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
    return ContractFacts(**facts | config_facts(config, model.d2t))


def config_facts(config: DraftConfig, d2t: Tensor | None) -> dict[str, Any]:
    """The facts that a draft's config and its map settle, as keywords of ``ContractFacts``."""
    assert not config.has_map or d2t is not None
    return {
        "taps": config.taps,
        "norms": norm_options(config),
        "rope": RopeOptions(theta=config.rope_theta, scaling=config.rope_scaling, partial_rotary_factor=1.0),
        "vocab_map_sha256": vocab_map_sha256(d2t.cpu().numpy()) if config.has_map and d2t is not None else None,
    }


def _stored(model: DraftModel, dtype: torch.dtype) -> dict[str, Tensor]:
    """The file's tensors by name, on the CPU; raises ``model.nonfinite``."""
    config, state = model.config, model.state_dict()
    tensors: dict[str, Tensor] = {}
    for name, pieces in parameter_pieces(config).items():
        value = state[name].detach().to("cpu", dtype)
        check_finite(name, value)
        parts = value.split([shape[0] for _, shape in pieces])
        for (piece, shape), part in zip(pieces, parts, strict=True):
            assert tuple(part.shape) == shape, (piece, part.shape)
            tensors[piece] = part
    if config.has_map:
        tensors[OFFSETS] = model.d2t.cpu()
        tensors[KEPT] = kept_mask(tensors[OFFSETS], config.vocab_size)
    return tensors


def _check_shared_head(config: DraftConfig, target: Target) -> None:
    if config.hidden_size != target.hidden_size:
        raise EyasError(
            "draft.config",
            f"draft_vocab_size is null, but the target's head reads {target.hidden_size} elements, not"
            f" {config.hidden_size}",
            "store the draft's own head and write its draft_vocab_size",
        )
