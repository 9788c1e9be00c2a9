"""Fingerprints, each against its specification written out again."""

from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from eyas.contract import (
    WeightEntry,
    file_sha256,
    project,
    projection_signs,
    tokenizer_sha256,
    vocab_map_sha256,
    weights_sha256,
)
from eyas.errors import EyasError


def test_vocab_map_is_little_endian_int64() -> None:
    expected = hashlib.sha256(b"".join(n.to_bytes(8, "little") for n in (0, 2, 5, 16))).hexdigest()
    assert vocab_map_sha256([0, 2, 5, 16]) == expected
    assert vocab_map_sha256(np.array([0, 2, 5, 16], dtype=np.int32)) == expected
    assert vocab_map_sha256([0, 3, 7, 19]) != expected


def test_weights_as_specified() -> None:
    data = np.arange(3, dtype="<f4").tobytes()
    entries = [WeightEntry("a", "F32", (3,), data), WeightEntry("b", "F32", (1, 3), data)]
    size = len(data).to_bytes(8, "little")
    expected = hashlib.sha256(b"a\0F32\x003\0" + size + data + b"b\0F32\x001,3\0" + size + data).hexdigest()
    assert weights_sha256(entries) == expected
    with pytest.raises(AssertionError):
        weights_sha256(reversed(entries))


def test_file(tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(b"x" * (1 << 20) + b"y")
    assert file_sha256(tmp_path / "f") == hashlib.sha256(b"x" * (1 << 20) + b"y").hexdigest()
    with pytest.raises(EyasError) as caught:
        file_sha256(tmp_path / "g")
    assert caught.value.code == "artifact.missing"


@given(st.integers(1, 5), st.integers(1, 300))
def test_signs_follow_the_specification(num_projections: int, width: int) -> None:
    signs = projection_signs(num_projections, width)
    for j, i in ((0, 0), (num_projections - 1, width - 1), (num_projections // 2, width // 3)):
        bit = j * width + i
        digest = hashlib.sha256(b"eyas witness projection 1" + (bit // 256).to_bytes(8, "little")).digest()
        value = digest[bit % 256 // 8] >> (bit % 8) & 1
        assert signs[j, i] == (-1 if value else 1)


def test_signs_do_not_change() -> None:
    assert projection_signs(2, 8).tolist() == SIGNS


def test_projection() -> None:
    taps = np.random.default_rng(0).standard_normal((4, 3, 64)).astype(np.float32)
    prints = project(taps, 8)
    assert prints.shape == (4, 3, 8)
    assert prints.dtype == np.float32
    by_hand = (taps[1, 2].astype(np.float64) * projection_signs(8, 64)[5]).sum() / 8
    assert prints[1, 2, 5] == np.float32(by_hand)


SIGNS = [[-1, 1, 1, 1, 1, -1, 1, 1], [1, -1, -1, 1, -1, 1, 1, -1]]


def test_a_tokenizer_is_known_by_what_it_does() -> None:
    vocabulary = {"a": 0, "b": 1}
    same = tokenizer_sha256(vocabulary, lambda text: [len(text)])
    assert same == tokenizer_sha256({"b": 1, "a": 0}, lambda text: [len(text)])
    assert same != tokenizer_sha256({"a": 0, "c": 1}, lambda text: [len(text)])
    # The same vocabulary, but digits are split otherwise: the trap of the built-in target.
    assert same != tokenizer_sha256(vocabulary, lambda text: [len(text) - sum(c.isdigit() for c in text)])
