import json

import pytest

from eyas.data.draws import NAME, Draw, DrawJournal
from eyas.errors import EyasError

DRAWS = [
    Draw(index=3, opening="none", text="Hé\nyou"),
    Draw(index=0, opening="code", text="def", unusable="unended"),
]


@pytest.fixture
def folder(tmp_path):
    with DrawJournal(tmp_path, {"seed": 1}) as journal:
        journal.append(DRAWS[:1])
        journal.append(DRAWS[1:])
        journal.append([])
    return tmp_path


def reopened(folder, depends=None):
    with DrawJournal(folder, depends or {"seed": 1}) as journal:
        return journal.draws


def test_draws_are_there_again(folder):
    assert reopened(folder) == {draw.index: draw for draw in DRAWS}


def test_what_a_kill_left_of_the_last_line_is_cut_off_and_drawn_again(folder):
    path = folder / NAME
    whole = path.read_bytes()
    header = whole.index(b"\n") + 1
    for length in range(len(whole) - 1, header - 1, -7):
        path.write_bytes(whole[:length])
        with DrawJournal(folder, {"seed": 1}) as journal:
            missing = [draw for draw in DRAWS if draw.index not in journal.draws]
            assert missing
            journal.append(missing)
        assert path.read_bytes() == whole


def test_other_settings_are_named(folder):
    with pytest.raises(EyasError, match=r"prompts.settings.*seed: 1 there, 2 here") as caught:
        reopened(folder, {"seed": 2})
    assert caught.value.code == "prompts.settings"


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda lines: ["", *lines[1:]], "line 1"),
        (lambda lines: [lines[0], "{}", *lines[1:]], "line 2"),
        (lambda lines: [*lines, lines[1]], "line 4: draw 3 again"),
        (lambda lines: [*lines[:2], json.dumps({**json.loads(lines[2]), "text": 3})], "line 3"),
    ],
)
def test_a_file_that_was_tampered_with_is_refused(folder, change, said):
    path = folder / NAME
    path.write_text("".join(line + "\n" for line in change(path.read_text().splitlines())))
    with pytest.raises(EyasError, match=rf"artifact.corrupt.*{said}"):
        reopened(folder)


def test_an_empty_file_is_refused(folder):
    (folder / NAME).write_bytes(b"")
    with pytest.raises(EyasError, match=r"artifact.corrupt.*no first line"):
        reopened(folder)
