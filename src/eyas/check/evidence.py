"""What a draft is judged on: conversations that the target itself has, with the states of all its boundaries."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

from eyas.check.forced import Text
from eyas.corpus.prompts import read_prompts
from eyas.engine.greedy import greedy_answers
from eyas.engine.session import Session
from eyas.errors import EyasError
from eyas.models.reading import read_answers
from eyas.models.target import Target

NUM_PROMPTS = 24
FURTHER = 2
"""Times as many prompts as at first that are asked where those leave doubt."""
ANSWER_TOKENS = 64
SHORTEST = 2
"""Tokens of an answer that holds no round."""
FEWEST = 4
"""Conversations below which nothing is compared: a z over fewer says nothing."""


def packaged_prompts(count: int = NUM_PROMPTS) -> list[str]:
    """The prompts that a check uses when none are given: chat and code, our own."""
    text = (files("eyas") / "assets" / "check_prompts.json").read_text(encoding="utf-8")
    return list(json.loads(text))[:count]


def prompt_ids(session: Session, prompts: Path | None, count: int = NUM_PROMPTS, start: int = 0) -> list[list[int]]:
    """Token ids of up to ``count`` packaged prompts, or of those of a file, from number ``start``, opened for the
    answer; raises ``prompts.…``.
    """
    end = start + count
    if prompts is None:
        turns = [[("user", text)] for text in packaged_prompts(end)][start:]
    else:
        turns = [_turns(prompt.messages) for prompt in read_prompts(prompts)][start:end]
    if not session.tokenizer.chat_template:
        return [session.encode(conversation[-1][1]) for conversation in turns]
    return [session.encode_chat(conversation) for conversation in turns]


def _turns(messages: Sequence[Mapping[str, Any]]) -> list[tuple[str, str]]:
    """The messages up to the first user turn, which is what is answered."""
    turns: list[tuple[str, str]] = []
    for message in messages:
        turns.append((str(message["role"]), str(message["content"])))
        if message["role"] == "user":
            break
    return turns


def answered(
    target: Target, prompts: Sequence[Sequence[int]], eos_ids: Sequence[int], max_new_tokens: int = ANSWER_TOKENS
) -> list[Text]:
    """Each prompt with the target's answer at temperature 0; those too short for a round are left out."""
    fit = all(len(prompt) + max_new_tokens <= target.max_positions for prompt in prompts)
    if target.row_exact and fit:
        read = read_answers(target, prompts, eos_ids, max_new_tokens, range(target.num_layers + 1))
        found = [(prompt, answer, out) for prompt, (answer, out) in zip(prompts, read, strict=True)]
        return [Text.of(prompt, answer, out) for prompt, answer, out in found if len(answer) > SHORTEST]
    answers = greedy_answers(target, prompts, eos_ids, max_new_tokens)
    said = [(prompt, answer) for prompt, answer in zip(prompts, answers, strict=True) if len(answer) > SHORTEST]
    return Text.read_all(target, said)


def texts_of(session: Session, prompts: Path | None, count: int) -> list[Text]:
    """What a check begins with; raises ``prompts.…``, and ``check.too-little`` for fewer than :data:`FEWEST`."""
    ids = prompt_ids(session, prompts, count)
    found = answered(session.target, ids, session.eos_ids)
    if len(found) < FEWEST:
        cause = f"only {len(found)} of {len(ids)} prompts have an answer of three tokens or more"
        raise EyasError("check.too-little", cause, "give more prompts with --prompts")
    return found


def further(session: Session, prompts: Path | None, asked: int) -> list[Text]:
    """Texts of the prompts after the first ``asked``, as far as there are any."""
    ids = prompt_ids(session, prompts, FURTHER * asked, start=asked)
    return answered(session.target, ids, session.eos_ids)
