"""The journal: every finished chat, in the order in which they finished, safe from the moment it is written.

``journal.jsonl``: a first line with what all its chats have in common, then one line a chat. It is only ever appended
to, and forced to the disk after each batch. What a kill leaves of the last line is cut off when it is opened again.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Literal

from pydantic import ValidationError

from eyas.artifacts import atomic_write, named_disk_errors
from eyas.contract.schema import Sha256, Strict, describe
from eyas.corpus.chats import Chat
from eyas.corpus.prompts import Prompt
from eyas.data.regen.settings import Identity
from eyas.errors import EyasError

NAME = "journal.jsonl"


class Header(Strict):
    """The first line."""

    schema_version: Literal[1] = 1
    identity: Identity


class Entry(Strict):
    """A later line: a chat, and which text its prompt had."""

    prompt_sha256: Sha256
    chat: Chat


@dataclass(frozen=True)
class Place:
    """Where a chat's line is, in bytes, and which prompt it answered."""

    offset: int
    length: int
    prompt_sha256: str


class Journal:
    """An open journal; chats are read from the disk when they are asked for. Use as a context."""

    def __init__(self, folder: Path, identity: Identity) -> None:
        """Opens what is there, or begins one. The caller holds the folder's lock.

        Raises ``regen.settings`` naming what differs, ``artifact.corrupt``, ``artifact.not-writable``.
        """
        self.path = folder / NAME
        self.places: dict[str, Place] = {}
        self.dropped_bytes = 0
        """What was cut off the end."""
        with named_disk_errors(folder):
            if not self.path.exists():
                atomic_write(self.path, Header(identity=identity).model_dump_json() + "\n")
            self._file: IO[bytes] = self.path.open("r+b")
        try:
            self._load(identity)
        except BaseException:
            self._file.close()
            raise

    def __enter__(self) -> Journal:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def append(self, entries: Iterable[tuple[Prompt, Chat]]) -> None:
        """Add chats that are not there yet; they are on the disk when this returns. Raises ``pull.disk-full``."""
        offset, lines = self._file.seek(0, os.SEEK_END), []
        for prompt, chat in entries:
            assert chat.id not in self.places, chat.id
            entry = Entry(prompt_sha256=fingerprint(prompt), chat=chat)
            line = json.dumps(entry.model_dump(mode="json"), ensure_ascii=False).encode() + b"\n"
            self.places[chat.id] = Place(offset, len(line), entry.prompt_sha256)
            offset += len(line)
            lines.append(line)
        if not lines:
            return
        with named_disk_errors(self.path):
            self._file.write(b"".join(lines))
            self._file.flush()
            os.fsync(self._file.fileno())

    def has(self, chat_id: str, prompt: Prompt) -> bool:
        """Whether a chat is there. Raises ``regen.settings`` if its prompt said something else then."""
        place = self.places.get(chat_id)
        if place is not None and place.prompt_sha256 != fingerprint(prompt):
            cause = f"prompt {prompt.id} has changed since {self.path} answered it"
            raise EyasError("regen.settings", cause, "give the changed prompt another id, or take another --out")
        return place is not None

    def read(self, chat_id: str) -> Chat:
        """A chat that is there."""
        place = self.places[chat_id]
        self._file.seek(place.offset)
        return Entry.model_validate_json(self._file.read(place.length)).chat

    def _load(self, identity: Identity) -> None:
        header = self._file.readline()
        try:
            known = Header.model_validate_json(header)
        except ValidationError as error:
            cause = f"{self.path} does not begin as a journal does: {describe(error)}"
            raise EyasError("artifact.corrupt", cause, "take another --out") from error
        _require_same(known.identity, identity, self.path)
        good = len(header)
        for number, line in enumerate(self._lines(), 2):
            entry = self._parse(line, number)
            if entry is None:
                break
            if entry.chat.id in self.places:
                cause = f"{self.path}, line {number}: chat {entry.chat.id} is there twice"
                raise EyasError("artifact.corrupt", cause, "delete that line")
            self.places[entry.chat.id] = Place(good, len(line), entry.prompt_sha256)
            good += len(line)
        self._cut(good)

    def _lines(self) -> Iterator[bytes]:
        while line := self._file.readline():
            yield line

    def _parse(self, line: bytes, number: int) -> Entry | None:
        """None for what a kill or a power cut leaves at the end."""
        try:
            if not line.endswith(b"\n"):
                return None
            return Entry.model_validate_json(line)
        except ValidationError as error:
            if not self._file.read(1):
                return None
            cause = f"{self.path}, line {number}, is no chat, and others follow: {describe(error)}"
            raise EyasError("artifact.corrupt", cause, "delete that line; its chat is then made again") from error

    def _cut(self, length: int) -> None:
        self.dropped_bytes = self._file.seek(0, os.SEEK_END) - length
        if self.dropped_bytes:
            with named_disk_errors(self.path):
                self._file.truncate(length)
                os.fsync(self._file.fileno())


def fingerprint(prompt: Prompt) -> str:
    """SHA-256 of what a prompt asks: its messages and tools."""
    said = json.dumps([prompt.messages, prompt.tools], ensure_ascii=False, sort_keys=True)
    return hashlib.sha256(said.encode()).hexdigest()


def _require_same(there: Identity, here: Identity, path: Path) -> None:
    old, new = there.model_dump(mode="json"), here.model_dump(mode="json")
    for known in (old, new):
        known.update({f"source.{name}": value for name, value in known.pop("source").items()})
    names = [name for name in {**old, **new} if old.get(name) != new.get(name)]
    if names:
        differences = "; ".join(f"{name}: {old.get(name)!r} there, {new.get(name)!r} here" for name in names)
        cause = f"{path} was begun with other settings: {differences}"
        raise EyasError("regen.settings", cause, "give the settings it was begun with, or take another --out")
