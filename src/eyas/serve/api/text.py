"""Text on the HTTP side: chats and texts as token ids, and token ids as text, never on the event loop."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any, TypeVar

import anyio
import anyio.to_thread
from jinja2 import TemplateError
from tokenizers import Tokenizer
from transformers import PreTrainedTokenizerBase

from eyas.corpus.texts import for_template
from eyas.errors import EyasError
from eyas.serve.api.failures import FieldError

Out = TypeVar("Out")
THREADS = 4
REFUSALS = (TemplateError, TypeError, ValueError, LookupError, AttributeError, ArithmeticError, RecursionError)
"""What a template can raise at a conversation that it was not written for."""


class TextSide:
    """A tokenizer with its chat template. ``template_kwargs``: what the template is told unless a request says
    otherwise, as the thinking mode that a draft was trained with.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, template_kwargs: Mapping[str, Any] | None = None) -> None:
        self.tokenizer = tokenizer
        # The tokenizer's own call changes its state, which two threads at once must not.
        self.backend: Tokenizer = tokenizer.backend_tokenizer
        self.template_kwargs = dict(template_kwargs or {})
        self._limiter: anyio.CapacityLimiter | None = None

    async def chat_prompt(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]],
        kwargs: Mapping[str, Any],
        opened: bool = True,
        continued: bool = False,
        longest: int | None = None,
    ) -> tuple[list[int], str]:
        """Token ids and text of a conversation. ``opened``: for an answer · ``continued``: its last turn goes on.

        Raises ``rendering.refused``, ``tokenizer.chat-template``, ``request.field``, ``request.too-long``.
        """

        def work() -> tuple[list[int], str]:
            text = self.render(messages, tools, kwargs, opened, continued)
            return self._encode(text, False, longest), text

        return await self.aside(work)

    async def encode(self, text: str, special: bool = True, longest: int | None = None) -> list[int]:
        """Token ids of a text, with what the tokenizer puts around one if ``special``.

        Raises ``request.too-long`` beyond ``longest`` tokens.
        """
        return await self.aside(lambda: self._encode(text, special, longest))

    async def decode(self, tokens: Sequence[int]) -> str:
        """The text of tokens, special ones too."""
        ids = list(tokens)
        return await self.aside(lambda: str(self.backend.decode(ids, skip_special_tokens=False)))

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]],
        kwargs: Mapping[str, Any],
        opened: bool = True,
        continued: bool = False,
    ) -> str:
        """The conversation's text by the chat template."""
        if not self.tokenizer.chat_template:
            fix = "use /v1/completions, or a model that has one"
            raise EyasError("tokenizer.chat-template", "the tokenizer has no chat template", fix)
        taken = sorted(self._reserved & kwargs.keys())
        if taken:
            cause = f"chat_template_kwargs names {taken[0]}, which is no variable of the template's own"
            raise FieldError("request.field", "chat_template_kwargs", cause, "leave it out")
        given: list[Any] | None = [dict(tool) for tool in tools] or None
        try:
            text = self.tokenizer.apply_chat_template(
                [self._turn(message) for message in messages],
                tools=given,
                add_generation_prompt=opened,
                continue_final_message=continued,
                tokenize=False,
                **{**self.template_kwargs, **kwargs},
            )
        except EyasError:
            raise
        except REFUSALS as error:
            cause = f"the chat template refuses the conversation: {str(error)[:200]}"
            raise EyasError("rendering.refused", cause, "leave out what the template has no place for") from error
        return str(text)

    def pieces(self, tokens: Sequence[int]) -> list[str]:
        """Tokens as the vocabulary writes them."""
        return [self.backend.id_to_token(token) or "" for token in tokens]

    def token_bytes(self, token: int) -> bytes | None:
        """The bytes that a token stands for; None where the tokenizer does not say."""
        piece = self.backend.id_to_token(token)
        if piece is None:
            return None
        if token in self._added:
            return piece.encode()
        if self._byte_level:
            known = self._bytes_of
            return bytes(known[c] for c in piece) if all(c in known for c in piece) else piece.encode()
        if len(piece) == 6 and piece.startswith("<0x") and piece.endswith(">"):
            return bytes.fromhex(piece[3:5])
        return piece.replace("\u2581", " ").encode()

    def _turn(self, message: Mapping[str, Any]) -> dict[str, Any]:
        role = message["role"]
        # OpenAI's newer name of the system's role, which most templates do not know.
        if role == "developer" and "developer" not in str(self.tokenizer.chat_template):
            role = "system"
        return for_template({**message, "role": role})

    def _encode(self, text: str, special: bool, longest: int | None) -> list[int]:
        # No token stands for more characters than this, so that far too long a text need not be read at all.
        if longest is not None and len(text) > (longest + 1) * self._widest:
            raise too_long(f"{len(text)} characters", longest)
        ids = list(self.backend.encode(text, add_special_tokens=special).ids)
        if longest is not None and len(ids) > longest:
            raise too_long(f"{len(ids)} tokens", longest)
        return ids

    async def aside(self, work: Callable[[], Out]) -> Out:
        """Work on a large text, in one of a few threads."""
        self._limiter = self._limiter or anyio.CapacityLimiter(THREADS)
        return await anyio.to_thread.run_sync(work, limiter=self._limiter)

    @cached_property
    def _widest(self) -> int:
        return max((len(piece) for piece in self.backend.get_vocab()), default=1)

    @cached_property
    def _reserved(self) -> frozenset[str]:
        own = inspect.signature(self.tokenizer.apply_chat_template).parameters
        return frozenset({*own, *self.tokenizer.special_tokens_map, "messages", "raise_exception", "strftime_now"})

    @cached_property
    def _added(self) -> frozenset[int]:
        return frozenset(self.backend.get_added_tokens_decoder())

    @cached_property
    def _byte_level(self) -> bool:
        return "ByteLevel" in str(self.backend.decoder)

    @cached_property
    def _bytes_of(self) -> dict[str, int]:
        """Byte-level vocabularies write a byte as itself where it can be printed, else as a letter from U+0100 on."""
        printed = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
        rest = [b for b in range(256) if b not in set(printed)]
        return {chr(b): b for b in printed} | {chr(0x100 + i): b for i, b in enumerate(rest)}


def too_long(size: str, longest: int) -> EyasError:
    """``request.too-long``."""
    return EyasError("request.too-long", f"the prompt has {size}, and {longest} tokens fit", "shorten the prompt")
