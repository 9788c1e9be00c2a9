"""Chats as token ids: what the target saw while it gave each answer, and the answer as it gave it.

The rule that everything here serves: the text of a sample begins with the prompt as the chat template opens it for an
answer, followed by that answer. Templates break it in silence: they strip the reasoning of earlier turns, insert an
empty thinking block, trim. So the prompt of every answer is rendered afresh. Where it goes on from the text so far, the
conversation is one sample; where the template has rewritten what was said, a new sample begins there.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import cached_property
from typing import Any, Literal

from jinja2 import TemplateError
from transformers import PreTrainedTokenizerBase

from eyas.contract.schema import Rendering
from eyas.corpus.chats import Answer, Chat
from eyas.corpus.texts import Message, common_length, content_of, for_template, is_plain, shown, squeezed, tells
from eyas.errors import EyasError

TODAY = datetime(2024, 7, 26)
"""The date for templates that write one (the default of Llama's own), so that samples do not depend on the day."""

# Templates ask for the date by a function of their environment; a macro of the same name hides it.
_DATE = "".join(f"|replace('%{code}','{TODAY.strftime('%' + code)}')" for code in "YymdBbAajHIMSp")
_FIXED_DATE = "{%- macro strftime_now(format) -%}{{ format" + _DATE + " }}{%- endmacro -%}"

THINK_OPEN, THINK_CLOSE = "<think>", "</think>"
CUT = ("length", "repetition")
"""Finishes of an answer that has no end-of-turn token."""

_PROBE = "probe"


@dataclass
class RenderedChat:
    """One run of tokens out of a chat: the whole of it, or one per answer where the template rewrites history.

    ``answers``: (begin, end) in ``tokens``, end-of-turn included where ``cut`` is False. ``messages``: index of each
    answer's message.
    """

    tokens: list[int]
    answers: list[tuple[int, int]] = field(default_factory=list)
    messages: list[int] = field(default_factory=list)
    cut: list[bool] = field(default_factory=list)


@dataclass(frozen=True)
class Renderer:
    """A tokenizer's chat template under one ``rendering``; ``eos_ids``: the tokens that end the target's answers.

    Raises ``tokenizer.chat-template``, ``rendering.thinking`` (the template has a thinking switch and none is chosen,
    or the other way round), ``rendering.refused``.
    """

    tokenizer: PreTrainedTokenizerBase
    rendering: Rendering
    eos_ids: tuple[int, ...]

    def __post_init__(self) -> None:
        if not self.tokenizer.chat_template:
            fix = "use a model that has one, or put its template beside the tokenizer as chat_template.jinja"
            raise EyasError("tokenizer.chat-template", "the tokenizer has no chat template", fix)
        user = [{"role": "user", "content": _PROBE}]
        has_switch = self._render(user, (), True, thinking=True) != self._render(user, (), True, thinking=False)
        if has_switch != (self.rendering.thinking != "none"):
            said = "has a thinking switch" if has_switch else "has no thinking switch"
            cause = f"the chat template {said}, and the rendering says thinking {self.rendering.thinking!r}"
            raise EyasError("rendering.thinking", cause, f"say --thinking {'off or on' if has_switch else 'none'}")

    def prompt_text(
        self, messages: Sequence[Message], tools: Sequence[Message] = (), thinking: bool | None = None
    ) -> str:
        """The text of ``messages``, opened for the answer. ``thinking``: needed where the rendering is "mixed"."""
        return self._render(messages, tools, True, self._switch(thinking))

    def prompt_ids(
        self, messages: Sequence[Message], tools: Sequence[Message] = (), thinking: bool | None = None
    ) -> list[int]:
        """Token ids of ``messages``, opened for the answer; the template writes the special tokens itself.

        Raises ``rendering.refused``, ``rendering.system-prompt``, ``rendering.thinking``.
        """
        return self.encode(self.prompt_text(messages, tools, thinking))

    def chat_tokens(self, chat: Chat) -> list[RenderedChat]:
        """The chat as one run of tokens, or several where the template rewrites history; none without answers.

        Raises ``rendering.refused``, ``rendering.system-prompt``, ``rendering.rewritten``, ``rendering.answer-text``,
        ``rendering.end-of-turn``.
        """
        runs: list[RenderedChat] = []
        so_far = ""
        thinking = self._thinking_of(chat)
        for answer in chat.answers:
            prompt = self._render(chat.messages[: answer.message], chat.tools, True, thinking)
            ids, said = self._as_sampled(chat, answer, prompt) or self._as_written(chat, answer, prompt, thinking)
            self._check_end(ids, answer)
            between = self._between(so_far, prompt) if runs else None
            if between is None:
                runs.append(RenderedChat(self.encode(prompt)))
            run = runs[-1]
            run.tokens += between or []
            run.answers.append((len(run.tokens), len(run.tokens) + len(ids)))
            run.messages.append(answer.message)
            run.cut.append(answer.finish in CUT)
            run.tokens += ids
            so_far = prompt + said
        return runs

    def encode(self, text: str) -> list[int]:
        """Token ids of a rendered text; no special tokens are added."""
        return list(self.tokenizer(text, add_special_tokens=False)["input_ids"])

    @cached_property
    def opening(self) -> str:
        """What the template writes between a user's turn and the answer."""
        user = [{"role": "user", "content": _PROBE}]
        thinking = None if self.rendering.thinking == "none" else self.rendering.thinking == "on"
        opened = self._render(user, (), True, thinking)
        return opened[common_length(opened, self._render(user, (), False, thinking)) :]

    @cached_property
    def closing(self) -> str:
        """The end-of-turn token that the template writes after an answer; raises ``rendering.end-of-turn``."""
        turns = [{"role": "user", "content": _PROBE}, {"role": "assistant", "content": _PROBE}]
        thinking = None if self.rendering.thinking == "none" else self.rendering.thinking == "on"
        rest = self._render(turns, (), False, thinking).rpartition(_PROBE)[2]
        found = self._first_eos(rest)
        if found is None:
            ends = ", ".join(map(repr, self._eos_texts))
            cause = (
                f"the chat template closes an answer with {shown(rest)}, and the target ends one with {ends or None}"
            )
            fix = "set eos_token_id in generation_config.json to the token that the template writes"
            raise EyasError("rendering.end-of-turn", cause, fix)
        return found[1]

    @cached_property
    def _eos_texts(self) -> list[str]:
        return [str(self.tokenizer.decode([i], skip_special_tokens=False)) for i in self.eos_ids]

    def _first_eos(self, text: str) -> tuple[int, str] | None:
        return min(((text.index(end), end) for end in self._eos_texts if end in text), default=None)

    def _switch(self, thinking: bool | None) -> bool | None:
        if self.rendering.thinking == "mixed":
            if thinking is None:
                cause = "thinking is 'mixed', so each prompt must say whether it is on"
                raise EyasError("rendering.thinking", cause, "choose off or on for this prompt")
            return thinking
        return None if self.rendering.thinking == "none" else self.rendering.thinking == "on"

    def _thinking_of(self, chat: Chat) -> bool | None:
        """Where thinking is mixed: what the chat says, else an answer with reasoning tells that it was on."""
        if chat.thinking is not None:
            return self._switch(chat.thinking)
        turns = [chat.messages[answer.message] for answer in chat.answers]
        on = (turn.get("reasoning_content") is not None or THINK_CLOSE in content_of(turn) for turn in turns)
        return self._switch(any(on))

    def _render(
        self, messages: Sequence[Message], tools: Sequence[Message], opened: bool, thinking: bool | None
    ) -> str:
        # Templates do not agree on the switch's name.
        switch: dict[str, Any] = {} if thinking is None else {"enable_thinking": thinking, "thinking": thinking}
        turns = [for_template(message) for message in self._with_system(messages)]
        if not turns:
            raise EyasError("rendering.refused", "an answer stands before everything else", "begin with a user's turn")
        given: list[Any] | None = [dict(tool) for tool in tools] or None
        template = self.tokenizer.get_chat_template(tools=given)
        try:
            text = self.tokenizer.apply_chat_template(
                turns,
                tools=given,
                add_generation_prompt=opened,
                tokenize=False,
                chat_template=_FIXED_DATE + template if "strftime_now" in template else template,
                **switch,
            )
        except (TemplateError, TypeError) as error:
            cause = f"the chat template refuses the conversation: {error}"
            raise EyasError("rendering.refused", cause, "leave out what the template has no place for") from error
        return str(text)

    def _with_system(self, messages: Sequence[Message]) -> Sequence[Message]:
        given = messages[0] if messages and messages[0]["role"] in ("system", "developer") else None
        wanted = self.rendering.system_prompt_text
        if self.rendering.system_prompt == "per-conversation" or (given is None and wanted is None):
            return messages
        if given is None:
            return [{"role": "system", "content": wanted}, *messages]
        if wanted is None or content_of(given) != wanted:
            cause = f"a conversation brings the system prompt {shown(content_of(given))}, and the rendering says "
            cause += "none" if wanted is None else shown(wanted)
            raise EyasError("rendering.system-prompt", cause, "render with system prompts per conversation")
        return messages

    def _between(self, so_far: str, prompt: str) -> list[int] | None:
        """Tokens of ``prompt`` after ``so_far``; None if it does not go on from there, or no token begins there."""
        if not prompt.startswith(so_far):
            return None
        rest, whole = self.encode(prompt[len(so_far) :]), self.encode(prompt)
        return rest if whole[len(whole) - len(rest) :] == rest else None

    def _spell(self, before: Sequence[int], ids: Sequence[int], skip_special: bool = False) -> str:
        """The text of ``ids`` after ``before``: some tokenizers drop the space at the very beginning of a text."""
        texts = [
            str(self.tokenizer.decode(t, skip_special_tokens=skip_special, clean_up_tokenization_spaces=False))
            for t in ([*before[-1:]], [*before[-1:], *ids])
        ]
        return texts[1][len(texts[0]) :]

    def _as_sampled(self, chat: Chat, answer: Answer, prompt: str) -> tuple[list[int], str] | None:
        if answer.token_ids is None:
            return None
        ids, message = list(answer.token_ids), chat.messages[answer.message]
        before = self.encode(prompt)
        body = ids[:-1] if ids and ids[-1] in self.eos_ids else ids
        spelled = [self._spell(before, body, skip_special) for skip_special in (True, False)]
        if not any(tells(text, message) for text in spelled):
            cause = f"chat {chat.id}, message {answer.message}: its tokens spell {shown(spelled[0])}, and its text "
            cause += f"is {shown(content_of(message))}"
            raise EyasError("rendering.answer-text", cause, "render with the tokenizer of the target that answered")
        return ids, self._spell(before, ids)

    def _as_written(self, chat: Chat, answer: Answer, prompt: str, thinking: bool | None) -> tuple[list[int], str]:
        message = chat.messages[answer.message]
        whole = self._render(chat.messages[: answer.message + 1], chat.tools, False, thinking)
        same = common_length(prompt, whole)
        end = self._first_eos(whole[same:])
        rendered = whole[same:][: end[0]] if end else whole[same:]
        said, closing = content_of(message), "" if answer.finish in CUT else self.closing
        if is_plain(message):
            unclosed = prompt[same:].count(THINK_OPEN) > prompt[same:].count(THINK_CLOSE)
            kept = squeezed(rendered) in squeezed(said) and not (unclosed and THINK_CLOSE not in said)
        else:
            kept, said = same == len(prompt) and tells(rendered, message), rendered
        if not kept:
            cause = (
                f"chat {chat.id}, message {answer.message}: after {shown(prompt[:same], last=True)} the prompt goes "
            )
            cause += f"on with {shown(prompt[same:] + said)}, and the whole conversation with {shown(whole[same:])}"
            fix = "regenerate with token ids, or with the answer's reasoning_content, or with thinking off"
            raise EyasError("rendering.rewritten", cause, fix)
        return self._tokenised(chat, prompt, said + closing)

    def _tokenised(self, chat: Chat, prompt: str, said: str) -> tuple[list[int], str]:
        """The prompt was tokens before the answer came, so no token may lie in both."""
        before, joint = self.encode(prompt), self.encode(prompt + said)
        ids = joint[len(before) :] if joint[: len(before)] == before else self.encode(said)
        if self._spell(before, ids) != said:
            cause = f"chat {chat.id}: the answer {shown(said)} cannot be tokenised apart from its prompt"
            raise EyasError("rendering.answer-text", cause, "regenerate with token ids")
        return ids, said

    def _check_end(self, ids: Sequence[int], answer: Answer) -> None:
        ends = [i for i, token in enumerate(ids) if token in self.eos_ids]
        where = f"the answer in message {answer.message} ({answer.finish})"
        if not ids:
            cause = f"{where} has no tokens"
        elif ends and ends[0] < len(ids) - 1:
            cause = f"{where} goes on after the end-of-turn token {ids[ends[0]]}"
        elif answer.finish in CUT and ends:
            cause = f"{where} was cut, and ends with the end-of-turn token {ids[-1]}"
        elif answer.finish == "stop" and not ends:
            cause = f"{where} ends with token {ids[-1]}, and the target ends answers with {list(self.eos_ids)}"
        else:
            return
        raise EyasError("rendering.end-of-turn", cause, "take the eos_token_id and the answers from the same target")


def default_rendering(tokenizer: PreTrainedTokenizerBase) -> Rendering:
    """What the tokenizer's template does when it is told nothing: no system prompt, and thinking as it likes."""
    thinking: Literal["none", "on", "off", "mixed"] = "none"
    if tokenizer.chat_template:
        user = [{"role": "user", "content": _PROBE}]

        def text(switch: dict[str, Any]) -> str:
            return str(tokenizer.apply_chat_template(user, add_generation_prompt=True, tokenize=False, **switch))

        on, off = (text({"enable_thinking": value, "thinking": value}) for value in (True, False))
        if on != off:
            default = text({})
            thinking = "on" if default == on else "off" if default == off else "mixed"
    return Rendering(thinking=thinking, system_prompt="none", system_prompt_text=None)
