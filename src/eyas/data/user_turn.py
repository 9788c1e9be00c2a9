"""The user's turn cut out of a chat template: what stands before the user's words, and what ends them."""

from __future__ import annotations

from dataclasses import dataclass

from eyas.contract.schema import Rendering
from eyas.corpus.rendering import Renderer
from eyas.engine.session import Session
from eyas.errors import EyasError

_MARKERS = ("penguin", "What is 12 x 12?")
_FIX = "use another model, or prompts of your own (eyas regen takes any JSON Lines file of prompts)"


@dataclass(frozen=True)
class UserTurn:
    """``before``: the template's text up to the user's words, its own system prompt included. ``end_text``: what
    follows the words. ``end_ids``: the tokens that end them, none where the template ends them by plain text.
    """

    before: str
    end_text: str
    end_ids: tuple[int, ...]


def cut_user_turn(session: Session) -> UserTurn:
    """Find the place of the user's words by rendering two of them, which must change nothing but themselves.

    Raises ``tokenizer.chat-template`` (there is none) and ``rendering.user-turn`` (it cannot be cut).
    """
    cuts = {_cut(session, marker) for marker in _MARKERS}
    if len(cuts) > 1:
        _refuse("what it writes around a user's words depends on them")
    before, after = cuts.pop()
    end_text = after.strip()
    if not before.strip() or not end_text:
        _refuse(f"it marks the user's words {'at their end' if not before.strip() else 'at their beginning'} only")
    first = session.tokenizer(end_text, add_special_tokens=False)["input_ids"][0]
    special = set(session.tokenizer.all_special_ids) | set(session.tokenizer.added_tokens_decoder)
    # A space before the words belongs to their first token, where there is one.
    return UserTurn(before.rstrip(" "), end_text, (first,) if first in special else ())


def _cut(session: Session, marker: str) -> tuple[str, str]:
    text = _renderer(session).prompt_text([{"role": "user", "content": marker}])
    if text.count(marker) != 1:
        _refuse(f"it writes a user's words {text.count(marker)} times")
    before, _, after = text.partition(marker)
    return before, after


def _renderer(session: Session) -> Renderer:
    """The user's turn is the same whether the target is to think or not, but the template may want to be told."""
    try:
        return Renderer(session.tokenizer, _rendering("none"), session.eos_ids)
    except EyasError as error:
        if error.code != "rendering.thinking":
            raise
        return Renderer(session.tokenizer, _rendering("off"), session.eos_ids)


def _rendering(thinking: str) -> Rendering:
    return Rendering.model_validate({"thinking": thinking, "system_prompt": "none", "system_prompt_text": None})


def _refuse(why: str) -> None:
    raise EyasError("rendering.user-turn", f"the chat template cannot be continued as a user: {why}", _FIX)
