"""Launch commands as people keep them → typed flags; garbled ones are errors, never crashes."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eyas.dialects.launch import LaunchFlags, parse_launch
from eyas.errors import EyasError

SPECULATIVE = "--speculative-algorithm EAGLE3 --speculative-num-steps 3 --speculative-eagle-topk 1"
SGLANG = f"python -m sglang.launch_server --model-path M {SPECULATIVE} --speculative-num-draft-tokens 4"
CONFIG = '{"method": "eagle3", "model": "D", "num_speculative_tokens": 3}'


def steps(flags: LaunchFlags) -> tuple[object, ...]:
    return flags.engine, flags.model, flags.algorithm, flags.num_steps, flags.eagle_topk, flags.num_draft_tokens


@pytest.mark.parametrize(
    "text",
    [
        SGLANG,
        SGLANG.replace("python -m sglang.launch_server", "sglang serve"),
        SGLANG.replace("python -m sglang.launch_server", "/opt/venv/bin/sglang serve"),
        SGLANG.replace(" --", " \\\n  --"),
        SGLANG.replace(" --", " \\\r\n  --"),
        SGLANG.replace("-steps 3", "-steps=3").replace("EAGLE3", "'EAGLE3'"),
        SGLANG.replace("--speculative-num-draft-tokens", "--speculative-num-dr"),
        f"# how it is started\ncd /srv && export N=4; {SGLANG.replace('tokens 4', 'tokens $N')} > log &",
        f"CUDA_VISIBLE_DEVICES=0,1 {SGLANG}",
        f"docker run --gpus all -e A=1 -p 1:1 lmsysorg/sglang:latest {SGLANG}",
        f'docker run lmsysorg/sglang:latest bash -c "{SGLANG}"',
        json.dumps(SGLANG.split()),
        json.dumps({"args": SGLANG.split()}),
        "\n".join(f"- {word!r}" for word in SGLANG.split()),
        "command:\n- python\n- -m\n- sglang.launch_server\nargs:\n" + "\n".join(f"- {w!r}" for w in SGLANG.split()[3:]),
        f"services:\n  a:\n    command: {SGLANG}\n",
    ],
)
def test_every_way_to_write_it_says_the_same(text: str) -> None:
    assert steps(parse_launch(text)) == ("sglang", "M", "EAGLE3", 3, 1, 4)


def test_a_config_file_names_flags_as_keys() -> None:
    text = "model-path: M\nspeculative-algorithm: EAGLE3\nspeculative-num-steps: 3\nspeculative-eagle-topk: 1\n"
    assert steps(parse_launch(text)) == ("sglang", "M", "EAGLE3", 3, 1, None)


@pytest.mark.parametrize(
    "text",
    [
        f"vllm serve M --speculative-config '{CONFIG}'",
        f"vllm serve M --speculative_config='{CONFIG}'",
        f"vllm serve --model M -sc '{CONFIG}'",
        f"python3 -m vllm.entrypoints.openai.api_server --model M --speculative-config '{CONFIG}'",
        "vllm serve M --spec-method eagle3 --spec-model D --spec-tokens 3",
        "vllm serve M -sc.method eagle3 -sc.model D --speculative-config.num_speculative_tokens 3",
        f"docker run --gpus all vllm/vllm-openai:v0.22.0 --model M -sc '{CONFIG}'",
        f"image: vllm/vllm-openai:v0.22.0\ncommand: [--model, M, -sc, '{CONFIG}']\n",
        "model: M\nspeculative-config: {method: eagle3, model: D, num_speculative_tokens: 3}\n",
    ],
)
def test_vllm_configurations(text: str) -> None:
    flags = parse_launch(text)
    assert (flags.engine, flags.model, flags.algorithm, flags.draft) == ("vllm", "M", "eagle3", "D")
    assert flags.num_speculative_tokens == 3


def test_what_stands_around_the_command_is_kept() -> None:
    text = f"SGLANG_SIMULATE_ACC_LEN=3 docker run -e A=b --env C=d lmsysorg/sglang:v0.5.4.post1-cu129 {SGLANG} --tp 8"
    flags = parse_launch(text)
    assert flags.env == {"SGLANG_SIMULATE_ACC_LEN": "3", "A": "b", "C": "d"}
    assert (flags.version, flags.tp) == ("0.5.4.post1", 8)
    assert parse_launch("vllm serve M --max-model-len 32k").context_length == 32_000
    assert parse_launch("vllm serve M --max-model-len 32K").context_length == 32_768
    assert parse_launch("vllm serve M --max-model-len auto").context_length is None
    assert parse_launch("sglang serve --context-length 4096").context_length == 4096


def test_flags_that_are_not_the_engines() -> None:
    flags = parse_launch(f"{SGLANG} --speculative-num-stepz 3 --spec-tokens 3 --tp 2 --tp 4")
    assert flags.unrecognised == ("--speculative-num-stepz", "--spec-tokens")
    assert (flags.repeated, flags.tp) == (("--tp",), 4)


def test_bare_flags_need_an_engine_only_where_they_could_be_either() -> None:
    assert parse_launch(SPECULATIVE).engine == "sglang"
    assert parse_launch(f"-sc '{CONFIG}'").engine == "vllm"
    assert parse_launch("--dtype half", "vllm").dtype == "half"
    with pytest.raises(EyasError) as error:
        parse_launch("--dtype half")
    assert error.value.code == "flags.unknown"
    with pytest.raises(EyasError) as error:
        parse_launch(SGLANG, "vllm")
    assert error.value.code == "flags.contradiction"


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("", "flags.unknown"),
        ("\0", "flags.unknown"),
        ("hello", "flags.unknown"),
        ("sglang serve --tp 'open", "flags.unknown"),
        ("[" * 50_000, "flags.unknown"),
        ('{"a":', "flags.unknown"),
        ("[[1, 2], null]", "flags.unknown"),
        ("x" * 70_000, "flags.range"),
        ("sglang serve --tp " + "9" * 5000, "flags.range"),
        ("sglang serve --tp ²", "flags.range"),
        ("sglang serve --tp", "flags.range"),
        ("sglang serve --tp $GPUS", "flags.range"),
        ("sglang serve --speculative-accept-threshold-acc nan", "flags.range"),
        ("sglang serve --speculative-accept-threshold-acc x", "flags.range"),
        ("vllm serve M -sc {method:eagle3}", "flags.range"),
        ("vllm serve M -sc '[1]'", "flags.range"),
        ("vllm serve M -sc '" + "[" * 50_000 + "'", "flags.range"),
        ("vllm serve M -sc '{\"num_speculative_tokens\": true}'", "flags.range"),
        ('vllm serve M -sc \'{"num_speculative_tokens": "3"}\'', "flags.range"),
        ("vllm serve M -sc '{\"model\": [1]}'", "flags.range"),
        ("vllm serve M --max-model-len k", "flags.range"),
        ("a: &a [1,1,1,1,1,1,1,1]\n" + "".join(f"b{i}: &b{i} [{'*a,' * 300}]\n" for i in range(30)), "flags.range"),
    ],
)
def test_garbled_commands_are_errors_with_a_code(text: str, code: str) -> None:
    with pytest.raises(EyasError) as error:
        parse_launch(text)
    assert error.value.code == code
    assert len(str(error.value)) < 1000


def test_variables_that_grow_are_cut() -> None:
    text = "A=aaaaaaaaaa; " + "A=$A$A$A$A; " * 4000 + "sglang serve --model-path $A"
    assert len(parse_launch(text).model or "") <= 4096


PIECES = st.sampled_from(
    [
        "sglang serve",
        "vllm serve",
        "-sc",
        CONFIG,
        "'",
        '"',
        "\\",
        "\n",
        "--tp",
        "3",
        "$A",
        "A=1",
        "- ",
        "[",
        "{",
        ":",
        "--",
    ]
)


@given(st.lists(PIECES | st.text(max_size=8), max_size=12).map(" ".join))
def test_no_text_crashes_it(text: str) -> None:
    code = ""
    try:
        parse_launch(text)
    except EyasError as error:
        code = error.code
    assert code in ("", "flags.unknown", "flags.range")
