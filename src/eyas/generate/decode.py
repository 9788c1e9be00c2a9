"""One prompt to the end, timed, its tokens shown as they come."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from tokenizers.decoders import DecodeStream
from transformers import PreTrainedTokenizerBase

from eyas.config import SamplingSettings, SpeculativeSettings
from eyas.engine.engine import Engine
from eyas.engine.request import Request

OnPiece = Callable[[str, int], None]
"""Called with a piece of text and who proposed its last token: 0 the target, i the draft's step i."""


@dataclass(frozen=True)
class Decoded:
    """A finished request and its times in seconds; ``decode_seconds`` leaves the prompt out."""

    request: Request
    prefill_seconds: float
    decode_seconds: float


def decode(
    engine: Engine,
    prompt: Sequence[int],
    sampling: SamplingSettings,
    speculation: SpeculativeSettings | None,
    on_tokens: Callable[[Request], None] | None = None,
) -> Decoded:
    """Answer one prompt on an idle engine. Raises as ``Engine.submit`` and the rounds do."""
    request = engine.submit(prompt, sampling, speculation)
    prefill_seconds = decode_seconds = 0.0
    while not request.finished:
        in_prefill, start = not request.answer, time.perf_counter()
        engine.step()
        elapsed = time.perf_counter() - start
        if in_prefill:
            prefill_seconds += elapsed
        else:
            decode_seconds += elapsed
        if on_tokens is not None:
            on_tokens(request)
    return Decoded(request, prefill_seconds, decode_seconds)


class Pieces:
    """Text of an answer, piece by piece, never half a character; special tokens are left out."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase) -> None:
        self._backend = tokenizer.backend_tokenizer
        self._stream = DecodeStream(skip_special_tokens=True)
        self._seen = 0

    def new(self, request: Request) -> Iterator[tuple[str, int]]:
        """(piece, origin) of the tokens that came since the last call."""
        answer = request.answer
        for token, origin in zip(answer[self._seen :], request.origins[self._seen :], strict=True):
            piece = self._stream.step(self._backend, token)
            if piece:
                yield piece, origin
        self._seen = len(answer)
