"""`eyas check`: what it asks for, what it shows and writes, how it ends. The check itself is a stub."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from eyas.check.findings import Answer, Verdict
from eyas.cli import app
from eyas.dialects.engines import Engine
from eyas.engine.session import builtin_draft_folder
from eyas.errors import EyasError
from eyas.testing import tiny_pair
from support.verdicts import faulty, proven, undecided

TARGET, DRAFT = map(str, tiny_pair())


class Stub:
    """In place of the check: remembers what was asked, and answers with ``verdict``."""

    def __init__(self) -> None:
        self.asked: list[Any] = []
        self.verdict = proven()

    def run_check(self, request: Any, note: Callable[[str], None]) -> Verdict:
        note("reading [brackets] as they are")
        self.asked.append(request)
        return self.verdict


@pytest.fixture
def stub(monkeypatch: pytest.MonkeyPatch) -> Stub:
    made, module = Stub(), ModuleType("eyas.check.run")
    monkeypatch.setattr(module, "CheckRequest", SimpleNamespace, raising=False)
    monkeypatch.setattr(module, "run_check", made.run_check, raising=False)
    monkeypatch.setitem(sys.modules, "eyas.check.run", module)
    return made


def check(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["check", *arguments], catch_exceptions=False)


def refused(*arguments: str) -> EyasError:
    with pytest.raises(EyasError) as caught:
        check(*arguments)
    return caught.value


def with_answer(answer: Answer) -> Verdict:
    return Verdict(answer, "It is so.", (), ())


@pytest.mark.parametrize(
    ("answer", "status"),
    [("proven", 0), ("no-fault-found", 0), ("undertrained", 0), ("fault", 1), ("undecided", 3)],
)
@pytest.mark.parametrize("as_json", [False, True])
def test_the_answer_is_the_exit_status(stub: Stub, answer: Answer, status: int, as_json: bool) -> None:
    stub.verdict = with_answer(answer)
    assert check(DRAFT, "--target", TARGET, *(["--json"] if as_json else [])).exit_code == status


def test_people_see_the_verdict(stub: Stub) -> None:
    stub.verdict = faulty()
    result = check(DRAFT, "--target", TARGET)
    assert result.stdout.startswith("FAULT  ")
    assert "Hypotheses" in result.stdout


def test_programs_get_one_document(stub: Stub) -> None:
    stub.verdict = undecided()
    result = check(DRAFT, "--json")
    assert json.loads(result.stdout) == undecided().to_json()
    assert result.stderr == ""


def test_what_is_not_given_has_its_default(stub: Stub) -> None:
    check(DRAFT, "--target", TARGET)
    (asked,) = stub.asked
    nothing = dict.fromkeys(("original", "prompts", "flags", "endpoint", "observed", "fix"))
    rest = {"engines": (), "num_steps": 3, "dtype": "fp32", "backend": "auto"}
    assert vars(asked) == {"draft": Path(DRAFT), "target": Path(TARGET), **nothing, **rest}


def test_what_is_given_is_asked_for(stub: Stub, tmp_path: Path) -> None:
    prompts, observed, out = tmp_path / "p.jsonl", tmp_path / "o.json", tmp_path / "out"
    prompts.touch()
    observed.touch()
    flags = ["--flags", "--speculative-num-steps 1", "--engine", "sglang==0.5.13", "--engine", "vllm==0.32.0"]
    more = ["--prompts", str(prompts), "--observed", str(observed), "--fix", str(out), "--speculative-num-steps", "7"]
    check(DRAFT, "--target", TARGET, *flags, *more, "--dtype", "bf16", "--backend", "eager")
    (asked,) = stub.asked
    assert asked.flags == "--speculative-num-steps 1"
    assert asked.engines == (Engine.parse("sglang==0.5.13"), Engine.parse("vllm==0.32.0"))
    assert (asked.prompts, asked.observed, asked.fix, asked.endpoint) == (prompts, observed, out, None)
    assert (asked.num_steps, asked.dtype, asked.backend) == (7, "bf16", "eager")


def test_an_endpoint_is_asked_for(stub: Stub) -> None:
    check(DRAFT, "--target", TARGET, "--endpoint", "http://127.0.0.1:30000")
    assert stub.asked[0].endpoint == "http://127.0.0.1:30000"


def test_the_launch_command_is_read_from_its_file(stub: Stub, tmp_path: Path) -> None:
    command = "vllm serve org/m \\\n  --speculative-config '{}'\n"
    (tmp_path / "run.sh").write_text(command)
    check(DRAFT, "--target", TARGET, "--launch-command", str(tmp_path / "run.sh"))
    assert stub.asked[0].flags == command


def test_the_page_is_written_whole_whatever_the_answer(stub: Stub, tmp_path: Path) -> None:
    stub.verdict = faulty()
    page = tmp_path / "new" / "check.html"
    result = check(DRAFT, "--target", TARGET, "--html", str(page))
    assert (result.exit_code, [path.name for path in page.parent.iterdir()]) == (1, ["check.html"])
    assert page.read_text(encoding="utf-8").startswith("<!doctype html>")
    assert f"report → {page}" in result.stdout
    again = check(DRAFT, "--target", TARGET, "--html", str(page), "--json")
    assert json.loads(again.stdout)["answer"] == "fault"


def test_the_packaged_draft_has_the_built_in_target(stub: Stub, monkeypatch: pytest.MonkeyPatch) -> None:
    resolved = []
    monkeypatch.setattr("eyas.pull.resolve_model", lambda name, *_: resolved.append(name) or Path("/target"))
    check("builtin:smollm2-135m")
    assert resolved == ["builtin:smollm2-135m"]
    assert (stub.asked[0].draft, stub.asked[0].target) == (builtin_draft_folder(resolved[0]), Path("/target"))


def test_another_draft_without_a_target_is_checked_as_far_as_that_goes(stub: Stub) -> None:
    result = check(DRAFT)
    assert stub.asked[0].target is None
    assert "give --target" in result.stderr


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (("--flags", "x", "--launch-command", "f"), "flags.contradiction"),
        (("--endpoint", "http://x", "--observed", "f"), "flags.contradiction"),
        (("--fix", DRAFT), "flags.contradiction"),
        (("--html", TARGET), "flags.range"),
        (("--engine", "tgi==1"), "dialect.unknown-engine"),
        (("--prompts", "/no/such.jsonl"), "artifact.missing"),
        (("--observed", "/no/such.json"), "artifact.missing"),
        (("--launch-command", "/no/such.sh"), "artifact.missing"),
        (("--target", "no-such-model"), "pull.unknown-source"),
    ],
)
def test_what_makes_no_sense_is_refused_before_the_check(stub: Stub, arguments: tuple[str, ...], code: str) -> None:
    assert refused(DRAFT, *arguments).code == code
    assert stub.asked == []


@pytest.mark.parametrize("flag", ["--endpoint", "--observed"])
def test_a_server_cannot_be_judged_without_the_target(stub: Stub, flag: str, tmp_path: Path) -> None:
    seen = tmp_path / "seen.json"
    seen.write_text("[[1]]")
    error = refused(DRAFT, flag, "http://127.0.0.1:1" if flag == "--endpoint" else str(seen))
    assert error.code == "flags.missing"
    assert flag in error.cause
    assert "--target" in error.fix
    assert stub.asked == []


def test_a_draft_that_is_not_there_is_refused(stub: Stub) -> None:
    assert refused("/no/such/draft").code == "artifact.missing"
    assert stub.asked == []


def test_a_launch_command_that_is_none_is_refused(stub: Stub, tmp_path: Path) -> None:
    path = tmp_path / "run.sh"
    for content in (b"\xff\xfe\x00", b"x" * (1 << 17)):
        path.write_bytes(content)
        assert refused(DRAFT, "--target", TARGET, "--launch-command", str(path)).code == "artifact.corrupt"


def test_typer_itself_refuses_other_flags(stub: Stub) -> None:
    assert check(DRAFT, "--no-such-flag").exit_code == 2
    assert check(DRAFT, "--speculative-num-steps", "0").exit_code == 2
