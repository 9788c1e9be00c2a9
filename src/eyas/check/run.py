"""``eyas check``: the levels in order, from the files to a running server, and what they say together."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

from torch import Tensor

from eyas.check import evidence
from eyas.check.acceptance import compared_with_engine, survival_of
from eyas.check.conclude import conclude
from eyas.check.findings import Finding, Level, Link, Ranked, State, Survival, Verdict
from eyas.check.flags import check_flags, engine_of
from eyas.check.forced import Text
from eyas.check.held import TargetTensors
from eyas.check.hypotheses import rope_of
from eyas.check.meant import meant_parts, model_of
from eyas.check.measure import Rig
from eyas.check.mend import Parts, with_rotation
from eyas.check.mending import Ground, Mending, mend
from eyas.check.original import against_original, refuse_other_shape
from eyas.check.outside import Asked, judge_server, look
from eyas.check.readings import declared
from eyas.check.replay import Replay, replay
from eyas.check.search import PART, Search, SearchResult
from eyas.check.static import StaticResult, check_static
from eyas.check.template import template_of_server
from eyas.contract import Contract
from eyas.corpus.identity import check_identity
from eyas.dialects.engines import Engine
from eyas.dialects.flags import Resolution
from eyas.dialects.launch import parse_launch
from eyas.draft.checkpoint import target_shape
from eyas.draft.model import DraftModel
from eyas.draft.names import HEAD
from eyas.engine.session import Session, facts_of, open_session
from eyas.errors import EyasError
from eyas.models.target import Target

UNREADABLE = frozenset(
    ("weights.random", "weights.missing", "weights.shape", "weights.nonfinite", "map.absent", "map.wrong", "map.short")
)
"""Faults with which the draft's proposals are noise unless they can be mended: anything would seem to explain more."""


@dataclass(frozen=True)
class CheckRequest:
    """What is to be checked. ``original``: the target that ``target`` was made from, which the draft was trained for ·
    ``flags``: a launch command or its speculative part; ``engines``: those that are to serve
    it; ``endpoint``, ``observed``: a running server, or a file of what it said; ``fix``: where a repaired draft goes.
    """

    draft: Path
    target: Path | None
    original: Path | None = None
    prompts: Path | None = None
    flags: str | None = None
    engines: tuple[Engine, ...] = ()
    endpoint: str | None = None
    observed: Path | None = None
    fix: Path | None = None
    num_steps: int = 3
    num_prompts: int = evidence.NUM_PROMPTS
    dtype: str = "fp32"
    backend: str = "auto"
    device: str = "cpu"


@dataclass
class Progress:
    """What the levels have found so far."""

    request: CheckRequest
    note: Callable[[str], None]
    links: list[Link] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)
    seconds: dict[str, float] = field(default_factory=dict)
    static: StaticResult | None = None
    replay: Replay | None = None
    search: SearchResult | None = None
    survival: Survival | None = None
    ground: Ground | None = None
    rotation: Tensor | None = None
    left: tuple[str, ...] = ()
    ceiling: int | None = None
    runs: Resolution | None = None
    outside: list[Ranked] = field(default_factory=list)

    @property
    def engines(self) -> tuple[Engine, ...]:
        """Those that are to serve it: as asked, or the one that the launch command starts."""
        request = self.request
        if request.engines or request.flags is None:
            return request.engines
        return (engine_of(parse_launch(request.flags)),)

    @contextmanager
    def level(self, name: Level) -> Iterator[None]:
        """Time a level and say that it runs."""
        self.note(name)
        begin = time.monotonic()
        yield
        self.seconds[name] = self.seconds.get(name, 0.0) + time.monotonic() - begin

    def skip(self, name: str, level: Level, why: str) -> None:
        """A link that is not looked at."""
        self.links.append(Link(name, level, "skipped", why))


def run_check(request: CheckRequest, note: Callable[[str], None] = lambda _: None) -> Verdict:
    """Check a draft level by level; every fault is a finding, not an error.

    Raises ``model.…`` for a target that cannot be loaded, ``prompts.…``, ``check.too-little``, ``server.…``.
    """
    state = Progress(request, note)
    _run(state)
    verdict = conclude(state)
    if request.fix is None:
        return verdict
    assert state.static is not None

    def check_again(folder: Path) -> Verdict:
        # What runs, and how, is about the draft as it was.
        return run_check(
            replace(request, draft=folder, original=None, fix=None, flags=None, endpoint=None, observed=None), note
        )

    mending = Mending(
        source=request.draft,
        out=request.fix,
        engines=request.engines,
        num_steps=request.num_steps,
        static=state.static,
        search=state.search,
        rotation=state.rotation,
        left=state.left,
        ground=state.ground,
    )
    return mend(mending, verdict, check_again)


