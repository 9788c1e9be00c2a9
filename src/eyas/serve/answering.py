"""One request in the engine's process: what the engine gave it becomes pieces."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import msgspec

from eyas.config import SamplingSettings
from eyas.engine.grammar import GrammarState
from eyas.engine.request import Request
from eyas.engine.text import TextStream
from eyas.errors import EyasError
from eyas.serve.wire import Ask, Failure, Logprob, Piece, RoundCount, TokenLogprobs

TextOf = Callable[[int], str]
"""The text of one token by itself."""


@dataclass
class Answering:
    """``sent_…``: how much of the request's tokens and rounds the client has."""

    ask: Ask
    request: Request
    text: TextStream
    grammar: GrammarState | None
    text_of: TextOf
    model_ends: frozenset[int]
    """The tokens that end the target's own answers."""
    sent_tokens: int = 0
    sent_rounds: int = 0
    begun: bool = False

    def news(self) -> Piece | Failure | None:
        """What came since the last call; None if nothing did."""
        request = self.request
        answer = request.answer
        tokens = answer[self.sent_tokens :]
        if not tokens and not request.finished:
            return None
        if self.grammar is not None and self.grammar.failure is not None:
            return failure_of(self.ask.id, self.grammar.failure)
        texts = self.text.take()
        assert len(texts) == len(tokens), (len(texts), len(tokens))
        rounds = request.rounds[self.sent_rounds :]
        if request.finished and texts:
            texts[-1] += self.text.end()
        piece = Piece(
            id=self.ask.id,
            tokens=tokens,
            texts=texts,
            origins=request.origins[self.sent_tokens :],
            rounds=[RoundCount(r.accepted, r.proposed, r.cut, r.depth) for r in rounds],
            logprobs=self._logprobs(tokens),
            finish=request.finished,
            stop_reason=self._stop_reason(answer),
            cached=None if self.begun else request.cached_prompt,
        )
        self.sent_tokens, self.sent_rounds, self.begun = len(answer), len(request.rounds), True
        return piece

    def _stop_reason(self, answer: Sequence[int]) -> str | int | None:
        if self.text.stopped is not None:
            return self.text.stopped
        last = answer[-1] if answer else None
        if self.request.finished == "stop" and last in self.request.sampling.stop_token_ids:
            return None if last in self.model_ends else last
        return None

    def _logprobs(self, tokens: Sequence[int]) -> list[TokenLogprobs] | None:
        if self.ask.top_logprobs is None:
            return None
        found = self.request.logprobs[self.sent_tokens :]
        return [
            TokenLogprobs(
                Logprob(token, self.text_of(token), entry.own),
                [Logprob(t, self.text_of(t), value) for t, value in zip(entry.top_ids, entry.top, strict=True)],
            )
            for token, entry in zip(tokens, found, strict=True)
        ]


def failure_of(id_: str, error: EyasError) -> Failure:
    """An error as it goes over the pipe."""
    return Failure(id_, error.code, error.cause, error.fix)


def sampling_of(ask: Ask) -> SamplingSettings:
    """How the ask's tokens are chosen; JSON has no tuples, and texts as keys. Raises ``request.sampling``."""
    values = msgspec.json.decode(ask.sampling)
    biases = {int(token): float(bias) for token, bias in values.pop("logit_bias", {}).items()}
    stops = tuple(values.pop("stop_token_ids", ()))
    return SamplingSettings(**values, logit_bias=biases, stop_token_ids=stops)


def silent_tokens(ask: Ask, sampling: SamplingSettings, ends: frozenset[int]) -> frozenset[int]:
    """Tokens that end the answer and are no part of its text."""
    if ask.include_stop:
        return frozenset()
    return frozenset(sampling.stop_token_ids) | (frozenset() if sampling.ignore_eos else ends)
