"""One conversation on its way: which turns stay, which are answered anew, and what remains when the data runs out.

An answer is wanted where the data has an assistant turn after a user or tool message, where two user messages follow
each other, and at the end. The given answer is dropped; the target's own takes its place, so that every later turn is
on-policy. Tool results stay as far as they belong to what the target really called.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

from eyas.corpus.chats import Answer, Chat
from eyas.corpus.prompts import Prompt
from eyas.corpus.rendering import CUT
from eyas.data.regen.settings import RegenSettings
from eyas.data.regen.source import Ask, Message, Reply

_OPEN = ("user", "tool")
"""Roles that call for an answer."""


class Conversation:
    """One sample of one prompt."""

    def __init__(self, prompt: Prompt, sample: int, settings: RegenSettings) -> None:
        self.prompt, self.sample, self.settings = prompt, sample, settings
        self.id = chat_id(prompt.id, sample)
        self.messages: list[Message] = []
        self.answers: list[Answer] = []
        self._given = list(prompt.messages)
        if settings.system is not None and not any(m["role"] == "system" for m in self._given):
            self._given.insert(0, {"role": "system", "content": settings.system})

    @property
    def thinking(self) -> bool | None:
        """What the template is told."""
        if self.settings.thinking == "mixed":
            return _number(self.settings.seed, self.id, "thinking") % 2 == 0
        return {"none": None, "off": False, "on": True}[self.settings.thinking]

    @property
    def expected_answers(self) -> int:
        """How many turns are still to be answered if each goes as the data has it."""
        roles = [message["role"] for message in [*self.messages[-1:], *self._given]]
        pairs = zip(roles, [*roles[1:], "user"], strict=True)
        return sum(role in _OPEN and (after == "user" or self._replaces(after)) for role, after in pairs)

    def next_ask(self) -> Ask | None:
        """Takes over given messages up to the next turn that the target must answer; None if there is none."""
        while self._given:
            message = self._given[0]
            if self._is_open() and (message["role"] == "user" or self._replaces(message["role"])):
                return self._ask()
            self.messages.append(self._given.pop(0))
        return self._ask() if self._is_open() else None

    def take(self, reply: Reply) -> None:
        """The target's turn, and what it means for the rest of the data."""
        temperature = self.settings.temperature(self.sample)
        answer = Answer(
            message=len(self.messages),
            token_ids=reply.token_ids,
            finish=reply.finish,
            temperature=temperature,
            seed=reply.ask.seed if temperature else None,
        )
        self.answers.append(answer)
        self.messages.append(reply.message)
        given = self._given.pop(0) if self._given and self._given[0]["role"] == "assistant" else {}
        if reply.finish in CUT or is_empty(reply.message):
            self._given.clear()
        elif reply.message.get("tool_calls"):
            self._answer_calls(given.get("tool_calls") or [], reply.message["tool_calls"])
        else:
            # Results of calls that the target did not make, and what was said about them, belong to nobody.
            while self._given and self._given[0]["role"] != "user":
                del self._given[0]

    def chat(self) -> Chat:
        """All up to the last answer; there is at least one."""
        assert self.answers
        return Chat(
            id=self.id,
            prompt_id=self.prompt.id,
            messages=tuple(self.messages[: self.answers[-1].message + 1]),
            answers=tuple(self.answers),
            source=self.prompt.source,
            licence=self.prompt.licence,
            domain=self.prompt.domain,
            tools=tuple(self.prompt.tools),
            thinking=self.thinking,
        )

    def _replaces(self, role: str) -> bool:
        return role == "assistant" and not self.settings.keep_given

    def _is_open(self) -> bool:
        return bool(self.messages) and self.messages[-1]["role"] in _OPEN

    def _ask(self) -> Ask:
        return Ask(
            self.id,
            tuple(self.messages),
            tuple(self.prompt.tools),
            self.settings.temperature(self.sample),
            _number(self.settings.seed, self.prompt.id, self.sample, len(self.answers)) & 0x7FFFFFFF,
            self.thinking,
        )

    def _answer_calls(self, given: Sequence[Message], made: Sequence[Message]) -> None:
        """Let the given results follow if they answer calls of the same names, under the ids of the target's calls."""
        count = next((i for i, m in enumerate(self._given) if m["role"] != "tool"), len(self._given))
        if not count or [_name(call) for call in given] != [_name(call) for call in made]:
            self._given.clear()
            return
        ids = {old.get("id"): new.get("id") for old, new in zip(given, made, strict=True)}
        for i, message in enumerate(self._given[:count]):
            new = ids.get(message.get("tool_call_id"))
            if new is not None:
                self._given[i] = {**message, "tool_call_id": new}


def chat_id(prompt_id: str, sample: int) -> str:
    """The id of a prompt's sample; what stands before the last ``#`` is the prompt's."""
    return f"{prompt_id}#{sample}"


def is_empty(message: Message) -> bool:
    """Whether a turn says nothing: no text and no calls. Thoughts alone are nothing."""
    return not (message.get("content") or "").strip() and not message.get("tool_calls")


def _name(call: Message) -> Any:
    return call.get("function", {}).get("name")


def _number(*parts: object) -> int:
    """64 bits that these parts decide."""
    text = "\0".join(map(str, parts))
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big")
