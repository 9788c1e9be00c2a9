"""The witness, version 1: conversations with what must come out, as ``witness.safetensors`` beside a draft.

Replayed in any engine, the first figure that differs names the broken link: tokens (target), tap fingerprints
(capture), proposals (draft), accepted counts (cache). All rounds are chains of K one-hot drafts.
"""

from __future__ import annotations

import json
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import numpy as np
import numpy.typing as npt
from pydantic import Field, ValidationError
from safetensors import SafetensorError
from safetensors.numpy import load, save

from eyas.contract.schema import Count, Sha256, Strict, describe
from eyas.errors import EyasError

WITNESS_VERSION = 1
# Replaying takes seconds, so a witness is small; a larger file is something else and is not read into memory.
MAX_BYTES = 1 << 26
_METADATA_KEY = "witness"
_FIX = "take witness.safetensors from the draft's source again"

Int64 = npt.NDArray[np.int64]


class WitnessInfo(Strict):
    """What the arrays mean. ``contract_sha256``: of the bytes of the contract that it belongs to.

    ``taps``: in the feature's order. ``temperature`` and ``seed``: how the target's tokens were drawn (seed
    None at 0). ``relative_tolerance``: by how much a right engine's fingerprints may differ, relative to the
    largest of their position.
    """

    witness_version: Literal[1]
    contract_sha256: Sha256
    taps: tuple[int, ...]
    hidden_size: Count
    num_projections: Count
    num_steps: Count
    dtype: Literal["float32", "bfloat16", "float16"]
    temperature: Annotated[float, Field(ge=0)]
    seed: int | None
    relative_tolerance: Annotated[float, Field(gt=0, lt=1)]


@dataclass(frozen=True)
class Witness:
    """Held-out conversations, one prompt and one answer each: C of them, with N rounds and P positions.

    - ``tokens`` [T]: all conversations one after the other; ``starts`` [C + 1]: conversation c is
      ``tokens[starts[c]:starts[c+1]]``
    - ``prompt_lengths`` [C]: tokens of the prompt; those after it are the target's own
    - ``fingerprint_rows`` [P]: indices into ``tokens``, rising; ``fingerprints`` [P, taps, projections]
      float32: see ``project``
    - ``round_conversations`` [N], ``round_positions`` [N]: the conversation, and its tokens committed before
      the round, so that the round's root is the token at that number minus 1; the first round of each has the
      prompt and the prefill's token
    - ``proposals`` [N, K], ``accepted`` [N]: target ids, and how many of them were accepted; no cut rounds

    All int64 but the fingerprints. Constructing one checks every rule; ``witness.schema`` names the array
    that breaks one.
    """

    info: WitnessInfo
    tokens: Int64
    starts: Int64
    prompt_lengths: Int64
    fingerprint_rows: Int64
    fingerprints: npt.NDArray[np.float32]
    round_conversations: Int64
    round_positions: Int64
    proposals: Int64
    accepted: Int64

    def __post_init__(self) -> None:
        _check_shapes(self)
        _check_conversations(self)
        _check_fingerprints(self)
        _check_rounds(self)

    @property
    def num_conversations(self) -> int:
        """C."""
        return len(self.prompt_lengths)

    def conversation(self, index: int) -> Int64:
        """Tokens of one conversation, prompt and answer."""
        return self.tokens[self.starts[index] : self.starts[index + 1]]

    def to_bytes(self) -> bytes:
        """The file's bytes: safetensors with the info as JSON under the metadata key ``witness``."""
        arrays = {name: np.ascontiguousarray(getattr(self, name)) for name in _DTYPES}
        info = json.dumps(self.info.model_dump(mode="json"), sort_keys=True, allow_nan=False)
        return save(arrays, metadata={_METADATA_KEY: info})

    @classmethod
    def from_bytes(cls, data: bytes) -> Witness:
        """Read what :meth:`to_bytes` wrote. Raises ``artifact.corrupt`` for no or cut safetensors, else
        ``witness.schema``.
        """
        info = _read_info(data)
        try:
            arrays = load(data)
        except SafetensorError as error:
            raise EyasError(
                "artifact.corrupt", f"the witness is not a whole safetensors file: {error}", _FIX
            ) from error
        return cls(info=info, **{name: arrays[name] for name in _DTYPES})

    @classmethod
    def read(cls, path: Path) -> Witness:
        """Read a file. Raises ``artifact.missing``, ``artifact.corrupt``, ``witness.schema``."""
        try:
            size = path.stat().st_size
            if size > MAX_BYTES:
                raise _wrong(f"{path} has {size} bytes, a witness at most {MAX_BYTES}")
            data = path.read_bytes()
        except FileNotFoundError as error:
            fix = "name the folder of a draft that has a witness"
            raise EyasError("artifact.missing", f"there is no witness at {path}", fix) from error
        return cls.from_bytes(data)


