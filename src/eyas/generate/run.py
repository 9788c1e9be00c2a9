"""``eyas generate``: what was asked becomes a plan, or an error; then one answer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, cast

from rich.console import Console
from rich.text import Text

from eyas.config import SamplingSettings, SpeculativeSettings
from eyas.engine.request import Request
from eyas.engine.session import BUILTIN_DRAFTS, Session, builtin_draft_folder
from eyas.errors import EyasError
from eyas.generate.decode import Pieces, decode
from eyas.generate.report import figures_of
from eyas.generate.style import accept_length_text, style_of
from eyas.speculate.propose import NgramProposer

Algorithm = Literal["EAGLE3", "NGRAM", "NONE"]
ALGORITHMS: tuple[Algorithm, ...] = ("EAGLE3", "NGRAM", "NONE")


@dataclass(frozen=True)
class Plan:
    """What will run."""

    algorithm: Algorithm
    draft: Path | None
    speculation: SpeculativeSettings | None


@dataclass(frozen=True)
class Asked:
    """The speculative flags as given; None: not given."""

    algorithm: str | None
    draft: str
    num_steps: int | None
    eagle_topk: int | None
    num_draft_tokens: int | None
    draft_sampling: str

    def resolve(self, model: str) -> Plan:
        """The plan, without changing anything that was asked. Raises ``flags.…``, ``artifact.missing``."""
        folder = self._draft_folder(model)
        algorithm = self._algorithm(folder)
        if self.draft_sampling not in ("one-hot", "probabilistic"):
            raise EyasError("flags.range", f"--draft-sampling {self.draft_sampling}", "use one-hot or probabilistic")
        given = {
            "--speculative-num-steps": self.num_steps,
            "--speculative-eagle-topk": self.eagle_topk,
            "--speculative-num-draft-tokens": self.num_draft_tokens,
            "--draft-sampling": None if self.draft_sampling == "one-hot" else self.draft_sampling,
        }
        named = [f"{flag} {value}" for flag, value in given.items() if value is not None]
        if algorithm == "NONE":
            if named:
                why = "--speculative-algorithm NONE" if self.algorithm else f"--draft {self.draft}, so no draft"
                raise EyasError("flags.contradiction", f"{' '.join(named)} with {why}", "drop one or give a draft")
            return Plan(algorithm, None, None)
        if algorithm == "NGRAM" and (self.eagle_topk or 1) > 1:
            cause = f"--speculative-algorithm NGRAM proposes chains; --speculative-eagle-topk is {self.eagle_topk}"
            raise EyasError("flags.contradiction", cause, "use --speculative-eagle-topk 1 or EAGLE3 with a draft")
        if algorithm == "NGRAM" and self.draft_sampling == "probabilistic":
            cause = "--speculative-algorithm NGRAM has no probabilities; --draft-sampling is probabilistic"
            raise EyasError("flags.contradiction", cause, "use --draft-sampling one-hot")
        sampling = cast(Literal["one-hot", "probabilistic"], self.draft_sampling)
        settings = SpeculativeSettings.resolve(self.num_steps, self.eagle_topk, self.num_draft_tokens, sampling)
        return Plan(algorithm, folder if algorithm == "EAGLE3" else None, settings)

    def _draft_folder(self, model: str) -> Path | None:
        if self.draft == "none":
            return None
        if self.draft == "auto":
            return builtin_draft_folder(model)
        if self.draft in BUILTIN_DRAFTS:
            found = builtin_draft_folder(self.draft)
            if found is None:
                raise EyasError("artifact.missing", f"the package lacks the draft of {self.draft}", "reinstall eyas")
            return found
        path = Path(self.draft).expanduser()
        if not path.is_dir():
            raise EyasError("artifact.missing", f"there is no draft folder {path}", "check the path, or --draft none")
        return path

    def _algorithm(self, folder: Path | None) -> Algorithm:
        if self.algorithm is None:
            return "EAGLE3" if folder else "NONE"
        name = self.algorithm.upper()
        if name not in ALGORITHMS:
            cause = f"--speculative-algorithm {self.algorithm} is not known"
            raise EyasError("flags.range", cause, f"use one of {', '.join(ALGORITHMS)}")
        if name == "EAGLE3" and folder is None:
            cause = f"--speculative-algorithm EAGLE3 needs a draft, and --draft is {self.draft}"
            raise EyasError("flags.contradiction", cause, "give --draft FOLDER, or NGRAM, which needs none")
        if name != "EAGLE3" and self.draft not in ("auto", "none"):
            cause = f"--draft {self.draft} with --speculative-algorithm {self.algorithm}, which uses no draft"
            raise EyasError("flags.contradiction", cause, "drop --draft, or use --speculative-algorithm EAGLE3")
        return name


def run_generate(
    session: Session, ids: Sequence[int], sampling: SamplingSettings, plan: Plan, console: Console
) -> dict[str, Any]:
    """Answer the prompt, show it token by token on ``console``, and return it with its figures as plain values."""
    pieces = Pieces(session.tokenizer)
    speculation = plan.speculation

    def show(request: Request) -> None:
        for piece, origin in pieces.new(request):
            console.print(Text(piece, style=style_of(origin)), end="", soft_wrap=True)

    proposer = NgramProposer() if plan.algorithm == "NGRAM" else session.draft
    slack = 64 if speculation is None else 64 + speculation.num_draft_tokens * speculation.eagle_topk
    engine = session.engine(proposer, len(ids) + sampling.max_new_tokens + slack)
    done = decode(engine, ids, sampling, speculation, show)
    figures = figures_of([done.request], done.decode_seconds, speculation)
    speed = f"{figures.tokens} tokens · {figures.tokens_per_second:.1f} tok/s"
    line = f"{speed} · {plan.algorithm} · {session.target.backend.name} kernels"
    if speculation is not None:
        line += f" · accept length {accept_length_text(figures)} of {figures.ceiling}"
    console.print(f"\n[dim]{line}[/]")
    answer = done.request.answer
    return {
        "text": session.tokenizer.decode(answer, skip_special_tokens=True),
        "tokens": answer,
        "finish_reason": done.request.finished,
        "prompt_tokens": len(ids),
        "prefill_seconds": done.prefill_seconds,
        "algorithm": plan.algorithm,
        "backend": session.target.backend.name,
        "speculation": None if speculation is None else speculation.model_dump(),
        "figures": figures.to_json(),
    }
