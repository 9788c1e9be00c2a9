"""``eyas check --endpoint`` on ``eyas serve``: the served files are changed, the check has the draft as trained."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from eyas.check.endpoint_read import observe
from eyas.check.findings import Finding, Link
from eyas.check.forced import Text
from eyas.check.measure import Rig
from eyas.check.outside import Asked, judge_server
from eyas.check.template import template_of_server
from eyas.draft.checkpoint import read_draft
from eyas.engine.greedy import greedy_answers
from eyas.engine.session import eos_ids_of, open_session
from eyas.testing import load_tiny_target, tiny_pair, tiny_prompts
from eyas.testing.planted import singles
from eyas.testing.planting import tiny

K, TOKENS = 3, 48
PROMPTS = tiny_prompts()


@pytest.fixture(scope="module")
def rig() -> Rig:
    """The draft as it was trained, over the target's own answers."""
    target = load_tiny_target()
    answers = greedy_answers(target, PROMPTS, eos_ids_of(tiny_pair()[0]), TOKENS)
    texts = Text.read_all(target, list(zip(PROMPTS, answers, strict=True)))
    return Rig(read_draft(tiny_pair()[1], target), target, texts)


@contextmanager
def serving(draft: Path, *flags: str) -> Iterator[str]:
    """The URL of a server of this draft."""
    command = [sys.executable, "-m", "eyas", "serve", "--model-path", str(tiny_pair()[0]), "--json", "--port", "0"]
    command += ["--speculative-draft-model-path", str(draft), "--speculative-num-steps", str(K), "--threads", "1"]
    command += ["--max-total-tokens", "2000", *flags]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    try:
        assert process.stdout is not None
        yield json.loads(process.stdout.readline())["url"]
    finally:
        process.kill()
        process.wait()


def judged(rig: Rig, url: str, prompts: Sequence[Sequence[int]] = PROMPTS) -> tuple[list[Finding], Link]:
    seen = observe(url, [list(prompt) for prompt in prompts], TOKENS)
    assert seen.engine == "eyas"
    answers = [text.tokens[text.prompt :].tolist() for text in rig.texts]
    findings, link, _ = judge_server(seen, rig, answers, Asked(K))
    return findings, link


def faults(findings: Sequence[Finding]) -> str:
    return " ".join(finding.said for finding in findings if finding.weight == "fault")


@pytest.mark.slow
@pytest.mark.parametrize("flags", [(), ("--no-speculative-adaptive",)], ids=["adaptive", "fixed"])
def test_a_healthy_draft_is_accepted_as_predicted(rig: Rig, flags: tuple[str, ...]) -> None:
    """Also where the server chooses K: the check asks for what it was started with."""
    with serving(tiny_pair()[1], *flags) as url:
        findings, link = judged(rig, url)
    assert link.state == "proven", (link, findings)
    assert faults(findings) == ""
    assert f"{len(PROMPTS)} of {len(PROMPTS)} requests exact" in link.said


SERVED = {
    "all taps +1": "fed taps (3, 5, 6)",
    "order first two exchanged": "fed taps (4, 2, 5)",
    "norm_output": "norm_output on",
    "RoPE base x 50": "RoPE",
    "norm_before_residual": "norm_before_residual on",
}
"""Planted in what is served → what the verdict says of it."""


@pytest.mark.slow
@pytest.mark.parametrize("name", SERVED)
def test_a_fault_in_what_is_served_is_named(rig: Rig, name: str, tmp_path: Path) -> None:
    planted = next(one for one in singles(tiny()) if one.name == name)
    with serving(planted.make(tiny(), tmp_path / "served")) as url:
        findings, link = judged(rig, url)
    assert link.state == "broken", (link, findings)
    assert SERVED[name] in faults(findings)


@pytest.mark.slow
@pytest.mark.parametrize("named", [None, "as their text alone, without a template"])
def test_a_server_that_writes_chats_otherwise_is_named(named: str | None, tmp_path: Path) -> None:
    flags: tuple[str, ...] = ()
    if named is not None:
        template = tmp_path / "plain.jinja"
        template.write_text("{{ messages | map(attribute='content') | join('\\n') }}")
        flags = ("--chat-template", str(template))
    tokenizer = open_session(tiny_pair()[0], None, "fp32").tokenizer
    with serving(tiny_pair()[1], *flags) as url:
        found = template_of_server(url, tokenizer, ["where does the fox live?", "what is an owl?"])
    if named is None:
        assert (found.finding, found.link.state) == (None, "proven")
    else:
        assert found.finding is not None
        assert found.finding.data["as"] == [named]
