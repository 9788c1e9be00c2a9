"""What lies beside the weights: contract.json, witness.safetensors, and the manifest's hashes."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from eyas.artifacts import MANIFEST, read_manifest, sha256_file
from eyas.check.files import from_error
from eyas.check.findings import Finding
from eyas.contract import Contract, TargetSizes, Witness
from eyas.draft.checkpoint import CONTRACT, WITNESS, check_witness
from eyas.errors import EyasError

HASHED = 1 << 28
"""Bytes up to which a file's hash is compared; of larger ones only the size is."""


@dataclass(frozen=True)
class Beside:
    """``contract``, ``witness``: None where there is none that can be read."""

    contract: Contract | None
    witness: Witness | None
    findings: tuple[Finding, ...]


def read_beside(folder: Path, outside: frozenset[str]) -> Beside:
    """Read what lies beside the weights. ``outside``: names that must not be read."""
    contract, findings = _contract(folder, outside)
    witness, found = _witness(folder, outside, contract)
    return Beside(contract, witness, (*findings, *found, *_changed(folder)))


def compare_targets(contract: Contract | None, given: TargetSizes | None) -> list[Finding]:
    """The contract's target against the one at hand."""
    if contract is None or given is None:
        return []
    return target_findings("contract.json", {n: getattr(contract.target, n) for n in TargetSizes.model_fields}, given)


def target_findings(source: str, named: dict[str, object], given: TargetSizes) -> list[Finding]:
    """A target's sizes as ``source`` names them (those that it names) against the target at hand."""
    wrong = [
        f"{name} {named[name]}, and the target has {getattr(given, name)}"
        for name in TargetSizes.model_fields
        if name in named and named[name] != getattr(given, name)
    ]
    if not wrong:
        return []
    fix = "use the target that the draft was trained for, or a draft of this target"
    return [Finding("target.other", "static", "fault", f"{source} names {'; '.join(wrong)}", fix=fix)]


def _contract(folder: Path, outside: frozenset[str]) -> tuple[Contract | None, list[Finding]]:
    path = folder / CONTRACT
    if CONTRACT in outside:
        return None, []
    if not path.exists():
        said = f"no {CONTRACT}: what the draft was trained for is not known"
        return None, [
            Finding(
                "contract.absent",
                "static",
                "note",
                said,
                fix="ask for it at the draft's source: `eyas train` writes one",
            )
        ]
    try:
        return Contract.read(path), []
    except EyasError as error:
        return None, [from_error("file.cut", error, {"file": CONTRACT})]


def _witness(folder: Path, outside: frozenset[str], contract: Contract | None) -> tuple[Witness | None, list[Finding]]:
    path = folder / WITNESS
    if WITNESS in outside:
        return None, []
    if not path.exists():
        said = f"no {WITNESS}: the draft's own figures cannot be replayed"
        return None, [Finding("witness.absent", "static", "note", said)]
    try:
        witness = Witness.read(path)
    except EyasError as error:
        return None, [from_error("file.cut", error, {"file": WITNESS})]
    try:
        check_witness(witness, (folder / CONTRACT).read_bytes() if contract is not None else None)
        if contract is not None and witness.info.taps != contract.taps:
            sides = f"the witness has taps {list(witness.info.taps)}, and the contract {list(contract.taps)}"
            raise EyasError("contract.mismatch", sides, "take both from the same draft")
    except EyasError as error:
        return None, [from_error("witness.other", error)]
    return witness, []


def _changed(folder: Path) -> list[Finding]:
    """Files that are not as the manifest says. Only a note: edited files are judged by what they hold."""
    if not (folder / MANIFEST).is_file():
        return []
    try:
        records = read_manifest(folder).files
    except EyasError as error:
        return [Finding("file.changed", "static", "note", error.cause, fix=error.fix, data={"code": error.code})]
    changed = []
    for name, record in records.items():
        path = folder / name
        if Path(name).name != name or not path.is_file() or path.is_symlink():
            continue
        size = path.stat().st_size
        if size != record.bytes or (size <= HASHED and sha256_file(path) != record.sha256):
            changed.append(name)
    if not changed:
        return []
    said = f"{', '.join(changed)}: not as {MANIFEST} says, so edited or replaced after the draft was written"
    return [Finding("file.changed", "static", "note", said, data={"files": changed})]
