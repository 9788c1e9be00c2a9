"""The witness of a draft: written beside it, and what the engine then shows, round by round."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from eyas.config import SamplingSettings, SpeculativeSettings
from eyas.contract import (
    Contract,
    ContractFacts,
    DataSource,
    Witness,
    project,
)
from eyas.corpus.samples import Sample, SampleSet
from eyas.corpus.witness import WitnessOptions, answer_greedily, check_sources, make_witness
from eyas.draft.checkpoint import (
    CONTRACT,
    WITNESS,
    load_draft,
    read_draft,
    read_witness,
    write_draft,
)
from eyas.draft.model import DraftModel
from eyas.engine.engine import Engine
from eyas.errors import EyasError
from eyas.export import Goal, export_draft
from eyas.models.reading import read_text
from eyas.models.target import Target
from eyas.speculate.propose import DraftProposer, Proposal
from eyas.speculate.state import DecodeState
from eyas.testing import load_tiny_draft, load_tiny_target, tiny_eos_ids, tiny_pair, tiny_prompts
from support.promises import SELF, contract_of, facts

STEPS = 4


@pytest.fixture(scope="module")
def target() -> Target:
    return load_tiny_target()


@pytest.fixture(scope="module")
def draft(target: Target) -> DraftModel:
    return load_tiny_draft(target)


@pytest.fixture(scope="module")
def held_out(target: Target) -> SampleSet:
    """Three prompts with answers of someone else, which the target answers itself."""
    samples = [
        Sample(f"c{i}", f"p{i}", "tiny", np.array([*ids, 5, 6], dtype=np.int32), ((len(ids), len(ids) + 2),), 1.0)
        for i, ids in enumerate(tiny_prompts()[:3])
    ]
    return SampleSet(facts(), tuple(answer_greedily(target, samples, tiny_eos_ids(), max_new_tokens=24)))


@pytest.fixture(scope="module")
def contract(target: Target, draft: DraftModel) -> Contract:
    return contract_of(target, draft)


@pytest.fixture(scope="module")
def witness(target: Target, draft: DraftModel, held_out: SampleSet, contract: Contract) -> Witness:
    return make_witness(target, draft, held_out, contract, STEPS, WitnessOptions(num_projections=5, positions=6))


class Recorder:
    """What a served engine proposes, round by round."""

    def __init__(self, inner: DraftProposer) -> None:
        self.inner, self.taps = inner, inner.taps
        self.chains: list[list[int]] = []

    def propose(self, states: Sequence[DecodeState], settings: Sequence[SpeculativeSettings | None]) -> list[Proposal]:
        proposals = self.inner.propose(states, settings)
        self.chains += [list(proposal.tree.tokens[1:]) for proposal in proposals]
        return proposals


def test_the_engine_shows_these_proposals_and_counts(target: Target, draft: DraftModel, witness: Witness) -> None:
    assert witness.accepted.sum() > len(witness.accepted) / 2, "a draft that proves nothing"
    for c in range(witness.num_conversations):
        text, start = witness.conversation(c).tolist(), int(witness.prompt_lengths[c])
        recorder = Recorder(DraftProposer(draft, draft.new_cache(256)))
        engine = Engine(target, recorder, eos_ids=tiny_eos_ids(), num_slots=256)
        speculation = SpeculativeSettings(num_steps=STEPS, num_draft_tokens=STEPS + 1)
        request = engine.submit(text[:start], SamplingSettings(max_new_tokens=len(text) - start), speculation)
        engine.run()
        assert request.answer == text[start:]
        mine = witness.round_conversations == c
        whole = [r.accepted for r in request.rounds if not r.cut]
        assert witness.accepted[mine].tolist() == whole
        assert witness.proposals[mine].tolist() == recorder.chains[: len(whole)]


def test_fingerprints_are_of_the_taps_at_their_rows(target: Target, witness: Witness) -> None:
    assert len(witness.fingerprint_rows) == 3 * 6
    first = witness.conversation(0).tolist()
    taps = read_text(target, first, witness.info.taps).taps.float().numpy()
    rows = [row for row in witness.fingerprint_rows.tolist() if row < len(first)]
    assert (rows[0], rows[-1]) == (0, len(first) - 1)
    assert np.array_equal(witness.fingerprints[: len(rows)], project(taps[rows], 5))
    shifted = read_text(target, first, tuple(v + 1 for v in witness.info.taps)).taps.float().numpy()
    size = np.abs(witness.fingerprints).max()
    assert np.abs(project(shifted[rows], 5) - witness.fingerprints[: len(rows)]).max() > 0.1 * size


def test_a_witness_is_written_beside_its_contract_and_goes_along(
    target: Target, draft: DraftModel, witness: Witness, contract: Contract, tmp_path: Path
) -> None:
    model = read_draft(tiny_pair()[1], target)
    write_draft(tmp_path / "d", model, target.architecture, contract, witness=witness, files={"README.md": b"card"})
    again = read_witness(tmp_path / "d")
    assert again.to_bytes() == witness.to_bytes()
    load_draft(tmp_path / "d", target, known=ContractFacts(weights_sha256="a" * 64))
    done = export_draft(tmp_path / "d", Goal.parse("speculators"), tmp_path / "s")
    assert done.files == ("README.md", CONTRACT, WITNESS)
    assert read_witness(tmp_path / "s").to_bytes() == witness.to_bytes()
    (tmp_path / "d" / CONTRACT).write_text(contract.model_copy(update={"longest_trained_position": 7}).to_json())
    with pytest.raises(EyasError) as caught:
        read_witness(tmp_path / "d")
    assert caught.value.code == "contract.mismatch"
    with pytest.raises(EyasError) as caught:
        export_draft(tmp_path / "d", Goal.parse("speculators"), tmp_path / "t")
    assert caught.value.code == "contract.mismatch"
    (tmp_path / "d" / CONTRACT).write_text(contract.model_copy(update={"taps": (1, 4, 5)}).to_json())
    with pytest.raises(EyasError, match="taps") as caught:
        export_draft(tmp_path / "d", Goal.parse("speculators"), tmp_path / "t")
    assert caught.value.code == "contract.mismatch"
    assert not (tmp_path / "t").exists()


def test_a_witness_needs_its_contract(target: Target, witness: Witness, tmp_path: Path) -> None:
    model = read_draft(tiny_pair()[1], target)
    with pytest.raises(EyasError) as caught:
        write_draft(tmp_path / "d", model, target.architecture, witness=witness)
    assert caught.value.code == "contract.mismatch"
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("sources", "allowed"),
    [
        ((SELF,), True),
        ((DataSource(name="Self-sampled by the target", licence="llama3.1"),), True),
        ((DataSource(name="code prompts", licence="MIT"), SELF), True),
        ((DataSource(name="sharegpt", licence="not stated"),), False),
        ((SELF, DataSource(name="sharegpt", licence="CC-BY-NC-4.0")), False),
        ((), False),
    ],
)
def test_only_prompts_that_may_be_given_away_are_taken(sources: tuple[DataSource, ...], allowed: bool) -> None:
    if allowed:
        check_sources(sources)
        return
    with pytest.raises(EyasError) as caught:
        check_sources(sources)
    assert caught.value.code == "witness.licence"


def test_an_answer_that_is_not_the_targets_is_refused(
    target: Target, draft: DraftModel, held_out: SampleSet, contract: Contract
) -> None:
    first = held_out.samples[0]
    tokens = first.tokens.copy()
    tokens[-2] = (tokens[-2] + 1) % target.vocab_size
    wrong = replace(held_out, samples=(replace(first, tokens=tokens),))
    with pytest.raises(EyasError) as caught:
        make_witness(target, draft, wrong, contract, STEPS)
    assert caught.value.code == "witness.not-greedy"


def test_a_witness_of_another_contract_or_licence_is_not_made(
    target: Target, draft: DraftModel, held_out: SampleSet, contract: Contract
) -> None:
    for changes, code in (
        ({"tokenizer_sha256": "c" * 64}, "contract.mismatch"),
        ({"target_weights_sha256": "c" * 64}, "contract.mismatch"),
        ({"sources": (DataSource(name="sharegpt", licence="not stated"),)}, "witness.licence"),
    ):
        other = SampleSet(held_out.facts.model_copy(update=changes), held_out.samples)
        with pytest.raises(EyasError) as caught:
            make_witness(target, draft, other, contract, STEPS)
        assert caught.value.code == code
