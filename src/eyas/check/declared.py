"""Layer ids as each engine version reads them, against what the draft was trained on as far as its files say."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from eyas.check.findings import Finding, Weight
from eyas.contract import Contract, TargetSizes, validate_taps
from eyas.dialects.checkpoint import LOOSE_KEY, captured_by, read_by
from eyas.dialects.engines import Engine
from eyas.dialects.taps import capturable
from eyas.draft.entries import nested_entry, own_entry
from eyas.errors import EyasError

_FIX = "`eyas check DRAFT --fix OUT` writes the ids that each engine needs"


@dataclass(frozen=True)
class Capture:
    """What one engine version captures for this config: ``taps``, or None and ``error``. ``given``: the key and ids
    that it reads; empty where it takes its default.
    """

    engine: Engine
    taps: tuple[int, ...] | None
    given: str = ""
    error: EyasError | None = None


@dataclass(frozen=True)
class Layers:
    """``taps``: those that the draft was trained on, in the feature's order, or None where its files leave it open ·
    ``promised``: they are named by contract.json or by our own entry.
    """

    taps: tuple[int, ...] | None
    promised: bool
    captures: tuple[Capture, ...]
    findings: tuple[Finding, ...]


def check_layers(
    document: Mapping[str, Any],
    sizes: TargetSizes,
    engines: Sequence[Engine],
    contract: Contract | None,
    fc_taps: int | None,
) -> Layers:
    """Examine the layer ids of a config in the engines' layout. ``fc_taps``: how many taps fc.weight reads."""
    captures = tuple(_capture(document, sizes, engine) for engine in engines)
    findings = [_failed(capture) for capture in captures if capture.error is not None]
    promised, found = _promised(document, sizes, contract)
    findings += found
    if promised is None:
        taps, found = _unpromised(document, captures, fc_taps)
        return Layers(taps, False, captures, (*findings, *found))
    rising = tuple(sorted(promised))
    if promised != rising:
        said = f"the draft was trained on taps in the order {list(promised)}, and engines concatenate them rising"
        fix = "`eyas check DRAFT --fix OUT` permutes the column blocks of fc.weight"
        findings.append(_fault("taps.order", said, fix, promised=list(promised)))
    for capture in captures:
        findings += _against(capture, rising, sizes)
    return Layers(promised, True, captures, tuple(findings))


def _capture(document: Mapping[str, Any], sizes: TargetSizes, engine: Engine) -> Capture:
    given = ""
    try:
        declared = read_by(document, engine)
        given = "" if declared is None else f"{declared.key} {list(declared.ids)}"
        return Capture(engine, captured_by(document, sizes.num_layers, engine, sizes.architecture), given)
    except EyasError as error:
        return Capture(engine, None, given, error)


def _failed(capture: Capture) -> Finding:
    """An engine whose rules are not known says nothing about the draft; every other failure is the config's."""
    assert capture.error is not None
    unknown = capture.error.code == "dialect.unknown-engine"
    weight: Weight = "note" if unknown else "fault"
    data = {"code": capture.error.code, "engine": str(capture.engine)}
    kind = "engine.unknown" if unknown else "config.dialect"
    return Finding(kind, "static", weight, capture.error.cause, fix=capture.error.fix, data=data)


def _promised(
    document: Mapping[str, Any], sizes: TargetSizes, contract: Contract | None
) -> tuple[tuple[int, ...] | None, list[Finding]]:
    """The taps that the contract names, else our own entry."""
    own: tuple[int, ...] | None = None
    findings = []
    if "taps" in own_entry(document):
        taps = own_entry(document)["taps"]
        try:
            if not all(type(tap) is int for tap in taps):
                raise EyasError("taps.range", f"eyas.taps is {taps!r}, not whole numbers", _FIX)
            own = validate_taps(taps, sizes.num_layers)
        except EyasError as error:
            findings.append(_fault("config.dialect", error.cause, error.fix, code=error.code))
    if contract is not None and own is not None and own != contract.taps:
        said = f"contract.json names taps {list(contract.taps)}, and config.json's own entry {list(own)}"
        findings.append(_fault("contract.other", said, "take both from the same draft"))
    return own if contract is None else contract.taps, findings


