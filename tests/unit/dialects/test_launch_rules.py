"""Asked → effective for whole launches: every rule where it holds, and a healthy launch without a word."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eyas.dialects import launch_sglang, launch_vllm
from eyas.dialects.engines import Engine
from eyas.dialects.launch import parse_launch
from eyas.dialects.launch_resolve import Launch, resolve_launch
from eyas.dialects.launch_rules import DraftFacts
from eyas.errors import EyasError

LLAMA, KIMI = "LlamaForCausalLM", "KimiK25ForConditionalGeneration"
DRAFT = DraftFacts("eagle3", 512, 512, max_positions=2048, dtype="bfloat16")
REDUCED = DraftFacts("eagle3", 512, 256, max_positions=2048, dtype="bfloat16")
STEPS = "--speculative-num-steps 3 --speculative-eagle-topk 1 --speculative-num-draft-tokens 4"
WITH_DRAFT = "sglang serve --model-path M --speculative-draft-model-path D"
HEALTHY = f"{WITH_DRAFT} --speculative-algorithm EAGLE3 {STEPS}"
TREE = f"{WITH_DRAFT} --speculative-algorithm EAGLE3 --speculative-num-steps 5 --speculative-eagle-topk 4 " + (
    "--speculative-num-draft-tokens 8"
)


def launch(text: str, version: str = "0.5.23", architecture: str = LLAMA, draft: DraftFacts = DRAFT) -> Launch:
    flags = parse_launch(text)
    return resolve_launch(flags, Engine.parse(f"{flags.engine}=={version}"), architecture, draft)


def vllm(version: str = "0.32.0", draft: DraftFacts = DRAFT, more: str = "", **entries: object) -> Launch:
    config = {"method": "eagle3", "model": "D", "num_speculative_tokens": 3} | entries
    config = {key: value for key, value in config.items() if value is not None}
    return launch(f"vllm serve M -sc '{json.dumps(config)}' {more}", version, LLAMA, draft)


def heavy(one: Launch) -> list[str]:
    return [row.kind for row in one.rows if row.weight != "note"]


def test_a_healthy_launch_has_nothing_to_say() -> None:
    assert heavy(launch(HEALTHY)) == heavy(vllm()) == []
    assert launch(HEALTHY).ceiling == vllm().ceiling == 4
    assert heavy(launch(f"{WITH_DRAFT} --speculative-algorithm EAGLE3")) == []


@pytest.mark.parametrize("version", ["0.4.6.post5", "0.5.10", "0.5.23"])
@pytest.mark.parametrize(
    ("asked", "runs", "kinds"),
    [
        ((1, 1, 4), 2, ["flags.clamped"]),
        ((4, 1, 24), 5, ["flags.clamped"]),
        ((5, 1, 4), 6, ["flags.clamped"]),
        ((3, 1, 4), 4, []),
        ((1, 1, 16), 2, ["flags.clamped"]),
        ((15, 1, 16), 16, []),
    ],
)
def test_faults_input_1(version: str, asked: tuple[int, int, int], runs: int, kinds: list[str]) -> None:
    steps, topk, tokens = asked
    text = (
        f"{WITH_DRAFT} --speculative-algorithm EAGLE3 --speculative-num-steps {steps} --speculative-eagle-topk {topk}"
    )
    one = launch(f"{text} --speculative-num-draft-tokens {tokens}", version, KIMI)
    assert one.resolution is not None
    assert (one.resolution.num_draft_tokens, one.ceiling, heavy(one)) == (runs, runs, kinds)
    for row in one.rows:
        if row.kind == "flags.clamped":
            assert (row.asked, row.effective, row.weight) == (tokens, runs, "fault" if runs < tokens else "warning")


def test_faults_input_2() -> None:
    """vLLM's 3 is SGLang's steps 3 and draft tokens 4, and each engine says the other's number."""
    ours, theirs = vllm(), launch(HEALTHY)
    assert ours.resolution == theirs.resolution
    (said,) = [row.rule for row in ours.rows if row.kind == "flags.counting"]
    assert "--speculative-num-steps 3 --speculative-num-draft-tokens 4" in said
    (said,) = [row.rule for row in theirs.rows if row.kind == "flags.counting"]
    assert "num_speculative_tokens for the same chain is 3" in said
    fewer = HEALTHY.replace("steps 3", "steps 2").replace("tokens 4", "tokens 3")
    assert launch(fewer).ceiling == 3, "mapped to draft tokens 3 it is K = 2"


