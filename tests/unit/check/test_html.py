"""The page of a verdict: whole, self-contained, and nothing in it runs."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from xml.etree import ElementTree

import pytest

from eyas.check.findings import Verdict
from eyas.check.html import to_html
from eyas.check.shown import plain
from support.verdicts import HOSTILE, faulty, hostile, proven, undecided

VOID = {"meta", "br"}
ALL = {"faulty": faulty(), "proven": proven(), "undecided": undecided(), "hostile": hostile()}


class Page(HTMLParser):
    """Tags with their attributes, the text, and which tags are left open."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.text: list[str] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text.append(data)


def words(text: str) -> str:
    return " ".join(" ".join(Page(text).text).split())


@pytest.mark.parametrize("verdict", ALL.values(), ids=ALL)
def test_every_tag_is_closed_and_nothing_is_fetched_or_run(verdict: Verdict) -> None:
    page = Page(to_html(verdict))
    assert page.open == []
    names = {name for name, _ in page.tags}
    assert not names & {"script", "link", "img", "iframe", "object", "embed", "form", "a", "base", "image", "use"}
    attributes = [(key, value or "") for _, attrs in page.tags for key, value in attrs.items()]
    assert [key for key, _ in attributes if key.startswith("on") or key in ("href", "src")] == []
    assert "url(" not in to_html(verdict)
    assert "@import" not in to_html(verdict)
    policy = [attrs["content"] for _, attrs in page.tags if attrs.get("http-equiv") == "Content-Security-Policy"]
    assert policy == ["default-src 'none'; style-src 'unsafe-inline'"]


@pytest.mark.parametrize("verdict", ALL.values(), ids=ALL)
def test_every_picture_is_whole_and_has_a_text(verdict: Verdict) -> None:
    pictures = re.findall(r"<svg .*?</svg>", to_html(verdict), re.DOTALL)
    for picture in pictures:
        root = ElementTree.fromstring(picture)
        named = root.get("aria-labelledby", "").split()
        assert root.get("role") == "img"
        assert root.get("aria-label") or {e.get("id") for e in root if e.get("id")} == set(named)
        figures = [
            v for e in root.iter() for k, v in e.attrib.items() if k in ("x", "y", "width", "height", "cx", "x1")
        ]
        assert all(value.endswith("%") or float(value) == float(value) for value in figures)
    assert pictures or not verdict.taps


def test_a_hostile_draft_injects_nothing() -> None:
    page = Page(to_html(hostile()))
    # As a draft, target, headline, link, finding, hypothesis …, each as it was written.
    assert " ".join(page.text).count(plain(HOSTILE)) >= 10
    assert "49" not in " ".join(page.text).replace(HOSTILE, ""), "a template in a name is not filled in"
    assert not set(to_html(hostile())) & set("\x1b\x00\u202e")
    assert "nan" not in "".join(value or "" for _, attrs in page.tags for value in attrs.values())


def test_a_hostile_text_is_escaped_where_it_stands_in_an_attribute() -> None:
    clean, dirty = Page(to_html(proven())), Page(to_html(hostile()))
    known = {key for _, attrs in [*clean.tags, *Page(to_html(faulty())).tags] for key in attrs}
    assert {key for _, attrs in dirty.tags for key in attrs} <= known


def test_everything_of_the_verdict_is_on_the_page() -> None:
    verdict, text = faulty(), words(to_html(faulty()))
    wanted = [verdict.headline, verdict.draft, verdict.target, "FAULT", "31.0 s in all", "features 21.4 s"]
    wanted += [part for link in verdict.links for part in (link.name, link.state, link.said)]
    wanted += [part for one in verdict.findings for part in (one.kind, one.said, one.evidence)]
    wanted += [one.name for one in verdict.ranking]
    wanted += ["eyas check /models/a-draft-in-a-folder-with-a-long-name/checkpoint-12000 --fix /models/repaired"]
    wanted += ["accept length 1.61 (1.55 … 1.68) of at most 4; expected 2.83: below it", "+0.812", "+41.3", "0.421"]
    assert [part for part in wanted if part not in text] == []


def test_the_heat_map_has_a_value_for_each_tap_in_each_slot() -> None:
    page = Page(to_html(faulty()))
    text = " ".join(page.text)
    cells = re.findall(r"slot (\d), tap (\d+): −(\d\.\d+) nats", text)
    assert sorted((int(s), int(t)) for s, t, _ in cells) == [(s, t) for s in (1, 2, 3) for t in range(31)]
    assert {(s, t) for s, t, value in cells if value == "2.000"} == {("1", "0"), ("2", "3"), ("3", "15")}
    kinds = [attrs.get("class") for name, attrs in page.tags if name == "rect"]
    assert (kinds.count("best"), kinds.count("declared"), kinds.count("both")) == (3, 3, 0)
    right = [attrs.get("class") for name, attrs in Page(to_html(proven())).tags if name == "rect"]
    assert (right.count("best"), right.count("declared"), right.count("both")) == (0, 0, 1)


def test_parts_without_content_are_left_out() -> None:
    text = words(to_html(undecided()))
    assert "what would decide The same check on 20 more conversations." in text
    for absent in ("Survival", "Hypotheses", "Findings"):
        assert absent not in text


def test_it_is_for_dark_light_and_paper() -> None:
    text = to_html(proven())
    assert "prefers-color-scheme: dark" in text
    assert "@media print" in text
    assert '<html lang="en">' in text


def test_the_same_verdict_gives_the_same_page() -> None:
    assert to_html(faulty()) == to_html(faulty())
