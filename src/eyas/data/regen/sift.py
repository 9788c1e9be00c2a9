"""What of the finished chats is kept: cut and empty answers, evaluation sets and duplicates go.

Chats come in prompt order, all samples of a prompt after each other, and the first of two that are alike stays.
"""

from __future__ import annotations

from dataclasses import dataclass

from eyas.corpus.chats import Chat
from eyas.corpus.rendering import CUT
from eyas.data.duplicates import ExactDuplicates, NearDuplicates, jaccard, shingles
from eyas.data.overlap import Evaluation
from eyas.data.regen.conversation import is_empty

REASONS = ("length", "repetition", "empty", "evaluation-overlap", "duplicate", "near-duplicate")
"""Why a chat is dropped, in the order in which it is looked for; the first two: its first answer was cut."""


@dataclass(frozen=True)
class Sifted:
    """``chat``: what is kept, None if nothing is. ``reason``: why not all of it is; None if all is."""

    chat: Chat | None
    reason: str | None


class Sieve:
    """Asked about each chat once; remembers what it kept."""

    def __init__(self, evaluation: Evaluation | None, near: float | None, keep_cut: bool) -> None:
        """``near``: the least Jaccard similarity that makes two chats near duplicates; None: only exact ones go.
        ``keep_cut``: answers that were cut stay, marked by their ``finish``.
        """
        self.evaluation, self.near, self.keep_cut = evaluation, near, keep_cut
        self._exact = ExactDuplicates()
        self._whole = NearDuplicates(near) if near else None
        """The first kept chat of each prompt, by its whole text."""
        self._answers: list[frozenset[int]] = []
        """Kept chats of the present prompt, by their answers: their questions are the same in any case."""
        self._prompt_id: str | None = None

    def sift(self, chat: Chat) -> Sifted:
        """What of ``chat`` is kept."""
        left, reason = self._shortened(chat)
        if left is None:
            return Sifted(None, reason)
        alike = self._overlap(left) or self._alike(left)
        return Sifted(None, alike) if alike else Sifted(left, reason)

    def _shortened(self, chat: Chat) -> tuple[Chat | None, str | None]:
        """The chat up to its first answer that is cut or empty; the answers before that are as good as any."""
        for number, answer in enumerate(chat.answers):
            empty = is_empty(chat.messages[answer.message])
            reason = answer.finish if answer.finish in CUT and not self.keep_cut else "empty" if empty else None
            if reason is None:
                continue
            if number == 0:
                return None, reason
            end = chat.answers[number - 1].message + 1
            return chat.model_copy(update={"messages": chat.messages[:end], "answers": chat.answers[:number]}), reason
        return chat, None

    def _overlap(self, chat: Chat) -> str | None:
        if self.evaluation is None:
            return None
        said = [m.get("content") or "" for m in chat.messages if m["role"] != "system"]
        return "evaluation-overlap" if any(self.evaluation.find(text) is not None for text in said) else None

    def _alike(self, chat: Chat) -> str | None:
        whole = "\n".join(_said(m) for m in chat.messages if m["role"] != "system")
        if self._exact.find(whole) is not None:
            return "duplicate"
        self._exact.add(chat.id, whole)
        return "near-duplicate" if self.near and self._is_near(chat, whole, self.near) else None

    def _is_near(self, chat: Chat, whole: str, near: float) -> bool:
        assert self._whole is not None
        if chat.prompt_id != self._prompt_id:
            self._prompt_id, self._answers = chat.prompt_id, []
        own = shingles("\n".join(_said(chat.messages[answer.message]) for answer in chat.answers))
        if any(jaccard(own, other) >= near for other in self._answers):
            return True
        if self._whole.find(whole) not in (None, chat.prompt_id):
            return True
        if not self._answers:
            self._whole.add(chat.prompt_id, whole)
        self._answers.append(own)
        return False


def _said(message: dict[str, object]) -> str:
    return (
        f"{message.get('reasoning_content') or ''}\n{message.get('content') or ''}\n{message.get('tool_calls') or ''}"
    )
