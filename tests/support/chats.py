"""Chats of the tiny target, whose template is ChatML."""

from __future__ import annotations

from typing import Any

from transformers import AutoTokenizer

from eyas.contract import Rendering
from eyas.corpus.chats import Answer, Chat
from eyas.corpus.rendering import Renderer
from eyas.engine.session import eos_ids_of
from eyas.testing import TINY_PROMPTS, tiny_pair

PLAIN = Rendering(thinking="none", system_prompt="none", system_prompt_text=None)


def tiny_renderer(rendering: Rendering = PLAIN) -> Renderer:
    folder = tiny_pair()[0]
    return Renderer(AutoTokenizer.from_pretrained(folder), rendering, eos_ids_of(folder))


def tiny_chat(number: int, said: str = "The fox is quick and brown.", **more: Any) -> Chat:
    """One question, one answer; ``more``: fields of the chat, or the answer's finish and temperature."""
    prompt = f"{TINY_PROMPTS[number % len(TINY_PROMPTS)]} ({number}) " + chr(97 + number % 26) * 3
    answer = Answer(
        message=1,
        token_ids=None,
        finish=more.pop("finish", "stop"),
        temperature=more.pop("temperature", 0.0),
        seed=None,
    )
    messages = ({"role": "user", "content": prompt}, {"role": "assistant", "content": said})
    facts = {"source": "made", "licence": "Apache-2.0", "domain": "animals", "prompt_id": f"p{number}"}
    return Chat(**{"id": f"c{number}", "messages": messages, "answers": (answer,)} | facts | more)
