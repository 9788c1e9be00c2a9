"""Questions that several hundred people contributed to OpenAI's registry of evaluations: a few of each."""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import groupby

from eyas.artifacts import FolderDraft, Progress
from eyas.corpus.messages import from_openai
from eyas.corpus.prompts import Prompt
from eyas.pull.packages import Member

PER_TOPIC = 4
MAX_BYTES = 4_000_000
"""Larger files are lists that a program made, and would be most of the reading."""

OTHER_LICENCES = (
    "already_said_that",
    "ballots",
    "sandbagging",
    "schelling_point",
    "steganography",
    "text_compression",
    "theory_of_mind",
)
"""Folders that the package's licence names as derived from sets under licences of their own."""


def read_openai_evals(folder: Member, draft: FolderDraft, progress: Progress) -> Iterator[Prompt]:
    """``PER_TOPIC`` prompts of each topic, spread evenly over it; what is no conversation that ends with a user's
    question is left out. The draft's notes say how many topics there are.
    """
    files = [(member, size) for member, size in folder.files() if member.name.endswith(".jsonl") and size <= MAX_BYTES]
    topics = 0
    for topic, members in groupby(files, key=lambda entry: entry[0].name.removeprefix(folder.name).split("/")[0]):
        if topic in OTHER_LICENCES:
            continue
        progress(f"reading {topic}", 0, 0)
        found = [prompt for member, _ in members for prompt in _prompts(member, topic)]
        count = min(PER_TOPIC, len(found))
        topics += count > 0
        for number in range(count):
            prompt = found[number * len(found) // count]
            yield prompt.model_copy(update={"id": f"openai-evals-{topic}-{number}"})
    draft.notes.append(f"kept at most {PER_TOPIC} prompts of each of {topics} topics")
    draft.notes.append(f"left out for their licence: {', '.join(OTHER_LICENCES)}")


def _prompts(member: Member, topic: str) -> Iterator[Prompt]:
    with member.open() as (file, _):
        for line in file:
            prompt = _prompt(line, topic)
            if prompt is not None:
                yield prompt


def _prompt(line: bytes, topic: str) -> Prompt | None:
    try:
        record = json.loads(line)
        asked = record.get("input") if isinstance(record, dict) else None
        if isinstance(asked, str):
            asked = [{"role": "user", "content": asked}]
        if not isinstance(asked, list) or not all(isinstance(message, dict) for message in asked):
            return None
        prompt = Prompt(id=topic, messages=tuple(from_openai(message) for message in asked), domain="tasks")
    except ValueError:
        return None
    return prompt if prompt.messages[-1]["role"] == "user" else None
