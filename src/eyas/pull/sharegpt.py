"""ShareGPT conversations: a large JSON array that may be cut off in the middle of a record."""

from __future__ import annotations

import codecs
import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import IO, Any

from eyas.artifacts import FolderDraft, Progress
from eyas.errors import EyasError

CHUNK = 1 << 20
ASSISTANTS = ("gpt", "assistant", "chatgpt", "bing", "bard")
ROLES = {"human": "user", "user": "user", "system": "system", **dict.fromkeys(ASSISTANTS, "assistant")}


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


def normalise_sharegpt(file: IO[bytes], size: int, draft: FolderDraft, progress: Progress) -> Iterator[dict[str, Any]]:
    """Prompt records from ShareGPT's array; the draft's notes say how many were kept, left out, and cut."""
    end, kept, left_out = CutArray(), 0, 0
    for record in whole_records(file, end, size, progress):
        messages = _messages(record)
        if not messages:
            left_out += 1
            continue
        kept += 1
        yield {"id": str(record["id"]), "messages": messages, "category": "chat"}
    draft.notes.append(f"kept {kept} whole conversations")
    if left_out:
        draft.notes.append(f"left out {left_out} records in which no user or an unknown party speaks")
    if end.cut_characters:
        draft.notes.append(f"the file is cut off in the record after these: {end.cut_characters} characters dropped")


def _messages(record: Any) -> list[dict[str, str]]:
    """The conversation from its first user or system message on; empty if it has none or an unknown role."""
    turns = record.get("conversations", [])
    if any(turn.get("from") not in ROLES for turn in turns):
        return []
    messages = [{"role": ROLES[turn["from"]], "content": str(turn["value"])} for turn in turns]
    while messages and messages[0]["role"] == "assistant":
        messages.pop(0)
    return messages if any(message["role"] == "user" for message in messages) else []
