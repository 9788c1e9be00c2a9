"""The static level of a check: everything that a draft's files show without running anything.

It never stops at the first problem, where strict reading does: all that can be read is looked at.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pydantic import ValidationError
from torch import Tensor

from eyas.check.beside import Beside, compare_targets, read_beside, target_findings
from eyas.check.declared import Capture, Layers, check_layers
from eyas.check.files import Opened, from_error, load_tensors, open_folder
from eyas.check.findings import Finding
from eyas.check.held import Part, TargetTensors, check_limits, check_weights, fc_taps
from eyas.check.keys import Keys, check_keys
from eyas.check.tensors import canonical, same_numbers
from eyas.contract import Contract, TargetSizes, Witness
from eyas.dialects.engines import Engine
from eyas.dialects.speculators import is_speculators, plain_document
from eyas.draft.config import DraftConfig
from eyas.draft.entries import own_entry
from eyas.draft.names import EMBEDDING
from eyas.draft.stored import read_stored
from eyas.errors import EyasError

__all__ = ["StaticResult", "TargetTensors", "check_static"]


@dataclass(frozen=True)
class StaticResult:
    """All that the files show.

    ``document``: config.json in the engines' layout, as stored · ``config``: what was probably meant, with mended keys;
    None where too little is left · ``taps``: those trained on, None where the files leave them open (``config`` then
    has stand-ins) · ``captures``: per engine · ``tensors``: by canonical name, aliases understood, d2t as stored ·
    ``names``: canonical name → name in the file · ``offsets``: d2t that the head's rows tell, where the stored one is
    not that · ``sizes``: of the target, as given or as the draft says · ``own_embedding``: one is stored and is not
    the target's · ``strict``: why strict reading refuses the folder, None
    where it does not.
    """

    folder: Path
    findings: tuple[Finding, ...]
    document: Mapping[str, Any]
    config: DraftConfig | None
    taps: tuple[int, ...] | None
    captures: tuple[Capture, ...]
    tensors: Mapping[str, Tensor]
    names: Mapping[str, str]
    offsets: Tensor | None
    contract: Contract | None
    witness: Witness | None
    sizes: TargetSizes | None
    own_embedding: bool
    strict: EyasError | None

    @property
    def faults(self) -> tuple[Finding, ...]:
        """Findings that are faults."""
        return tuple(finding for finding in self.findings if finding.weight == "fault")


def check_static(
    folder: Path,
    target: TargetSizes | None = None,
    engines: Sequence[Engine] | None = None,
    own: TargetTensors | None = None,
) -> StaticResult:
    """Look at the draft in ``folder``: files, tensors, map, config, layer ids, engines' limits, contract, witness.

    ``engines``: those that are to serve it, by default the newest SGLang and vLLM known. ``target``: sizes of the
    target; left out, those that the draft's own files name. Raises nothing for what the files hold.
    """
    served = tuple(engines or (Engine.parse("sglang"), Engine.parse("vllm")))
    own = own or TargetTensors()
    opened = open_folder(folder)
    beside = read_beside(folder, opened.outside) if folder.is_dir() else Beside(None, None, ())
    document, plain_findings = _plain(opened)
    names, name_findings = canonical(opened.checkpoint.infos)
    shapes = {name: opened.checkpoint.infos[file].shape for name, file in names.items()}
    findings = [*opened.findings, *beside.findings, *plain_findings, *name_findings]
    keys = check_keys(document, shapes, target.vocab_size if target else None, beside.contract) if document else None
    sizes, found = _target(keys, target, beside.contract)
    findings += [*(keys.findings if keys else ()), *found]
    speculators = opened.document is not None and is_speculators(opened.document)
    layers = Layers(None, False, (), ())
    if keys is not None and keys.readable and sizes is not None:
        readers = [engine for engine in served if not (speculators and engine.name == "sglang")]
        layers = check_layers(keys.document, sizes, readers, beside.contract, fc_taps(shapes, sizes))
        findings += layers.findings
    loaded, found = load_tensors(opened.checkpoint)
    findings += found
    part = Part(opened, document, keys, sizes, layers, names, loaded)
    weights = check_weights(part, own, beside.contract)
    findings += weights.findings
    if keys is not None:
        findings += check_limits(part, weights.config, served, speculators)
    return StaticResult(
        folder=folder,
        findings=tuple(_merged(findings)),
        document=document,
        config=weights.config,
        taps=layers.taps,
        captures=layers.captures,
        tensors=weights.tensors,
        names=weights.names,
        offsets=weights.offsets,
        contract=beside.contract,
        witness=beside.witness,
        sizes=sizes,
        own_embedding=EMBEDDING in weights.names and not weights.copied,
        strict=_strict(folder, sizes, own, findings),
    )


def _plain(opened: Opened) -> tuple[dict[str, Any], list[Finding]]:
    """config.json in the engines' layout; empty where there is none."""
    if opened.document is None or not is_speculators(opened.document):
        return opened.document or {}, []
    try:
        return plain_document(opened.document), []
    except EyasError as error:
        return {}, [from_error("config.dialect", error)]


