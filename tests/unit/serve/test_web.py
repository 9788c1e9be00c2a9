"""The page's routes: what is sent, with which headers, and that nothing of it can read markup or ask others."""

from __future__ import annotations

import json
import re
from importlib.resources import files
from typing import Any

import pytest
from fastapi import FastAPI
from starlette.testclient import TestClient

from eyas.metrics import Acceptance, Round
from eyas.serve import metric_table as table
from eyas.serve.web import router
from eyas.serve.web.live import WINDOW, Live
from eyas.serve.web.routes import TYPES
from support.fake_client import FakeClient, a_status

FOLDER = files("eyas.serve.web")
TEXTS = {name: FOLDER.joinpath(name).read_text(encoding="utf-8") for name in TYPES}
SCRIPTS = {name: text for name, text in TEXTS.items() if name.endswith(".js")}
PATHS = {"/": "index.html", "/grafana.json": "grafana.json"} | {f"/assets/{name}": name for name in TYPES}
UNSAFE = (
    "innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "DOMParser", "createContextualFragment",
    "setHTML", "eval(", "new Function", "import(", "srcdoc", "javascript:",
)  # fmt: skip


def browser_of(client: FakeClient) -> TestClient:
    app = FastAPI()
    app.state.client = client
    app.include_router(router())
    return TestClient(app)


@pytest.mark.parametrize("path", PATHS)
def test_every_file_is_sent_with_headers_that_let_nothing_else_in(path: str) -> None:
    answer = browser_of(FakeClient()).get(path)
    assert answer.status_code == 200
    assert answer.text == TEXTS[PATHS[path]]
    assert answer.headers["content-type"] == TYPES[PATHS[path]]
    policy = dict(part.strip().split(" ", 1) for part in answer.headers["content-security-policy"].split(";"))
    assert policy["default-src"] == "'self'"
    assert policy["require-trusted-types-for"] == "'script'"
    for closed in ("base-uri", "form-action", "frame-ancestors", "object-src", "trusted-types"):
        assert policy[closed] == "'none'", closed
    assert "unsafe" not in answer.headers["content-security-policy"]
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert answer.headers["referrer-policy"] == "no-referrer"


def test_a_file_that_the_browser_has_is_not_sent_again() -> None:
    browser = browser_of(FakeClient())
    tag = browser.get("/assets/app.js").headers["etag"]
    again = browser.get("/assets/app.js", headers={"if-none-match": tag})
    assert (again.status_code, again.content) == (304, b"")
    assert "content-security-policy" in again.headers
    assert browser.get("/assets/app.js", headers={"if-none-match": '"other"'}).status_code == 200


@pytest.mark.parametrize(
    "path",
    ["/assets/", "/assets/routes.py", "/assets/__init__.py", "/assets/../live.py", "/assets/%2e%2e/live.py", "/x"],
)
def test_no_other_file_is_a_path(path: str) -> None:
    assert browser_of(FakeClient()).get(path).status_code == 404


def test_every_file_of_the_folder_is_known() -> None:
    kept = {path.name for path in FOLDER.iterdir() if not path.name.endswith((".py", "__pycache__"))}
    assert kept == set(TYPES)


def test_the_page_asks_for_nothing_from_elsewhere() -> None:
    for name, text in TEXTS.items():
        addresses = [a for a in re.findall(r"\b(?:https?:)?//[\w.-]+", text) if "www.w3.org" not in a]
        assert name == "grafana.json" or addresses == [], name
    named = set(re.findall(r'(?:src|href)="(/assets/[^"]+)"', TEXTS["index.html"]))
    assert named <= set(PATHS)
    for name, text in SCRIPTS.items():
        for other in re.findall(r'from "\./([\w.]+)"', text):
            assert other in SCRIPTS, (name, other)


def test_no_script_or_style_stands_in_the_page_itself() -> None:
    page = TEXTS["index.html"]
    assert not re.search(r"<script(?![^>]*\bsrc=)", page)
    assert not re.search(r"<style|\bstyle=|\bon\w+=", page)


@pytest.mark.parametrize("name", SCRIPTS)
def test_no_text_is_ever_read_as_markup(name: str) -> None:
    assert [word for word in UNSAFE if word in SCRIPTS[name]] == []


def test_every_element_that_scripts_name_is_in_the_page() -> None:
    there = set(re.findall(r'\bid="([\w-]+)"', TEXTS["index.html"]))
    for name, text in SCRIPTS.items():
        asked = set(re.findall(r'find\("([\w-]+)"\)', text))
        assert asked <= there, (name, asked - there)


def test_every_control_has_a_name() -> None:
    page = TEXTS["index.html"]
    fields = set(re.findall(r'<(?:input|select|textarea) id="(\w+)"', page))
    assert fields == set(re.findall(r'<label for="(\w+)"', page))


def live_of(client: FakeClient) -> dict[str, Any]:
    answer = browser_of(client).get("/live")
    assert answer.status_code == 200
    return answer.json()


