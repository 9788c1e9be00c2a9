"""The witness: what it must hold, and that each broken rule is named."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from safetensors.numpy import load, save

from eyas.contract import Witness, WitnessInfo, project
from eyas.errors import EyasError

STEPS, TAPS, HIDDEN, PROJECTIONS = 3, (2, 4, 5), 16, 4


def an_info(**other: Any) -> WitnessInfo:
    values: dict[str, Any] = {
        "witness_version": 1,
        "contract_sha256": "c" * 64,
        "taps": TAPS,
        "hidden_size": HIDDEN,
        "num_projections": PROJECTIONS,
        "num_steps": STEPS,
        "dtype": "float32",
        "temperature": 0.0,
        "seed": None,
        "relative_tolerance": 1e-3,
    }
    return WitnessInfo(**{**values, **other})


def a_witness(seed: int = 0) -> Witness:
    """Two conversations of random tokens, with a draft that is right about two times in three."""
    draw = np.random.default_rng(seed)
    lengths, prompts = [int(n) for n in draw.integers(12, 30, size=2)], [3, 5]
    starts = np.array([0, lengths[0], sum(lengths)], dtype=np.int64)
    tokens = draw.integers(0, 50, size=sum(lengths))
    rounds: list[tuple[int, int, int]] = []
    proposals = []
    for c in range(2):
        text, m = tokens[starts[c] : starts[c + 1]], prompts[c] + 1
        while m + STEPS + 1 <= len(text):
            right = draw.random(STEPS) < 2 / 3
            a = STEPS if right.all() else int(np.argmin(right))
            proposals.append(np.where(right, text[m : m + STEPS], text[m : m + STEPS] + 1))
            rounds.append((c, m, a))
            m += a + 1
    columns = np.array(rounds, dtype=np.int64).T.copy()
    return Witness(
        info=an_info(),
        tokens=tokens,
        starts=starts,
        prompt_lengths=np.array(prompts, dtype=np.int64),
        fingerprint_rows=np.array([1, 4, 9], dtype=np.int64),
        fingerprints=project(draw.standard_normal((3, len(TAPS), HIDDEN)), PROJECTIONS),
        round_conversations=columns[0].copy(),
        round_positions=columns[1].copy(),
        proposals=np.array(proposals, dtype=np.int64),
        accepted=columns[2].copy(),
    )


def arrays_of(witness: Witness) -> dict[str, Any]:
    names = [f.name for f in dataclasses.fields(witness) if f.name != "info"]
    return {name: getattr(witness, name) for name in names}


@given(st.integers(0, 1000))
def test_round_trip(seed: int) -> None:
    witness = a_witness(seed)
    data = witness.to_bytes()
    again = Witness.from_bytes(data)
    assert again.info == witness.info
    for name, array in arrays_of(witness).items():
        assert np.array_equal(getattr(again, name), array), name
    assert again.to_bytes() == data


def test_read(tmp_path: Path) -> None:
    path = tmp_path / "witness.safetensors"
    with pytest.raises(EyasError) as caught:
        Witness.read(path)
    assert caught.value.code == "artifact.missing"
    path.write_bytes(a_witness().to_bytes())
    assert Witness.read(path).num_conversations == 2


def test_conversation() -> None:
    witness = a_witness()
    joined = np.concatenate([witness.conversation(0), witness.conversation(1)])
    assert np.array_equal(joined, witness.tokens)


# Array, entry, what is added to it.
BREAKS = [
    ("tokens", 0, -100),
    ("starts", 0, 1),
    ("starts", -1, 1),
    ("prompt_lengths", 0, -3),
    ("prompt_lengths", 0, 100),
    ("fingerprint_rows", 1, 5),
    ("fingerprint_rows", 2, 1000),
    ("fingerprints", (0, 0, 0), np.nan),
    ("round_conversations", -1, 1),
    ("round_positions", 0, 1),
    ("round_positions", 1, -1),
    ("accepted", 0, STEPS + 1),
    ("accepted", 0, -1),
]


@pytest.mark.parametrize(("name", "entry", "added"), BREAKS)
def test_broken_rules_are_named(name: str, entry: Any, added: float) -> None:
    witness = a_witness()
    array = getattr(witness, name).copy()
    array[entry] += added
    with pytest.raises(EyasError) as caught:
        dataclasses.replace(witness, **{name: array})
    assert caught.value.code == "witness.schema"
    assert caught.value.cause.split(":")[0] in {name, "accepted", "proposals"}


def test_a_wrong_accepted_draft_and_a_refused_right_one() -> None:
    witness = a_witness()
    first = int(np.argmax(witness.accepted > 0))
    proposals = witness.proposals.copy()
    proposals[first, 0] += 1
    with pytest.raises(EyasError, match="accepted draft that is not"):
        dataclasses.replace(witness, proposals=proposals)
    refused = int(np.argmax(witness.accepted < STEPS))
    c, m, a = (
        witness.round_conversations[refused],
        witness.round_positions[refused],
        witness.accepted[refused],
    )
    proposals = witness.proposals.copy()
    proposals[refused, a] = witness.conversation(int(c))[m + a]
    with pytest.raises(EyasError, match="refuses a draft that is"):
        dataclasses.replace(witness, proposals=proposals)


@pytest.mark.parametrize("name", ["tokens", "fingerprints", "proposals", "accepted"])
def test_shapes_and_dtypes(name: str) -> None:
    witness = a_witness()
    array = getattr(witness, name)
    for wrong in (array.astype(np.float64), array[:-1], array[None]):
        with pytest.raises(EyasError) as caught:
            dataclasses.replace(witness, **{name: wrong})
        assert caught.value.code == "witness.schema"


def rewritten(arrays: dict[str, Any], metadata: dict[str, str] | None) -> bytes:
    return save(arrays, metadata=metadata)


def test_foreign_files() -> None:
    witness = a_witness()
    arrays = arrays_of(witness)
    metadata = {"witness": witness.info.model_dump_json()}
    assert load(rewritten(arrays, metadata)).keys() == arrays.keys()
    cases = {
        "missing": rewritten({n: a for n, a in arrays.items() if n != "accepted"}, metadata),
        "unknown array": rewritten({**arrays, "more": arrays["tokens"]}, metadata),
        "I32": rewritten({**arrays, "tokens": arrays["tokens"].astype(np.int32)}, metadata),
        "metadata": rewritten(arrays, None),
        "witness_version": rewritten(
            arrays, {"witness": metadata["witness"].replace('"witness_version":1', '"witness_version":2')}
        ),
    }
    for named, data in cases.items():
        with pytest.raises(EyasError) as caught:
            Witness.from_bytes(data)
        assert caught.value.code == "witness.schema", named
        assert named in caught.value.cause


@given(st.integers(0, 1 << 12))
def test_cut_files(length: int) -> None:
    data = a_witness().to_bytes()
    with pytest.raises(EyasError) as caught:
        Witness.from_bytes(data[: min(length, len(data) - 1)])
    assert caught.value.code == "artifact.corrupt"


@pytest.mark.parametrize(
    "data", [b"", b"\xff" * 64, (5).to_bytes(8, "little") + b"[1,2]", (2).to_bytes(8, "little") + b"{}"]
)
def test_what_is_no_witness(data: bytes) -> None:
    with pytest.raises(EyasError) as caught:
        Witness.from_bytes(data)
    assert caught.value.code in {"artifact.corrupt", "witness.schema"}