def _against(capture: Capture, rising: tuple[int, ...], sizes: TargetSizes) -> list[Finding]:
    """One engine against the taps that it must capture."""
    engine = capture.engine
    if capture.error is not None and capture.error.code == "dialect.unknown-engine":
        return []
    try:
        lowest, highest = capturable(sizes.num_layers, engine, sizes.architecture)
    except EyasError:
        return []  # the failed capture has said it
    outside = [tap for tap in rising if not lowest <= tap <= highest]
    if outside:
        said = f"{engine} cannot capture tap {outside[0]} of {sizes.architecture}, only {lowest} … {highest}"
        fix = "retrain on taps that it can capture, or serve with another engine"
        return [_fault("engine.limit", said, fix, engine=str(engine), limit="taps", taps=outside)]
    if capture.taps is None or (capture.taps == rising and capture.given):
        return []
    if capture.taps == rising:
        said = f"{engine} finds no layer ids and captures its default, taps {list(rising)}, as trained"
        return [Finding("taps.default", "static", "note", said, data={"engine": str(engine)})]
    said = f"taps {list(capture.taps)}, and the draft was trained on {list(rising)}"
    data = {"engine": str(engine), "captured": list(capture.taps), "promised": list(rising)}
    if not capture.given:
        return [_fault("taps.default", f"{engine} finds no layer ids and captures its default, {said}", _FIX, **data)]
    return [_fault("config.dialect", f"{engine} reads {capture.given} as {said}", _FIX, **data)]


def _unpromised(
    document: Mapping[str, Any], captures: Sequence[Capture], fc_taps: int | None
) -> tuple[tuple[int, ...] | None, list[Finding]]:
    """Without a promise the ids themselves are the only word: the engines must read the same from them."""
    named = {capture.taps for capture in captures if capture.taps is not None and capture.given}
    if len(named) > 1:
        sides = [f"{c.engine} reads {c.given} as taps {list(c.taps)}" for c in captures if c.taps and c.given]
        said, fix = "; ".join(sides), "ask whoever trained it which is right, or let `--target` find it"
        return None, [_fault("config.dialect", said, fix)]
    taps = next(iter(named), None)
    defaults = [c for c in captures if c.taps is not None and not c.given]
    findings = [_default(c, taps, document, fc_taps) for c in defaults if c.taps is not None]
    if taps is not None and fc_taps is not None and len(taps) != fc_taps:
        said = f"the layer ids name {len(taps)} taps, {list(taps)}, and fc.weight reads {fc_taps}"
        findings.append(_fault("config.dialect", said, "write the ids of all taps that the draft was trained on"))
        return None, findings
    if taps is None and defaults and defaults[0].taps is not None and fc_taps in (None, len(defaults[0].taps)):
        taps = defaults[0].taps
    return taps, findings


def _default(
    capture: Capture, named: tuple[int, ...] | None, document: Mapping[str, Any], fc_taps: int | None
) -> Finding:
    """An engine that finds no ids: right, wrong, or not to be told, by what else is known."""
    assert capture.taps is not None
    said = f"{capture.engine} finds no layer ids in config.json and captures its default, taps {list(capture.taps)}"
    data = {"engine": str(capture.engine), "captured": list(capture.taps)}
    loose = document.get(LOOSE_KEY) or nested_entry(document).get(LOOSE_KEY)
    if named is None and loose is not None:
        said += f"; {LOOSE_KEY} {loose!r} is read by no engine"
    if named == capture.taps:
        return Finding("taps.default", "static", "note", f"{said}, as the other engine's ids name them", data=data)
    if named is not None:
        return _fault("taps.default", f"{said}, and the ids for the other engine mean {list(named)}", _FIX, **data)
    if loose is not None or fc_taps not in (None, len(capture.taps)):
        width = "" if fc_taps is None else f"; fc.weight reads {fc_taps} taps"
        return _fault("taps.default", said + width, "name the taps that the draft was trained on", **data)
    said += ", and nothing says whether it was trained on them"
    fix = "`eyas check DRAFT --target T` finds the taps"
    return Finding("taps.default", "static", "warning", said, fix=fix, data=data)


def _fault(kind: str, said: str, fix: str, **data: object) -> Finding:
    return Finding(kind, "static", "fault", said, fix=fix, data=data)
