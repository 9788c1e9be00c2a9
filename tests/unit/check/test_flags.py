"""``check_flags``: the story's launch, and every kind explained by the catalogue."""

from __future__ import annotations

import pytest

from eyas.check.catalogue import KINDS
from eyas.check.flags import check_flags
from eyas.dialects import launch_sglang, launch_vllm
from eyas.dialects.engines import Engine
from eyas.errors import EyasError

KIMI = "KimiK25ForConditionalGeneration"
STORY = """python -m sglang.launch_server --model-path moonshotai/Kimi-K2.5 --tp 8 \\
  --speculative-algorithm EAGLE3 --speculative-draft-model-path ./draft \\
  --speculative-num-steps 1 --speculative-eagle-topk 1 --speculative-num-draft-tokens 16"""
DOCUMENT = {"architectures": ["LlamaForCausalLMEagle3"], "vocab_size": 512, "draft_vocab_size": 256}


def test_the_storys_launch_runs_two_of_sixteen() -> None:
    checked = check_flags(STORY, None, KIMI, DOCUMENT)
    assert (checked.ceiling, str(checked.engine)) == (2, "sglang 0.5.23")
    (finding,) = checked.findings
    assert (finding.kind, finding.level, finding.weight) == ("flags.clamped", "flags", "fault")
    assert finding.data["asked"] == 16
    assert finding.data["effective"] == finding.data["ceiling"] == 2
    assert "--speculative-num-steps 15" in finding.fix
    assert {row.weight for row in checked.rows} == {"fault", "note"}


def test_the_right_launch_has_no_findings() -> None:
    checked = check_flags(STORY.replace("steps 1", "steps 15"), Engine.parse("sglang==0.5.20"), KIMI)
    assert (checked.findings, checked.ceiling) == ((), 16)
    assert checked.resolution is not None
    assert checked.resolution.num_steps == 15


def test_the_version_comes_from_the_image() -> None:
    text = "docker run vllm/vllm-openai:v0.11.0 --model M --spec-method eagle3 --spec-model D --spec-tokens 3"
    checked = check_flags(text, None, "LlamaForCausalLM")
    assert str(checked.engine) == "vllm 0.11.0"
    assert [finding.kind for finding in checked.findings] == ["flags.refused"]


def test_a_contradicting_engine_is_refused() -> None:
    with pytest.raises(EyasError) as error:
        check_flags(STORY, Engine.parse("vllm"), KIMI)
    assert error.value.code == "flags.contradiction"


def test_every_kind_of_a_rule_is_in_the_catalogue() -> None:
    kinds = {rule.kind for rule in (*launch_sglang.RULES, *launch_vllm.RULES)}
    kinds |= {"flags.clamped", "flags.refused", "flags.repeated", "flags.effective"}
    assert kinds == {kind for kind in KINDS if kind.startswith("flags.")}
