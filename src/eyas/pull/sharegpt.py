"""ShareGPT conversations: a large JSON array that may be cut off in the middle of a record."""

from __future__ import annotations

import codecs
import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import IO, Any

from eyas.artifacts import FolderDraft, Progress
from eyas.corpus.messages import from_sharegpt
from eyas.corpus.prompts import Prompt
from eyas.errors import EyasError
from eyas.pull.packages import Member

CHUNK = 1 << 20


@dataclass
class CutArray:
    """What was found at the end of an array: the characters of a record that is not whole (0: none)."""

    cut_characters: int = 0


def whole_records(file: IO[bytes], end: CutArray, size: int, progress: Progress) -> Iterator[Any]:
    """The elements of the JSON array in ``file`` (UTF-8, ``size`` bytes), one by one, up to a cut if there is
    one.

    Sets ``end`` when done. Raises ``artifact.corrupt`` if the file is no array.
    """
    decode, parse = codecs.getincrementaldecoder("utf-8")("replace"), json.JSONDecoder()
    text, read, last = decode.decode(file.read(CHUNK)).lstrip(), CHUNK, False
    if not text.startswith("["):
        raise EyasError("artifact.corrupt", "the ShareGPT file is no JSON array", "pull it again")
    place = 1
    while True:
        while place < len(text) and text[place] in " \t\r\n,":
            place += 1
        if text.startswith("]", place):
            return
        try:
            record, place = parse.raw_decode(text, place)
        except json.JSONDecodeError:
            if last:
                end.cut_characters = len(text) - place
                return
            chunk = file.read(CHUNK)
            read, last = read + len(chunk), not chunk
            text, place = text[place:] + decode.decode(chunk, final=last), 0
            progress("reading conversations", min(read, size), size)
            continue
        yield record


def normalise_sharegpt(member: Member, draft: FolderDraft, progress: Progress) -> Iterator[Prompt]:
    """Prompts from ShareGPT's array; the draft's notes say how many were kept, left out, and cut."""
    end, kept, left_out = CutArray(), 0, 0
    with member.open() as (file, size):
        for record in whole_records(file, end, size, progress):
            prompt = _prompt(record)
            if prompt is None:
                left_out += 1
                continue
            kept += 1
            yield prompt
    draft.notes.append(f"kept {kept} whole conversations")
    if left_out:
        draft.notes.append(
            f"left out {left_out} records in which no user or an unknown party speaks, or somebody says nothing"
        )
    if end.cut_characters:
        draft.notes.append(f"the file is cut off in the record after these: {end.cut_characters} characters dropped")


def _prompt(record: Any) -> Prompt | None:
    """The conversation from its first user or system message on; None if it can have taken no place."""
    turns = record.get("conversations", [])
    try:
        messages = [from_sharegpt(turn) for turn in turns]
        begin = next((i for i, message in enumerate(messages) if message["role"] != "assistant"), len(messages))
        return Prompt(id=str(record["id"]), messages=tuple(messages[begin:]), domain="chat")
    except ValueError:
        return None
