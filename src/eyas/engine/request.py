"""A request and its answer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol

from eyas.config import SamplingSettings, SpeculativeSettings
from eyas.metrics import Round
from eyas.speculate.constraint import Constraint
from eyas.speculate.round import Outcome
from eyas.speculate.sampling import TokenLogprobs
from eyas.speculate.state import DecodeState

FinishReason = Literal["stop", "length", "abort"]
"""``abort``: the caller gave the request up; what was answered until then stands."""


class Watch(Protocol):
    """Reads along, token by token, and may end the answer: for stops that are not single tokens."""

    def watch(self, tokens: Sequence[int]) -> int | None:
        """The answer's next tokens. How many of them stay, if the answer ends with them; None: it goes on."""
        ...


@dataclass(frozen=True)
class Extras:
    """What a request may want beyond its prompt, its sampling and its speculation."""

    watch: Watch | None = None
    constraint: Constraint | None = None
    """The answer's grammar."""
    top_logprobs: int | None = None
    """None: no log-probabilities; n: the token's own and the n likeliest of each place."""
    priority: int = 0
    """Higher goes first."""
    client: str = ""
    """Clients of one priority take turns."""
    user: str = ""
    """A client's users take turns in its place."""
    adaptive: bool = True
    """Whether a controller may propose less than is asked."""


NO_EXTRAS = Extras()


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
    extras: Extras = NO_EXTRAS
    state: DecodeState | None = None
    """Set when the request is admitted."""
    shared: list[int] = field(default_factory=list)
    """Slots at the table's beginning that a kept prefix holds too."""
    cached_prompt: int | None = None
    """Tokens of the prompt that were not read, as the prefix cache had them; None: not begun."""
    origins: list[int] = field(default_factory=list)
    """Per answer token who proposed it: 0 the target itself, i the draft's step i."""
    rounds: list[Round] = field(default_factory=list)
    logprobs: list[TokenLogprobs] = field(default_factory=list)
    """Per answer token, if they were asked for."""
    finished: FinishReason | None = None
    drafted: bool | None = None
    """Whether a draft reads its prompt; None: not decided yet. Later its state says whether one still reads along."""
    preemptions: int = 0
    """How often it gave its slots up to others."""

    @property
    def priority(self) -> int:
        return self.extras.priority

    @property
    def client(self) -> str:
        return self.extras.client

    @property
    def unread(self) -> int:
        """Rows of its text before the last token's that the caches lack."""
        assert self.state is not None
        return len(self.state.tokens) - 1 - self.state.cached

    @property
    def answer(self) -> list[int]:
        """The answer's tokens so far, a stop token included."""
        return [] if self.state is None else self.state.tokens[len(self.prompt) :]

    @property
    def num_answered(self) -> int:
        """How many these are, without a copy of them."""
        return 0 if self.state is None else len(self.state.tokens) - len(self.prompt)

    def begin(self, outcome: Outcome) -> None:
        """Note the token drawn from the prompt, which belongs to no round."""
        kept, self.finished = self._end(outcome.tokens)
        assert kept == 1, "an answer has a token"
        self.origins.append(0)
        self.logprobs += outcome.logprobs

    def note(self, outcome: Outcome) -> None:
        """Note a round; cut the text at the first stop or at the limit."""
        assert self.state is not None
        kept, reason = self._end(outcome.tokens)
        depths = outcome.tree.depths
        origins = [*(depths[node] for node in outcome.accepted), 0]
        self.origins += origins[:kept]
        self.logprobs += outcome.logprobs[:kept]
        self.rounds.append(outcome.counted(kept))
        if kept < len(outcome.tokens):
            self.state.cut(len(self.state.tokens) - (len(outcome.tokens) - kept))
        self.finished = reason

    def _end(self, tokens: Sequence[int]) -> tuple[int, FinishReason | None]:
        """How many of the just committed tokens stay, and why the answer ends there, if it does."""
        before = self.num_answered - len(tokens)
        # One by one, as plain decoding has them: where a grammar is through, no later token of the round counts.
        for i, token in enumerate(tokens, start=1):
            reason = self._reason(token, before + i)
            if reason is not None:
                return i, reason
        return len(tokens), None

    def _reason(self, token: int, number: int) -> FinishReason | None:
        """Why the answer ends with this token, the ``number``-th, if it does."""
        watch, constraint = self.extras.watch, self.extras.constraint
        stopped = watch is not None and watch.watch((token,)) is not None
        if constraint is not None:
            constraint.commit((token,))
        if stopped or token in self.stop_ids or (constraint is not None and constraint.finished):
            return "stop"
        return "length" if number == self.max_tokens else None
