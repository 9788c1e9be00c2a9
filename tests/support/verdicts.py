"""Verdicts to show: a fault with everything that a check can find, a proven draft, one that is undecided."""

from __future__ import annotations

import math

from eyas.check.findings import Finding, Link, Ranked, Survival, Verdict


def tap_row(num_layers: int, best: int) -> tuple[float, ...]:
    """Log-likelihoods that fall off around ``best``."""
    return tuple(-2.0 - 0.9 * (1 - math.exp(-abs(tap - best) / 4)) for tap in range(num_layers + 1))


def faulty() -> Verdict:
    """The story of the design: trained on taps 0, 3, 15 and served with 3, 15, 27, at one step of 16 asked."""
    return Verdict(
        answer="fault",
        headline="The draft was trained on taps 0, 3, 15, and its files give it 3, 15, 27.",
        links=(
            Link("files", "static", "proven", "9 tensors, all finite; the map holds 8,192 of 49,152 tokens"),
            Link("flags", "flags", "unknown", "16 draft tokens asked, 2 effective: accept length at most 2"),
            Link("target", "target", "sound", "tap 30 gives the target's own log-probabilities to 4e-6"),
            Link("taps", "features", "broken", "declared 3, 15, 27; 0, 3, 15 explain the text by .812 nats more"),
            Link("norms", "draft", "sound", "no other placement explains more"),
            Link("endpoint", "endpoint", "skipped", "no --endpoint was given"),
        ),
        findings=(
            Finding("files.note", "static", "note", "config.json names no target; --target was taken"),
            Finding("flags.asked", "flags", "warning", "16 asked, 2 run", fix="set `--speculative-num-steps 15` too"),
            Finding(
                "taps.wrong",
                "features",
                "fault",
                "fc reads taps 3, 15, 27; it was trained on 0, 3, 15",
                evidence="+0.812 nats a position, z = 41 over 24 conversations; accept length 2.81 in place of 1.61",
                fix="eyas check /models/a-draft-in-a-folder-with-a-long-name/checkpoint-12000 --fix /models/repaired",
            ),
        ),
        ranking=(
            Ranked("taps 0, 3, 15", ("taps.wrong",), 0.812, 41.3, 2.81),
            Ranked("taps 0, 3, 16", ("taps.wrong",), 0.633, 30.1, 2.55),
            Ranked("one token ahead", ("leak.ahead",), 0.301, 9.0, 2.9, looks_ahead=True),
            *(Ranked(f"RoPE base {base}", ("rope.base",), -0.01 * base, -1.0, 1.5) for base in range(1, 6)),
            Ranked("as the files say", (), 0.0, math.nan, 1.61),
        ),
        survival=Survival(3, (0.421, 0.15, 0.041), 1.612, (1.55, 1.68), (0.83, 0.6, 0.4)),
        taps=(tap_row(30, 0), tap_row(30, 3), tap_row(30, 15)),
        declared_taps=(3, 15, 27),
        draft="/models/kimi-draft",
        target="/models/smollm2-135m",
        seconds={"static": 0.31, "features": 21.4, "acceptance": 9.25},
    )


def proven() -> Verdict:
    """Nothing wrong, and a contract that says so."""
    return Verdict(
        answer="proven",
        headline="The draft is what its contract promises, on this target.",
        links=(Link("files", "static", "proven", "as the contract says"),),
        findings=(),
        survival=Survival(2, (0.6, 0.3), 1.9, (1.8, 2.0), (0.62, 0.33)),
        taps=(tap_row(30, 2),),
        declared_taps=(2,),
    )


def undecided() -> Verdict:
    """Two explanations that fit equally well."""
    return Verdict(
        answer="undecided",
        headline="Two explanations fit equally well.",
        links=(Link("taps", "features", "unknown", "one of two"),),
        findings=(),
        between=("taps.wrong", "taps.order"),
        deciding="The same check on 20 more conversations.",
    )


HOSTILE = "<script>alert(1)</script>\"'><img src=x onerror=alert(1)>[red]&amp;{{7*7}}\x1b[31m\x00\u202e"
"""A name that would run as HTML, as markup, as a template, on a terminal, or reverse what follows."""


def hostile() -> Verdict:
    """Every text is hostile, and every figure is not a number."""
    nan = math.nan
    return Verdict(
        answer="fault",
        headline=HOSTILE,
        links=(Link(HOSTILE, "static", "broken", HOSTILE),),
        findings=(Finding(HOSTILE, "static", "fault", HOSTILE, HOSTILE, f"`{HOSTILE}` then {HOSTILE}"),),
        ranking=(Ranked(HOSTILE, (HOSTILE,), nan, math.inf, nan),),
        between=(HOSTILE,),
        deciding=HOSTILE,
        survival=Survival(2, (nan, 0.1), nan, (nan, nan), (nan, nan)),
        taps=((nan, nan), (-1.0, nan)),
        declared_taps=(1, 7),
        draft=HOSTILE,
        target=HOSTILE,
        seconds={HOSTILE: 0.1},
    )
