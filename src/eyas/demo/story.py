"""``eyas demo --story``: a draft trained on other taps than it is fed, from the launch to the repaired checkpoint.

What happens to a team that trained on (embedding, 3, 15) and wrote ids that mean (3, 15, 27): the server is healthy,
the text is right, and only the accept length is low. Every figure is measured in the run that shows it.
"""

from __future__ import annotations

import shlex
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.resources import files
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from torch import Tensor

from eyas.check.evidence import NUM_PROMPTS, packaged_prompts
from eyas.check.findings import Finding, Verdict
from eyas.check.flags import FlagCheck, check_flags
from eyas.check.run import CheckRequest, run_check
from eyas.config import SamplingSettings, SpeculativeSettings
from eyas.demo import story_shown as shown
from eyas.dialects.engines import Engine
from eyas.draft.checkpoint import load_draft, target_shape
from eyas.draft.entries import OWN_KEY
from eyas.draft.layout import refusal_of, to_json
from eyas.draft.model import DraftModel
from eyas.draft.stored import DTYPES, StoredDraft, read_stored, write_stored
from eyas.engine.exactness import first_divergence
from eyas.engine.request import Request
from eyas.engine.session import Session, open_session
from eyas.errors import EyasError
from eyas.generate.decode import decode
from eyas.generate.report import Figures, figures_of

STORY_PROMPTS = 6
STORY_TOKENS = 64
WARM_UP_TOKENS = 4
MENDED = "mended"
ASKED_DRAFT_TOKENS = 16
"""Of the launch: with one step and topk 1."""


@dataclass(frozen=True)
class Story:
    """Who is in it. ``target``: a folder, ``target_name`` as commands name it · ``trained``: the draft as it was
    trained · ``served``: the taps that its makers believe in, and write ids for.
    """

    target: Path
    target_name: str
    trained: Path
    served: tuple[int, ...]


@dataclass(frozen=True)
class How:
    """``prompts`` answered one after the other, ``max_new_tokens`` each; ``check_prompts`` that the check looks at;
    K = ``num_steps`` once the flags are right.
    """

    prompts: int = STORY_PROMPTS
    max_new_tokens: int = STORY_TOKENS
    check_prompts: int = NUM_PROMPTS
    num_steps: int = 3
    dtype: str = "fp32"
    backend: str = "auto"


@dataclass(frozen=True)
class Served:
    """The prompts answered in one way. ``taps``: what the draft was fed; None and no ``settings``: plain decoding."""

    name: str
    taps: tuple[int, ...] | None
    settings: SpeculativeSettings | None
    figures: Figures
    answers: tuple[tuple[int, ...], ...]

    def to_json(self) -> dict[str, Any]:
        """Plain values, without the answers."""
        steps = None if self.settings is None else self.settings.num_steps
        taps = None if self.taps is None else list(self.taps)
        return {"name": self.name, "taps": taps, "num_steps": steps, **self.figures.to_json()}


def packaged_story(target: Path, target_name: str) -> Story:
    """The story of the built-in target, with the draft that the package brings for it."""
    trained = Path(str(files("eyas") / "assets" / "stories" / "smollm2-135m-embedding-3-15"))
    return Story(target, target_name, trained, (3, 15, 27))


def run_story(story: Story, how: How, folder: Path, console: Console, note: Callable[[str], None]) -> dict[str, Any]:
    """Tell it, with the checkpoints in ``folder``; every figure as plain values. ``note``: told what is being done.

    ``named`` in them: whether the check named the taps that the draft was trained on. Raises what loading, checking and
    decoding raise; ``engine.not-lossless`` for a text that is not the target's own.
    """
    began = time.monotonic()
    session = open_session(story.target, None, how.dtype, how.backend)
    stored = _as_trained(story, session)
    draft, mended = folder / "draft", folder / MENDED
    document = present(stored, session, story.served, draft)
    launch = launch_command(story.target_name)
    (folder / "launch.sh").write_text(launch + "\n", encoding="utf-8")
    flags = check_flags(launch, None, session.target.architecture, document)
    shown.checkpoint(console, draft, document, launch)
    shown.flags(console, flags)
    table = _Table(session, how, note)
    table.add("plain decoding", None, None)
    table.add("as launched", draft, flags.ceiling - 1 if flags.ceiling else 1)
    table.add("flags mended", draft, how.num_steps)
    shown.served(console, table.rows, table.identical, mended=False)
    verdict = _check(story, how, (draft, mended, launch), console, note)
    again = shown.repaired(console, verdict)
    if again is not None:
        table.add("draft mended", mended, how.num_steps)
        shown.served(console, table.rows, table.identical, mended=True)
    servable = _servable(stored, session)
    shown.servable(console, stored.config.taps, servable)
    return {
        "target": story.target_name,
        "trained_taps": list(stored.config.taps),
        "served_taps": list(story.served),
        "config": {key: document[key] for key in shown.ID_KEYS},
        "launch": launch,
        "flags": _flags_json(flags),
        "runs": [row.to_json() for row in table.rows],
        "identical": table.identical,
        "verdict": _verdict_json(verdict),
        "again": None if again is None else {**again, "draft": MENDED},
        "named": _named(verdict) == stored.config.taps,
        "servable": servable,
        "backend": session.target.backend.name,
        "dtype": how.dtype,
        "threads": torch.get_num_threads(),
        "seconds": time.monotonic() - began,
    }


