"""Several files of samples as one: nothing lost, nothing doubled, nothing of another target."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from eyas.contract import DataSource, Rendering
from eyas.corpus.samples import LOSS_MASK_RULE, Sample, SampleFacts, SampleSet, read_samples, write_samples
from eyas.data.joining import join_samples
from eyas.errors import EyasError

PATHS = [Path(f"{name}.npz") for name in "abc"]


def rendering(kind: str = "none", text: str | None = None, thinking: str = "none") -> Rendering:
    return Rendering.model_validate({"thinking": thinking, "system_prompt": kind, "system_prompt_text": text})


def facts(source: str = "own", how: Rendering | None = None, target: str | None = "d" * 64) -> SampleFacts:
    return SampleFacts(
        tokenizer_sha256="a" * 64,
        chat_template_sha256="b" * 64,
        target_weights_sha256=target,
        rendering=how or rendering(),
        loss_mask_rule=LOSS_MASK_RULE,
        sources=(DataSource(name=source, licence="MIT"),),
    )


def some(*names: str, of: SampleFacts | None = None) -> SampleSet:
    tokens = np.arange(8, dtype=np.int32)
    return SampleSet(of or facts(), tuple(Sample(name, name[:1], "", tokens, ((2, 8),), 0.0) for name in names))


def refused(*parts: SampleSet) -> EyasError:
    with pytest.raises(EyasError) as error:
        join_samples(list(zip(PATHS, parts, strict=False)))
    return error.value


@given(st.lists(st.integers(0, 4), min_size=1, max_size=3))
def test_all_samples_in_order(sizes: list[int]) -> None:
    parts = [some(*(f"{i}-{j}" for j in range(size))) for i, size in enumerate(sizes)]
    joined = join_samples(list(zip(PATHS, parts, strict=False)))
    assert [s.id for s in joined.samples] == [s.id for part in parts for s in part.samples]
    assert joined.facts == facts()


def test_sources_add_up_and_the_file_is_read_again(tmp_path: Path) -> None:
    parts = [some("x"), some("y", of=facts("other"))]
    joined = join_samples(list(zip(PATHS, parts, strict=False)))
    assert [source.name for source in joined.facts.sources] == ["other", "own"]
    write_samples(tmp_path / "all.npz", joined)
    again = read_samples(tmp_path / "all.npz")
    assert again.facts == joined.facts
    assert [(s.id, s.tokens.tolist(), s.answers) for s in again.samples] == [
        (s.id, s.tokens.tolist(), s.answers) for s in joined.samples
    ]


def test_a_sample_that_is_there_twice_is_refused() -> None:
    assert refused(some("x", "y"), some("z", "y")).code == "samples.twice"


@pytest.mark.parametrize("field", ["tokenizer_sha256", "chat_template_sha256", "target_weights_sha256"])
def test_samples_of_another_target_are_refused(field: str) -> None:
    other = some("y", of=facts().model_copy(update={field: "e" * 64}))
    error = refused(some("x"), other)
    assert error.code == "features.origin"
    assert field in error.cause


def test_an_unknown_target_stays_unknown() -> None:
    parts = [some("x"), some("y", of=facts(target=None)), some("z")]
    assert join_samples(list(zip(PATHS, parts, strict=True))).facts.target_weights_sha256 is None


def test_renderings() -> None:
    each, none = facts(how=rendering("per-conversation")), facts()
    for order in ((each, none), (none, each)):
        joined = join_samples([(PATHS[i], some(str(i), of=of)) for i, of in enumerate(order)])
        assert joined.facts.rendering.system_prompt == "per-conversation"
    fixed = replace(some("y"), facts=facts(how=rendering("fixed", "Be brief.")))
    assert refused(some("x"), fixed).code == "features.origin"
    assert "Be brief." in refused(some("x"), fixed).cause
    assert refused(some("x"), some("y", of=facts(how=rendering(thinking="on")))).code == "features.origin"
