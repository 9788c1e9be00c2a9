"""From what the levels found to one answer: the fault, one of a few, too little training, or nothing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from eyas.check.acceptance import ACCEPT_LENGTH
from eyas.check.catalogue import KINDS
from eyas.check.findings import Answer, Finding, Link, Ranked, State, Survival, Verdict, Weight
from eyas.check.hypotheses import Hypothesis
from eyas.check.replay import Replay
from eyas.check.search import SURE, SearchResult
from eyas.check.static import StaticResult

POOR_FIRST = 0.5
"""survival_1 below which a draft without a fault is undertrained: published EAGLE-3 drafts have .7 and more."""


class Found(Protocol):
    """What :func:`conclude` reads of the levels' results."""

    links: list[Link]
    findings: list[Finding]
    seconds: dict[str, float]
    static: StaticResult | None
    replay: Replay | None
    search: SearchResult | None
    survival: Survival | None
    outside: list[Ranked]


def conclude(state: Found) -> Verdict:
    """The verdict over everything that was found."""
    search, static = state.search, state.static
    if search is not None:
        state.findings += _explained(search)
        state.links.append(_link(search))
    faults = [finding for finding in state.findings if finding.weight == "fault"]
    rivals = search.rivals if search else []
    answer, headline = _answer(state, faults, rivals)
    response = search.taps.response if search and search.taps else ()
    return Verdict(
        answer=answer,
        headline=headline,
        links=tuple(state.links),
        findings=tuple(state.findings),
        ranking=tuple(state.outside or (search.ranking if search else ())),
        between=tuple(h.name for h in (search.doubted, *rivals) if h) if search and rivals else (),
        deciding=_deciding(rivals),
        survival=state.survival,
        taps=response,
        declared_taps=static.config.taps if static and static.config else (),
        draft="" if static is None else str(static.folder),
        target="" if static is None or static.sizes is None else static.sizes.architecture,
        seconds=dict(state.seconds),
    )


def _explained(search: SearchResult) -> list[Finding]:
    """One finding for each fault that the search is sure of, and a warning for one that it is nearly sure of."""
    findings = []
    for h, (gain, z) in zip(search.found, search.gains, strict=True):
        kind = h.kinds[0]
        evidence = f"{gain:+.3f} nats a position, z {z:.1f}, over what the files declare"
        data = {"reading": h.name, "taps": list(h.reading.taps), "gain": gain, "z": z}
        if h is search.doubted:
            data["as_good"] = [list(rival.reading.taps) for rival in search.rivals]
        said = f"{KINDS[kind].title}: {_named(h, search)}"
        weight: Weight = "warning" if h is search.doubted and search.undecided else "fault"
        findings.append(Finding(kind, "features", weight, said, evidence, KINDS[kind].fix, data))
    if search.doubted is not None and search.doubted not in search.found:
        kind = search.doubted.kinds[0]
        said = f"{KINDS[kind].title}, perhaps: {search.doubted.name}"
        z = next(one.z for one in search.ranking if one.name == search.doubted.name)
        evidence = f"better than what the files declare by {z:.1f} standard errors, where {SURE:g} would be sure"
        findings.append(Finding(kind, "features", "warning", said, evidence, KINDS[kind].fix))
    return findings


def _named(h: Hypothesis, search: SearchResult) -> str:
    """The hypothesis, with the taps that would do as well."""
    if h is not search.doubted or search.undecided:
        return h.name
    readings = [h.reading.taps, *(rival.reading.taps for rival in search.rivals)]
    slots = [sorted({taps[j] for taps in readings}) for j in range(len(h.reading.taps))]
    open_slots = [f"{' or '.join(map(str, taps))} in slot {j + 1}" for j, taps in enumerate(slots) if len(taps) > 1]
    return f"{h.name}, as far as can be told: {', '.join(open_slots)} explain{'s' * (len(open_slots) == 1)} it as well"


def _link(search: SearchResult) -> Link:
    if search.doubted is not None and not search.found:
        said = f"{search.doubted.name}, or {search.rivals[0].name}"
        return Link("hypotheses", "features", "unknown", said)
    if not search.found:
        return Link("hypotheses", "features", "sound", f"none of {len(search.ranking)} others is better")
    state: State = "unknown" if search.undecided else "broken"
    return Link("hypotheses", "features", state, "; ".join(_named(h, search) for h in search.found))


def _answer(state: Found, faults: Sequence[Finding], rivals: Sequence[Hypothesis]) -> tuple[Answer, str]:
    search, survival = state.search, state.survival
    if search is not None and search.found and not search.undecided:
        names = [_named(h, search) for h in search.found]
        names += [f.said for f in faults if "reading" not in f.data]
        return "fault", f"the fault is: {names[0]}" if len(names) == 1 else f"the faults are: {'; '.join(names)}"
    either = ""
    if search is not None and search.doubted is not None and search.undecided:
        either = f"either {search.doubted.name}, or {' or '.join(h.name for h in rivals)}"
        if not faults:
            return "undecided", either
    if faults:
        said = "; ".join(f.said for f in faults)
        besides = f"; besides, {either}" if either else ""
        return "fault", f"the fault{' is' if len(faults) == 1 else 's are'}: {said}{besides}"
    if unexplained := [f.said for f in state.findings if f.kind == "endpoint.unexplained"]:
        return "undecided", unexplained[0]
    if state.replay is not None and not state.replay.broken:
        shown = [link for link in state.links if link.name == ACCEPT_LENGTH]
        if all(link.state == "proven" for link in shown):
            return "proven", "proven: target, taps, proposals and accepted counts are those that its contract promises"
        return "undecided", f"the witness is replayed, and the engine accepts otherwise than predicted: {shown[0].said}"
    if survival is None:
        return "no-fault-found", "no fault in the files; without the target nothing more can be said"
    if survival.measured[0] < POOR_FIRST:
        said = f"undertrained, not mismatched: accept length {survival.accept_length:.2f} of {survival.num_steps + 1}"
        return "undertrained", f"{said} is what its own accuracy gives"
    said = f"no fault found: accept length {survival.accept_length:.2f} of {survival.num_steps + 1}"
    return "no-fault-found", said


def _deciding(rivals: Sequence[Hypothesis]) -> str:
    if not rivals:
        return ""
    return "more text decides: give --prompts with a hundred prompts like those that it is to serve"
