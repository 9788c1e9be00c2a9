"""Grammars that an answer must match, by llguidance, as masks over the tokens that may follow."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from functools import lru_cache

import numpy as np
import torch
from llguidance import LLMatcher, LLParserLimits, LLTokenizer
from tokenizers import Tokenizer
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from eyas.engine.lark import gbnf_as_lark, is_gbnf, regex_as_lark
from eyas.engine.structural import structural_tag_as_lark, with_bounded_space
from eyas.errors import EyasError

MAX_BYTES = 128 * 1024
"""Of a grammar's text. What takes long to compile is long: up to here it is a few seconds at the very worst."""

_KEPT = 64
"""Compiled grammars that are kept: clients ask for the same one again and again."""


class GrammarState:
    """One answer's place in its grammar: a :class:`eyas.speculate.constraint.Constraint`.

    Between a mask and the next only what differs between their paths is undone and read again.
    """

    def __init__(self, matcher: LLMatcher, eos_ids: Sequence[int], vocab_size: int) -> None:
        self._fresh, self._matcher = matcher, matcher.deep_copy()
        self._eos = frozenset(eos_ids)
        self._only_end = torch.zeros(vocab_size, dtype=torch.bool)
        self._only_end[list(eos_ids)] = True
        self._answer: list[int] = []
        self._path: list[int] = []
        """What the matcher has read beyond the answer."""
        self._masks: dict[tuple[int, ...], Tensor | None] = {}
        self._over = False
        self.failure: EyasError | None = None
        """Why the grammar can go no further (``request.grammar``): it became too complex. Only the end may follow."""

    def mask(self, path: Sequence[int]) -> Tensor | None:
        """[V] bool on the host, not to be written to: what may follow the answer and ``path``; see the protocol.

        It is a function of the grammar and the tokens alone, whatever was asked before.
        """
        key = tuple(path)
        if key not in self._masks:
            self._masks[key] = self._mask(key)
        return self._masks[key]

    def commit(self, tokens: Sequence[int]) -> None:
        """These tokens, chosen under the masks, were added to the answer; the one that ends it may be the last."""
        self._masks.clear()
        for i, token in enumerate(tokens):
            if token in self._eos:
                self._read(tokens[:i])
                self._over = True
                if not self._matcher.is_accepting():
                    self._fail()
                return
        if self._over or self.failure is not None:
            return
        whole = self._read(tokens)
        if self._matcher.is_error():
            self._fail()
            return
        assert whole, "a token that the mask forbids"
        self._answer += tokens
        self._path = []

    @property
    def finished(self) -> bool:
        """Whether nothing may follow but the end of the answer."""
        if self._over or self.failure is not None:
            return True
        self._read(())
        return self._matcher.is_stopped()

    def _mask(self, path: tuple[int, ...]) -> Tensor | None:
        if self._over or self.failure is not None:
            return self._only_end
        if not self._eos.isdisjoint(path):
            return None
        whole = self._read(path)
        if not whole and not self._matcher.is_error():
            return None
        bits = self._matcher.compute_bitmask()
        if self._matcher.is_error():
            self._restart()
            return self._only_end
        allowed = np.zeros(len(self._only_end), dtype=np.bool_)
        unpacked = np.unpackbits(np.frombuffer(bits, dtype=np.uint8), bitorder="little")[: len(allowed)]
        allowed[: len(unpacked)] = unpacked
        return torch.from_numpy(allowed)

    def _read(self, path: Sequence[int]) -> bool:
        """Bring the matcher from where it is to behind ``path``; whether the grammar lets all of it through."""
        same = _num_common(self._path, path)
        if same < len(self._path):
            self._matcher.rollback(len(self._path) - same)
        taken = same + self._matcher.try_consume_tokens(list(path[same:]))
        self._path = list(path[:taken])
        return taken == len(path)

    def _restart(self) -> None:
        """A matcher does not come back from an error, and an error on a path is none of the answer."""
        self._matcher, self._path = self._fresh.deep_copy(), []
        self._matcher.consume_tokens(self._answer)

    def _fail(self) -> None:
        why = self._matcher.get_error() or "it became too complex on the way"
        self.failure = _refused(why, "ask for a simpler grammar")