def _run(state: Progress) -> None:
    request, session = state.request, None
    if request.target is not None:
        with state.level("target"):
            session = open_session(request.target, None, request.dtype, request.backend, request.device)
    with state.level("static"):
        _static(state, session.target if session else None)
    if request.flags is not None:
        with state.level("flags"):
            _flags(state, session.target.architecture if session else None)
    if session is None:
        state.skip("target", "target", "no --target: only the files were checked")
        return
    parts = meant_parts(state.static, session.target) if state.static else None
    if parts is None:
        state.skip("draft", "draft", "the files do not make a whole draft")
        _skip_server(state, "there is no whole draft to compare it with")
        return
    _run_levels(state, session, parts)


def _static(state: Progress, target: Target | None) -> None:
    sizes, own = None, None
    if target is not None:
        shape = target_shape(target)
        sizes, own = shape, TargetTensors(embedding=target.embedding(), head=target.head())
    result = check_static(state.request.draft, sizes, state.engines or None, own)
    state.static = result
    findings = result.findings
    if not state.engines:
        # What an engine cannot do is a fault only of a draft that is to be served there.
        findings = tuple(replace(f, weight="warning") if f.kind == "engine.limit" else f for f in findings)
    state.findings += findings
    broken = [f for f in findings if f.weight == "fault"]
    said = f"{len(result.tensors)} tensors" if not broken else f"{len(broken)} faults"
    whole: State = "sound" if result.contract is None else "proven"
    state.links.append(Link("files", "static", "broken" if broken else whole, said))


def _flags(state: Progress, architecture: str | None) -> None:
    assert state.static is not None
    assert state.request.flags is not None
    named = state.engines[0] if state.engines else None
    sizes = state.static.sizes
    known = architecture or (sizes.architecture if sizes else "LlamaForCausalLM")
    found = check_flags(state.request.flags, named, known, state.static.document)
    state.findings += found.findings
    state.ceiling, state.runs = found.ceiling, found.resolution
    broken = any(f.weight == "fault" for f in found.findings)
    said = f"accept length can be at most {found.ceiling}"
    if found.ceiling is None:
        said = "it would not start" if broken else "they do not say how many drafts a round proposes"
    state.links.append(Link("flags", "flags", "broken" if broken else "proven", said))


def _run_levels(state: Progress, session: Session, parts: Parts) -> None:
    static, target, request = state.static, session.target, state.request
    assert static is not None
    model = model_of(parts, target)
    if not _replayed(state, session, model):
        _skip_server(state, "this target is not the draft's, so nothing can be predicted")
        return
    with state.level("acceptance"):
        rig, conversations = _accepted(state, session, model)
    if request.original is not None:
        with state.level("features"):
            parts = _original(state, request.original, parts, rig)
            model = model_of(parts, target)
    lost = [f for f in static.faults if f.kind in UNREADABLE and not f.data.get("recoverable")]
    hopeless = sorted({f.kind for f in lost})
    if hopeless:
        state.skip("hypotheses", "features", f"nothing can be compared with {' and '.join(hopeless)}")
    elif state.replay is None or state.replay.broken:

        def more() -> list[Text]:
            return evidence.further(session, request.prompts, request.num_prompts)

        with state.level("features"):
            search = Search(Rig(model, target, rig.texts), rope_of(target), state.note, more)
            state.search = search.run(declared(model.config), taps_known=static.taps is not None)
    if request.endpoint is not None or request.observed is not None:
        with state.level("endpoint"):
            _endpoint(state, rig, conversations)
    if request.endpoint is not None:
        with state.level("endpoint"):
            rendering = None if static.contract is None else static.contract.rendering
            seen = template_of_server(request.endpoint, session.tokenizer, evidence.packaged_prompts(), rendering)
        state.links.append(seen.link)
        state.findings += [] if seen.finding is None else [seen.finding]


