"""Flags and a file of settings become settings, strictly; nothing is ignored."""

from __future__ import annotations

from pathlib import Path

import pytest

from eyas.errors import EyasError
from eyas.serve.flags import flags_of
from eyas.serve.foreign import FAMILIES, refuse
from eyas.serve.limits import Limits
from eyas.serve.settings import ServeSettings, merge


def error_of(**flags: object) -> EyasError:
    with pytest.raises(EyasError) as caught:
        merge(dict(flags), None)
    return caught.value


def write(folder: Path, text: str) -> Path:
    path = folder / "serve.yaml"
    path.write_text(text)
    return path


def test_alone_it_serves_the_built_in_model_on_loopback() -> None:
    settings, origins = merge({}, None)
    assert (settings.model_path, settings.host, settings.port) == ("builtin:smollm2-135m", "127.0.0.1", 30000)
    assert origins == {}


def test_flags_win_over_the_file_and_both_are_remembered(tmp_path: Path) -> None:
    file = write(
        tmp_path, "port: 1\nmax-running-requests: 5\nlimits:\n  body_bytes: 1000\nlimit_choices: 2\napi_key: [a, b]"
    )
    settings, origins = merge({"port": 2}, file)
    assert (settings.port, settings.max_running_requests) == (2, 5)
    assert (settings.limits.body_bytes, settings.limits.choices) == (1000, 2)
    assert settings.api_key == ("a", "b")
    assert origins["port"] == "flag"
    assert origins["max_running_requests"] == origins["limit_body_bytes"] == "config file"


def test_sglangs_names_of_dtypes_mean_the_same() -> None:
    assert [merge({"dtype": d}, None)[0].dtype for d in ("float", "bfloat16")] == ["fp32", "bf16"]


@pytest.mark.parametrize(
    ("flags", "code", "words"),
    [
        ({"port": 70000}, "flags.range", ["port", "70000"]),
        ({"port": "30000"}, "flags.range", ["port"]),
        ({"dtype": "float16"}, "flags.range", ["dtype", "float16"]),
        ({"quantization": "awq"}, "flags.unsupported", ["--quantization awq"]),
        ({"quantization": "int8", "dtype": "bf16"}, "flags.contradiction", ["--dtype bf16", "--quantization int8"]),
        ({"schedule_policy": "lpm"}, "flags.range", ["schedule_policy"]),
        ({"mem_fraction_static": 1.0}, "flags.range", ["mem_fraction_static"]),
        ({"enable_metrics": False}, "flags.range", ["enable_metrics"]),
        ({"draft_sampling": "greedy"}, "flags.range", ["--draft-sampling greedy"]),
        ({"limit_choices": 0}, "flags.range", ["choices"]),
        ({"limit_width": 1}, "flags.unknown", ["width"]),
        ({"ports": 1}, "flags.unknown", ["ports"]),
        (
            {"chunked_prefill_size": 100, "max_prefill_tokens": 50},
            "flags.contradiction",
            ["--chunked-prefill-size 100", "--max-prefill-tokens 50"],
        ),
    ],
)
def test_a_value_without_meaning_is_refused_by_name(flags: dict, code: str, words: list[str]) -> None:
    error = error_of(**flags)
    assert error.code == code
    assert all(word in error.cause for word in words), error.cause
    assert error.fix


def test_an_unknown_key_of_the_file_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(EyasError, match=r"flags\.unknown"):
        merge({}, write(tmp_path, "ports: 1"))


def test_a_key_given_twice_in_the_file_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(EyasError, match=r"flags\.contradiction"):
        merge({}, write(tmp_path, "tp-size: 1\ntp_size: 1"))


@pytest.mark.parametrize("text", ["- 1", "port: [", ""])
def test_a_file_that_holds_no_settings_is_an_error(tmp_path: Path, text: str) -> None:
    with pytest.raises(EyasError, match=r"artifact\.corrupt"):
        merge({}, write(tmp_path, text))


def test_keys_come_from_flags_and_a_file_and_are_not_shown(tmp_path: Path) -> None:
    file = tmp_path / "keys"
    file.write_text("one\n\n two \n")
    settings, _ = merge({"api_key": ("zero",), "api_key_file": file}, None)
    assert settings.keys() == ("zero", "one", "two")
    assert "zero" not in repr(settings)


@pytest.mark.parametrize(("text", "code"), [("\n", "flags.range"), ("a b", "flags.range"), (None, "artifact.missing")])
def test_a_file_of_keys_must_hold_keys(tmp_path: Path, text: str | None, code: str) -> None:
    file = tmp_path / "keys"
    if text is not None:
        file.write_text(text)
    settings, _ = merge({"api_key_file": file}, None)
    with pytest.raises(EyasError) as caught:
        settings.keys()
    assert caught.value.code == code
    assert "a b" not in caught.value.cause


def test_a_bad_key_is_refused_without_repeating_it() -> None:
    error = error_of(api_key=("sésame",))
    assert error.code == "flags.range"
    assert "sésame" not in error.cause + error.fix


KNOWN = [f"--{name.replace('_', '-')}" for name in flags_of(ServeSettings)]


@pytest.mark.parametrize(
    ("flag", "code", "words"),
    [
        ("--page-size", "flags.unsupported", "--max-total-tokens"),
        ("--max-model-len=4096", "flags.unsupported", "--context-length"),
        ("--speculative-accept-threshold-acc", "flags.unsupported", "target's own"),
        ("--speculative-ngram-capacity", "flags.unsupported", "--speculative-num-steps"),
        ("--disable-cuda-graph", "flags.unsupported", "leave it out"),
        ("--hicache-ratio", "flags.unsupported", "--mem-fraction-static"),
        ("--trust-remote-code", "flags.unsupported", "no code"),
        ("--speculative_config", "flags.unsupported", "--speculative-algorithm"),
        ("--max-runing-requests", "flags.unknown", "--max-running-requests"),
        ("--warp-drive", "flags.unknown", "--help"),
    ],
)
def test_another_engines_flag_is_never_ignored(flag: str, code: str, words: str) -> None:
    error = refuse(flag, KNOWN)
    assert error.code == code
    assert words in str(error)


def test_no_flag_of_ours_is_called_another_engines() -> None:
    ours = [name for name in KNOWN if any(family.covers(name[2:]) for family in FAMILIES)]
    own_first = {"--speculative-algorithm", "--speculative-draft-model-path", "--speculative-num-steps"}
    # Those that begin as a family does are known first, and so never asked about.
    assert all(name.startswith("--speculative-") for name in ours)
    assert own_first <= set(ours)


def test_every_setting_and_limit_is_a_flag() -> None:
    assert {*flags_of(ServeSettings), "limits"} == set(ServeSettings.model_fields)
    assert set(flags_of(Limits)) == set(Limits.model_fields)


def test_one_body_of_the_allowed_size_fits_among_all() -> None:
    with pytest.raises(EyasError, match=r"flags\.contradiction"):
        merge({"limit_bodies_bytes": 1000, "limit_body_bytes": 1001}, None)
