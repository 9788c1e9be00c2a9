"""The journal loses nothing and doubles nothing, wherever it was cut."""

from __future__ import annotations

import errno
import os
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from eyas.corpus.chats import Chat
from eyas.data.regen.conversation import Conversation
from eyas.data.regen.journal import NAME, Journal
from eyas.data.regen.settings import Identity, RegenSettings
from eyas.errors import EyasError
from regen_rigs import Scripted, counting, prompt, regenerated, user

PROMPTS = [prompt(user(f"Käse {i}"), user("und?"), id=f"p{i}") for i in range(5)]
SETTINGS = RegenSettings(temperatures=(0.0, 1.0))
SOURCE: dict[str, Any] = {"kind": "scripted"}


def identity(source: dict[str, Any] = SOURCE, **changes: Any) -> Identity:
    return Identity.of(SETTINGS.model_copy(update=changes), source)


def chat_of(number: int) -> Chat:
    conversation = Conversation(PROMPTS[number], 0, SETTINGS)
    while ask := conversation.next_ask():
        conversation.take(counting(ask))
    return conversation.chat()


CHATS = [chat_of(i) for i in range(5)]


def written(folder: Path, count: int = 5) -> bytes:
    with Journal(folder, identity()) as journal:
        for i in range(count):
            journal.append([(PROMPTS[i], CHATS[i])])
    return (folder / NAME).read_bytes()


def refused(folder: Path, known: Identity) -> EyasError:
    with pytest.raises(EyasError) as error:
        Journal(folder, known)
    return error.value


def test_what_was_appended_is_there_again(tmp_path: Path) -> None:
    before = written(tmp_path)
    with Journal(tmp_path, identity()) as journal:
        assert list(journal.places) == [chat.id for chat in CHATS]
        assert journal.read("p3#0") == CHATS[3]
        assert journal.has("p3#0", PROMPTS[3])
        assert not journal.has("p3#1", PROMPTS[3])
    assert (tmp_path / NAME).read_bytes() == before


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_a_cut_at_any_byte_costs_the_last_line_alone(data: st.DataObject) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        whole = written(folder)
        begin = whole.index(b"\n") + 1
        cut = data.draw(st.integers(begin, len(whole)))
        (folder / NAME).write_bytes(whole[:cut])
        with Journal(folder, identity()) as journal:
            assert len(journal.places) == whole[:cut].count(b"\n") - 1
            assert journal.dropped_bytes == cut - (whole[:cut].rindex(b"\n") + 1)
            journal.append((p, c) for p, c in zip(PROMPTS, CHATS, strict=True) if c.id not in journal.places)
            assert [journal.read(chat.id) for chat in CHATS] == CHATS
        assert (folder / NAME).read_bytes() == whole


@pytest.mark.parametrize("tail", [b"\0" * 500, b'{"prompt_sha256": 1}\n', b'{"pro'])
def test_what_a_power_cut_leaves_at_the_end_is_dropped(tmp_path: Path, tail: bytes) -> None:
    whole = written(tmp_path, 3)
    (tmp_path / NAME).write_bytes(whole + tail)
    with Journal(tmp_path, identity()) as journal:
        assert len(journal.places) == 3
        assert journal.dropped_bytes == len(tail)
    assert (tmp_path / NAME).read_bytes() == whole


def test_damage_in_the_middle_is_named(tmp_path: Path) -> None:
    lines = written(tmp_path).splitlines(keepends=True)
    (tmp_path / NAME).write_bytes(b"".join([*lines[:2], b"broken\n", *lines[2:]]))
    error = refused(tmp_path, identity())
    assert error.code == "artifact.corrupt"
    assert "line 3" in error.cause


def test_a_chat_that_is_there_twice_is_named(tmp_path: Path) -> None:
    lines = written(tmp_path).splitlines(keepends=True)
    (tmp_path / NAME).write_bytes(b"".join([*lines, lines[1]]))
    error = refused(tmp_path, identity())
    assert error.code == "artifact.corrupt"
    assert "p0#0 is there twice" in error.cause


@pytest.mark.parametrize("content", [b"", b"hello\n", b"{}\n", b'{"schema_version": 2}\n'])
def test_another_file_is_not_taken_for_a_journal(tmp_path: Path, content: bytes) -> None:
    (tmp_path / NAME).write_bytes(content)
    assert refused(tmp_path, identity()).code == "artifact.corrupt"
    assert (tmp_path / NAME).read_bytes() == content, "and stays as it is"


@pytest.mark.parametrize(
    ("change", "shown"),
    [
        ({"temperatures": (0.5,)}, "temperatures: [0.0, 1.0] there, [0.5] here"),
        ({"seed": 1}, "seed: 0 there, 1 here"),
        ({"max_new_tokens": 7}, "max_new_tokens"),
        ({"top_p": 0.9}, "top_p"),
        ({"thinking": "on"}, "thinking: 'none' there, 'on' here"),
        ({"system": "x"}, "system: None there, 'x' here"),
        ({"keep_given": True}, "keep_given"),
        ({"source": {"kind": "scripted", "model": "b"}}, "source.model: None there, 'b' here"),
    ],
)
def test_other_settings_are_refused_and_named(tmp_path: Path, change: dict[str, Any], shown: str) -> None:
    before = written(tmp_path)
    error = refused(tmp_path, identity(**change))
    assert error.code == "regen.settings"
    assert shown in error.cause
    assert (tmp_path / NAME).read_bytes() == before


def test_a_prompt_that_has_changed_is_refused(tmp_path: Path) -> None:
    regenerated(tmp_path, PROMPTS, Scripted(), SETTINGS)
    changed = [prompt(user("other"), id="p0"), *PROMPTS[1:]]
    with pytest.raises(EyasError, match="prompt p0 has changed") as error:
        regenerated(tmp_path, changed, Scripted(), SETTINGS)
    assert error.value.code == "regen.settings"


def test_a_full_disk_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with Journal(tmp_path, identity()) as journal:
        monkeypatch.setattr(os, "fsync", full)
        with pytest.raises(EyasError) as error:
            journal.append([(PROMPTS[0], CHATS[0])])
    assert error.value.code == "pull.disk-full"
