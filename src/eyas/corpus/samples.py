"""Samples: what training reads of a chat: token ids, and which of them are answers.

The loss-mask rule, ``one-answer``: step i of slot t is trained iff tokens t + 1 … t + 2 + i all lie in one answer of
one conversation; the end-of-turn token belongs to its answer. So the first trained slot is the prompt's last position,
and no step is trained across the end of an answer.
"""

from __future__ import annotations

import hashlib
import io
import json
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
from pydantic import ValidationError

from eyas.artifacts import atomic_write
from eyas.contract.schema import DataSource, Rendering, Sha256, Strict, describe
from eyas.errors import EyasError

LOSS_MASK_RULE = "one-answer"
_FIX = "make the samples again"
_INDEX_DTYPES = (np.uint16, np.uint32)

Array = TypeVar("Array", bound=Any)


@dataclass(frozen=True, eq=False)
class Sample:
    """One conversation as tokens.

    ``tokens`` [n] int32. ``answers``: (begin, end), 1 ≤ begin, of each answer that is trained on, rising, apart; the
    end-of-turn token is its last where the answer was not cut. ``temperature``: at which the answers were drawn; NaN
    if not known or mixed. ``prompt_id``: samples of one prompt share it, and are split together.
    """

    id: str
    prompt_id: str
    domain: str
    tokens: npt.NDArray[np.int32]
    answers: tuple[tuple[int, int], ...]
    temperature: float

    def __post_init__(self) -> None:
        edges = [edge for answer in self.answers for edge in answer]
        assert edges == sorted(edges), self.answers
        assert all(begin < end for begin, end in self.answers), self.answers
        assert not edges or (edges[0] >= 1 and edges[-1] <= len(self.tokens)), (self.answers, len(self.tokens))

    @property
    def answer_tokens(self) -> int:
        """Tokens of all answers."""
        return sum(end - begin for begin, end in self.answers)

    def segments(self) -> npt.NDArray[np.int32]:
        """[n]: 0 outside the answers, k within the k-th."""
        out = np.zeros(len(self.tokens), dtype=np.int32)
        for k, (begin, end) in enumerate(self.answers, 1):
            out[begin:end] = k
        return out

    @property
    def is_trainable(self) -> bool:
        """Whether any slot is trained: some answer has two tokens."""
        return any(end - begin >= 2 for begin, end in self.answers)

    def shortened(self, length: int) -> Sample:
        """The first ``length`` tokens; an answer that is cut loses its end."""
        if len(self.tokens) <= length:
            return self
        answers = tuple((begin, min(end, length)) for begin, end in self.answers if begin < length)
        return replace(self, tokens=self.tokens[:length], answers=answers)


def trained_slots(segments: Array, step: int) -> Array:
    """Which slots t the loss of ``step`` (0 is the first) sees: bool [..., T − 2 − step], of numpy or torch.

    ``segments`` [..., T]: 0 outside answers, else a number that no other answer of the row has.
    """
    length = segments.shape[-1]
    first, last = segments[..., 1 : max(length - 1 - step, 1)], segments[..., 2 + step :]
    return (first > 0) & (first == last)


class SampleFacts(Strict):
    """What all samples of a file share. ``target_weights_sha256``: of the target that gave the answers, if known."""

    tokenizer_sha256: Sha256
    chat_template_sha256: Sha256 | None
    target_weights_sha256: Sha256 | None
    rendering: Rendering
    loss_mask_rule: str
    sources: tuple[DataSource, ...]


@dataclass(frozen=True)
class SampleSet:
    """Samples and what is true of all of them."""

    facts: SampleFacts
    samples: tuple[Sample, ...]


def is_held_out(prompt_id: str, share: float) -> bool:
    """Whether a prompt's samples are held out from training: decided by its name alone, for about ``share`` of all."""
    number = int.from_bytes(hashlib.sha256(prompt_id.encode()).digest()[:8], "big")
    return number < share * 2.0**64


def split(samples: Sequence[Sample], share: float) -> tuple[list[Sample], list[Sample]]:
    """(trained on, held out), by prompt, so that no prompt is on both sides."""
    held = [is_held_out(sample.prompt_id, share) for sample in samples]
    pairs = list(zip(samples, held, strict=True))
    return [sample for sample, out in pairs if not out], [sample for sample, out in pairs if out]


def write_samples(path: Path, made: SampleSet) -> None:
    """Write a compressed ``.npz`` atomically: no pickles, ids as 16 bits where they fit."""
    samples = made.samples
    flat = np.concatenate([s.tokens for s in samples]) if samples else np.zeros(0, dtype=np.int32)
    narrow = next(d for d in _INDEX_DTYPES if flat.max(initial=0) <= np.iinfo(d).max)
    spans = [(number, begin, end) for number, s in enumerate(samples) for begin, end in s.answers]
    texts = {"facts": made.facts.model_dump(mode="json"), **{k: [getattr(s, k) for s in samples] for k in _TEXTS}}
    buffer = io.BytesIO()
    np.savez_compressed(
        buffer,
        tokens=flat.astype(narrow),
        lengths=np.array([len(s.tokens) for s in samples], dtype=np.uint32),
        answers=np.array(spans, dtype=np.uint32).reshape(-1, 3),
        temperatures=np.array([s.temperature for s in samples], dtype=np.float64),
        texts=np.frombuffer(json.dumps(texts, ensure_ascii=False).encode(), dtype=np.uint8),
    )
    atomic_write(path, buffer.getvalue())


_TEXTS = ("id", "prompt_id", "domain")


def read_samples(path: Path) -> SampleSet:
    """Read what :func:`write_samples` wrote. Raises ``artifact.missing``, ``artifact.corrupt``."""
    if not path.is_file():
        raise EyasError("artifact.missing", f"there are no samples at {path}", _FIX)
    try:
        with np.load(path, allow_pickle=False) as data:
            return _unpack({name: data[name] for name in data.files})
    except ValidationError as error:
        raise EyasError("artifact.corrupt", f"{path} holds no samples: {describe(error)}", _FIX) from error
    except (ValueError, LookupError, TypeError, AssertionError, OSError, EOFError, zipfile.BadZipFile) as error:
        raise EyasError("artifact.corrupt", f"{path} holds no samples: {error!r}", _FIX) from error


def _unpack(data: dict[str, npt.NDArray[Any]]) -> SampleSet:
    texts = json.loads(data["texts"].tobytes().decode())
    lengths = data["lengths"].astype(np.int64)
    if lengths.sum() != len(data["tokens"]):
        raise ValueError(f"{lengths.sum()} tokens are expected, and there are {len(data['tokens'])}")
    tokens = np.split(data["tokens"].astype(np.int32), np.cumsum(lengths)[:-1]) if len(lengths) else []
    answers: list[list[tuple[int, int]]] = [[] for _ in lengths]
    for number, begin, end in data["answers"].tolist():
        answers[number].append((begin, end))
    rows = zip(*(texts[k] for k in _TEXTS), tokens, map(tuple, answers), data["temperatures"].tolist(), strict=True)
    return SampleSet(SampleFacts.model_validate_json(json.dumps(texts["facts"])), tuple(Sample(*row) for row in rows))
