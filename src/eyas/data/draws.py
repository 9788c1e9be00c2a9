"""The draws of self-sampling on disk: every one that has ended, kept or not, so that a killed run goes on.

``draws.jsonl``: a first line with what all draws depend on, then one line a draw, in the order in which they ended. It
is only appended to; what a kill leaves of the last line is cut off when it is opened again.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import IO, Annotated, Literal

from pydantic import Field, JsonValue, ValidationError

from eyas.artifacts import atomic_write, named_disk_errors
from eyas.contract.schema import Strict, describe
from eyas.errors import EyasError

NAME = "draws.jsonl"
_FIX = "take another --out, or delete the folder to begin anew"


class Draw(Strict):
    """What the target said as a user. ``unusable``: why it is no prompt, whatever the filters say; its text is then
    what there is of it.
    """

    index: Annotated[int, Field(ge=0)]
    opening: Literal["none", "words", "code"]
    text: str
    unusable: Literal["unended", "special-token", "undecodable"] | None = None


class Header(Strict):
    """The first line: ``depends`` on these a draw's text depends, besides its index."""

    schema_version: Literal[1] = 1
    depends: dict[str, JsonValue]


class DrawJournal:
    """The open file; ``draws`` by index. Use as a context; the caller holds the folder's lock."""

    def __init__(self, folder: Path, depends: dict[str, JsonValue]) -> None:
        """Opens what is there, or begins it. Raises ``prompts.settings`` (begun with other settings),
        ``artifact.corrupt``, ``artifact.not-writable``, ``pull.disk-full``.
        """
        self.path = folder / NAME
        self.draws: dict[int, Draw] = {}
        if not self.path.exists():
            atomic_write(self.path, Header(depends=depends).model_dump_json() + "\n")
        with named_disk_errors(folder):
            self._file: IO[bytes] = self.path.open("r+b")
        try:
            self._load(depends)
        except BaseException:
            self._file.close()
            raise

    def __enter__(self) -> DrawJournal:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def append(self, draws: Iterable[Draw]) -> None:
        """Add draws that are not there yet; a kill of the process after this loses none of them."""
        lines = []
        for draw in draws:
            assert draw.index not in self.draws, draw.index
            self.draws[draw.index] = draw
            lines.append(draw.model_dump_json().encode() + b"\n")
        if lines:
            with named_disk_errors(self.path):
                self._file.write(b"".join(lines))
                self._file.flush()

    def _load(self, depends: dict[str, JsonValue]) -> None:
        whole = 0
        for number, line in enumerate(self._file, 1):
            if not line.endswith(b"\n"):
                break
            self._take(line, number, depends)
            whole += len(line)
        if whole == 0:
            raise EyasError("artifact.corrupt", f"{self.path} has no first line", _FIX)
        with named_disk_errors(self.path):
            self._file.truncate(whole)
            self._file.seek(0, os.SEEK_END)

    def _take(self, line: bytes, number: int, depends: dict[str, JsonValue]) -> None:
        try:
            if number == 1:
                _require_same(Header.model_validate_json(line).depends, depends, self.path)
                return
            draw = Draw.model_validate_json(line)
            if draw.index in self.draws:
                raise EyasError("artifact.corrupt", f"{self.path}, line {number}: draw {draw.index} again", _FIX)
            self.draws[draw.index] = draw
        except ValidationError as error:
            cause = f"{self.path}, line {number}, is no draw: {describe(error)}"
            raise EyasError("artifact.corrupt", cause, _FIX) from error


def _require_same(there: dict[str, JsonValue], here: dict[str, JsonValue], path: Path) -> None:
    names = [name for name in {**there, **here} if there.get(name) != here.get(name)]
    if names:
        told = "; ".join(f"{name}: {there.get(name)!r} there, {here.get(name)!r} here" for name in names)
        raise EyasError("prompts.settings", f"{path} was begun with other settings: {told}", _FIX)