SGLANG_FAULTS = [
    ("sglang serve", "0.5.23", ["flags.off"]),
    (f"{WITH_DRAFT} {STEPS}", "0.5.23", ["flags.off"]),
    (HEALTHY.replace("EAGLE3", "EAGLE"), "0.5.23", ["flags.algorithm"]),
    (HEALTHY.replace("EAGLE3", "nextn"), "0.5.23", ["flags.algorithm"]),
    (HEALTHY.replace("EAGLE3", "STANDALONE"), "0.5.23", ["flags.algorithm"]),
    (HEALTHY.replace("EAGLE3", "eagle3"), "0.5.23", []),
    (HEALTHY.replace("EAGLE3", "eagle3"), "0.5.6", ["flags.refused"]),
    (HEALTHY.replace("EAGLE3", "MEDUSA"), "0.5.23", ["flags.refused"]),
    (HEALTHY.replace(" --speculative-draft-model-path D", ""), "0.5.23", ["flags.no-draft"]),
    (f"{HEALTHY} --quantization awq", "0.5.23", ["flags.quantization"]),
    (f"{HEALTHY} --quantization awq", "0.5.2", ["flags.quantization"]),
    (f"{HEALTHY} --quantization fp8", "0.5.23", ["flags.quantization"]),
    (f"{HEALTHY} --quantization awq --speculative-draft-model-quantization unquant", "0.5.23", []),
    (f"{HEALTHY} --quantization awq --speculative-draft-model-quantization unquant", "0.5.6",
     ["flags.refused"]),
    (f"{HEALTHY} --speculative-accept-threshold-single 0.9", "0.5.23", ["flags.lossy"]),
    (f"{HEALTHY} --speculative-accept-threshold-acc 0", "0.5.23", ["flags.lossy"]),
    (f"{HEALTHY} --speculative-accept-threshold-acc 1.0", "0.5.23", []),
    (f"SGLANG_SIMULATE_ACC_LEN=3.2 {HEALTHY}", "0.5.23", ["flags.simulated"]),
    (f"SGLANG_SIMULATE_ACC_LEN=-1 {HEALTHY}", "0.5.23", []),
    (f"{HEALTHY} --speculative-token-map t.pt", "0.5.23", ["flags.ignored"]),
    (f"{HEALTHY} --speculative-draft-load-format dummy", "0.5.23", ["flags.dummy"]),
    (f"{HEALTHY} --speculative-use-rejection-sampling", "0.5.23", []),
    (f"{HEALTHY} --speculative-use-rejection-sampling", "0.5.13", ["flags.refused"]),
    (f"{TREE} --speculative-use-rejection-sampling", "0.5.23", ["flags.refused"]),
    (f"{TREE} --speculative-use-block-verification", "0.5.23", ["flags.refused"]),
    (TREE, "0.5.23", []),
    (f"{TREE} --attention-backend trtllm_mha", "0.5.23", ["flags.refused", "flags.refused"]),
    (f"{TREE} --attention-backend flashmla", "0.5.23", ["flags.refused"]),
    (f"{TREE} --attention-backend fa3 --page-size 16", "0.5.23", []),
    (f"{TREE} --attention-backend fa3 --page-size 16", "0.5.4", ["flags.refused"]),
    (f"{TREE} --page-size 16", "0.4.8", ["flags.clamped", "flags.clamped"]),
    (f"SGLANG_ENABLE_SPEC_V2=1 {TREE}", "0.5.8", ["flags.refused"]),
    (TREE, "0.5.11", ["flags.slower"]),
    (f"{HEALTHY} --pp-size 2", "0.5.23", ["flags.refused"]),
    (f"{HEALTHY} --context-length 8192", "0.5.23", ["flags.context"]),
    (f"{HEALTHY} --context-length 2048", "0.5.23", []),
    (f"{HEALTHY} --dtype half", "0.5.23", ["flags.half"]),
    (f"{HEALTHY} --speculative-num-stepz 2", "0.5.23", ["flags.refused"]),
    (f"{HEALTHY} --tp 2 --tp 4", "0.5.23", ["flags.repeated"]),
    (f"{HEALTHY} --enable-dp-attention --speculative-adaptive", "0.5.23", ["flags.ignored"]),
    (f"{HEALTHY} --speculative-adaptive", "0.5.10", ["flags.refused"]),
    (f"{WITH_DRAFT} --speculative-algorithm EAGLE3 --speculative-adaptive --speculative-num-steps 4", "0.5.23",
     ["flags.refused"]),
    (f"{WITH_DRAFT} --speculative-algorithm EAGLE3 --speculative-num-steps 3", "0.5.23", ["flags.refused"]),
    (f"{WITH_DRAFT} --speculative-algorithm EAGLE3 --speculative-num-steps 0 --speculative-eagle-topk 1", "0.5.23",
     ["flags.refused"]),
]  # fmt: skip


