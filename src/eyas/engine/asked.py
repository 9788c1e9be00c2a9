"""The speculative flags as they were given become what runs, or an error that names both sides."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal, cast

from eyas.config import DRAFT_SAMPLING_FLAG, DRAFT_TOKENS_FLAG, STEPS_FLAG, TOPK_FLAG, SpeculativeSettings
from eyas.engine.session import BUILTIN_DRAFTS, builtin_draft_folder
from eyas.errors import EyasError

ALGORITHM_FLAG = "--speculative-algorithm"

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
    """The speculative flags as given; None: not given.

    ``draft``: a folder, the name of a built-in target, ``auto`` (the one that the target brings, if any) or ``none``.
    ``draft_flag``: what the verb calls it.
    """

    algorithm: str | None
    draft: str
    num_steps: int | None
    eagle_topk: int | None
    num_draft_tokens: int | None
    draft_sampling: str
    draft_flag: str = "--draft"

    def resolve(self, model: str) -> Plan:
        """The plan, without changing anything that was asked. Raises ``flags.…``, ``artifact.missing``."""
        folder = self._draft_folder(model)
        algorithm = self._algorithm(folder)
        if self.draft_sampling not in ("one-hot", "probabilistic"):
            cause = f"{DRAFT_SAMPLING_FLAG} {self.draft_sampling}"
            raise EyasError("flags.range", cause, "use one-hot or probabilistic")
        if algorithm == "NONE":
            self._refuse_all()
            return Plan(algorithm, None, None)
        if algorithm == "NGRAM":
            self._check_ngram()
        sampling = cast(Literal["one-hot", "probabilistic"], self.draft_sampling)
        settings = SpeculativeSettings.resolve(self.num_steps, self.eagle_topk, self.num_draft_tokens, sampling)
        return Plan(algorithm, folder if algorithm == "EAGLE3" else None, settings)

    def _refuse_all(self) -> None:
        """Without speculation no flag of it has a meaning."""
        given = {
            STEPS_FLAG: self.num_steps,
            TOPK_FLAG: self.eagle_topk,
            DRAFT_TOKENS_FLAG: self.num_draft_tokens,
            DRAFT_SAMPLING_FLAG: None if self.draft_sampling == "one-hot" else self.draft_sampling,
        }
        named = [f"{flag} {value}" for flag, value in given.items() if value is not None]
        if named:
            why = f"{ALGORITHM_FLAG} NONE" if self.algorithm else f"{self.draft_flag} {self.draft}, so no draft"
            raise EyasError("flags.contradiction", f"{' '.join(named)} with {why}", "drop one or give a draft")

    def _check_ngram(self) -> None:
        if (self.eagle_topk or 1) > 1:
            cause = f"{ALGORITHM_FLAG} NGRAM proposes chains; {TOPK_FLAG} is {self.eagle_topk}"
            raise EyasError("flags.contradiction", cause, f"use {TOPK_FLAG} 1 or EAGLE3 with a draft")
        if self.draft_sampling == "probabilistic":
            cause = f"{ALGORITHM_FLAG} NGRAM has no probabilities; {DRAFT_SAMPLING_FLAG} is probabilistic"
            raise EyasError("flags.contradiction", cause, f"use {DRAFT_SAMPLING_FLAG} one-hot")

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
            cause = f"there is no draft folder {path}"
            raise EyasError("artifact.missing", cause, f"check the path, or {self.draft_flag} none")
        return path

    def _algorithm(self, folder: Path | None) -> Algorithm:
        if self.algorithm is None:
            return "EAGLE3" if folder else "NONE"
        name = self.algorithm.upper()
        if name not in ALGORITHMS:
            cause = f"{ALGORITHM_FLAG} {self.algorithm} is not known"
            raise EyasError("flags.range", cause, f"use one of {', '.join(ALGORITHMS)}")
        if name == "EAGLE3" and folder is None:
            cause = f"{ALGORITHM_FLAG} EAGLE3 needs a draft, and {self.draft_flag} is {self.draft}"
            fix = f"give {self.draft_flag} FOLDER, or NGRAM, which needs none"
            raise EyasError("flags.contradiction", cause, fix)
        if name != "EAGLE3" and self.draft not in ("auto", "none"):
            cause = f"{self.draft_flag} {self.draft} with {ALGORITHM_FLAG} {self.algorithm}, which uses no draft"
            fix = f"drop {self.draft_flag}, or use {ALGORITHM_FLAG} EAGLE3"
            raise EyasError("flags.contradiction", cause, fix)
        return name