def _replayed(state: Progress, session: Session, model: DraftModel) -> bool:
    """Replay the witness, if there is one and it can tell anything; False: this is another target than the draft's."""
    static, request = state.static, state.request
    assert static is not None
    # What an engine cannot do leaves the files whole.
    faults = [finding for finding in static.faults if finding.kind != "engine.limit"]
    if static.witness is None or static.contract is None or faults:
        why = "no witness beside the draft" if static.witness is None else "the files have faults"
        state.skip("witness", "draft", why)
        return True
    with state.level("draft"):
        found = replay(static.witness, session.target, model)
        features, kept = static.contract.features, session.target.backend.quantisation
        others = request.dtype != "fp32" or kept != features.quantisation
        numerics = found.broken and others and _has_weights_of(session, request, static.contract)
    if numerics:
        state.skip("witness", "draft", f"the target's weights run in {request.dtype}, and not as for the witness")
        return True
    state.replay = found
    state.links += found.links
    state.findings += found.findings
    return not any(link.level == "target" and link.state == "broken" for link in found.links)


def _accepted(state: Progress, session: Session, model: DraftModel) -> tuple[Rig, list[tuple[list[int], list[int]]]]:
    """The draft over the target's own conversations, and what it accepts of them."""
    static, target, request = state.static, session.target, state.request
    assert static is not None
    assert request.target is not None
    texts = evidence.texts_of(session, request.prompts, request.num_prompts)
    conversations = [text.conversation for text in texts]
    state.links.append(_identity(target, texts[0], static.config.taps if static.config else ()))
    rig = Rig(model, target, texts)
    state.ground = Ground(session, request.target, conversations, texts, request.prompts)
    predicted = rig.acceptance(declared(model.config), request.num_steps)
    if not predicted.num_rounds:
        cause = "every answer ends within its first round, so that nothing can be said of accept lengths"
        raise EyasError("check.too-little", cause, "give prompts with longer answers with --prompts")
    state.survival = survival_of(predicted, static.contract, request.num_steps)
    if state.replay is not None and not state.replay.broken:
        state.links.append(compared_with_engine(session, rig, conversations[:PART], request.num_steps))
    return rig, conversations


def _has_weights_of(session: Session, request: CheckRequest, contract: Contract) -> bool:
    """Whether the target is the contract's, so that other tokens and states come from how it is run."""
    assert request.target is not None
    return facts_of(request.target, session.tokenizer).weights_sha256 == contract.target.weights_sha256


def _original(state: Progress, folder: Path, parts: Parts, rig: Rig) -> Parts:
    """The draft as it must be for the served target, if that is its original one turned."""
    request = state.request
    session = open_session(folder, None, request.dtype, request.backend, request.device)
    refuse_other_shape(session.target, rig.target)
    texts = evidence.texts_of(session, request.prompts, request.num_prompts)
    own_head = state.static is not None and HEAD in state.static.tensors
    found = against_original(parts, own_head, rig, session.target, texts, request.num_steps)
    state.findings += found.findings
    state.rotation, state.left = found.rotation, found.left
    if found.rotation is not None:  # every tap is another vector then, as a witness shows
        state.findings = [one for one in state.findings if one.kind != "features.other"]
    whole: State = "broken" if found.findings else "sound"
    words = found.findings[0].said if found.findings else "the draft does no better with it"
    state.links.append(Link("original target", "features", whole, words))
    return parts if found.rotation is None else with_rotation(parts, found.rotation)


def _identity(target: Target, text: Text, taps: Sequence[int]) -> Link:
    """Whether what Eyas captures is what it is called. Raises ``features.…``, ``model.nonfinite``."""
    seen = check_identity(target, text.tokens.tolist(), taps)
    said = f"head(norm(tap {target.num_layers})) is the target's own to {seen.error:.0e} nats"
    return Link("last tap", "target", "proven", said)


def _skip_server(state: Progress, why: str) -> None:
    if state.request.endpoint is not None or state.request.observed is not None:
        state.skip("server", "endpoint", why)


def _endpoint(state: Progress, rig: Rig, conversations: Sequence[tuple[list[int], list[int]]]) -> None:
    request, answers = state.request, [answer for _, answer in conversations]
    longest = max(len(answer) for answer in answers)
    seen = look(request.endpoint, request.observed, [prompt for prompt, _ in conversations], longest)
    trained = state.search.reading if state.search and not state.search.undecided else None
    asked = Asked(request.num_steps, state.runs, state.ceiling, trained)
    findings, link, state.outside = judge_server(seen, rig, answers, asked)
    state.findings += findings
    state.links.append(link)