def launch_command(target_name: str) -> str:
    """How the draft is launched: 16 draft tokens are asked for, beside one step."""
    words = ["python", "-m", "sglang.launch_server", "--model-path", target_name]
    words += ["--speculative-algorithm", "EAGLE3", "--speculative-draft-model-path", "draft"]
    words += ["--speculative-num-steps", "1", "--speculative-eagle-topk", "1"]
    return shlex.join([*words, "--speculative-num-draft-tokens", str(ASKED_DRAFT_TOKENS)])


def present(stored: StoredDraft, session: Session, served: Sequence[int], folder: Path) -> Mapping[str, Any]:
    """Write the draft as its makers do: the engines' keys for the taps ``served``, no contract and no word of Eyas.

    The config.json that was written.
    """
    engines = (Engine.parse("sglang"), Engine.parse("vllm"))
    believed = stored.config.model_copy(update={"taps": tuple(served)})
    dtype = DTYPES[stored.tensors["fc.weight"].dtype][1]
    document = to_json(believed, session.target.architecture, engines, dtype)
    del document[OWN_KEY]
    folder.mkdir()
    write_stored(folder, document, stored.tensors, {})
    return document


def _as_trained(story: Story, session: Session) -> StoredDraft:
    embedding = session.target.embedding()

    def is_targets(tensor: Tensor) -> bool:
        return torch.equal(tensor.to(embedding.dtype), embedding)

    return read_stored(story.trained, target_shape(session.target), is_targets)


class _Table:
    """The same prompts in several ways, each beside plain decoding."""

    def __init__(self, session: Session, how: How, note: Callable[[str], None]) -> None:
        self.session, self.how, self.note = session, how, note
        self.prompts = [session.encode_chat([("user", text)]) for text in packaged_prompts(how.prompts)]
        self.rows: list[Served] = []
        self.identical = True
        self._decode(self.prompts[0], None, None, WARM_UP_TOKENS)

    def add(self, name: str, draft: Path | None, num_steps: int | None) -> None:
        """Answer all prompts with the draft in this folder, or plain; the texts must be those of the first row."""
        session, settings = self.session, None if num_steps is None else SpeculativeSettings.resolve(num_steps)
        model = None if draft is None else load_draft(draft, session.target, self.how.backend)
        requests, seconds = [], 0.0
        for number, prompt in enumerate(self.prompts, 1):
            self.note(f"{name}: prompt {number} of {len(self.prompts)}")
            request, spent = self._decode(prompt, model, settings, self.how.max_new_tokens)
            requests.append(request)
            seconds += spent
        answers = tuple(tuple(request.answer) for request in requests)
        if self.rows:
            self._compare(answers)
        taps = None if model is None else model.config.taps
        self.rows.append(Served(name, taps, settings, figures_of(requests, seconds, settings), answers))

    def _decode(
        self, prompt: Sequence[int], model: DraftModel | None, settings: SpeculativeSettings | None, tokens: int
    ) -> tuple[Request, float]:
        engine = self.session.engine(model, len(prompt) + tokens + 64)
        done = decode(engine, prompt, SamplingSettings(max_new_tokens=tokens), settings)
        return done.request, done.decode_seconds

    def _compare(self, answers: Sequence[Sequence[int]]) -> None:
        for prompt, plain, other in zip(self.prompts, self.rows[0].answers, answers, strict=True):
            divergence = first_divergence(self.session.target, prompt, plain, other, SamplingSettings())
            if divergence is None:
                continue
            self.identical = False
            if not divergence.is_tie:
                raise EyasError("engine.not-lossless", str(divergence), "report this: it must never happen")


def _check(
    story: Story, how: How, given: tuple[Path, Path, str], console: Console, note: Callable[[str], None]
) -> Verdict:
    draft, mended, launch = given
    shown.check_command(console, story.target_name)
    request = CheckRequest(
        draft=draft,
        target=story.target,
        flags=launch,
        fix=mended,
        num_steps=how.num_steps,
        num_prompts=how.check_prompts,
        dtype=how.dtype,
        backend=how.backend,
    )
    verdict = _named_from(draft.parent, run_check(request, note))
    shown.verdict(console, verdict)
    return verdict


def _named_from(folder: Path, verdict: Verdict) -> Verdict:
    """The verdict with paths as one sees them from ``folder``."""
    texts = [one.said.replace(f"{folder}/", "") for one in verdict.findings]
    findings = tuple(replace(one, said=text) for one, text in zip(verdict.findings, texts, strict=True))
    return replace(verdict, draft=verdict.draft.replace(f"{folder}/", ""), findings=findings)


def _named(verdict: Verdict) -> tuple[int, ...] | None:
    """The taps that the verdict calls the right ones, if it is sure."""
    faults = [f for f in verdict.findings if f.weight == "fault" and f.level == "features" and "taps" in f.data]
    return tuple(faults[-1].data["taps"]) if faults and verdict.answer == "fault" else None


def _verdict_json(verdict: Verdict) -> dict[str, Any]:
    """The verdict without the second one, which stands beside it."""
    document = verdict.to_json()
    for finding in document["findings"]:
        finding["data"].pop("again", None)
    return document


def _flags_json(flags: FlagCheck) -> dict[str, Any]:
    found: Sequence[Finding] = flags.findings
    return {"engine": str(flags.engine), "ceiling": flags.ceiling, "findings": [one.to_json() for one in found]}


def _servable(stored: StoredDraft, session: Session) -> list[dict[str, Any]]:
    """For each engine whether it can serve the draft as it was trained."""
    answers = []
    for name in ("sglang", "vllm"):
        engine = Engine.parse(name)
        refused = refusal_of(stored.config, session.target.architecture, engine)
        why, fix = ("", "") if refused is None else (refused.cause, refused.fix)
        answers.append({"engine": str(engine), "serves": refused is None, "why": why, "fix": fix})
    return answers
