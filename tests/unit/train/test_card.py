"""The model card: what it says of a draft, and that its commands are those that the engines take."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.main import get_command

from eyas.cli import app
from eyas.contract import (
    Contract,
    DataFacts,
    DataSource,
    ExpectedAcceptLength,
    FeatureFormat,
    NormOptions,
    Rendering,
    RopeOptions,
    TargetIdentity,
)
from eyas.dialects.engines import Engine
from eyas.draft.checkpoint import write_draft
from eyas.train import learning_curve
from eyas.train.card import CARD, PICTURE, CardFacts, card_files, render_card
from support.drafts import LLAMA, make_config, random_weights, small_target

FACTS = CardFacts("A draft", "builtin:x", "org/target", "Apache-2.0", num_steps=3, draft="org/draft")


def expected(prompt_set: str, num_steps: int, value: float, **changes: Any) -> ExpectedAcceptLength:
    return ExpectedAcceptLength(
        **{
            "prompt_set": prompt_set,
            "num_steps": num_steps,
            "temperature": 0.0,
            "draft_sampling": "one-hot",
            "accept_length": value,
            "low": value - 0.1,
            "high": value + 0.1,
            "ceiling": num_steps + 1,
            "survival": ((value - 1) / num_steps,) * num_steps,
            **changes,
        }
    )


def contract_with(*records: ExpectedAcceptLength, **changes: Any) -> Contract:
    return Contract(
        **{
            "schema_version": 2,
            "basis": "training",
            "target": TargetIdentity(
                architecture=LLAMA,
                num_layers=8,
                hidden_size=16,
                vocab_size=40,
                num_heads=4,
                num_kv_heads=2,
                head_dim=4,
                weights_sha256="a" * 64,
            ),
            "tokenizer_sha256": "b" * 64,
            "chat_template_sha256": "c" * 64,
            "rendering": Rendering(thinking="off", system_prompt="fixed", system_prompt_text="Be kind."),
            "taps": (2, 4, 5),
            "norms": NormOptions(fc_norm=False, norm_before_fc=False, norm_output=False, norm_before_residual=False),
            "rope": RopeOptions(theta=10000.0, scaling=None, partial_rotary_factor=1.0),
            "vocab_map_sha256": "d" * 64,
            "longest_trained_position": 532,
            "features": FeatureFormat(dtype="bfloat16", quantisation=None),
            "loss_mask_rule": "one-answer",
            "data": DataFacts(
                conversations=512,
                answer_tokens=105699,
                sources=(DataSource(name="self-sampled", licence="Apache-2.0"), DataSource(name="a|b", licence="MIT")),
            ),
            "expected": records,
            **changes,
        }
    )


RECORDS = (
    expected("mt-bench", 3, 2.1),
    expected("mt-bench", 5, 2.3),
    expected("humaneval", 3, 2.8),
    expected("mt-bench", 3, 1.9, temperature=1.0, draft_sampling="probabilistic"),
)


def command(card: str, start: str) -> list[str]:
    return shlex.split(next(line for line in card.splitlines() if line.startswith(start)))


def test_the_header_is_what_the_hub_reads() -> None:
    card = render_card(FACTS, contract_with(), make_config())
    header = yaml.safe_load(card.split("---\n")[1])
    assert (header["license"], header["base_model"]) == ("apache-2.0", "org/target")
    assert {"eagle-3", "speculative-decoding"} <= set(header["tags"])
    assert "It was not measured." in card


def test_accept_lengths_stand_with_intervals_and_ceilings_by_set_k_and_temperature() -> None:
    lines = render_card(FACTS, contract_with(*RECORDS), make_config()).splitlines()
    greedy = lines.index("**Temperature 0, one-hot drafts**")
    assert lines[greedy + 2 : greedy + 6] == [
        "| prompt set | K = 3 (ceiling 4) | K = 5 (ceiling 6) |",
        "|---|---|---|",
        "| mt-bench | 2.10 (2.00 … 2.20) | 2.30 (2.20 … 2.40) |",
        "| humaneval | 2.80 (2.70 … 2.90) | – |",
    ]
    drawn = lines.index("**Temperature 1, drawn (probabilistic) drafts**")
    assert lines[drawn + 4] == "| mt-bench | 1.90 (1.80 … 2.00) |"


def test_it_says_data_and_limits() -> None:
    card = render_card(FACTS, contract_with(), make_config(), has_witness=True)
    for part in (
        "512 conversations with 105,699 answer tokens",
        "| self-sampled | Apache-2.0 |",
        "| a\\|b | MIT |",
        "position trained on is 532",
        "system prompt “Be kind.”, thinking off",
        "ran in bfloat16, not quantised",
        "10 of 40 tokens",
        "witness.safetensors",
        "c" * 64,
    ):
        assert part in card, part
    assert "![" not in card


def test_the_commands_are_those_of_the_engines() -> None:
    card = render_card(FACTS, contract_with(), make_config())
    ours = command(card, "eyas ")
    known = {option for p in get_command(app).commands[ours[1]].params for option in p.opts}
    assert {part for part in ours if part.startswith("--")} <= known
    sglang = command(card, "python -m sglang")
    assert sglang[sglang.index("--speculative-num-draft-tokens") + 1] == "4"
    assert sglang[sglang.index("--speculative-num-steps") + 1] == "3"
    assert sglang[sglang.index("--dtype") + 1] == "bfloat16"
    vllm = command(card, "vllm serve")
    assert vllm[-1] == '{"method": "eagle3", "model": "org/draft", "num_speculative_tokens": 3}'
    quantised = contract_with(features=FeatureFormat(dtype="bfloat16", quantisation="int4"))
    assert "--speculative-draft-model-quantization unquant" in render_card(FACTS, quantised, make_config())


@pytest.mark.parametrize("option", ["norm_before_residual", "attention_bias"])
def test_an_engine_that_would_change_the_draft_is_named_with_the_reason(option: str) -> None:
    card = render_card(FACTS, contract_with(), make_config(**{option: True}), engines=[Engine.parse("sglang")])
    assert "With sglang 0.5.23: it cannot serve this draft as trained." in card
    assert option in card
    assert "sglang.launch_server" not in card


def test_an_engine_that_cannot_capture_the_taps_is_named_with_the_reason() -> None:
    card = render_card(FACTS, contract_with(), make_config(taps=(0, 2, 5)))
    assert "With sglang 0.5.23: it cannot serve this draft as trained. sglang 0.5.23 with LlamaForCausalLM" in card
    assert "vllm serve" in card


def test_the_learning_curve_is_shown_where_there_is_one(tmp_path: Path) -> None:
    assert PICTURE == learning_curve.PICTURE
    assert card_files("text", tmp_path / "none.png") == {CARD: b"text"}
    (tmp_path / "x.png").write_bytes(b"picture")
    card = render_card(FACTS, contract_with(), make_config(), picture=True)
    assert f"]({PICTURE})" in card
    beside = card_files(card, tmp_path / "x.png")
    write_draft(tmp_path / "d", random_weights(small_target()), LLAMA, files=beside)
    assert (tmp_path / "d" / CARD).read_text() == card
    assert (tmp_path / "d" / PICTURE).read_bytes() == b"picture"
