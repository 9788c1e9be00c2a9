"""An engine that says what it is told to, a few tokens a piece, and notes what it was asked."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from functools import cache

from tokenizers import Tokenizer
from transformers import AutoTokenizer, PreTrainedTokenizerBase

from eyas.errors import EyasError
from eyas.serve.wire import Ask, Logprob, Piece, Ready, RoundCount, Status, TokenLogprobs
from eyas.testing import tiny_pair, tiny_tokenizer

VOCABULARY = 512


def tokenizer() -> PreTrainedTokenizerBase:
    return AutoTokenizer.from_pretrained(tiny_pair()[0], trust_remote_code=False)


@cache
def _tiny_tokenizer() -> Tokenizer:
    return tiny_tokenizer()


@dataclass
class FakeEngine:
    """``text``: of every answer · ``per_piece``: tokens in a piece: one of them is the target's own, the others are
    accepted drafts of ``num_steps`` · ``pause``: seconds before a piece · ``failure``: raised after ``fail_after``
    pieces · ``finish``, ``stop_reason``: with the last piece.
    """

    text: str = "The fox lives in the forest, and it eats mice."
    per_piece: int = 3
    num_steps: int = 3
    pause: float = 0.0
    failure: EyasError | RuntimeError | None = None
    fail_after: int = 0
    finish: str = "stop"
    stop_reason: str | int | None = None
    context: int = 256
    loaded: bool = True
    asks: list[Ask] = field(default_factory=list)
    open: int = 0
    given_up: int = 0
    flushed: int = 0
    closed: bool = False
    restarts: int = 0
    status: Status | None = None

    @property
    def ready(self) -> Ready | None:
        facts = {"contract": None, "versions": {"eyas": "test"}}
        return Ready("tiny", VOCABULARY, self.context, 1024, facts) if self.loaded else None

    async def answer(self, ask: Ask) -> AsyncIterator[Piece]:
        self.asks.append(ask)
        self.open += 1
        whole = False
        try:
            for number, piece in enumerate(self.pieces(ask)):
                await asyncio.sleep(self.pause)
                if self.failure is not None and number == self.fail_after:
                    raise self.failure
                yield piece
            whole = True
        finally:
            self.open -= 1
            self.given_up += not whole

    def pieces(self, ask: Ask) -> list[Piece]:
        tok = _tiny_tokenizer()
        tokens = tok.encode(self.text, add_special_tokens=False).ids
        texts = [tok.decode([token]) for token in tokens]
        made = []
        for at in range(0, len(tokens), self.per_piece):
            ids, last = tokens[at : at + self.per_piece], at + self.per_piece >= len(tokens)
            accepted = len(ids) - 1
            logprobs = [_logprobs(tok, token, ask.top_logprobs) for token in ids]
            made.append(
                Piece(
                    ask.id,
                    ids,
                    texts[at : at + self.per_piece],
                    [*range(1, accepted + 1), 0],
                    rounds=[RoundCount(accepted, self.num_steps, False, None)] if at and self.num_steps else [],
                    logprobs=logprobs if ask.top_logprobs is not None else None,
                    finish=self.finish if last else None,
                    stop_reason=self.stop_reason if last else None,
                    cached=4 if at == 0 else None,
                )
            )
        return made

    async def flush(self) -> None:
        self.flushed += 1

    async def close(self, now: bool = False) -> None:
        self.closed = True


def _logprobs(tok: Tokenizer, token: int, top: int | None) -> TokenLogprobs:
    ranked = [token, *(t for t in range(40, 60) if t != token)][: top or 0]
    text = tok.decode
    return TokenLogprobs(
        Logprob(token, text([token]), -0.25), [Logprob(t, text([t]), -0.25 - i) for i, t in enumerate(ranked)]
    )