@pytest.mark.parametrize(("text", "version", "kinds"), SGLANG_FAULTS)
def test_sglang_rules(text: str, version: str, kinds: list[str]) -> None:
    assert heavy(launch(text, version)) == kinds


def test_sglang_rules_that_look_at_the_draft() -> None:
    assert heavy(launch(f"{HEALTHY} --speculative-use-rejection-sampling", draft=REDUCED)) == ["flags.refused"]
    assert heavy(launch(HEALTHY, draft=DraftFacts("eagle"))) == ["flags.algorithm"]
    assert heavy(launch(HEALTHY.replace("EAGLE3", "EAGLE"), draft=DraftFacts("eagle"))) == []
    assert heavy(launch(f"{HEALTHY} --quantization awq", draft=DraftFacts(own_quantization=True))) == []
    allowed = f"SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN=1 {HEALTHY} --context-length 8192"
    (row,) = [row for row in launch(allowed).rows if row.kind == "flags.context"]
    assert row.weight == "warning"


def test_sglang_ceilings() -> None:
    assert launch("sglang serve").ceiling == 1
    assert launch(f"{HEALTHY} --speculative-adaptive").ceiling == 8
    assert launch(f"{HEALTHY} --speculative-adaptive --speculative-adaptive-config x.json").ceiling is None
    assert launch(HEALTHY.replace("EAGLE3", "NGRAM")).ceiling is None
    assert launch(TREE).ceiling == 6
    assert launch(f"{WITH_DRAFT} --speculative-algorithm EAGLE3 --speculative-num-steps 3").fails


def test_a_page_size_that_the_backend_forces_is_said() -> None:
    rows = {row.flag: row for row in launch(f"{HEALTHY} --attention-backend trtllm_mla").rows}
    assert (rows["--page-size"].asked, rows["--page-size"].effective, rows["--page-size"].weight) == (None, 64, "note")
    assert "--page-size" not in {
        r.flag for r in launch(f"{HEALTHY} --attention-backend trtllm_mla --page-size 32").rows
    }


@pytest.mark.parametrize(
    ("entries", "version", "kinds"),
    [
        ({"method": None, "model": "org/EAGLE3-Llama"}, "0.32.0", ["flags.inferred"]),
        ({"method": None, "model": "org/eagle-eagle3"}, "0.32.0", ["flags.algorithm"]),
        ({"method": None, "model": "org/draft"}, "0.32.0", ["flags.algorithm"]),
        ({"method": "eagle"}, "0.32.0", ["flags.algorithm"]),
        ({"method": "deepseek_mtp"}, "0.32.0", ["flags.algorithm"]),
        ({"method": "mtp", "model": None}, "0.32.0", ["flags.algorithm", "flags.no-draft"]),
        ({"method": "eagle4"}, "0.32.0", ["flags.refused"]),
        ({"model": None}, "0.32.0", ["flags.no-draft"]),
        ({"num_speculative_tokens": None}, "0.32.0", ["flags.refused"]),
        ({"num_speculative_tokens": 0}, "0.32.0", ["flags.refused"]),
        ({"tensor_parallel_size": 2}, "0.32.0", ["flags.refused"]),
        ({"draft_tensor_parallel_size": 3}, "0.32.0", ["flags.refused"]),
        ({"draft_tensor_parallel_size": 1}, "0.32.0", []),
        ({"num_draft_tokens": 4}, "0.32.0", ["flags.refused"]),
        ({"disable_by_batch_size": 4}, "0.11.0", ["flags.ignored"]),
        ({"disable_by_batch_size": 4}, "0.32.0", ["flags.refused"]),
        ({"speculative_token_tree": "[(0,)]"}, "0.32.0", ["flags.refused"]),
        ({"speculative_token_tree": "[(0,)]"}, "0.18.0", []),
        ({"rejection_sample_method": "synthetic"}, "0.32.0", ["flags.simulated"]),
        ({"parallel_drafting": True}, "0.32.0", ["flags.parallel"]),
        ({"parallel_drafting": True}, "0.11.0", ["flags.refused", "flags.parallel"]),
        ({"num_speculative_tokens_per_batch_size": [[1, 8, 5], [9, 64, 0]]}, "0.32.0", []),
        ({"num_speculative_tokens_per_batch_size": "garbled"}, "0.32.0", []),
    ],
)
def test_vllm_rules(entries: dict[str, object], version: str, kinds: list[str]) -> None:
    assert heavy(vllm(version, **entries)) == kinds