class GrammarFactory:
    """Compiles grammars for one target. Building it reads the whole vocabulary; keep it.

    ``vocab_size``: of the target's logits; tokens that the tokenizer does not have are never allowed.
    """

    def __init__(self, tokenizer: Tokenizer | PreTrainedTokenizerBase, eos_ids: Sequence[int], vocab_size: int) -> None:
        backend = tokenizer if isinstance(tokenizer, Tokenizer) else tokenizer.backend_tokenizer
        plain = Tokenizer.from_str(backend.to_str())
        plain.no_padding()
        plain.no_truncation()
        self._eos, self._vocab_size = tuple(eos_ids), vocab_size
        self._tokens = LLTokenizer(plain.to_str(), eos_token=list(eos_ids) or None)
        added = backend.get_added_tokens_decoder().items()
        self._special = {entry.content: token for token, entry in added if self._tokens.is_special_token(token)}
        self._limits = LLParserLimits(max_lexer_states=50_000, verbose_errors=False)
        self._compiled: Callable[[str, str], LLMatcher] = lru_cache(_KEPT)(self._compile)

    def compile(self, kind: str, text: str) -> GrammarState:
        """The state of an empty answer under a grammar; it may take seconds, and runs in any thread.

        ``kind``: ``json_schema``; ``json_object`` (``text`` says nothing); ``regex`` (of the whole answer, as in
        ECMAScript, without look-around and back references); ``lark`` (llguidance's, or GBNF); ``structural_tag`` (see
        :func:`eyas.engine.structural.structural_tag_as_lark`). Nothing is ever fetched. Raises ``request.grammar``.
        """
        if len(text.encode()) > MAX_BYTES:
            raise _refused(f"its text is over {MAX_BYTES} bytes", "ask for a shorter grammar")
        if not self._eos:
            raise _refused("the target has no token that ends an answer", "set eos_token_id in generation_config.json")
        return GrammarState(self._compiled(kind, text), self._eos, self._vocab_size)

    def _compile(self, kind: str, text: str) -> LLMatcher:
        matcher = LLMatcher(self._tokens, self._grammar(kind, text), log_level=0, limits=self._limits)
        if not matcher.is_error():
            # The first mask is where a grammar turns out to be too large, or to allow nothing.
            matcher.compute_bitmask()
        if matcher.is_error():
            raise _refused(_first_lines(matcher.get_error()), "ask for a grammar that llguidance can read")
        if matcher.is_stopped() and not matcher.is_accepting():
            raise _refused("it allows no text at all", "ask for a grammar that some text matches")
        return matcher

    def _grammar(self, kind: str, text: str) -> str:
        """In the library's own form."""
        match kind:
            case "json_schema":
                return LLMatcher.grammar_from_lark(f"start: %json {with_bounded_space(text)}\n")
            case "json_object":
                return self._grammar("json_schema", json.dumps({"type": "object"}))
            case "regex":
                return LLMatcher.grammar_from_lark(f"start: {regex_as_lark(text)}\n")
            case "lark":
                return LLMatcher.grammar_from_lark(gbnf_as_lark(text) if is_gbnf(text) else text)
            case "structural_tag":
                return structural_tag_as_lark(text, self._special)
        kinds = "json_schema, json_object, regex, lark, structural_tag"
        raise _refused(f"{kind!r} is no kind of grammar", f"use one of {kinds}")


def _num_common(one: Sequence[int], other: Sequence[int]) -> int:
    """Length of the common beginning."""
    pairs = enumerate(zip(one, other, strict=False))
    return next((i for i, (a, b) in pairs if a != b), min(len(one), len(other)))


def _refused(why: str, fix: str) -> EyasError:
    return EyasError("request.grammar", f"the grammar cannot be used: {why}", fix)


def _first_lines(error: str) -> str:
    text = " ".join(line.strip() for line in error.replace("<non-verbose/>", "").splitlines()[:4])
    return text if len(text) <= 300 else f"{text[:300]}…"
