"""A verdict on a terminal: nothing is said by colour alone, nothing is markup, and commands can be copied."""

from __future__ import annotations

import io
from dataclasses import replace

import pytest
from rich.console import Console

from eyas.check.findings import Finding, Link, Survival, Verdict
from eyas.check.html import to_html
from eyas.check.report import render
from eyas.check.shown import fix_lines, heat, link_tones, plain, slot_words, top_ranked
from support.verdicts import HOSTILE, faulty, hostile, proven, tap_row, undecided


def shown(verdict: Verdict, width: int = 80, colour: bool = False) -> str:
    file = io.StringIO()
    system = "standard" if colour else None
    render(verdict, Console(file=file, width=width, force_terminal=colour, color_system=system))
    return file.getvalue()


def lines(text: str) -> list[str]:
    return [line.rstrip() for line in text.splitlines()]


def test_the_answer_stands_first_and_the_parts_follow_in_order() -> None:
    text = shown(faulty())
    assert text.startswith("FAULT  The draft was trained on taps 0, 3, 15")
    places = [text.index(word) for word in ("Chain", "Findings", "Hypotheses", "Survival", "Taps", "31.0 s in all")]
    assert places == sorted(places)


@pytest.mark.parametrize(("verdict", "word"), [(faulty(), "FAULT"), (proven(), "PROVEN"), (undecided(), "UNDECIDED")])
def test_a_pipe_gets_no_colour_and_the_same_words(verdict: Verdict, word: str) -> None:
    piped, coloured = shown(verdict), shown(verdict, colour=True)
    assert "\x1b" not in piped
    assert "\x1b" in coloured
    assert piped.startswith(word)
    assert word in coloured


def test_only_commands_are_wider_than_the_screen() -> None:
    wide = [line for line in lines(shown(faulty())) if len(line) > 80]
    assert [line.split()[:3] for line in wide] == [["fix", "eyas", "check"]]
    fix = next(one.fix for one in faulty().findings if one.weight == "fault")
    assert wide[0].endswith(fix), "in one piece, to be copied"


@pytest.mark.parametrize("width", [40, 60, 120])
def test_any_width_will_do(width: int) -> None:
    wide = [line for line in lines(shown(faulty(), width)) if len(line) > width]
    assert all("eyas check" in line for line in wide)


def test_each_link_has_its_mark_and_its_state() -> None:
    chain = [line.split()[:3] for line in lines(shown(faulty())) if line.startswith("  ") and len(line.split()) > 3]
    for want in (["✔", "proven", "files"], ["?", "unknown", "flags"], ["✘", "broken", "taps"], ["✔", "sound", "norms"]):
        assert want in chain
    assert ["–", "skipped", "endpoint"] in chain


def test_nothing_is_green_behind_the_first_broken_link() -> None:
    assert link_tones(faulty().links) == ["good", "unsure", "good", "bad", "plain", "plain"]
    assert link_tones([Link("a", "static", "proven", ""), Link("b", "draft", "sound", "")]) == ["good", "good"]


def test_faults_stand_before_warnings_before_notes() -> None:
    text = shown(faulty())
    assert text.index("taps.wrong") < text.index("flags.asked") < text.index("files.note")
    assert "1 fault, 1 warning, 1 note" in text
    assert "The draft was trained on other taps" in text, "the catalogue's title"


def test_two_that_fit_equally_are_named_with_what_would_decide() -> None:
    text = " ".join(shown(undecided()).split())
    assert "taps.wrong (The draft was trained on other taps) or taps.order" in text
    assert "to decide The same check on 20 more conversations." in text


def test_the_ranking_keeps_the_declared_reading_and_says_what_is_left_out() -> None:
    verdict = faulty()
    assert [one.name for one in top_ranked(verdict.ranking)][-1] == "as the files say"
    text = " ".join(shown(verdict).split())
    assert "▸ taps 0, 3, 15 +0.812 +41.3 2.81" in text
    assert "as the files say (declared) +0.000 – 1.61" in text
    assert "one token ahead (looks ahead:" in text
    assert "and 2 more" in text


def test_survival_is_shown_beside_what_is_expected() -> None:
    text = lines(shown(faulty()))
    bars = [line.split("█")[0].split() for line in text if "█" in line]
    named = [(" ".join(bar[:-1]), bar[-1]) for bar in bars if bar[0] in ("i", "expected")]
    assert named == [
        ("i = 1", "0.421"), ("expected", "0.830"), ("i = 2", "0.150"),
        ("expected", "0.600"), ("i = 3", "0.041"), ("expected", "0.400"),
    ]  # fmt: skip
    assert "accept length 1.61 (1.55 … 1.68) of at most 4; expected 2.83: below it" in "\n".join(text)


