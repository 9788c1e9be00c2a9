"""The page's colours as everyone sees them: read out of its style sheet, in both themes.

Colour vision deficiencies are simulated by the matrices of Machado et al. 2009 (severity 1), on linear RGB; distances
are Euclidean in OKLab, where 0.02 is about the least that is noticed.
"""

from __future__ import annotations

import itertools
import re
from importlib.resources import files
from itertools import pairwise

import numpy as np
import pytest

VISION = {
    "all cones": np.eye(3),
    "protanopia": np.array(
        [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]]
    ),
    "deuteranopia": np.array(
        [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]]
    ),
    "tritanopia": np.array(
        [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.303900]]
    ),
}
TO_LMS = np.array(
    [
        [0.4122214708, 0.5363325363, 0.0514459929],
        [0.2119034982, 0.6806995451, 0.1073969566],
        [0.0883024619, 0.2817188376, 0.6299787005],
    ]
)
TO_LAB = np.array(
    [
        [0.2104542553, 0.7936177850, -0.0040720468],
        [1.9779984951, -2.4285922050, 0.4505937099],
        [0.0259040371, 0.7827717662, -0.8086757660],
    ]
)
ORIGINS = ("o1", "o2", "o3", "o4", "o5")
APART = 0.06
THEMES = {"light": 0, "dark": 1}


def colours(theme: str) -> dict[str, np.ndarray]:
    """Name → linear RGB."""
    style = files("eyas.serve.web").joinpath("style.css").read_text(encoding="utf-8")
    pairs = re.findall(r"--([\w-]+): light-dark\((#\w{6}), (#\w{6})\);", style)
    return {name: linear(pair[THEMES[theme]]) for name, *pair in pairs}


def linear(code: str) -> np.ndarray:
    c = np.array([int(code[i : i + 2], 16) / 255 for i in (1, 3, 5)])
    return np.where(c <= 0.04045, c / 12.92, ((c + 0.055) / 1.055) ** 2.4)


def lab(rgb: np.ndarray) -> np.ndarray:
    return TO_LAB @ np.cbrt(TO_LMS @ np.clip(rgb, 0, 1))


def contrast(a: np.ndarray, b: np.ndarray) -> float:
    """Of WCAG 2."""
    low, high = sorted(float(np.array([0.2126, 0.7152, 0.0722]) @ c) for c in (a, b))
    return (high + 0.05) / (low + 0.05)


def too_near(known: dict[str, np.ndarray]) -> list[tuple[str, str, str]]:
    names = [*ORIGINS, "ground", "raised"]
    return [
        (vision, a, b)
        for vision, matrix in VISION.items()
        for a, b in itertools.combinations(names, 2)
        if (a, b) != ("ground", "raised") and np.linalg.norm(lab(matrix @ known[a]) - lab(matrix @ known[b])) < APART
    ]


@pytest.mark.parametrize("theme", THEMES)
def test_origins_stay_apart_for_every_kind_of_colour_vision(theme: str) -> None:
    assert too_near(colours(theme)) == []


@pytest.mark.parametrize("theme", THEMES)
def test_lightness_alone_tells_the_order(theme: str) -> None:
    known = colours(theme)
    sign = 1 if theme == "dark" else -1
    steps = [sign * lab(known[name])[0] for name in ("ground", *ORIGINS)]
    assert min(b - a for a, b in pairwise(steps)) > 0.025


@pytest.mark.parametrize("theme", THEMES)
def test_text_can_be_read_on_every_ground(theme: str) -> None:
    known = colours(theme)
    for ground in ("ground", "raised", *ORIGINS):
        assert contrast(known["ink"], known[ground]) >= 4.5, ground
    for text in ("faint", "bad", "good", "wait", "accent"):
        assert contrast(known[text], known["ground"]) >= 4.5, text
    assert contrast(known["faint"], known["raised"]) >= 4.5
    assert contrast(known["on-accent"], known["accent"]) >= 4.5
    assert contrast(known["strong-line"], known["ground"]) >= 3


def test_colours_that_only_some_can_tell_apart_are_found() -> None:
    known = colours("light") | {"o1": linear("#d08080"), "o2": linear("#8f9f60")}
    assert {(a, b) for vision, a, b in too_near(known) if vision == "deuteranopia"} >= {("o1", "o2")}
    assert not any((a, b) == ("o1", "o2") for vision, a, b in too_near(known) if vision == "all cones")
