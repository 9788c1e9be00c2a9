"""Prompts that the target makes up itself: the chat template's user turn is opened, and the target continues it.

The method is Magpie (Xu et al. 2024). Such prompts need no licence but the target's, and are what it expects to be
asked. A share of the turns begins with a word or a line of code, so that the topics spread.
"""

from __future__ import annotations

import hashlib
import json
import random
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from importlib.resources import files
from itertools import count as count_up
from typing import Annotated, Literal

from pydantic import Field, JsonValue, model_validator

from eyas.artifacts import Progress, no_progress
from eyas.config import SamplingSettings, Settings
from eyas.corpus.prompts import Prompt
from eyas.data.draws import Draw, DrawJournal
from eyas.data.filters import Sieve
from eyas.data.user_turn import UserTurn, cut_user_turn
from eyas.engine.request import Request
from eyas.engine.session import Session
from eyas.errors import EyasError

DEFAULT_BATCH = 64
PATIENCE = 200
"""Draws that are looked at before the yield is judged."""
LEAST_YIELD = 0.02
"""Share of draws that must pass; below it the target does not know how to be a user, or has said all it has to say."""

_CODE = re.compile(r"```|\bdef \w+\(|\b(python|javascript|typescript|c\+\+|sql|html|regex)\b", re.IGNORECASE)

Opening = Literal["none", "words", "code"]


class SelfSampleSettings(Settings):
    """How user turns are drawn. ``words_share``, ``code_share``: of the turns, how many begin with an opening from the
    package's list. ``max_new_tokens``: a turn that is longer is dropped. The same settings draw the same turns.
    """

    seed: Annotated[int, Field(ge=0)] = 0
    temperature: Annotated[float, Field(gt=0)] = 1.0
    top_p: Annotated[float, Field(gt=0, le=1)] = 0.95
    max_new_tokens: Annotated[int, Field(ge=1)] = 256
    words_share: Annotated[float, Field(ge=0, le=1)] = 0.3
    code_share: Annotated[float, Field(ge=0, le=1)] = 0.3

    @model_validator(mode="after")
    def _shares(self) -> SelfSampleSettings:
        if self.words_share + self.code_share > 1:
            cause = f"{self.words_share} of the turns with words and {self.code_share} with code are more than all"
            raise EyasError("flags.contradiction", cause, "give shares that add up to at most 1")
        self.sampling(0, ())
        return self

    def sampling(self, index: int, end_ids: tuple[int, ...]) -> SamplingSettings:
        """Of the turn ``index``."""
        return SamplingSettings(
            temperature=self.temperature,
            top_p=self.top_p,
            max_new_tokens=self.max_new_tokens,
            stop_token_ids=end_ids,
            seed=_number(self.seed, index, "noise") >> 1,
        )


@dataclass(frozen=True)
class Openings:
    """Beginnings of user turns: single words, and lines that ask for code or are code."""

    words: tuple[str, ...]
    code: tuple[str, ...]

    @classmethod
    def packaged(cls) -> Openings:
        """The package's own list."""
        known = json.loads((files("eyas") / "assets" / "openings.json").read_text(encoding="utf-8"))
        return cls(tuple(known["words"]), tuple(known["code"]))

    def of(self, settings: SelfSampleSettings, index: int) -> tuple[Opening, str]:
        """The opening of turn ``index``, by the seed and the index alone."""
        rng = random.Random(_number(settings.seed, index, "opening"))
        draw = rng.random()
        if draw < settings.code_share:
            return "code", rng.choice(self.code)
        if draw < settings.code_share + settings.words_share:
            return "words", rng.choice(self.words)
        return "none", ""


