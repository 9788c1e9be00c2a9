"""What was asked becomes a plan, or an error that names both flags."""

from __future__ import annotations

from pathlib import Path

import pytest

from eyas.engine.asked import Asked, Plan
from eyas.errors import EyasError


def asked(draft: str = "none", algorithm: str | None = None, **flags: object) -> Asked:
    values: dict[str, object] = {
        "num_steps": None,
        "eagle_topk": None,
        "num_draft_tokens": None,
        "draft_sampling": "one-hot",
    }
    return Asked(algorithm=algorithm, draft=draft, **values | flags)  # type: ignore[arg-type]


def plan_of(request: Asked, model: str = "org/model") -> Plan:
    return request.resolve(model)


def test_without_a_draft_and_flags_decoding_is_plain() -> None:
    assert plan_of(asked()) == Plan("NONE", None, None)


def test_auto_finds_no_draft_for_a_target_that_brings_none() -> None:
    assert plan_of(asked("auto")) == Plan("NONE", None, None)


def test_a_draft_folder_means_eagle3_with_the_defaults(tmp_path: Path) -> None:
    plan = plan_of(asked(str(tmp_path)))
    assert (plan.algorithm, plan.draft) == ("EAGLE3", tmp_path)
    assert plan.speculation is not None
    assert (plan.speculation.num_steps, plan.speculation.num_draft_tokens) == (3, 4)


def test_ngram_needs_no_draft() -> None:
    plan = plan_of(asked(algorithm="ngram", num_steps=5))
    assert (plan.algorithm, plan.draft) == ("NGRAM", None)
    assert plan.speculation is not None
    assert plan.speculation.ceiling == 6


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ({"num_steps": 3}, ["--speculative-num-steps 3", "--draft none"]),
        ({"num_steps": 3, "algorithm": "NONE"}, ["--speculative-num-steps 3", "--speculative-algorithm NONE"]),
        ({"algorithm": "EAGLE3"}, ["EAGLE3", "--draft is none"]),
        ({"algorithm": "NGRAM", "eagle_topk": 4}, ["NGRAM", "--speculative-eagle-topk is 4"]),
        ({"algorithm": "NGRAM", "draft_sampling": "probabilistic"}, ["NGRAM", "probabilistic"]),
        ({"draft_sampling": "probabilistic"}, ["--draft-sampling probabilistic", "--draft none"]),
    ],
)
def test_contradicting_flags_are_refused_and_both_named(flags: dict[str, object], words: list[str]) -> None:
    with pytest.raises(EyasError) as caught:
        plan_of(asked(**flags))  # type: ignore[arg-type]
    assert caught.value.code == "flags.contradiction"
    for word in words:
        assert word in caught.value.cause
    assert caught.value.fix


def test_a_draft_with_ngram_is_refused(tmp_path: Path) -> None:
    with pytest.raises(EyasError, match=r"flags\.contradiction"):
        plan_of(asked(str(tmp_path), "NGRAM"))


@pytest.mark.parametrize(("steps", "topk", "tokens"), [(1, 1, 16), (15, 1, 4), (3, 2, 40)])
def test_counts_that_cannot_be_are_refused(tmp_path: Path, steps: int, topk: int, tokens: int) -> None:
    with pytest.raises(EyasError, match=r"flags\.contradiction"):
        plan_of(asked(str(tmp_path), num_steps=steps, eagle_topk=topk, num_draft_tokens=tokens))


@pytest.mark.parametrize("flags", [{"num_steps": 0}, {"algorithm": "MEDUSA"}, {"draft_sampling": "greedy"}])
def test_values_without_meaning_are_refused(tmp_path: Path, flags: dict[str, object]) -> None:
    with pytest.raises(EyasError, match=r"flags\.range"):
        plan_of(asked(str(tmp_path), **flags))  # type: ignore[arg-type]


def test_a_draft_folder_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(EyasError) as caught:
        plan_of(asked(str(tmp_path / "absent")))
    assert caught.value.code == "artifact.missing"
    assert "absent" in caught.value.cause


def test_errors_name_the_flag_of_the_verb() -> None:
    with pytest.raises(EyasError, match="--speculative-draft-model-path is none"):
        plan_of(asked(algorithm="EAGLE3", draft_flag="--speculative-draft-model-path"))