# Each array's dtype and number of dimensions.
_DTYPES: dict[str, tuple[str, int]] = {
    "tokens": ("I64", 1),
    "starts": ("I64", 1),
    "prompt_lengths": ("I64", 1),
    "fingerprint_rows": ("I64", 1),
    "fingerprints": ("F32", 3),
    "round_conversations": ("I64", 1),
    "round_positions": ("I64", 1),
    "proposals": ("I64", 2),
    "accepted": ("I64", 1),
}
_NUMPY = {"I64": np.int64, "F32": np.float32}


def _wrong(cause: str) -> EyasError:
    return EyasError("witness.schema", cause, _FIX)


def _require(holds: bool | np.bool_, cause: str) -> None:
    if not holds:
        raise _wrong(cause)


def _read_info(data: bytes) -> WitnessInfo:
    """Metadata and dtypes from the header alone, because numpy's reader drops the one and stumbles over the
    other.
    """
    try:
        (length,) = struct.unpack_from("<Q", data)
        header = json.loads(data[8 : 8 + length].decode("utf-8"))
        text = header.pop("__metadata__", {}).get(_METADATA_KEY)
        dtypes = {name: entry["dtype"] for name, entry in header.items()}
    except (struct.error, ValueError, RecursionError, AttributeError, TypeError, KeyError) as error:
        raise EyasError("artifact.corrupt", f"the witness is not a whole safetensors file: {error}", _FIX) from error
    expected = {name: dtype for name, (dtype, _) in _DTYPES.items()}
    for name in sorted(expected.keys() | dtypes.keys()):
        _require(name in expected, f"{name}: unknown array")
        _require(name in dtypes, f"{name}: missing")
        _require(dtypes[name] == expected[name], f"{name}: {dtypes[name]}, and {expected[name]} is expected")
    _require(isinstance(text, str), f"metadata key {_METADATA_KEY!r}: missing")
    try:
        return WitnessInfo.model_validate_json(text)
    except ValidationError as error:
        raise _wrong(describe(error)) from error


def _check_shapes(w: Witness) -> None:
    for name, (dtype, dimensions) in _DTYPES.items():
        array = getattr(w, name)
        _require(
            array.dtype == _NUMPY[dtype],
            f"{name}: dtype {array.dtype}, and {_NUMPY[dtype].__name__} is expected",
        )
        _require(array.ndim == dimensions, f"{name}: {array.ndim} dimensions, and {dimensions} are expected")
    conversations, rounds = len(w.prompt_lengths), len(w.accepted)
    shapes = {
        "starts": (conversations + 1,),
        "fingerprints": (len(w.fingerprint_rows), len(w.info.taps), w.info.num_projections),
        "round_conversations": (rounds,),
        "round_positions": (rounds,),
        "proposals": (rounds, w.info.num_steps),
    }
    for name, shape in shapes.items():
        actual = getattr(w, name).shape
        _require(actual == shape, f"{name}: shape {actual}, and {shape} follows from the other arrays")


def _check_conversations(w: Witness) -> None:
    _require(w.num_conversations >= 1, "prompt_lengths: no conversation")
    _require((w.tokens >= 0).all(), "tokens: negative id")
    _require(w.starts[0] == 0 and w.starts[-1] == len(w.tokens), "starts: do not span the tokens")
    lengths = np.diff(w.starts)
    _require((w.prompt_lengths >= 1).all(), "prompt_lengths: an empty prompt")
    _require((lengths > w.prompt_lengths).all(), "prompt_lengths: a conversation without an answer")


def _check_fingerprints(w: Witness) -> None:
    rows = w.fingerprint_rows
    _require((np.diff(rows) > 0).all(), "fingerprint_rows: not rising")
    _require(((rows >= 0) & (rows < len(w.tokens))).all(), "fingerprint_rows: outside the tokens")
    _require(np.isfinite(w.fingerprints).all(), "fingerprints: NaN or infinity")
    _require(len(set(w.info.taps)) == len(w.info.taps), "taps: one is named twice")
    _require(len(w.info.taps) >= 1, "taps: none is named")


def _check_rounds(w: Witness) -> None:
    """Replay the counts over the tokens: a round commits its accepted drafts and the target's next token."""
    _require((np.diff(w.round_conversations) >= 0).all(), "round_conversations: not in order")
    committed: dict[int, int] = {}
    for r, (c, m, a) in enumerate(zip(w.round_conversations, w.round_positions, w.accepted, strict=True)):
        _require(0 <= c < w.num_conversations, f"round_conversations: round {r} names conversation {c}")
        expected = committed.get(int(c), int(w.prompt_lengths[c]) + 1)
        _require(
            m == expected,
            f"round_positions: round {r} starts at {m}, and {expected} follows from the rounds before",
        )
        _require(0 <= a <= w.info.num_steps, f"accepted: {a} of {w.info.num_steps} drafts in round {r}")
        text = w.conversation(int(c))
        _require(m + a + 1 <= len(text), f"accepted: round {r} goes beyond the end of its conversation")
        right = w.proposals[r, : a + 1] == text[m : m + len(w.proposals[r, : a + 1])]
        _require(right[:a].all(), f"proposals: round {r} has an accepted draft that is not the target's token")
        _require(
            a == w.info.num_steps or not right[a],
            f"accepted: round {r} refuses a draft that is the target's token",
        )
        committed[int(c)] = int(m + a + 1)
