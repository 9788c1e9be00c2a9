"""docs/story.md shows the figures of one run, whose document is committed beside the other results."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parent.parent
PAGE = (ROOT / "docs" / "story.md").read_text(encoding="utf-8")
RUN: dict[str, Any] = json.loads((ROOT / "benchmarks" / "results" / "story-smollm2-135m.json").read_text())


def runs() -> list[str]:
    """The rows of the page's table."""
    rows, plain = [], RUN["runs"][0]["tokens_per_second"]
    for run in RUN["runs"]:
        speed = f"{run['tokens_per_second']:.1f} | {run['tokens_per_second'] / plain:.2f}"
        if run["taps"] is None:
            rows.append(f"| {run['name']} | – | – | – | {speed} |")
            continue
        low, high = run["accept_length_low"], run["accept_length_high"]
        length = f"{run['accept_length']:.2f} of {run['ceiling']} ({low:.2f} … {high:.2f})"
        rows.append(f"| {run['name']} | {tuple(run['taps'])} | {run['num_steps']} | {length} | {speed} |")
    return rows


def said() -> dict[str, str]:
    """What the page must hold besides: figures with the words around them."""
    (taps,) = [one for one in RUN["verdict"]["findings"] if one["kind"] == "taps.wrong"]
    (clamped,) = RUN["flags"]["findings"]
    first, second = (round(sum(RUN[key]["seconds"].values())) for key in ("verdict", "again"))
    lengths = [RUN[key]["survival"]["accept_length"] for key in ("verdict", "again")]
    return {
        "launch": RUN["launch"],
        "clamp": f"asked {clamped['data']['asked']}, runs {clamped['data']['effective']}",
        "ids": str(RUN["config"]["eagle_config"]["eagle_aux_hidden_state_layer_ids"]),
        "headline": RUN["verdict"]["headline"],
        "evidence": taps["evidence"],
        "again": RUN["again"]["headline"],
        "seconds": f"{first} s, and {second} s for the second check",
        "walk": f"{lengths[0]:.2f} and {lengths[1]:.2f} of {RUN['verdict']['survival']['num_steps'] + 1}",
        "whole": f"{RUN['seconds'] / 60:.1f} minutes",
        "refused": RUN["servable"][0]["why"],
        "fix": RUN["servable"][0]["fix"],
    }


@pytest.mark.parametrize("row", runs())
def test_the_table_is_that_of_the_run(row: str) -> None:
    assert row in PAGE


@pytest.mark.parametrize("what", said())
def test_what_the_page_tells_is_of_the_run(what: str) -> None:
    assert said()[what] in " ".join(PAGE.split())


def test_the_run_shows_what_the_page_is_about() -> None:
    assert RUN["named"] is True
    assert (RUN["trained_taps"], RUN["served_taps"]) == ([0, 3, 15], [3, 15, 27])
    wrong, mended = RUN["runs"][2], RUN["runs"][3]
    assert mended["accept_length"] > wrong["accept_length"]
    assert [one["serves"] for one in RUN["servable"]] == [False, True]
