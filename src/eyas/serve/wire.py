"""What the HTTP side and an engine's process say to each other: plain structs, msgpack on a pipe, never pickles.

An :class:`Ask` is answered by :class:`Piece` after piece, the last with ``finish``, or by one :class:`Failure`.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec
from msgspec import Struct

Finish = Literal["stop", "length", "abort"]
GrammarKind = Literal["json_schema", "json_object", "regex", "lark", "structural_tag"]


class Grammar(Struct, frozen=True):
    """What the answer's text must match. ``text``: a JSON schema, a regular expression or a grammar; "": any object."""

    kind: GrammarKind
    text: str


class Ask(Struct, frozen=True, tag=True):
    """A request for one answer. ``sampling``, ``speculation``: JSON of SamplingSettings and SpeculativeSettings."""

    id: str
    prompt: list[int]
    sampling: str
    speculation: str | None = None
    """None: as the server was started."""
    adaptive: bool = True
    """K up to what is asked, as pays; else exactly that."""
    stop: list[str] = []
    """Strings that end the answer; they are not part of it."""
    include_stop: bool = False
    grammar: Grammar | None = None
    top_logprobs: int | None = None
    """None: no logprobs; n: the token's own and the n likeliest."""
    skip_special_tokens: bool = True
    priority: int = 0
    """Higher goes first."""
    client: str = ""
    """Whose request it is; clients of one priority take turns."""
    user: str = ""
    """Of the client's users; they take turns in its place."""


class Drop(Struct, frozen=True, tag=True):
    """The client is gone: give the request up."""

    id: str


class Flush(Struct, frozen=True, tag=True):
    """Forget all kept prefixes."""


class Stop(Struct, frozen=True, tag=True):
    """End the process when what runs is done; ``now``: at once."""

    now: bool = False


class Logprob(Struct, frozen=True):
    """Of one token, natural logarithms of the target's own distribution before temperature and truncation."""

    token: int
    text: str
    logprob: float


class TokenLogprobs(Struct, frozen=True):
    """The token's own, then the likeliest ones, best first."""

    chosen: Logprob
    top: list[Logprob]


class RoundCount(Struct, frozen=True, array_like=True):
    """As ``eyas.metrics.Round``."""

    accepted: int
    proposed: int
    cut: bool
    depth: int | None


class Piece(Struct, frozen=True, tag=True):
    """What came for one request in one step of the engine."""

    id: str
    tokens: list[int]
    texts: list[str]
    """Per token the text that it set free; "" while half a character or the beginning of a stop string is held back.
    Their sum over all pieces is the answer's text."""
    origins: list[int]
    """Per token who proposed it: 0 the target itself, i the draft's step i."""
    rounds: list[RoundCount] = []
    logprobs: list[TokenLogprobs] | None = None
    finish: Finish | None = None
    stop_reason: str | int | None = None
    """Which stop string, or which token id, ended the answer; None: the model's own end, or a limit."""
    cached: int | None = None
    """Prompt tokens that the prefix cache gave; with the first piece."""


class Failure(Struct, frozen=True, tag=True):
    """A request, or with an empty ``id`` the engine itself, came to an error."""

    id: str
    code: str
    cause: str
    fix: str


class Ready(Struct, frozen=True, tag=True):
    """The engine is loaded. ``facts``: what /server_info shows of it (settings in effect, contract, versions)."""

    model: str
    vocab_size: int
    context: int
    num_slots: int
    facts: dict[str, Any]


class Status(Struct, frozen=True, tag=True):
    """The engine's figures now; counters run from its start. Sent after steps, a few times a second at most."""

    running: int
    waiting: int
    slots_used: int
    """Held by requests that run."""
    slots_kept: int
    """Held by the prefix cache alone: given up when needed."""
    slots_total: int
    prompt_tokens: int
    cached_tokens: int
    answer_tokens: int
    steps: int
    rounds: int
    """Whole rounds that proposed something."""
    cut_rounds: int
    plain_rounds: int
    """Rounds with K = 0."""
    proposed: int
    accepted_histogram: list[int]
    """Whole proposing rounds by accepted drafts, from 0."""
    proposed_at_least: list[int]
    """[i]: whole rounds that could accept at least i + 1 drafts."""
    preemptions: int
    aborted: int
    busy_seconds: float
    """Spent in steps."""
    tokens_per_second: float
    """Answer tokens in the last seconds, by wall time."""
    plain_tokens_per_second: float | None
    """What the same batch would make without drafts, by the measured costs; None: not known."""
    num_steps: float | None
    """Mean K of the last rounds."""


ToEngine = Ask | Drop | Flush | Stop
FromEngine = Piece | Failure | Ready | Status

encode = msgspec.msgpack.Encoder().encode
decode_to_engine = msgspec.msgpack.Decoder(ToEngine).decode
decode_from_engine = msgspec.msgpack.Decoder(FromEngine).decode
