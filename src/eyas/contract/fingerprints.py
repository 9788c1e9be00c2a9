"""Hashes and projections that bind a draft to its target, each specified to the byte."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from eyas.errors import EyasError

PROJECTION_KEY = b"eyas witness projection 1"
_CHUNK = 1 << 20


class WeightEntry(NamedTuple):
    """One tensor: canonical name, safetensors dtype name ("F32", "BF16"), shape, little-endian bytes."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    data: bytes | memoryview


def sha256_hex(data: bytes | memoryview) -> str:
    """SHA-256 of the bytes, 64 lower-case hex digits."""
    return hashlib.sha256(data).hexdigest()


def file_sha256(path: Path) -> str:
    """SHA-256 of a file's bytes; raises ``artifact.missing`` when it is not there."""
    digest = hashlib.sha256()
    try:
        with path.open("rb") as file:
            while chunk := file.read(_CHUNK):
                digest.update(chunk)
    except FileNotFoundError as error:
        raise EyasError("artifact.missing", f"{path} does not exist", "check the path") from error
    return digest.hexdigest()


def vocab_map_sha256(offsets: Sequence[int] | npt.NDArray[np.integer]) -> str:
    """SHA-256 of a draft's vocabulary map: its offsets [draft vocabulary] as little-endian int64.

    Offset i is target id minus draft id: target id = i + offsets[i] (the tensor ``d2t``).
    """
    array = np.asarray(offsets)
    assert array.ndim == 1, array.shape
    assert np.issubdtype(array.dtype, np.integer), array.dtype
    return sha256_hex(array.astype("<i8").tobytes())


PROBE_TEXTS = (
    "The year 2026 had 365 days; 3.14159 * 10^-7 = 0x1F.",
    "def f(x: int) -> list[str]:\n\treturn [str(i) for i in range(x)]  # don't\n\n\n",
    "  leading,   inner    and trailing   ",
    "naïve café, größer, ÉCOLE, Привет мир, 你好世界, こんにちは, مرحبا, 👩‍💻🎉",
    "It's we'll I'VE \r\n CamelCase snake_case kebab-case https://example.org/a?b=c&d=e",
)
"""Texts on which tokenizers differ that share a vocabulary: digits, spaces, contractions, scripts, code."""


def tokenizer_sha256(vocabulary: Mapping[str, int], encode: Callable[[str], Sequence[int]]) -> str:
    """Fingerprint of what a tokenizer does, whatever file format or library version it came from.

    SHA-256 over ``id TAB token NEWLINE`` in UTF-8 for all tokens sorted by id, then, for each of PROBE_TEXTS, its
    ids (no special tokens added) joined by "," and a newline.
    """
    lines = [f"{i}\t{token}\n" for token, i in sorted(vocabulary.items(), key=lambda item: item[1])]
    lines += [",".join(map(str, encode(text))) + "\n" for text in PROBE_TEXTS]
    return sha256_hex("".join(lines).encode("utf-8", "surrogatepass"))


def weights_sha256(entries: Iterable[WeightEntry]) -> str:
    """Fingerprint of a set of weights, whatever their sharding.

    SHA-256 over the tensors sorted by name (as Python sorts strings). Each contributes: name in UTF-8, byte
    0, dtype, byte 0, the shape as decimal numbers joined by ",", byte 0, the number of data bytes as
    little-endian uint64, the data. ``entries`` come in sorted order, so that only one tensor need be in
    memory.
    """
    digest = hashlib.sha256()
    previous: str | None = None
    for name, dtype, shape, data in entries:
        assert previous is None or previous < name, (previous, name)
        previous = name
        view = memoryview(data).cast("B")
        digest.update(f"{name}\0{dtype}\0{','.join(map(str, shape))}\0".encode())
        digest.update(len(view).to_bytes(8, "little"))
        digest.update(view)
    assert previous is not None, "no tensors"
    return digest.hexdigest()


def projection_signs(num_projections: int, width: int) -> npt.NDArray[np.int8]:
    """The ±1 matrix [num_projections, width] that fingerprints a tap of ``width`` values.

    The bit stream is SHA-256(K ‖ 0) ‖ SHA-256(K ‖ 1) ‖ …, where K is the ASCII text ``eyas witness projection
    1`` and the counter a little-endian uint64; within a byte the lowest bit comes first. Entry (j, i) is +1
    if bit j·width + i is 0, else −1.
    """
    assert min(num_projections, width) >= 1, (num_projections, width)
    blocks = -(-num_projections * width // 256)
    stream = b"".join(
        hashlib.sha256(PROJECTION_KEY + counter.to_bytes(8, "little")).digest() for counter in range(blocks)
    )
    bits = np.unpackbits(np.frombuffer(stream, dtype=np.uint8), bitorder="little")[: num_projections * width]
    return (1 - 2 * bits.astype(np.int8)).reshape(num_projections, width)


def project(taps: npt.NDArray[np.floating], num_projections: int) -> npt.NDArray[np.float32]:
    """Fingerprints [..., num_projections] of taps [..., hidden]: signs @ tap / sqrt(hidden).

    Summed in float64, stored as float32. All taps share the signs. The root makes a fingerprint as large as
    the tap's root mean square, whatever the width.
    """
    width = taps.shape[-1]
    signs = projection_signs(num_projections, width).astype(np.float64)
    return (taps.astype(np.float64) @ signs.T / np.sqrt(width)).astype(np.float32)
