"""The verb: every flag reaches its setting, --explain tells all of them, and nothing unknown is passed over."""

from __future__ import annotations

import io
import json
import re
from pathlib import Path

import pytest
from rich.console import Console
from typer.testing import CliRunner

from eyas.cli import app
from eyas.cli.serving import banner
from eyas.errors import EyasError
from eyas.serve.flags import flags_of
from eyas.serve.limits import Limits
from eyas.serve.resolve import resolve
from eyas.serve.settings import ServeSettings, merge
from eyas.testing import tiny_pair

TARGET, DRAFT = tiny_pair()
TINY = ("--model-path", str(TARGET), "--speculative-draft-model-path", str(DRAFT), "--max-total-tokens", "2000")


def explain(*flags: str) -> dict:
    result = CliRunner().invoke(app, ["serve", *TINY, *flags, "--explain", "--json"], catch_exceptions=False)
    assert result.exit_code == 0
    return json.loads(result.stdout)["settings"]


def refused(*flags: str) -> EyasError:
    result = CliRunner().invoke(app, ["serve", *TINY, *flags, "--explain"])
    assert isinstance(result.exception, EyasError), result.output
    return result.exception


def test_explain_names_every_setting_and_limit_with_its_origin() -> None:
    found = explain()
    assert {*flags_of(ServeSettings), *(f"limit_{name}" for name in flags_of(Limits))} <= found.keys()
    assert all(entry["origin"] for entry in found.values())
    assert found["max_total_tokens"] == {"value": 2000, "origin": "flag", "note": "2.3 kB a token, 4.6 MB in all"}
    assert found["accept_length_ceiling"]["value"] == 4


def test_every_kind_of_flag_reaches_its_setting(tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    keys.write_text("a\n")
    found = explain(
        "--port", "0", "--tp", "1", "--watchdog-timeout", "60", "--no-speculative-adaptive", "--disable-radix-cache",
        "--api-key", "x", "--api-key", "y", "--api-key-file", str(keys), "--limit-read-seconds", "2.5", "--seed", "7",
    )  # fmt: skip
    values = {name: entry["value"] for name, entry in found.items() if entry["origin"] == "flag"}
    assert values["port"] == 0
    assert values["watchdog_timeout"] == 60.0
    assert values["speculative_adaptive"] is False
    assert values["disable_radix_cache"] is True
    assert (values["api_key"], values["api_key_file"]) == (2, "given")
    assert values["limit_read_seconds"] == 2.5
    assert values["random_seed"] == 7


def test_a_file_of_settings_and_flags_over_it(tmp_path: Path) -> None:
    file = tmp_path / "serve.yaml"
    file.write_text("speculative-num-steps: 2\nport: 1\nlimits: {choices: 3}\n")
    found = explain("--config", str(file), "--port", "5")
    assert found["speculative_num_steps"] == {"value": 2, "origin": "config file", "note": ""}
    assert (found["port"]["value"], found["port"]["origin"]) == (5, "flag")
    assert (found["limit_choices"]["value"], found["limit_choices"]["origin"]) == (3, "config file")


@pytest.mark.parametrize(
    ("flags", "code", "words"),
    [
        (("--page-size", "16"), "flags.unsupported", "--max-total-tokens"),
        (("--trust-remote-code",), "flags.unsupported", "--trust-remote-code"),
        (("--speculative-config={}",), "flags.unsupported", "--speculative-config"),
        (("--prot", "5"), "flags.unknown", "--port"),
        (("somewhere",), "flags.unknown", "somewhere"),
        (("--speculative-num-steps", "1", "--speculative-num-draft-tokens", "16"), "flags.contradiction", "16"),
    ],
)
def test_what_is_not_there_is_refused_with_what_to_do(flags: tuple[str, ...], code: str, words: str) -> None:
    error = refused(*flags)
    assert error.code == code
    assert words in str(error)


def test_people_see_a_table() -> None:
    result = CliRunner().invoke(app, ["serve", *TINY, "--speculative-num-steps", "2", "--explain"])
    assert re.search(r"speculative_num_steps +2 +flag", result.stdout)
    assert re.search(r"context_length +1024 +model config", result.stdout)
    assert re.search(r"port +30000 +default", result.stdout)


def test_help_shows_flags_under_their_headings_with_defaults() -> None:
    text = CliRunner().invoke(app, ["serve", "--help"], env={"COLUMNS": "200"}).stdout
    for words in ("Speculation", "Memory and batching", "--limit-body-bytes", "[30000]", "--tensor-parallel-size"):
        assert words in text


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ({}, ["tiny-target", "tiny-draft", "EAGLE3", "3 steps at most", "up to 4", "2,000 cache slots"]),
        ({"speculative_adaptive": False}, ["3 steps always"]),
        ({"speculative_draft_model_path": "none"}, ["plain decoding"]),
        ({"host": "0.0.0.0"}, ["no --api-key is set"]),
        ({"dp_size": 2}, ["2 replicas"]),
    ],
)
def test_the_banner_says_what_will_run(flags: dict, words: list[str]) -> None:
    given = {"model_path": str(TARGET), "speculative_draft_model_path": str(DRAFT), "max_total_tokens": 2000}
    serving = resolve(*merge(given | flags, None), TARGET, free=1 << 30)
    console = Console(record=True, width=140, file=io.StringIO())
    console.print(banner(serving, "http://127.0.0.1:1"))
    text = console.export_text()
    assert all(word in text for word in words), text