def test_vllm_rules_that_look_elsewhere() -> None:
    assert heavy(launch("vllm serve M", "0.32.0")) == ["flags.off"]
    assert (
        heavy(vllm(more="--max-model-len 8k")) == heavy(vllm("0.22.0", more="--max-model-len 8k")) == ["flags.context"]
    )
    assert heavy(vllm(more="--max-model-len 2048", max_model_len=4096)) == ["flags.refused"]
    assert heavy(vllm(more="--kv-sharing-fast-prefill")) == ["flags.refused"]
    assert heavy(vllm(more="--async-scheduling", disable_padded_drafter_batch=True)) == ["flags.refused"]
    assert heavy(vllm(more="--load-format dummy")) == ["flags.dummy"]
    assert heavy(vllm(more="--dtype float16")) == ["flags.half"]
    schedule = [[1, 8, 5], [9, 64, 0]]
    assert heavy(vllm(more="-dp 2", num_speculative_tokens_per_batch_size=schedule)) == ["flags.ignored"]
    assert vllm(num_speculative_tokens_per_batch_size=schedule).ceiling == 6
    assert heavy(vllm(draft=DraftFacts(model_type="deepseek_v3"))) == ["flags.renamed"]
    assert heavy(vllm(draft=DraftFacts(has_depth=True), num_speculative_tokens=None)) == []
    assert heavy(launch("vllm serve M --spec-method eagle3 --spec-model D --spec-tokens 3", "0.18.0")) == [
        "flags.refused"
    ]
    deepseek = "DeepseekV3ForCausalLM"
    text = """vllm serve M -sc '{"method": "eagle3", "model": "D", "num_speculative_tokens": 3}'"""
    assert heavy(launch(text, "0.14.0", deepseek)) == ["flags.refused"]
    assert heavy(launch(text, "0.18.0", deepseek)) == []


def test_flags_of_the_other_engine_are_refused() -> None:
    with pytest.raises(EyasError) as error:
        resolve_launch(parse_launch(HEALTHY), Engine.parse("vllm"), LLAMA)
    assert error.value.code == "flags.contradiction"


def test_facts_of_a_draft_come_from_its_config() -> None:
    facts = DraftFacts.of({"architectures": ["LlamaForCausalLMEagle3"], "vocab_size": 512, "draft_vocab_size": 256})
    assert (facts.method, facts.reduced) == ("eagle3", True)
    assert DraftFacts.of({"architectures": ["LlamaForCausalLMEagle"]}).method == "eagle"
    assert DraftFacts.of({"architectures": ["LlamaForCausalLM"]}).method == "other"
    hostile = {"architectures": 3, "vocab_size": True, "draft_vocab_size": "x", "dtype": [], "model_type": None}
    assert DraftFacts.of(hostile).reduced is False


VERSIONS = st.sampled_from(["0.4.6.post5", "0.4.8", "0.5.2", "0.5.8", "0.5.11", "0.5.13", "0.5.23", "1.0"])
NUMBERS = st.none() | st.integers(-1, 70)
SWITCHES = ("--speculative-adaptive", "--enable-dp-attention", "--speculative-use-rejection-sampling")


@given(
    VERSIONS,
    NUMBERS,
    NUMBERS,
    NUMBERS,
    st.sampled_from([*launch_sglang.ALGORITHMS, "X"]),
    st.sets(st.sampled_from(SWITCHES)),
)
def test_any_numbers_give_rows_and_a_ceiling(version, steps, topk, tokens, algorithm, switches) -> None:
    given = {"num-steps": steps, "eagle-topk": topk, "num-draft-tokens": tokens, "algorithm": algorithm}
    words = [f"--speculative-{name}={value}" for name, value in given.items() if value is not None]
    one = launch(" ".join([WITH_DRAFT, *words, *switches]), version)
    if one.resolution is not None:
        assert one.ceiling is None or one.ceiling >= 1
        assert one.resolution.num_draft_tokens >= 1
    for row in one.rows:
        assert row.rule
        assert row.weight == "note" or row.fix


def test_every_rule_has_a_fix_unless_it_is_a_note() -> None:
    for rule in (*launch_sglang.RULES, *launch_vllm.RULES):
        assert rule.weight == "note" or rule.fix, rule.rule
