"""``--fix``: the corrected draft written with a contract and a witness, checked again, and said."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from torch import Tensor

from eyas.check.findings import Finding, Verdict
from eyas.check.forced import Text
from eyas.check.meant import model_of
from eyas.check.measure import Rig
from eyas.check.mend import Known, Parts
from eyas.check.promise import PROMPT_SET, measured_contract, measured_witness
from eyas.check.readings import map_of
from eyas.check.repair import Corrected, repair, write_repaired
from eyas.check.search import SearchResult
from eyas.check.static import StaticResult
from eyas.contract import Contract, ContractFacts, Witness, enforce
from eyas.dialects.engines import Engine
from eyas.draft.checkpoint import config_facts
from eyas.draft.names import OFFSETS
from eyas.engine.session import Session
from eyas.errors import EyasError

MENDED = frozenset(
    (
        "taps.wrong",
        "taps.order",
        "rope.base",
        "rope.scaling",
        "norm.output",
        "norm.residual",
        "map.absolute",
        "map.wrong",
    )
)
"""Kinds that a search finds and a repair mends."""


@dataclass(frozen=True)
class Ground:
    """What a check measured on: the target's session and folder, conversations and their texts. ``prompts``: the file
    that they are from, None for the packaged ones.
    """

    session: Session
    folder: Path
    conversations: Sequence[tuple[list[int], list[int]]]
    texts: Sequence[Text]
    prompts: Path | None


@dataclass(frozen=True)
class Mending:
    """``source`` becomes ``out``, so far as is known. ``left``: faults besides that need training · ``ground`` None: it
    was not run, so nothing is promised.
    """

    source: Path
    out: Path
    engines: tuple[Engine, ...]
    num_steps: int
    static: StaticResult
    search: SearchResult | None
    rotation: Tensor | None
    left: tuple[str, ...]
    ground: Ground | None


def mend(mending: Mending, verdict: Verdict, check_again: Callable[[Path], Verdict]) -> Verdict:
    """The verdict with what was written and what a second check says of it, or why nothing was written."""
    try:
        told = replace(known(mending.search, mending.static.tensors.get(OFFSETS)), rotation=mending.rotation)
        corrected = repair(mending.static, told, mending.engines or None)
        corrected = replace(corrected, left=(*corrected.left, *mending.left, *unmended(mending.search)))
        contract, witness = _promise(mending, corrected)
        write_repaired(mending.source, mending.out, corrected, contract, witness)
    except EyasError as error:
        finding = Finding("repair.impossible", "static", "warning", error.cause, fix=error.fix)
        return replace(verdict, findings=(*verdict.findings, finding))
    again = check_again(mending.out)
    served = ", ".join(f"{one.engine}: {'yes' if one.serves else one.why}" for one in corrected.servable)
    said = f"{mending.out}: {'; '.join(corrected.notes) or 'nothing to mend'}"
    if contract is not None:
        said += f"; with a contract by {contract.basis}" + (" and a witness" if witness is not None else "")
    finding = Finding(
        "repair.written",
        "static",
        "note",
        said,
        f"checked again: {again.headline}; can be served as trained by {served}",
        data={"again": again.to_json(), "notes": list(corrected.notes), "left": list(corrected.left)},
    )
    return replace(verdict, findings=(*verdict.findings, finding))


def known(search: SearchResult | None, d2t: Tensor | None) -> Known:
    """What the search is sure of, for the repair. ``d2t``: as stored."""
    if search is None or not search.found or search.undecided:
        return Known()
    reading, kinds = search.reading, {kind for h in search.found for kind in h.kinds}
    flags = {"norm_output": reading.norm_output, "norm_before_residual": reading.norm_before_residual}
    return Known(
        taps=reading.taps if kinds & {"taps.wrong", "taps.order"} else None,
        rope=reading.rope if kinds & {"rope.base", "rope.scaling"} else None,
        flags=flags if kinds & {"norm.output", "norm.residual"} else {},
        offsets=map_of(d2t, reading.map) if d2t is not None and kinds & {"map.absolute", "map.wrong"} else None,
    )


def unmended(search: SearchResult | None) -> list[str]:
    """Faults that the search is sure of, and that need other weights."""
    return [] if search is None else [h.name for h in search.found if not MENDED.issuperset(h.kinds)]


def _promise(mending: Mending, corrected: Corrected) -> tuple[Contract | None, Witness | None]:
    """The source's own contract where the corrected draft keeps it, else one by measurement, unless there is doubt."""
    own, ground = mending.static.contract, mending.ground
    if own is not None and mending.rotation is None and _keeps(own, corrected):
        return own, None
    if ground is None or corrected.left or (mending.search is not None and mending.search.undecided):
        return None, None
    target = ground.session.target
    model = model_of(Parts(corrected.config, corrected.tensors), target)
    name = PROMPT_SET if ground.prompts is None else ground.prompts.stem
    rig = Rig(model, target, ground.texts)
    contract = measured_contract(ground.session, ground.folder, rig, mending.num_steps, name)
    if ground.prompts is not None:  # whose licence is not known: a witness is given away with its draft
        return contract, None
    return contract, measured_witness(ground.session, ground.folder, model, contract, ground.conversations)


def _keeps(contract: Contract, corrected: Corrected) -> bool:
    facts = ContractFacts(**config_facts(corrected.config, corrected.tensors.get(OFFSETS)))
    try:
        enforce(contract, facts)
    except EyasError:
        return False
    return True
