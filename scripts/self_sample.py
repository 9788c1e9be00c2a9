"""Chats that the target makes up itself: its own user turns, its own answers, and their features.

The Magpie method (Xu et al. 2024): open the chat template's user turn and let the target continue it; close it and let
the target answer. The text needs no licence but the target's and is what the draft will see. A share of the user turns
begins with a word or a line of code, so that the topics spread.

    python scripts/self_sample.py --target builtin:smollm2-135m --out DIR --conversations 640
"""

from __future__ import annotations

import argparse
import json
import random
import time
from pathlib import Path

import torch
from chats import Chat, read_chats
from safetensors.torch import save_file

from eyas.artifacts import cache_root
from eyas.config import SamplingSettings
from eyas.engine.engine import Engine
from eyas.engine.session import Session, open_session
from eyas.models.reading import read_text
from eyas.pull import resolve_model

OPENING_WORDS = (
    "Write",
    "Explain",
    "What",
    "How",
    "Why",
    "Describe",
    "Imagine",
    "Compose",
    "Given",
    "Suppose",
    "Compare",
    "Create",
    "Can you",
    "I",
    "Please",
    "Help me",
    "You are",
    "Summarize",
    "Solve",
    "If",
    "Translate",
    "List",
    "Give me",
    "Is",
    "The",
    "A",
    "Let",
    "In",
    "Consider",
    "Edit",
    "Find",
)
OPENING_CODE = (
    "Write a Python function that",
    "Write a Python function to",
    "Complete the following Python function:\n\n```python\ndef",
    "Complete this Python code:\n\n```python\nfrom typing import List\n\n\ndef",
    "Implement a function in Python that",
    "def ",
    "Write a program in Python",
    "Fix the bug in this Python code:\n\n```python\n",
    "Complete the function:\n\ndef",
    "```python\ndef",
    "Write a JavaScript function",
    "Write a C++ program that",
    "Write a SQL query",
    "Write unit tests for",
    "Here is a Python function:\n\n```python\ndef",
)
ANSWER_TEMPERATURES = (0.0, 0.0, 0.0, 0.8, 0.8, 1.0)
LONGEST_PROMPT, LONGEST_ANSWER = 170, 340
PER_SHARD = 64


def repeats(tokens: list[int]) -> bool:
    """Do the last 60 tokens hold fewer than 14 different ones?"""
    tail = tokens[-60:]
    return len(tail) == 60 and len(set(tail)) < 14


def encode(session: Session, text: str) -> list[int]:
    """Token ids of a piece of a rendered chat: nothing is added at its ends."""
    return list(session.tokenizer(text, add_special_tokens=False)["input_ids"])


def opened_user_turn(session: Session) -> list[int]:
    """The template's system prompt and an opened user turn: what comes before the user's words."""
    marker = "\x00"
    text = session.tokenizer.apply_chat_template([{"role": "user", "content": marker}], tokenize=False)
    return encode(session, text.split(marker)[0])


def closed_user_turn(session: Session) -> list[int]:
    """What the template puts between the user's last token (its end of turn included) and the answer."""
    marker = "\x00"
    text = session.tokenizer.apply_chat_template(
        [{"role": "user", "content": marker}], tokenize=False, add_generation_prompt=True
    )
    after = text.split(marker)[1]
    end = session.tokenizer.decode([session.eos_ids[0]])
    return encode(session, after.removeprefix(end))


def opening(session: Session) -> list[int]:
    """Nothing, a word, or a line of code, to begin the user turn with."""
    draw = random.random()
    text = "" if draw < 0.4 else random.choice(OPENING_WORDS) if draw < 0.7 else random.choice(OPENING_CODE)
    return encode(session, text)


def sample_chats(session: Session, engine: Engine, count: int, seed: int) -> list[Chat]:
    """Up to ``count`` chats; user turns that never end, end at once or repeat themselves are dropped."""
    before, after, eos = opened_user_turn(session), closed_user_turn(session), session.eos_ids[0]
    turns = []
    for i in range(count):
        sampling = SamplingSettings(temperature=1.0, top_p=0.95, seed=seed + i, max_new_tokens=LONGEST_PROMPT)
        turns.append(engine.submit([*before, *opening(session)], sampling))
    engine.run()
    asked = []
    for i, turn in enumerate(turns):
        said = [*turn.prompt[len(before) :], *turn.answer]
        if turn.finished == "stop" and len(said) >= 5 and not repeats(said):
            temperature = random.choice(ANSWER_TEMPERATURES)
            sampling = SamplingSettings(
                temperature=temperature,
                top_p=0.95 if temperature else 1.0,
                seed=seed + i,
                max_new_tokens=LONGEST_ANSWER,
            )
            asked.append((temperature, engine.submit([*turn.prompt, *turn.answer, *after], sampling)))
    engine.run()
    chats = []
    for temperature, request in asked:
        answer, end = request.answer, "stop" if request.answer[-1] == eos else "len"
        cut = next((n for n in range(60, len(answer) + 1) if repeats(answer[:n])), None)
        if cut is not None:
            answer, end = answer[:cut], "rep"
        if len(answer) >= 8:
            chats.append(Chat([*request.prompt, *answer], len(request.prompt), temperature, end))
    return chats


def write_shard(session: Session, chats: list[Chat], taps: tuple[int, ...], path: Path) -> None:
    """Tokens, taps and last states of some chats."""
    tokens, features, hidden = [], [], []
    for chat in chats:
        out = read_text(session.target, chat.tokens, taps)
        tokens += chat.tokens
        features.append(out.taps.bfloat16())
        hidden.append(out.hidden.bfloat16())
    items = [{"n": len(c.tokens), "plen": c.answer, "temp": c.temperature, "why": c.end} for c in chats]
    path.with_suffix(".json").write_text(json.dumps(items))
    partial = path.with_suffix(".partial")
    tensors = {"tokens": torch.tensor(tokens, dtype=torch.int32), "taps": torch.cat(features), "hid": torch.cat(hidden)}
    save_file(tensors, partial)
    partial.replace(path)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--target", default="builtin:smollm2-135m")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--chats", type=Path, help="a file of scripts/chats.py: only compute its features")
    parser.add_argument("--conversations", type=int, default=640)
    parser.add_argument("--taps", type=int, nargs="+", default=[2, 15, 27])
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--threads", type=int, default=1)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    args.out.mkdir(parents=True, exist_ok=True)
    session = open_session(resolve_model(args.target, cache_root()), None)
    given = read_chats(args.chats) if args.chats else None
    start, made = time.time(), 0
    count = len(given) if given is not None else args.conversations
    for shard in range(-(-count // PER_SHARD)):
        path = args.out / f"{args.seed}-{shard:04d}.safetensors"
        if path.exists():
            continue
        random.seed(f"{args.seed}.{shard}")
        if given is not None:
            chats = given[shard * PER_SHARD : (shard + 1) * PER_SHARD]
        else:
            engine = Engine(session.target, eos_ids=session.eos_ids, num_slots=PER_SHARD * 600)
            chats = sample_chats(session, engine, PER_SHARD, (args.seed << 32) + shard * PER_SHARD)
        write_shard(session, chats, tuple(args.taps), path)
        made += len(chats)
        print(f"{time.time() - start:.0f} s: {made} chats, shard {shard}", flush=True)


if __name__ == "__main__":
    main()
