"""What the documents tell a reader to type exists, what they link to is there, and the generated pages are fresh."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from typer.exceptions import Exit, TyperException
from typer.main import get_command

from eyas.cli import app

ROOT = Path(__file__).parent.parent
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")])
FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\(([^)\s]+)\)|<(?:img|a)\s[^>]*(?:src|href)=\"([^\"]+)\"")
OPERATORS = re.compile(r"[|&;<>()]+")
NOT_SHELL = ("text", "json", "mermaid", "python", "toml", "yaml")


def shell_commands(text: str) -> list[list[str]]:
    """Every simple command in the fenced shell blocks, as words, without assignments before it."""
    commands = []
    for language, block in FENCE.findall(text):
        if language in NOT_SHELL:
            continue
        for line in block.replace("\\\n", " ").splitlines():
            lexer = shlex.shlex(line.removeprefix("$ "), posix=True, punctuation_chars=True)
            lexer.commenters, lexer.whitespace_split = "#", True
            command: list[str] = []
            for word in [*lexer, ";"]:
                if not OPERATORS.fullmatch(word):
                    command.append(word)
                elif command:
                    commands.append(_without_assignments(command))
                    command = []
    return [command for command in commands if command]


def _without_assignments(command: list[str]) -> list[str]:
    while command and re.match(r"\w+=", command[0]):
        command = command[1:]
    return command


def fault_of(command: list[str]) -> str | None:
    """Why a command cannot be typed, or None. Nothing is run."""
    if command[0] == "make":
        wanted = [word for word in command[1:] if "=" not in word]
        targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
        unknown = set(wanted) - targets
        return f"no target {unknown}" if unknown else None
    if command[0] != "eyas":
        return None
    verb, typed, rest = get_command(app), "eyas", command[1:]
    while hasattr(verb, "commands"):
        name = rest[0] if rest else ""
        if name == "--help":
            return None
        if name not in verb.commands:
            return f"no verb {f'{typed} {name}'!r}"
        verb, typed, rest = verb.commands[name], f"{typed} {name}", rest[1:]
    try:
        verb.make_context(typed, rest)
    except Exit:
        return None  # --help
    except TyperException as error:
        return f"{type(error).__name__}: {error}"
    return None


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_commands_can_be_typed(page):
    faults = {" ".join(c): fault_of(c) for c in shell_commands(page.read_text(encoding="utf-8"))}
    assert {command: fault for command, fault in faults.items() if fault} == {}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page):
    links = [a or b for a, b in LINK.findall(page.read_text(encoding="utf-8"))]
    local = [link.split("#")[0] for link in links if "://" not in link and not link.startswith("#")]
    assert [link for link in local if not (page.parent / link).exists()] == []


def test_the_readme_begins_with_its_two_commands():
    first = shell_commands((ROOT / "README.md").read_text(encoding="utf-8"))
    assert [command for command in first if command[0] == "make"][:2] == [["make", "demo"], ["make", "test"]]


def test_the_makefile_runs_scripts_that_exist():
    scripts = re.findall(r"\S+\.py\b", (ROOT / "Makefile").read_text(encoding="utf-8"))
    assert scripts
    assert [script for script in scripts if not (ROOT / script).is_file()] == []


def test_generated_pages_are_up_to_date():
    script = ROOT / "docs" / "generate.py"
    result = subprocess.run([sys.executable, script, "--check"], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr


# The reader of the pages itself.


@pytest.mark.parametrize(
    "line",
    [
        "eyas fly",
        "eyas data",
        "eyas data fly",
        "eyas pull",
        "eyas demo --no-such-flag",
        "eyas generate 'hi' --temperature warm",
        "EYAS_CACHE=/x make nothing",
        "cat x | eyas pull a b",
    ],
)
def test_a_wrong_command_is_found(line):
    assert [fault for command in shell_commands(f"```sh\n{line}\n```\n") if (fault := fault_of(command))]


@pytest.mark.parametrize(
    "line",
    [
        "$ eyas pull builtin:smollm2-135m  # once",
        "eyas generate 'a | b' --seed 4 \\\n  --json > out.json",
        'make test ARGS="-k tree" && make lint',
        "pip install something",
    ],
)
def test_a_right_command_is_not_a_fault(line):
    commands = shell_commands(f"```\n{line}\n```\n")
    assert commands
    assert [fault for command in commands if (fault := fault_of(command))] == []