def test_before_the_engine_is_ready_live_says_so() -> None:
    assert live_of(FakeClient()) == {"ready": False, "model": None, "restarts": 0}


def test_the_description_tells_the_errors_of_live() -> None:
    described = browser_of(FakeClient()).get("/openapi.json").json()["paths"]["/live"]["get"]["responses"]
    assert described.keys() >= {"200", "401", "431"}


def test_live_is_the_status_and_what_it_means() -> None:
    said = live_of(FakeClient(a_status([4, 3, 2, 1], [10, 10, 10], num_steps=3.0, plain=50.0)))
    acceptance = Acceptance()
    for accepted, n in enumerate([4, 3, 2, 1]):
        for _ in range(n):
            acceptance.add("c", Round(accepted, 3))
    assert said["total"]["accept_length"] == pytest.approx(acceptance.accept_length)
    assert said["total"]["survival"] == pytest.approx([acceptance.survival(i) for i in (1, 2, 3)])
    assert (said["total"]["possible"], said["total"]["rounds"]) == ([1, 1, 1], 10)
    assert (said["recent"], said["ready"], said["model"]) == (None, True, "m")
    assert (said["running"], said["slots_total"], said["plain_tokens_per_second"]) == (2, 1000, 50.0)


def test_of_late_is_what_came_within_the_window() -> None:
    live, client = Live(), FakeClient(a_status([10, 0], [10]))
    assert live.now(client, 0.0)["recent"] is None
    client.status = a_status([10, 30], [40])
    recent = live.now(client, 1.0)["recent"]
    assert (recent["rounds"], recent["accept_length"], recent["survival"]) == (30, 2.0, [1.0])
    client.status = a_status([40, 30], [70])
    assert live.now(client, WINDOW / 2)["recent"]["rounds"] == 60
    assert live.now(client, WINDOW + 0.9)["recent"]["accept_length"] == 1.0
    assert live.now(client, 5 * WINDOW)["recent"] is None


def test_longer_drafts_than_before_are_no_error() -> None:
    live, client = Live(), FakeClient(a_status([1], []))
    live.now(client, 0.0)
    client.status = a_status([1, 1, 2], [3, 3])
    assert live.now(client, 1.0)["recent"] == {
        "rounds": 3,
        "accept_length": pytest.approx(1 + 5 / 3),
        "possible": [1, 1],
        "survival": pytest.approx([1, 2 / 3]),
    }


def test_an_engine_that_was_started_again_begins_anew() -> None:
    live, client = Live(), FakeClient(a_status([90, 10], [100]))
    live.now(client, 0.0)
    client.status, client.restarts = a_status([0, 2], [2]), 1
    said = live.now(client, 1.0)
    assert (said["recent"], said["restarts"], said["total"]["rounds"]) == (None, 1, 2)


def test_a_server_without_a_draft_has_no_accept_length() -> None:
    assert live_of(FakeClient(a_status([0], [])))["total"] is None


DASHBOARD = json.loads(TEXTS["grafana.json"])
SUFFIXES = ("_bucket", "_sum", "_count")


def queries() -> list[str]:
    panels = [target["expr"] for panel in DASHBOARD["panels"] for target in panel.get("targets", ())]
    notes = [note["expr"] for note in DASHBOARD["annotations"]["list"]]
    variables = [v["query"]["query"] for v in DASHBOARD["templating"]["list"] if v["type"] == "query"]
    return panels + notes + variables


def test_the_dashboard_asks_only_for_what_the_page_of_metrics_has() -> None:
    known = {metric.name: metric for group in table.GROUPS.values() for metric in group}
    series = {f"{m.name}{s}" for m in known.values() if m.type == "histogram" for s in SUFFIXES}
    series |= {m.name for m in known.values() if m.type != "histogram"}
    asked = {name for query in queries() for name in re.findall(r"\beyas_\w+", query)}
    assert asked - series == set()
    for query in queries():
        for name in re.findall(r"\brate\((eyas_\w+)", query):
            assert name.endswith(("_total", *SUFFIXES)), query


def test_the_dashboard_shows_what_it_must() -> None:
    titles = {panel["title"] for panel in DASHBOARD["panels"]}
    assert titles >= {
        "Accept length", "Survival by draft position", "Tokens/s", "K chosen", "Requests", "KV use",
        "Time to first token", "Inter-token latency", "Request latency", "Errors", "Engine restarts",
    }  # fmt: skip
    ids = [panel["id"] for panel in DASHBOARD["panels"]]
    assert len(ids) == len(set(ids))


def test_the_dashboards_panels_do_not_lie_on_each_other() -> None:
    taken: set[tuple[int, int]] = set()
    for panel in DASHBOARD["panels"]:
        at = panel["gridPos"]
        cells = {(x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])}
        assert at["x"] + at["w"] <= 24
        assert not cells & taken, panel["title"]
        taken |= cells
