"""A request and its answer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from eyas.config import SamplingSettings, SpeculativeSettings
from eyas.metrics import Round
from eyas.speculate.round import Outcome
from eyas.speculate.state import DecodeState

FinishReason = Literal["stop", "length", "abort"]
"""``abort``: the caller gave the request up; what was answered until then stands."""


@dataclass(eq=False)
class Request:
    """One prompt on its way to an answer."""

    prompt: tuple[int, ...]
    sampling: SamplingSettings
    speculation: SpeculativeSettings | None
    """None: plain decoding."""
    max_tokens: int
    """The answer's limit: what was asked for, or what the context leaves."""
    stop_ids: frozenset[int]
    state: DecodeState | None = None
    """Set when the request is admitted."""
    shared: list[int] = field(default_factory=list)
    """Slots at the table's beginning that a kept prefix holds too."""
    origins: list[int] = field(default_factory=list)
    """Per answer token who proposed it: 0 the target itself, i the draft's step i."""
    rounds: list[Round] = field(default_factory=list)
    finished: FinishReason | None = None

    @property
    def answer(self) -> list[int]:
        """The answer's tokens so far, a stop token included."""
        return [] if self.state is None else self.state.tokens[len(self.prompt) :]

    def begin(self, token: int | None) -> None:
        """Note the token drawn from the prompt; it belongs to no round."""
        if token is not None:
            self.origins.append(0)
            self.finished = self._end([token])[1]

    def note(self, outcome: Outcome) -> None:
        """Note a round; cut the text at the first stop or at the limit."""
        assert self.state is not None
        kept, reason = self._end(outcome.tokens)
        depths = outcome.tree.depths
        origins = [*(depths[node] for node in outcome.accepted), 0]
        self.origins += origins[:kept]
        self.rounds.append(outcome.counted(kept))
        if kept < len(outcome.tokens):
            self.state.cut(len(self.state.tokens) - (len(outcome.tokens) - kept))
        self.finished = reason

    def _end(self, tokens: Sequence[int]) -> tuple[int, FinishReason | None]:
        """How many of the just committed tokens stay, and why the answer ends there, if it does."""
        before = len(self.answer) - len(tokens)
        for i, token in enumerate(tokens, start=1):
            if token in self.stop_ids:
                return i, "stop"
            if before + i == self.max_tokens:
                return i, "length"
        return len(tokens), None