@pytest.mark.parametrize(
    ("expected", "said"),
    [
        ((0.8, 0.6, 0.4), "below it"),
        ((0.4, 0.15, 0.05), "as expected"),
        ((0.2, 0, 0), "above it"),
        ((), "nothing says"),
    ],
)
def test_measured_is_compared_by_its_interval(expected: tuple[float, ...], said: str) -> None:
    survival = Survival(3, (0.421, 0.15, 0.041), 1.612, (1.55, 1.68), expected)
    assert said in shown(replace(faulty(), survival=survival))


def test_the_strip_marks_the_best_and_the_declared_tap_at_their_place() -> None:
    text = lines(shown(replace(faulty(), taps=(tap_row(30, 4),), declared_taps=(9,))))
    at = next(i for i, line in enumerate(text) if line.strip().startswith("slot 1"))
    assert text[at].strip() == "slot 1, declared tap 9, best tap 4 (+0.642 nats/position)"
    strip, marks = text[at + 1], text[at + 2]
    assert (marks.index("b") - 7, marks.index("d") - 7) == (4, 9)
    assert strip[7:].index("█") == 4
    assert strip.endswith(" 30")


def test_a_right_tap_is_marked_once() -> None:
    text = shown(proven())
    assert "declared tap 2, which is the best" in text
    assert " " * 9 + "*" in lines(text)


def test_many_layers_take_more_lines() -> None:
    text = lines(shown(replace(proven(), taps=(tap_row(126, 100),), declared_taps=(2,)), width=80))
    strips = [line.split() for line in text if set("▁█") & set(line) and "i =" not in line and "expected" not in line]
    assert [(words[0], words[-1]) for words in strips] == [("0", "67"), ("68", "126")]
    assert sum(len(words[1]) for words in strips) == 127


def test_hostile_texts_steer_nothing() -> None:
    text = shown(hostile())
    assert not set(text) & set("\x1b\x00\u202e")
    assert "[red]" in text, "shown, not taken as markup"
    assert "nan" not in text
    assert "inf" not in text


def test_an_empty_verdict_is_shown() -> None:
    verdict = Verdict("no-fault-found", "Nothing is wrong.", links=(), findings=(), taps=((),))
    assert shown(verdict).startswith("NO FAULT FOUND  Nothing is wrong.")


def test_control_characters_are_replaced() -> None:
    assert plain("a\x1b[31mb\nc\u202e") == "a\ufffd[31mb c\ufffd"
    assert plain(HOSTILE).isprintable()
    assert plain("Σ → 1 × 2 …") == "Σ → 1 × 2 …"


@pytest.mark.parametrize(
    ("fix", "want"),
    [
        ("eyas check D --fix O", [[(True, "eyas check D --fix O")]]),
        ("`eyas check D --fix O`", [[(True, "eyas check D --fix O")]]),
        ("use `--x 1` too", [[(False, "use "), (True, "--x 1"), (False, " too")]]),
        ("eyas check writes the ids; else retrain", [[(False, "eyas check writes the ids; else retrain")]]),
        ("an odd ` tick", [[(False, "an odd ` tick")]]),
        ("eyas a\neyas b", [[(True, "eyas a")], [(True, "eyas b")]]),
        ("", []),
    ],
)
def test_commands_are_told_from_words(fix: str, want: list[list[tuple[bool, str]]]) -> None:
    assert fix_lines(fix) == want


def test_words_for_taps_that_are_not_there() -> None:
    assert slot_words(0, (-1.0, -2.0), ()) == "slot 1, best tap 0"
    assert slot_words(1, (-1.0, -2.0), (0, 9)) == "slot 2, declared tap 9, best tap 0"
    assert heat((-1.0, -2.0, float("nan"), -1.5)) == [1.0, 0.0, None, 0.5]
    assert heat((-1.0, -1.0)) == [1.0, 1.0]


def test_a_kind_outside_the_catalogue_is_shown_by_its_id() -> None:
    finding = Finding("no.such", "static", "fault", "said")
    assert "✘ fault  no.such\n    said" in "\n".join(lines(shown(replace(proven(), findings=(finding,)))))


def test_a_note_does_not_bear_the_title_of_a_fault() -> None:
    note = Finding("taps.wrong", "features", "note", "too few positions to tell")
    text = shown(replace(proven(), findings=(note,)))
    assert "· note  taps.wrong" in text
    assert "trained on other taps" not in text + to_html(replace(proven(), findings=(note,)))