@dataclass
class UserSampler:
    """Draws user turns by index from the session's target; the engine's batch is kept full."""

    session: Session
    settings: SelfSampleSettings
    openings: Openings
    batch: int = DEFAULT_BATCH
    running: dict[Request, int] = field(default_factory=dict, init=False)

    def __post_init__(self) -> None:
        """Raises ``tokenizer.chat-template``, ``rendering.user-turn``, ``flags.range``."""
        if self.batch < 1:
            raise EyasError("flags.range", f"a batch of {self.batch} draws nothing", "give a batch of 1 or more")
        self.turn: UserTurn = cut_user_turn(self.session)
        added = self.session.tokenizer.added_tokens_decoder.values()
        self._special = [str(token) for token in added if token.special]
        texts = ["", *self.openings.words, *self.openings.code]
        longest = max(len(self._encode(self.turn.before + text)) for text in texts)
        self.engine = self.session.engine(None, self.batch * (longest + self.settings.max_new_tokens + 1))
        self.engine.scheduler.max_running = self.batch

    def depends(self) -> dict[str, JsonValue]:
        """What a draw depends on besides its index and the target."""
        openings = json.dumps([self.openings.words, self.openings.code]).encode()
        return {
            **self.settings.model_dump(mode="json"),
            "before": self.turn.before,
            "end": self.turn.end_text,
            "openings_sha256": hashlib.sha256(openings).hexdigest(),
        }

    def step(self, indices: Iterator[int]) -> list[Draw]:
        """Fill the batch with the next ``indices``, do one step, and return the draws that ended."""
        while len(self.running) < self.batch and (index := next(indices, None)) is not None:
            _, opening = self.openings.of(self.settings, index)
            ids = self._encode(self.turn.before + opening)
            request = self.engine.submit(ids, self.settings.sampling(index, self.turn.end_ids))
            self.running[request] = index
        return [self._draw(request, self.running.pop(request)) for request in self.engine.step()]

    def close(self) -> None:
        """Give up what is running."""
        for request in self.running:
            self.engine.abort(request)
        self.running.clear()

    def _encode(self, text: str) -> list[int]:
        return list(self.session.tokenizer(text, add_special_tokens=False)["input_ids"])

    def _decode(self, ids: list[int]) -> str:
        decode = self.session.tokenizer.decode
        return str(decode(ids, skip_special_tokens=False, clean_up_tokenization_spaces=False))

    def _draw(self, request: Request, index: int) -> Draw:
        opening, begun = self.openings.of(self.settings, index)
        said, ended = request.answer, request.answer[-1] in self.turn.end_ids
        if ended:
            said = said[:-1]
        # A piece alone may decode to something else than within its text (a leading space is lost).
        whole, given = self._decode([*request.prompt, *said]), self._decode(list(request.prompt))
        text = begun + whole.removeprefix(given)
        if not self.turn.end_ids:
            text, found, _ = text.partition(self.turn.end_text)
            ended = bool(found)
        text = text.strip()
        if not whole.startswith(given):
            return Draw(index=index, opening=opening, text=text, unusable="undecodable")
        if not ended:
            return Draw(index=index, opening=opening, text=text, unusable="unended")
        strange = any(special in text for special in self._special)
        return Draw(index=index, opening=opening, text=text, unusable="special-token" if strange else None)


@dataclass(frozen=True)
class Sampled:
    """Prompts, and what became of the draws: ``draws`` were looked at, ``dropped`` counts them by reason."""

    prompts: tuple[Prompt, ...]
    draws: int
    dropped: dict[str, int]


def sample_prompts(
    sampler: UserSampler,
    sieve: Sieve[Draw],
    journal: DrawJournal,
    count: int,
    origin: tuple[str, str],
    progress: Progress = no_progress,
) -> Sampled:
    """The first ``count`` draws, by index, that pass the sieve. ``origin``: the target's name, and the licence.

    Draws end in any order and are judged in the order of their index, so on a row-exact target the result is a function
    of the settings alone, whatever the batch and however often the run was killed. Raises ``prompts.too-few``.
    """
    indices = (index for index in count_up() if index not in journal.draws)
    kept: list[Prompt] = []
    unusable: dict[str, int] = {}
    judged = 0
    try:
        while len(kept) < count:
            draw = journal.draws.get(judged)
            if draw is None:
                journal.append(sampler.step(indices))
                continue
            judged += 1
            if draw.unusable is not None:
                unusable[draw.unusable] = unusable.get(draw.unusable, 0) + 1
            elif sieve.reason(draw) is None:
                kept.append(_prompt(draw, sampler.settings.seed, origin))
                progress("prompts", len(kept), count)
            _check_yield(judged, len(kept), {**unusable, **sieve.reasons})
    finally:
        sampler.close()
    return Sampled(tuple(kept), judged, {**unusable, **sieve.reasons})


def _prompt(draw: Draw, seed: int, origin: tuple[str, str]) -> Prompt:
    target, licence = origin
    is_code = draw.opening == "code" or _CODE.search(draw.text) is not None
    return Prompt(
        id=f"self-{seed}-{draw.index}",
        messages=({"role": "user", "content": draw.text},),
        source=f"self-sampled:{target}",
        licence=licence,
        domain="code" if is_code else "chat",
    )


def _check_yield(judged: int, kept: int, dropped: dict[str, int]) -> None:
    if judged < PATIENCE or kept >= LEAST_YIELD * judged:
        return
    reasons = ", ".join(f"{reason} {number}" for reason, number in dropped.items() if number)
    cause = f"of {judged} user turns that the target drew, {kept} passed the filters ({reasons})"
    raise EyasError("prompts.too-few", cause, "ask for fewer, loosen the filter that drops most, or use given prompts")


def _number(seed: int, index: int, purpose: str) -> int:
    """64 bits by the seed, the index and what they are for."""
    return int.from_bytes(hashlib.sha256(f"{seed}.{index}.{purpose}".encode()).digest()[:8], "big")
