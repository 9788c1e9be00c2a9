"""Logprobs in the two forms of OpenAI's API."""

from __future__ import annotations

import codecs
from collections.abc import Sequence

from eyas.serve.api.answers import ChatLogprob, ChatLogprobs, CompletionLogprobs, TopLogprob
from eyas.serve.api.text import TextSide
from eyas.serve.wire import Logprob, TokenLogprobs


def chat_logprobs(text: TextSide, given: Sequence[TokenLogprobs]) -> ChatLogprobs:
    """One entry a token, with the bytes that it stands for."""
    content = []
    for one in given:
        top = [_top(text, other) for other in one.top]
        own = _top(text, one.chosen)
        content.append(ChatLogprob(token=own.token, bytes=own.bytes, logprob=own.logprob, top_logprobs=top))
    return ChatLogprobs(content=content)


def _top(text: TextSide, one: Logprob) -> TopLogprob:
    found = text.token_bytes(one.token)
    return TopLogprob(token=one.text, bytes=None if found is None else list(found), logprob=one.logprob)


class TextOffsets:
    """Where each token of a text begins, in characters; a character of several tokens begins with the first.

    ``start``: characters before the answer.
    """

    def __init__(self, text: TextSide, start: int) -> None:
        self._text, self._offset = text, start
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def logprobs(self, given: Sequence[TokenLogprobs], top: bool) -> CompletionLogprobs:
        """The next tokens' entries; with ``top`` the likeliest ones too, the chosen among them."""
        offsets = []
        for one in given:
            offsets.append(self._offset)
            self._offset += len(self._decoder.decode(self._text.token_bytes(one.chosen.token) or b""))
        likeliest = [{other.text: other.logprob for other in [*one.top, one.chosen]} for one in given]
        return CompletionLogprobs(
            tokens=[one.chosen.text for one in given],
            token_logprobs=[one.chosen.logprob for one in given],
            top_logprobs=likeliest if top else None,
            text_offset=offsets,
        )