def _target(
    keys: Keys | None, given: TargetSizes | None, contract: Contract | None
) -> tuple[TargetSizes | None, list[Finding]]:
    """(sizes to check against, findings). Where the draft names another target, its own word is taken for the rest."""
    promised = None
    if contract is not None:
        promised = TargetSizes(**{name: getattr(contract.target, name) for name in TargetSizes.model_fields})
    stated = {} if keys is None or not keys.readable else _stated(keys.document)
    basis = given or promised
    findings = compare_targets(contract, given)
    if basis is not None and not findings:
        findings = target_findings("config.json", stated, basis)
        if not findings or given is not None or keys is None:
            return (_sizes(stated) if findings else basis), findings
        # Without a target at hand it is the contract that is of another draft.
        said = findings[0].said.replace("the target", "contract.json's target")
        return _sizes(stated), [replace(findings[0], kind="contract.other", said=said)]
    if findings and given is not None:
        assert promised is not None
        if target_findings("config.json", stated, promised) and not target_findings("config.json", stated, given):
            return given, [replace(findings[0], kind="contract.other")]
        return promised, findings
    sizes = _sizes(stated)
    if sizes is None and keys is not None and keys.readable:
        said = "how deep the target is, and of which architecture, is not known: layer ids cannot be checked"
        findings = [Finding("engine.unknown", "static", "note", said, fix="name the target with --target")]
    return sizes, findings


def _stated(document: Mapping[str, Any]) -> dict[str, object]:
    entry = own_entry(document)
    named = {
        "architecture": entry.get("target_architecture"),
        "num_layers": entry.get("target_num_layers"),
        "hidden_size": document.get("target_hidden_size", document.get("hidden_size")),
        "vocab_size": document.get("vocab_size"),
    }
    return {name: value for name, value in named.items() if value is not None}


def _sizes(stated: Mapping[str, object]) -> TargetSizes | None:
    try:
        return TargetSizes.model_validate(stated)
    except ValidationError:
        return None


def _merged(findings: Sequence[Finding]) -> list[Finding]:
    """Each thing once, where two looks at the files came upon it."""
    kept: dict[tuple[str, str], Finding] = {}
    for finding in findings:
        kept.setdefault((finding.kind, finding.said), finding)
    return list(kept.values())


def _strict(
    folder: Path, sizes: TargetSizes | None, own: TargetTensors, findings: Sequence[Finding]
) -> EyasError | None:
    """Why strict reading refuses the folder. Files that are not whole are not read a second time."""
    for finding in findings:
        if finding.kind.startswith("file.") and finding.weight == "fault":
            code = finding.data.get("code", "artifact.corrupt")
            return EyasError(code, finding.said, finding.fix)
    if sizes is None:
        return EyasError("draft.config", "which target the draft was made for is not known", "name the target")

    def is_copy(stored: Tensor) -> bool:
        return own.embedding is None or same_numbers(stored, own.embedding)

    try:
        read_stored(folder, sizes, is_copy)
    except EyasError as error:
        return error
    return None
